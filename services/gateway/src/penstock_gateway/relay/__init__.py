"""Requests on their way to partition leaders and back, for Kafka connections and native calls alike.

`forward_wire`  the bytes of `Forward` messages (proto/penstock/v1/storage.proto), by hand
`groups`        requests for group coordinators
`node_stream`   one `Forward` stream: (client connection, storage node)
`queries`       ListOffsets, OffsetForLeaderEpoch and others
`requests`      one client request that is relayed
`session`       relaying requests to partition leaders
"""
