"""Kafka requests that this node answers, whatever way they came in. No gRPC.

`deferred_appends`   Requests that cannot be appended at once
`delete_records`     DeleteRecords (KIP-107)
`describe_node`      DescribeProducers, and the requests about a node's own disk
`dispatch`           Which handler answers which Kafka request, and the node's own (direct) listener
`fetch`              Fetch
`groups`             Requests to the group coordinator, for every way in
`groups_codec`       Requests and responses of group APIs
`list_offsets`       ListOffsets and OffsetForLeaderEpoch
`preferred_replica`  Fetch from the nearest replica (KIP-392)
`produce`            Produce
`request_context`    Who a Kafka request comes from, and what the way back needs to know of its answer
`retry_gate`         Batches of idempotent producers that were refused here a moment ago, and what they
"""
