"""Looking for partitions in the whole image, a part of it at a time, and anew only at topics that changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from penstock_core.ids import TopicId
from penstock_core.metadata import PartitionImage, TopicImage

SCAN_PARTITIONS: Final = 20_000
"""Looked at in one go: one or two milliseconds."""


class Scan:
    """Partitions that fit a condition, which depends on nothing but the partition."""

    def __init__(self, fits: Callable[[PartitionImage], bool], at_once: int | None = SCAN_PARTITIONS) -> None:
        self._fits = fits
        self._at_once = at_once
        self._seen: dict[TopicId, TopicImage] = {}
        self._found: dict[TopicId, list[PartitionImage]] = {}

    def look(self, topics: Mapping[TopicId, TopicImage]) -> list[PartitionImage] | None:
        """All that fit; None while some topics have yet to be looked at: call again."""
        looked = 0
        for topic_id, topic in topics.items():
            if self._seen.get(topic_id) is topic:
                continue
            if self._at_once is not None and looked >= self._at_once:
                return None
            looked += len(topic.partitions)
            self._seen[topic_id] = topic
            found = [p for p in topic.partitions.values() if self._fits(p)]
            if found:
                self._found[topic_id] = found
            else:
                self._found.pop(topic_id, None)
        if len(self._seen) > len(topics):
            for gone in self._seen.keys() - topics.keys():
                del self._seen[gone]
                self._found.pop(gone, None)
        return [p for some in self._found.values() for p in some]
