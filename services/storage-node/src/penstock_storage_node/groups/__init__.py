"""The group coordinator: groups and committed offsets of the partitions of `__consumer_offsets` led here.

All but `host` decide and are plain synchronous objects: clock, ids, metadata and log are passed in. A
shard is composed of a store and of the protocols that work on it; nothing here inherits.

`classic`   Groups of the classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.
`consumer`  Groups of the consumer protocol (KIP-848), and the classic members that they may have.
`holdings`  What groups hold of a node, whose it is, and what nobody may go beyond.
`host`      The shell around shards: it makes them, loads them, ticks them, and appends what they write.
`offsets`   Committed offsets: OffsetCommit, OffsetFetch, OffsetDelete, expiry.
`records`   The records of `__consumer_offsets`, byte for byte as Kafka's coordinator writes them.
`shard`     One partition of `__consumer_offsets`: owns the parts, and sends each request to the one it is for.
`store`     The data of a shard, what is passed in, and what is asked of a group of either kind.
`transactional_offsets`  Offsets of transactions that have not ended.

Imports go one way: host > shard > offsets | consumer > classic > store > holdings | transactional_offsets > records.
"""
