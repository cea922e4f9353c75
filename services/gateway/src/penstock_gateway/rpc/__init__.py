"""The native client API (proto/penstock/v1/gateway.proto), for Spark and Penstock's own clients.

`describe`     answers of `Describe`, from a metadata image
`fetch_range`  FetchRange relayed: one client call over as many leaders as it takes
`offsets`      Kafka requests of the native API's own making, over the same relay as clients' requests
<<<<<<< HEAD
`produce`      one native Produce stream
`range_wire`   what a relay must know of a `FetchRangeResponse`, by hand
`service`      the gRPC service
=======
`produce`      One native Produce stream
`service`      The gRPC service `penstock.v1.Gateway`
>>>>>>> fbb6890 (Protobuf by hand is read and written in one place: both ends of a message in one file of penstock_proto.fast, one varint)
"""
