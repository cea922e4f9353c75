"""Requests on their way to partition leaders and back, for Kafka connections and native calls alike.

`describe_producers`  DescribeProducers, as it is relayed
`fetch`               Fetch, as it is relayed, and what makes a consumer look for a leader that has moved
`groups`              requests for group coordinators
`items`               a request's partitions: how they are named, which are known, what nodes answered
`node_stream`         one `Forward` stream
`produce`             Produce, as it is relayed
`queries`             ListOffsets, OffsetForLeaderEpoch and DeleteRecords
`request`             one client request that is relayed: what all APIs have in common
`session`             relaying requests to partition leaders
"""
