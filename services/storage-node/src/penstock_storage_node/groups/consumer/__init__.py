"""Groups of the consumer protocol (KIP-848): ConsumerGroupHeartbeat.

`assignors`        Server-side assignors of the consumer protocol
`classic_members`  Members of the classic protocol in a consumer group (KIP-848's online migration)
`group`            A group of the consumer protocol (KIP-848)
`protocol`         The consumer group protocol (KIP-848)
`regex`            Regular expressions of subscriptions
`subscription`     What classic consumers tell one another through the coordinator
"""
