"""The node and the controllers: its session, how fresh its knowledge is, ISR changes.

`heartbeat_freshness`  How lately the controllers knew that this node lives, and what they knew
`isr_proposer`         ISR proposals on their way to the controller
`registration`         The node's membership
"""
