"""Kafka clients: their connections, and the relay of their requests to leaders."""
