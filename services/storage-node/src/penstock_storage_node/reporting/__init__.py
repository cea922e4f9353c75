"""Metrics that take a look at other nodes.

`group_lag`  lag of the groups that this node coordinates, as metrics
"""
