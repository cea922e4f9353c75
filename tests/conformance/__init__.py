"""The conformance suite: the same scenarios against Penstock and against Kafka; see `frame`."""
