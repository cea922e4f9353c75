"""Penstock's controller: the cluster's metadata in a Raft quorum.

`active`     The controller on the event loop
`directory`  The controller's data directory
`metrics`    Metrics of a controller
`quorum`     The Raft quorum of the controllers
`role`       The controller role
`rpc`        The controller's gRPC service
`settings`   Settings of the controller role
`state`      What the controller decides
"""
