"""The partitions of a request, by item: how they are named, which are known, what nodes answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from penstock_core.errors import ErrorCode
from penstock_core.ids import TopicId, TopicPartition
from penstock_core.metadata.image import MetadataImage

Veto = Callable[[TopicPartition, MetadataImage], ErrorCode]
"""Why a partition that is known is refused all the same; NONE lets it through."""


class Named(NamedTuple):
    """How a request names a partition."""

    topic: str
    topic_id: TopicId | None
    """From the versions that use it; the name is "" then."""
    partition: int


R = TypeVar("R")
"""What an API's response says of one item."""


class ItemAnswer(NamedTuple, Generic[R]):
    """A node's answer for one item of a request."""

    named: Named
    error: int
    """Kafka's code."""
    result: R


@dataclass(frozen=True, slots=True)
class Refusal(Generic[R]):
    """An answer in which a node refused some items of a part. Positions are those in the part."""

    refused: Sequence[int]
    """Nothing was done for these, and another node is to be asked."""
    sent_again: Sequence[int]
    """These failed, and the client will send them again itself."""
    results: Sequence[R]
    """Of all but the refused ones."""


def resolve(
    image: MetadataImage, topic: str, topic_id: TopicId | None, partition: int
) -> tuple[TopicPartition, ErrorCode]:
    """The partition that a request names, or why there is none."""
    if topic_id is None:
        found = image.topic_ids.get(topic)
        if found is None:
            return TopicPartition(TopicId(b""), partition), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        topic_id = found
    image_topic = image.topics.get(topic_id)
    if image_topic is None:
        return TopicPartition(topic_id, partition), ErrorCode.UNKNOWN_TOPIC_ID
    known = partition in image_topic.partitions
    return TopicPartition(topic_id, partition), (
        ErrorCode.NONE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
