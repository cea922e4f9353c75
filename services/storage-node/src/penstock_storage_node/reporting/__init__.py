"""Metrics that take a look at other nodes.

`group_lag`  Lag of the groups that this node coordinates, as metrics
"""
