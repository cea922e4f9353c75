"""Kafka's own Java clients: the driver's sources, and the suite's client that uses it."""
