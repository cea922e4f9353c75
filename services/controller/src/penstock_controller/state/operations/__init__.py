"""Planned changes of a cluster: what moves where, decided from an image alone. Pure.

`cluster_counts`  how well partitions and nodes are, in numbers
`conditions`  how each storage node is, in one word
`engine`      what an operation does next
`executors`   which command carries out a rolling operation
`meters`      rates, latencies, and what nodes are told, as long as this controller is active
`newcomers`   nodes that get their share by themselves
`planner`     where every replica is to be
`plans`       what a request would move and whether it may
`processes`   processes as operations name them, and what controllers say of themselves
`reports`     what nodes told of their disks and replicas
`stops`       what becomes of partitions when a node stops
"""
