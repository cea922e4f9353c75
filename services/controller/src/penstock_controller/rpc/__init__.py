"""The controller's gRPC service.

`service`  The gRPC service of a controller
"""
