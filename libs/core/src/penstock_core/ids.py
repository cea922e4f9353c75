"""Small types that the whole of Penstock speaks in.

They cost nothing at run time and keep a node's id from being passed for an epoch. Offsets are
plain ints: they are reckoned with, and the sum of a NewType and an int is an int again.
"""

from __future__ import annotations

from typing import NamedTuple, NewType

NodeId = NewType("NodeId", int)
"""Storage node id, >= 1; Kafka clients know it as the broker id."""

TopicId = NewType("TopicId", bytes)
"""16 bytes, an RFC 4122 UUID in network order. Bytes, because they hash fast."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""Raised by the controller with every change of a partition's leader."""

NO_NODE = NodeId(-1)
NO_EPOCH = LeaderEpoch(-1)
NO_TOPIC_ID = TopicId(bytes(16))


class TopicPartition(NamedTuple):
    """A partition by topic id: the key under which roles keep its state."""

    topic_id: TopicId
    partition: int
