"""What a query's filters leave to be read of a batch: fewer topics, partitions and offsets.

Spark checks every filter again on the rows, so leaving one out costs time and no row. Only what is certain is used: a
lower bound of the timestamp is the first record that is as late, whatever the order of times behind it; an upper bound
says nothing, since a later record may be older.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


@dataclass(slots=True)
class Narrowing:
    """Bounds that every row of the answer keeps. `None` is no bound."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    partition_min: int = 0
    partition_max: int | None = None
    """Both inclusive."""
    offset_min: int = 0
    offset_end: int | None = None
    """The first offset that is not wanted."""
    time_min_ms: int | None = None

    def takes(self, topic: str, partition: int) -> bool:
        """Whether a partition may have rows of the answer."""
        if self.topics is not None and topic not in self.topics:
            return False
        if self.partitions is not None and partition not in self.partitions:
            return False
        return self.partition_min <= partition and (
            self.partition_max is None or partition <= self.partition_max
        )

    def clip(self, start: int, end: int) -> tuple[int, int]:
        """What is left of offsets [start, end); the end may lie below the start then."""
        return max(start, self.offset_min), end if self.offset_end is None else min(end, self.offset_end)


def narrow(filters: Iterable[Filter]) -> Narrowing:
    """Of filters that all hold."""
    found = Narrowing()
    for one in filters:
        attribute: tuple[str, ...] = getattr(one, "attribute", ())
        use = _COLUMNS.get(attribute[0]) if len(attribute) == 1 else None
        if use is not None:
            use(found, one)
    return found


def _values(one: Filter, kind: type) -> frozenset[Any] | None:
    """The values of an equality, when all are of a kind."""
    if isinstance(one, EqualTo):
        values = frozenset([one.value])
    elif isinstance(one, In):
        values = frozenset(one.value)
    else:
        return None
    # A null in a list equals nothing. True is an int in Python.
    values -= {None}
    return (
        values if all(isinstance(value, kind) and not isinstance(value, bool) for value in values) else None
    )


def _bounds(one: Filter) -> tuple[int | None, int | None]:
    """Least and greatest whole number, both inclusive, that a filter lets through."""
    equal = _values(one, int)
    if equal:
        return min(equal), max(equal)
    value = getattr(one, "value", None)
    if not isinstance(value, int) or isinstance(value, bool):
        return None, None
    if isinstance(one, GreaterThanOrEqual):
        return value, None
    if isinstance(one, GreaterThan):
        return value + 1, None
    if isinstance(one, LessThanOrEqual):
        return None, value
    if isinstance(one, LessThan):
        return None, value - 1
    return None, None


def _topic(found: Narrowing, one: Filter) -> None:
    values = _values(one, str)
    if values is not None:
        found.topics = values if found.topics is None else found.topics & values


def _partition(found: Narrowing, one: Filter) -> None:
    values = _values(one, int)
    if values is not None:
        found.partitions = values if found.partitions is None else found.partitions & values
        return
    least, most = _bounds(one)
    if least is not None:
        found.partition_min = max(found.partition_min, least)
    if most is not None:
        found.partition_max = most if found.partition_max is None else min(found.partition_max, most)


def _offset(found: Narrowing, one: Filter) -> None:
    least, most = _bounds(one)
    if least is not None:
        found.offset_min = max(found.offset_min, least)
    if most is not None:
        found.offset_end = most + 1 if found.offset_end is None else min(found.offset_end, most + 1)


def _timestamp(found: Narrowing, one: Filter) -> None:
    value = getattr(one, "value", None)
    if not isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual):
        return
    if not isinstance(value, dt.datetime) or value.tzinfo is None or value < _EPOCH:
        return
    micros = (value - _EPOCH) // _MICROSECOND
    # Records have whole ms: the first that is late enough.
    least_ms = micros // 1000 + 1 if isinstance(one, GreaterThan) else -(-micros // 1000)
    found.time_min_ms = least_ms if found.time_min_ms is None else max(found.time_min_ms, least_ms)


_COLUMNS: dict[str, Callable[[Narrowing, Filter], None]] = {
    "topic": _topic,
    "partition": _partition,
    "offset": _offset,
    "timestamp": _timestamp,
}
