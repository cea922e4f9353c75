"""Requests and responses of group APIs.

`classic`   Responses of the group coordinator, from its results to bytes
`consumer`  Responses to ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848)
`hot`       Heartbeat, OffsetCommit and ConsumerGroupHeartbeat by hand
"""
