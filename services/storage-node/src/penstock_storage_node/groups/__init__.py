"""The group coordinator: groups and committed offsets of the partitions of `__consumer_offsets` led here.

`classic`   groups of the classic protocol
`consumer`  groups of the consumer protocol (KIP-848)
`host`      the shell around shards
`offsets`   committed offsets: OffsetCommit, OffsetFetch, OffsetDelete, expiry
`records`   records of `__consumer_offsets`, byte for byte as Kafka's coordinator writes them
`shard`     one partition of `__consumer_offsets` that this node leads
`store`     what the parts of a shard share
`timers`    deadlines as data: a heap of them, and `due` for whoever owns the clock

All but `host` decide and are plain synchronous objects: clock, ids and log are passed in. `host` is the
shell around them.
"""
