"""Kafka's RecordBatch v2: header access, checks, building and reading."""
