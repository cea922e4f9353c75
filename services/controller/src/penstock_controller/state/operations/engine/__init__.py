"""Operations that go on: how they begin, what is next, how far they are, how they end. Pure.

`admission`   a controller with a new directory, until it votes
`changes`     the records that a step of an operation is made of
`endings`     how operations end: what they came to, what becomes of their nodes
`kinds`       what the kinds of operations do, and whose turn it is
`ledger`      how far each move of an operation is; looks again only at what changed
`memory`      what one active controller remembers of operations, to be quick
`policies`    what an operation says of nodes, and takes back
`progress`    how far an operation is and what it waits for, for people
`reassigned`  what clients reassign by themselves: kept as an operation, and others leave it to them
`rolling`     restarts processes one after another
`scan`        looks for partitions in the whole image, a part at a time
`stages`      where a move stands
`start`       how operations begin; pause, resume, cancel, throttle
`steps`       what an operation does next
`throttle`    how fast operations copy: as fast as producers allow
`window`      which moves may begin
"""
