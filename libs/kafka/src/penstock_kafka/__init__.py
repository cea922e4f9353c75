"""Kafka's bytes as pure functions: messages and record batches.

`error_responses`   Whole responses that say one error, for requests that could not be carried out
`producer_retries`  What of an idempotent producer's pipelined batches its client sends again, and in what
`records`           Kafka's RecordBatch v2
`wire`              Kafka's wire protocol
"""
