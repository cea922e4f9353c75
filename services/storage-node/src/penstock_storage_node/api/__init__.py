"""What a storage node answers: replication, relayed and direct Kafka requests, range reads.

`wire`        the data-carrying messages of the contract, read and written without copies
`replicate`   Replicate, the leader's end
`link`        Replicate, the follower's end
`forward`     Forward: Kafka requests relayed by a gateway
`fetch_range` FetchRange: raw batches of a range of offsets
`kafka`       which handler answers which Kafka request; the direct listener
`produce`, `fetch`, `offsets`  the handlers
`service`     all of it as one gRPC service
"""
