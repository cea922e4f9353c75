"""Ports that speak Kafka's framing.

`connection`      one Kafka connection: bytes in, frames out to the handler, responses back in order
`listener`        a port that speaks Kafka's framing
`metrics`         counters of the Kafka side of a process
`proxy_protocol`  the PROXY protocol header, versions 1 and 2
"""
