"""Bytes and records in and out by topic, counted where this node leads: plain integers that the hot path adds to.

Bounded: the first `topics_max` topics have rows of their own, all others share `(other)`. A topic that is no more
makes room for the next one that comes, and takes its row along: counters of a topic of the same name begin anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, Metric

TOPICS_MAX: Final = 200
OTHER: Final = "(other)"
"""No topic can have that name."""

_FAMILIES: Final = {
    "received_bytes": "Bytes of record batches that producers sent, as stored; counted at leaders.",
    "received_records": "Records that producers sent; counted at leaders.",
    "sent_bytes": "Bytes of record batches sent to consumers; counted where they are read.",
}


class TopicTraffic:
    """Of one topic on this node."""

    __slots__ = ("received_bytes", "received_records", "sent_bytes")

    def __init__(self) -> None:
        self.received_bytes = 0
        self.received_records = 0
        self.sent_bytes = 0


class TopicTraffics:
    """Of all of them. Lives on the event loop."""

    def __init__(self, topics_max: int = TOPICS_MAX) -> None:
        self.topics_max = topics_max
        self.is_known: Callable[[str], bool] = lambda _: True
        """Whether the metadata have a topic of that name."""
        self._by_topic: dict[str, TopicTraffic] = {}
        self._other = TopicTraffic()

    def of(self, topic: str) -> TopicTraffic:
        """Where to count what goes in and out of a topic; asked once for each partition."""
        found = self._by_topic.get(topic)
        if found is not None:
            return found
        if len(self._by_topic) >= self.topics_max:
            gone = [name for name in self._by_topic if not self.is_known(name)]
            for name in gone:
                del self._by_topic[name]
        if len(self._by_topic) >= self.topics_max:
            return self._other
        found = self._by_topic[topic] = TopicTraffic()
        return found

    def families(self) -> Iterator[Metric]:
        """For a scrape."""
        for name, text in _FAMILIES.items():
            family = CounterMetricFamily(f"penstock_topic_{name}", text, labels=("topic",))
            for topic, traffic in self._by_topic.items():
                family.add_metric((topic,), getattr(traffic, name))
            family.add_metric((OTHER,), getattr(self._other, name))
            yield family


__all__ = ["OTHER", "TOPICS_MAX", "TopicTraffic", "TopicTraffics"]
