"""The group coordinator: groups and committed offsets of the partitions of `__consumer_offsets` led here.

All but `host` decide and are plain synchronous objects: clock, ids and log are passed in. `host` is the
shell around them.

`classic`   Groups of the classic protocol
`consumer`  Groups of the consumer protocol (KIP-848)
`host`      The shell around shards
`offsets`   Committed offsets
`records`   Records of `__consumer_offsets`, byte for byte as Kafka's coordinator writes them
`shard`     One partition of `__consumer_offsets` that this node leads
`store`     What the parts of a shard share
`timers`    Deadlines as data
"""
