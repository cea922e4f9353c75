"""Messages that carry records, read and written by hand: both ends of each in one file.

The generated classes copy a bytes field when it is set, when a message is serialised, when one is parsed,
and when the field is asked for. Here a message is one join of buffers, and reading gives views onto what
gRPC received. What is written is plain proto3 of `storage.proto` and `data.proto`; tests hold both
directions against the generated classes. Small messages use those classes. Unknown fields are skipped.

`primitives`   Varints and fields; MalformedMessage
`pieces`       Batches too large for one message
`forward`      ForwardRequest and ForwardResponse, between gateways and nodes
`replicate`    ReplicateResponse, from leaders to followers
`fetch_range`  FetchRangeResponse, from nodes through gateways to readers
"""
