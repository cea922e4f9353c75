"""What the controller decides: pure functions from an image and a request to records,
and the soft state of sessions. No asyncio, gRPC, files or clocks inside.

`acls`                  who may do what: ACLs in the metadata
`causes`                why commands change what they change, for the history
`cluster`               what belongs to the cluster as a whole
`configs`               dynamic settings of topics, nodes, the cluster and groups
`controllers`           which data directory makes each controller a voter
`coordinator_topics`    `__consumer_offsets` and `__transaction_state`: what they get when they are made
`directories`           directories that were nodes', and which of them are refused
`elections`             leadership that moves though its leader lives
`features`              feature levels: raised once every process understands them
`gateways`              gateways; founding the cluster; blocks of producer ids
`generation`            the frame in which requests generate records
`history`               what is remembered of what was applied
`isr`                   ISR proposals of leaders (KIP-497), checked against stale ones (KIP-841, KIP-903)
`mutation_quotas`       how many partitions a client may make and delete (KIP-599)
`observations`          how a cluster is: what is amiss, and how much room there is
`operations`            planned changes: what moves where
`nodes`                 registration, fencing, unfencing and draining of nodes; preferred leaders
`partitions`            how a partition's ISR, ELR and leader change: Kafka's PartitionChangeBuilder
`placement`             where replicas go: even over nodes, spread over racks
`quotas`                client quotas (KIP-546)
`reassignments`         moving replicas (KIP-455), elections by hand (KIP-460), forgetting nodes
`recovery`              who leads what the metadata lost, by the nodes' logs
`refused_certificates`  certificates that are let in no more
`session_keys`          keys of the native API's tokens
`sessions`              who is alive
`topics`                creating, growing and deleting topics, with Kafka's errors
`users`                 what users prove themselves by: SCRAM credentials (KIP-554)
"""
