"""What gateways and storage nodes share as Kafka servers.

`acl_authorizer`     rights by the cluster's ACLs
`audit`              what listeners and authorizers tell the audit log
`authorizer`         who asks, and whether they may
`cluster`            Kafka APIs that any process with metadata answers, itself or by asking the active
                     controller
`listener`           ports that speak Kafka's framing
`offsets_to_come`    librdkafka that waits for its group's coordinator for nothing is woken
`producer_ids`       producer ids for idempotent producers, from blocks that only this process has
`settings`           settings of every role that Kafka clients connect to
`sign_in`            signing in: SASL, and certificates of clients
`suspected_leaders`  leaders that are believed to be dead, a moment before the metadata say so
"""
