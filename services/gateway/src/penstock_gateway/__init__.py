"""Penstock's gateway: the one address that every client needs.

`http`          the REST API
`kafka`         Kafka clients' connections
`metrics`       counters of one gateway
`ports`         what the gateway takes from the world around it
`registration`  registration with the controllers, and the session that keeps it
`relay`         requests on their way to partition leaders and back, for Kafka connections and native calls
                alike
`role`          find the cluster, open the doors, be named, drain, leave
`routing`       what the gateway decides
`rpc`           the native client API (proto/penstock/v1/gateway.proto), for Spark and Penstock's own clients
`settings`      flags, variables and TOML keys of the role

Stateless: what it knows comes from the controllers' metadata stream, what it holds are connections.
"""
