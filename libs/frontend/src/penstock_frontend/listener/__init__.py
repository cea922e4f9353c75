"""Ports that speak Kafka's framing.

`connection`      One Kafka connection
`listener`        A port that speaks Kafka's framing
`metrics`         Counters of the Kafka side of a process
`proxy_protocol`  The PROXY protocol header, versions 1 and 2
"""
