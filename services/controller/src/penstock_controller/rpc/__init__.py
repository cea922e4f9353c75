"""The controller's gRPC service.

`service`  the gRPC service of a controller
"""
