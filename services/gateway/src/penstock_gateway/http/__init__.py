"""The gateway's REST API: reads of the cluster's metadata and of its operations, as JSON.

`operations`  `/v1/operations`, `/v1/nodes`, `/v1/check`: what the active controller says of the cluster
`rest`        `/v1/cluster` and the like: the metadata image as JSON
"""
