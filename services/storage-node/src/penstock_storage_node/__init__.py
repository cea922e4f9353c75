"""Penstock's storage node: partition logs on its own disk, led or followed.

Each package may import those below it, never one above (`make lint`).

`cluster`      The node and the controllers
`disk`         The disk under all logs of the node
`groups`       The group coordinator
`kafka`        Kafka requests that this node answers, whatever way they came in
`log`          Partition logs on a storage node's own disk, in Kafka's file form byte for byte
`metrics`      What a storage node counts
`replica`      The partitions of this node, and what becomes of them
`replication`  Replication as plain state machines
`reporting`    Metrics that take a look at other nodes
`role`         The storage node role
`rpc`          The node's gRPC
`settings`     Settings of the storage node role
"""
