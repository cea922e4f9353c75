"""A whole Penstock cluster of real processes on this machine's loopback.

`cluster.LocalCluster` is the object behind `penstock local`, the tests and the demo.
"""
