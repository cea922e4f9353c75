"""Penstock's gateway: the one address that every client needs.

`http`          the REST API
`kafka`         Kafka clients: their connections, and the relay of their requests
`metrics`       counters of one gateway
`native`        the native gRPC API
`registration`  registration with the controllers, and the session that keeps it
`role`          find the cluster, open the doors, be named, drain, leave
`routing`       what the gateway decides
`settings`      flags, variables and TOML keys of the role

Stateless: what it knows comes from the controllers' metadata stream, what it holds
are connections. `routing/` decides and knows no event loop; `kafka/`, `native/` and
`http/` are the shells that carry its decisions out.
"""
