"""Kafka's bytes as pure functions: messages and record batches.

`error_responses`   whole responses that say one error, for requests that could not be carried out
`producer_retries`  what of an idempotent producer's pipelined batches its client sends again, and in what
                    order they must come
`records`           Kafka's RecordBatch v2: header access, checks, building and reading
`wire`              Kafka's wire protocol: which APIs there are, framing, and the messages
"""
