"""Penstock's controller: the cluster's metadata in a Raft quorum.

`active`     the controller on the event loop
`directory`  the data directory: lock, identity, cluster
`metrics`    metrics of a controller
`offline`    data directories of stopped controllers: what is in one, and fresh ones to begin from
`quorum`     the Raft quorum of the controllers
`role`       opens the quorum, serves gRPC, stops cleanly
`rpc`        the controller's gRPC service
`settings`   flags, variables and TOML keys of the role
`state`      what the controller decides: from an image and a request to records
"""
