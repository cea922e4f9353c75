"""Groups of the consumer protocol (KIP-848): ConsumerGroupHeartbeat.

`assignors`        Server-side assignors of the consumer protocol
`classic_members`  members of the classic protocol in a consumer group (KIP-848's online migration)
`group`            a group of the consumer protocol (KIP-848)
`protocol`         the consumer group protocol (KIP-848)
`regex`            regular expressions of subscriptions
`subscription`     what classic consumers tell one another through the coordinator
"""
