"""The controller's gRPC service.

`peer_levels`  asks the other controllers which feature level they understand
`service`      the gRPC service of a controller
"""
