"""What the gateway decides: addresses, leaders, order. No asyncio, no gRPC, no clock.

`address_aliases`  Several node ids on one address, for clients that know brokers by host and port
`addresses`        The address at which a client is told to find each node id
`client_networks`  Which of a listener's advertised addresses a client is answered with
`in_flight`        The requests of one client connection on their way to partition leaders
`node_spread`      Spreads node ids over gateway addresses, the same way on every gateway
`retry_gate`       Keeps an idempotent producer's pipelined batches behind the one that was answered with a
"""
