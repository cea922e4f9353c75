"""The node's gRPC: replication, relayed requests, range reads. Nothing else in the node imports grpc but the role.

`bidirectional`       Running the two directions of a gRPC stream, and ending them in the right order
`catch_up_throttle`   How fast this node feeds replicas that others rebuild, and is fed with its own
`fetch_range`         FetchRange
`forward`             Forward
`log_ends`            Positions
`paced_inlet`         What comes to a replica that is rebuilt, and waits until the node's budget allows it
`replicate_follower`  Replicate, the follower's end
`replicate_leader`    Replicate, the leader's end
`replication_lanes`   The two streams of a pair of nodes
`service`             The Storage service of the contract, registered with serializers of its own
`size_ranges`         SizeRanges
`strays`              DescribeStrays and DeleteStray
`transaction_messages`  The messages of Transactions
`transaction_service`   Transactions, the end that is called
`transaction_streams`   Transactions, the end that opens the stream
`units`               BeginStage, CommitUnit, AbortStage, DescribeSink, ListSinks

"""
