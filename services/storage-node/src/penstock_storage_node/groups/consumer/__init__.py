"""Groups of the consumer protocol (KIP-848), whose assignments the coordinator makes.

`assignors`        How partitions are shared out: `uniform` and `range`, as pure functions.
`classic_members`  Answers members of the classic protocol in a consumer group (KIP-848's online migration).
`group`            A group as data: its members, epochs, target and current assignments.
`protocol`         What happens to it: ConsumerGroupHeartbeat, and what follows from silence.
`regex`            Regular expressions of subscriptions, as RE2 has them.
`subscribed_regexes`  Which topics the regular expressions of a group's members stand for.
`subscription`     What classic consumers tell one another through the coordinator, read and written.
"""
