"""The disk under all logs of the node: threads, flushes, health, space.

`group_flush`  how written jobs get flushed
`health`       whether this node's disk can be trusted, and what people are told when it can't
`pool`         the disk pool: threads that do what would block the event loop
`space`        whether the disk is full, and when it counts as having room again
"""
