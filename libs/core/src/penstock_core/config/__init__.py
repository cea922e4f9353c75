"""Dynamic configuration, as Kafka's clients see it. (A process's own flags are called settings.)

`catalog`  Every setting that clients may see or set
`topic`    Settings of a topic
"""
