"""Penstock's client side: the `penstock` command and the local cluster."""

__version__ = "0.1.0"
