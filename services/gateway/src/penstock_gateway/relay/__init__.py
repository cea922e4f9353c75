"""Requests on their way to partition leaders and back, for Kafka connections and native calls alike.

`forward_wire`  The bytes of `Forward` messages (proto/penstock/v1/storage.proto), by hand
`groups`        Requests for group coordinators
`node_stream`   One `Forward` stream
`queries`       ListOffsets, OffsetForLeaderEpoch and others
`requests`      One client request that is relayed
`session`       Relaying requests to partition leaders
"""
