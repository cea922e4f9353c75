"""What gateways and storage nodes share as Kafka servers.

`authorizer`         Who asks, and whether they may
`cluster`            Kafka APIs that any process with metadata answers, itself or by asking the active
`listener`           Ports that speak Kafka's framing
`producer_ids`       Producer ids for idempotent producers, from blocks that only this process has
`suspected_leaders`  Leaders that are believed to be dead, a moment before the metadata say so
"""
