"""Requests on their way to partition leaders and back, for Kafka connections and native calls alike.

<<<<<<< HEAD
`forward_wire`  the bytes of `Forward` messages (proto/penstock/v1/storage.proto), by hand
`groups`        requests for group coordinators
`node_stream`   one `Forward` stream: (client connection, storage node)
=======
`groups`        Requests for group coordinators
`node_stream`   One `Forward` stream
>>>>>>> fbb6890 (Protobuf by hand is read and written in one place: both ends of a message in one file of penstock_proto.fast, one varint)
`queries`       ListOffsets, OffsetForLeaderEpoch and others
`requests`      one client request that is relayed
`session`       relaying requests to partition leaders
"""
