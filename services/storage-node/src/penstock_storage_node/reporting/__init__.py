"""Metrics that take a look at many things, or at other nodes.

`group_lag`         lag of the groups that this node coordinates, as metrics
`node_gauges`       what a scrape reads of the node's parts
`partition_counts`  how many partitions are in trouble, how far followers are behind
"""
