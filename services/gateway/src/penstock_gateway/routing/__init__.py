"""What the gateway decides: addresses, leaders, order. No asyncio, no gRPC, no clock.

`address_aliases`  several node ids on one address, for clients that know brokers by host and port
`addresses`        the address at which a client finds each node id
`client_networks`  which of a listener's advertised addresses a client is answered with
`flight`           a request in flight, or a part of one whose partitions have one leader
`in_flight`        the requests of one client connection on their way to partition leaders
`node_spread`      spreads node ids over gateway addresses, the same way on every gateway
`partition_lines`  the order of Produce flights, partition by partition
`retry_gate`       keeps an idempotent producer's pipelined batches behind the one that was answered with a
                   failure
"""
