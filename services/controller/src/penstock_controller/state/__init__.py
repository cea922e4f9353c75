"""What the controller decides: pure functions from an image and a request to records,
and the soft state of sessions. No asyncio, gRPC, files or clocks inside.

`configs`        Dynamic settings of topics, nodes, the cluster and groups
`controllers`    Which data directory makes each controller a voter
`gateways`       Registration and removal of gateways
`generation`     The frame in which requests generate records
`isr`            ISR proposals of leaders (KIP-497), checked against stale ones (KIP-841, KIP-903)
`nodes`          Registration, fencing, unfencing and draining of storage nodes
`partitions`     How a partition's ISR, ELR and leader change
`placement`      Where replicas go
`reassignments`  Moving replicas
`sessions`       Who is alive
`topics`         Creating, growing and deleting topics, with Kafka's errors
"""
