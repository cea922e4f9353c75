"""Penstock's client side: the `penstock` command and the local cluster."""

from penstock_core import grpc_process

grpc_process.prepare()

__version__ = "0.1.0"
