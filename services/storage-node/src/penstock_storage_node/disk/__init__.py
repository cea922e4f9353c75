"""The disk under all logs of the node: threads, flushes, health.

`group_flush`  How written jobs get flushed
`health`       Whether this node's disk can be trusted, and what people are told when it can't
`pool`         The disk pool
"""
