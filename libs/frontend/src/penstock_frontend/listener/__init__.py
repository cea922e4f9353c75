"""Ports that speak Kafka's framing.

`admission`        who may connect: caps per listener and per address
`answers`          what a handler gives for a request
`client_software`  what a client calls itself in ApiVersions (KIP-511)
`connection`       one Kafka connection: bytes in, frames out to the handler, responses back in order
`descriptors`      how many file descriptors clients leave to files
`doorway`          letting clients in: accept, caps, the PROXY header
`frame_memory`     memory for requests that are on their way in or not answered yet
`limits`           what one listener gives its clients at most
`listener`         a port that speaks Kafka's framing
`metrics`          counters of the Kafka side of a process
`partial_frame`    a request that comes in pieces
`parts_answer`     one response of those to the parts of a request
`proxy_protocol`   the PROXY protocol header, versions 1 and 2
`quota_gate`       what requests use of quotas, and for how long their clients wait then
`strangers`        connections that made no request yet
"""
