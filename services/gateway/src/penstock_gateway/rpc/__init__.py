"""The native client API (proto/penstock/v1/gateway.proto), for Spark and Penstock's own clients.

`asking`       ListOffsets of the API's own making, over the same relay
`describe`     answers of `Describe`, from a metadata image
`fetch_range`  FetchRange: one client call over as many leaders as it takes
`producing`    one Produce stream
`range_wire`   what a relay must know of a `FetchRangeResponse`, by hand
`service`      the gRPC service
"""
