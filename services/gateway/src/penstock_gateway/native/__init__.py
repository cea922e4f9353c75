"""The native client API (proto/penstock/v1/gateway.proto), for Spark and Penstock's own clients."""
