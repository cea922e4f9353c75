"""Kafka requests that this node answers, whatever way they came in. No gRPC.

`client_stream`      the way back to one client, and what is held for it
`deferred_appends`   requests that cannot be appended at once
`delete_records`     DeleteRecords (KIP-107): raise a partition's log start
`describe_node`      DescribeProducers, and the requests about a node's own disk
`dispatch`           which handler answers which Kafka request, and the node's own (direct) listener
`fetch`              fetch: records up to the high watermark, waiting for them when there are too few
`groups`             requests to the group coordinator, for every way in
`groups_codec`       requests and responses of group APIs
`list_offsets`       ListOffsets and OffsetForLeaderEpoch
`preferred_replica`  Fetch from the nearest replica (KIP-392)
`produce`            produce: check, append, answer when the acks are there
`produce_outcomes`   what becomes of each partition of a Produce request, and the one response that they make
`request_context`    who a Kafka request comes from, and what the way back needs to know of its answer
`retry_gate`         batches of idempotent producers that were refused here a moment ago, and what they
                     explain
`rights`             what the sender of a request may do
`transactions`       requests to the transaction coordinator, for every way in
`transactional_appends`  batches of transactions that wait until their coordinator has been asked
`transactional_commits`  TxnOffsetCommit: offsets of a group that count once a transaction is committed
`write_markers`      WriteTxnMarkers: an operator ends a transaction that hangs
"""
