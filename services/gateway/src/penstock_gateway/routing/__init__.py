"""What the gateway decides: addresses, leaders, splitting. No asyncio, no gRPC, no clock.

`addresses`  the address at which a client finds each node id
`fences`     keeps later batches of an idempotent producer behind one that failed
`flights`    requests in flight: where each goes, and what becomes of it when leadership moves
`networks`   which advertised address a client's network gets
`spelling`   several node ids on one address, for clients that know brokers by host and port
`spread`     node ids over gateway addresses, the same way on every gateway
"""
