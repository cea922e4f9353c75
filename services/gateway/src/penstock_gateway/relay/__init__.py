"""Requests on their way to partition leaders and back, for Kafka connections and native calls alike.

`client_relay`        relaying one client's requests to partition leaders
`coordinator_calls`   requests for coordinators: routed by the id in the body, split by coordinator
`describe_producers`  DescribeProducers, as it is relayed
`fetch`               Fetch, as it is relayed, and what makes a consumer look for a leader that has moved
`groups`              requests for group coordinators
`items`               a request's partitions: how they are named, which are known, what nodes answered
`node_stream`         one `Forward` stream
`produce`             Produce, as it is relayed
`queries`             ListOffsets, OffsetForLeaderEpoch and DeleteRecords
`relay`               the relay of a gateway: what those of all its clients share
`request`             one client request that is relayed: what all APIs have in common
`rights`              what the sender of one relayed request may do
`transactions`        requests of transactions, and the markers by which an operator ends one
"""
