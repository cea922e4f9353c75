"""Dynamic configuration, as Kafka's clients see it. (A process's own flags are called settings.)

`catalog`  every setting that clients may see or set
`topic`    settings of a topic
"""
