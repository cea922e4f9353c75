"""The Kafka clients of the suite, each behind the vocabulary of `conformance.client`."""
