"""Every bound of the system that is not a setting, with what it protects.

A limit that an operator may want to move is a setting (see each role's settings);
one that two processes must agree on stands here.
"""

from __future__ import annotations

TOPIC_NAME_LENGTH_MAX = 249
"""Kafka's own bound: name, dash and partition must fit a file name of 255 bytes."""

KAFKA_FRAME_BYTES_MAX = 100 * 1024 * 1024
"""Largest Kafka request unless a setting says otherwise (Kafka: socket.request.max.bytes)."""

KAFKA_FRAME_BYTES_CEILING = 1024 * 1024 * 1024 + 1024 * 1024
"""Most that the setting may say: the largest batch, and what a request has around it."""

KAFKA_DECODED_BYTES_MAX = 2 * 1024 * 1024
"""Largest Kafka request but Produce: its parts become objects, tens of times its size."""

FORWARD_CHUNK_BYTES_MAX = 1024 * 1024
"""Largest part of a relayed frame: gRPC streams carry 64 KiB to 1 MiB best."""

GRPC_MESSAGE_BYTES_MAX = 16 * 1024 * 1024
"""Largest gRPC message. Above a chunk, because one batch may exceed every limit."""

BATCH_BYTES_MAX = 1024 * 1024 * 1024
"""Largest record batch that a topic may allow (max.message.bytes is not above it)."""

WHOLE_BATCH_BYTES_MAX = 8 * 1024 * 1024
"""Largest record batch that goes between processes in one gRPC message; a larger one goes in pieces."""

PIECE_BYTES = 1024 * 1024
"""Size of a piece of a larger batch; the last one is shorter."""

DECOMPRESSED_BATCH_BYTES_MAX = 32 * 1024 * 1024
"""Largest size that a produced batch may decompress to, unless its topic's max.message.bytes is more:
it is checked in memory."""

DECOMPRESSION_RATIO_MAX = 1100
"""Largest growth of a batch above 1 MiB (gzip's own limit is 1032): a bomb stops here."""

REPLICA_CREDIT_BYTES = 4 * 1024 * 1024
"""Batches that a leader may have on the way to one follower node."""

PRODUCER_ID_BLOCK_COUNT = 1000
"""Producer ids in one block (KIP-730)."""

PRODUCER_BATCHES_KEPT_MAX = 5
"""Batches per producer that idempotence remembers; clients send at most five at once."""

PARTITIONS_PER_REQUEST_MAX = 20_000
"""Partitions that one admin request may create."""

FEATURE_LEVEL = 4
"""Highest metadata level that this build understands (penstock_core.metadata.levels)."""

PRODUCE_LATENCY_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Upper bounds of what a node's report counts acks=all Produce by (NodeReport.produce_counts)."""
