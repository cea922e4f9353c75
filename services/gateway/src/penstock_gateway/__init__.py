"""Penstock's gateway: the one address that every client needs.

Stateless: what it knows comes from the controllers' metadata stream, what it holds are connections.

`http`          The gateway's REST API
`kafka`         Kafka clients' connections
`metrics`       What the gateway counts beside its listeners' own counters (`penstock_kafka_*`)
`registration`  This gateway's standing with the controllers
`relay`         Requests on their way to partition leaders and back, for Kafka connections and native calls
`role`          The gateway's life
`routing`       What the gateway decides
`rpc`           The native client API (proto/penstock/v1/gateway.proto), for Spark and Penstock's own
`settings`      Settings of the gateway, beside those that every role has
"""
