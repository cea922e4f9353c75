"""The native client API (proto/penstock/v1/gateway.proto), for Spark and Penstock's own clients.

`describe`     Answers of `Describe`, from a metadata image
`fetch_range`  FetchRange relayed
`offsets`      Kafka requests of the native API's own making, over the same relay as clients' requests
`produce`      One native Produce stream
`range_wire`   What a relay must know of a `FetchRangeResponse` (proto/penstock/v1/data.proto), by hand
`service`      The gRPC service `penstock.v1.Gateway`
"""
