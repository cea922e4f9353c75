"""Kafka clients: their connections, and the relay of their requests to leaders.

`forward_wire`  the bytes of `Forward` messages, by hand
`group_calls`   requests for group coordinators
`handler`       what becomes of a frame: answered here, or relayed
`node_stream`   one `Forward` stream: a client connection and a storage node
`queries`       requests that may be asked again: ListOffsets, OffsetForLeaderEpoch and others
`relay`         one relay session per client connection, and what sessions share
`requests`      one request in flight: taking it apart, joining the answers; Produce and Fetch
"""
