"""Kafka clients' connections.

`handler`       what becomes of a frame: answered here, or relayed
"""
