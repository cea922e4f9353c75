"""The node and the controllers: its session, how fresh its knowledge is, ISR changes.

`coordinator_topics`   the topic of a coordinator, made before any client has looked for one
`heartbeat_freshness`  how lately the controllers knew that this node lives, and what they knew
`handing_over`         how a node that wants to stop has its leadership moved away
`inventory_telling`    telling the controller which logs the metadata do not account for
`isr_proposer`         ISR proposals on their way to the controller
`node_reporter`        what a node tells the active controller of its disk and its replicas
`registration`         the node's membership: registration with the controllers, and the session that keeps it
`retirement`           what a process does whose node was removed
`size_telling`         which sizes of replicas the controller is told next
`spare`                a process that waits for the slot of a node to come free
"""
