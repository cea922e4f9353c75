"""The node's gRPC: replication, relayed requests, range reads. Nothing else in the node imports grpc but the role.

<<<<<<< HEAD
`bidirectional`       running the two directions of a gRPC stream, and ending them in the right order
`codec`               protobuf by hand, for the messages that carry records
`fetch_range`         FetchRange: raw batches of offsets from..to of one partition, as a server stream
`forward`             forward: Kafka requests that a gateway relays, one stream per client connection
`log_ends`            positions: how far offsets lie behind the ends of partitions that this node leads
`replicate_follower`  replicate, the follower's end
`replicate_leader`    replicate, the leader's end
`replication_lanes`   the two streams of a pair of nodes
`service`             the Storage service of the contract, registered with serializers of its own
=======
`bidirectional`       Running the two directions of a gRPC stream, and ending them in the right order
`fetch_range`         FetchRange
`forward`             Forward
`log_ends`            Positions
`replicate_follower`  Replicate, the follower's end
`replicate_leader`    Replicate, the leader's end
`replication_lanes`   The two streams of a pair of nodes
`service`             The Storage service of the contract, registered with serializers of its own
>>>>>>> fbb6890 (Protobuf by hand is read and written in one place: both ends of a message in one file of penstock_proto.fast, one varint)
"""
