"""Penstock's controller: the cluster's metadata in a Raft quorum.

`api`        its gRPC service, the queue of requests, the metadata stream
`directory`  the data directory: lock, identity, cluster
`quorum`     Raft on PySyncObj: the log, elections, snapshots
`role`       opens the quorum, serves gRPC, stops cleanly
`settings`   flags, variables and TOML keys of the role
`state`      what the controller decides: from an image and a request to records
"""
