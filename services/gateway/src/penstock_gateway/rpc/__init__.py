"""The native client API (proto/penstock/v1/gateway.proto), for Spark and Penstock's own clients.

`describe`     answers of `Describe`, from a metadata image
`fetch_range`  FetchRange relayed: one client call over as many leaders as it takes
`offsets`      Kafka requests of the native API's own making, over the same relay as clients' requests
`produce`      one native Produce stream
`range_wire`   what a relay must know of a `FetchRangeResponse`, by hand
`service`      the gRPC service
"""
