"""The gateway's REST API: reads of the cluster's metadata, as JSON.

`rest`  `/v1/cluster` and the like: the metadata image as JSON
"""
