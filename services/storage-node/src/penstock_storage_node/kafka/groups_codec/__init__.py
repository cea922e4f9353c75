"""Requests and responses of group APIs.

`classic`   responses of the group coordinator, from its results to bytes
`consumer`  responses to ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848)
`hot`       heartbeat, OffsetCommit and ConsumerGroupHeartbeat by hand
"""
