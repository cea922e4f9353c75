"""Kafka clients' connections.

`handler`  What becomes of a Kafka frame at the gateway
"""
