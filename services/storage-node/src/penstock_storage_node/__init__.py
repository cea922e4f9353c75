"""Penstock's storage node: partition logs on its own disk, led or followed.

`cluster`      the node and the controllers
`coordinator_host`  the shell around coordinators, of groups and of transactions
`disk`         the disk under all logs of the node
`groups`       the group coordinator: groups and committed offsets of the partitions of `__consumer_offsets`
               led here
`kafka`        Kafka requests that this node answers, whatever way they came in
`log`          partition logs on a storage node's own disk, in Kafka's file form byte for byte
`metrics`      what a storage node counts
`ports`        what the node takes from the world around it
`replica`      the partitions of this node, and what becomes of them
`replication`  replication as plain state machines
`reporting`    metrics that take a look at many things, or at other nodes
`role`         the storage node role
`rpc`          the node's gRPC: replication, relayed requests, range reads
`settings`     settings of the storage node role
`timers`       deadlines as data: a queue that says which one rings, for whoever owns the clock
`topic_traffic`  bytes and records in and out by topic
`transactions`  the transaction coordinator: the partitions of `__transaction_state` led here

Each package may import those below it, never one above (`make lint`).
"""
