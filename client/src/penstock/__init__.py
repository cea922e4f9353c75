"""Penstock's client side: the `penstock` command and the local cluster."""

from penstock_core.process import grpc_environment

grpc_environment.prepare()

__version__ = "0.1.0"
