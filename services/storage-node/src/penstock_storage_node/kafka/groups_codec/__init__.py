"""Requests and responses of the group APIs, between bytes and what a shard takes and gives.

`classic`   Responses of the classic protocol's and the administrators' APIs.
`consumer`  Responses to ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848).
`hot`       Heartbeat, OffsetCommit and ConsumerGroupHeartbeat, read and written by hand.
"""
