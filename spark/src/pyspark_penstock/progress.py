"""Offsets of a streaming query, as Spark keeps them in its checkpoint, and how they advance.

Form: {"v": 1, "from": {topic: {partition: offset}}, "to": {...}, "ids": {topic: hex id}}.

Rule: `from` is authoritative. Spark asks for the initial offset several times, again
after a restart, and doesn't store it; with a moving answer ("latest", timestamps)
everything between two answers would be lost. So every end offset carries its own start:
a micro-batch is `end["from"]..end["to"]` and the start that Spark passes along is not
looked at. The initial offset has no `from`, hence differs from the first end offset even
when no record came in between: Spark then writes down an empty first batch, and with it
where the query started.

Rule: a partition once known is never left out again; one that is gone keeps its offset.

Beside each position stands the leader epoch in which it was told (`epochs`); checkpoints of
before have none, and get them with the next micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark_penstock.errors import PenstockError
from pyspark_penstock.planning import Offsets, Partition
from pyspark_penstock.tiling import OffsetRange, cap

VERSION = 1


@dataclass(frozen=True, slots=True)
class Progress:
    """One position of a query."""

    to: Offsets
    ids: dict[str, bytes]
    start: Offsets | None = None
    """`from` of the stored form; None for the initial offset."""
    epochs: dict[Partition, int] = field(default_factory=dict)
    """Everything below a position was written in this leader epoch or an earlier one."""
    query: str = ""
    """With `commitGroupId`: a name of the query that its checkpoint keeps. Spark tells a source's planner no id."""
    batch: int = -1
    """With it: how many micro-batches this source has ended before."""

    def to_json(self) -> dict[str, Any]:
        form: dict[str, Any] = {"v": VERSION}
        if self.start is not None:
            form["from"] = _nest(self.start)
        form["to"] = _nest(self.to)
        form["ids"] = {topic: self.ids[topic].hex() for topic in sorted(self.ids)}
        if self.epochs:
            form["epochs"] = _nest(self.epochs)
        if self.query:
            form["query"], form["batch"] = self.query, self.batch
        return form

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> Progress:
        """Raises PenstockError for what this version can't read."""
        version = form.get("v")
        if version != VERSION:
            raise PenstockError(
                f"the checkpoint has offsets of form {version!r}, this version reads form {VERSION}; "
                "use the penstock-spark that wrote it, or a new checkpoint"
            )
        try:
            start = form.get("from")
            return cls(
                _flatten(form["to"]),
                {topic: bytes.fromhex(text) for topic, text in form["ids"].items()},
                None if start is None else _flatten(start),
                _flatten(form.get("epochs", {})),
                str(form.get("query", "")),
                int(form.get("batch", -1)),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PenstockError(f"the checkpoint's offsets can't be read: {error!r}") from None

    def ranges(self) -> list[OffsetRange]:
        """What the micro-batch that ends here reads."""
        if self.start is None:
            return []
        return [
            OffsetRange(
                topic,
                part,
                self.start.get((topic, part), end),
                end,
                self.ids[topic],
                self.epochs.get((topic, part), -1),
            )
            for (topic, part), end in self.to.items()
        ]


def _nest(offsets: Offsets) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for topic, part in sorted(offsets):
        nested.setdefault(topic, {})[str(part)] = offsets[(topic, part)]
    return nested


def _flatten(nested: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {
        (topic, int(part)): int(offset) for topic, item in nested.items() for part, offset in item.items()
    }


@dataclass(frozen=True, slots=True)
class Observed:
    """What the cluster says now. `latest` covers every partition that exists."""

    ids: dict[str, bytes]
    latest: Offsets
    earliest: Offsets
    """Of the partitions that the query doesn't know yet, those of topics made anew included."""
    first: Offsets = field(default_factory=dict)
    """Where the logs of known partitions start, of those at least that have something new."""
    epochs: dict[Partition, int] = field(default_factory=dict)
    """Leader epochs in which `latest` was told."""
    cuts: Offsets = field(default_factory=dict)
    """Known partitions whose log was cut below their position: where, proved by the epochs of what stands there."""


@dataclass(frozen=True, slots=True)
class Step:
    """Where to go next, and what was lost on the way: one line each."""

    progress: Progress
    losses: tuple[str, ...]
    news: int
    """Offsets between the two positions, before any cap."""


def unknown(
    current: Progress, ids: Mapping[str, bytes], partitions: list[tuple[str, int]]
) -> list[tuple[str, int]]:
    """Partitions to start at their earliest offset: new ones, and all of a topic that was made anew."""
    return [key for key in partitions if key not in current.to or current.ids.get(key[0]) != ids[key[0]]]


def advance(current: Progress, seen: Observed, records_max: int | None) -> Step:
    """The next end offset. A pure function: the shell decides whether losses stop the query."""
    losses: list[str] = []
    start: Offsets = {}
    epochs = dict(current.epochs)
    for key in current.to:
        start[key] = _resume(key, current, seen, epochs, losses)
    for key, earliest in seen.earliest.items():
        if earliest > 0 and key not in current.to:
            losses.append(f"{key[0]}-{key[1]} is new but starts at {earliest}, not at 0")
        start[key] = earliest
        _note_epoch(key, seen, epochs, anew=True)
    target = {key: max(seen.latest.get(key, offset), offset) for key, offset in start.items()}
    news = sum(target.values()) - sum(start.values())
    if records_max is not None and news > records_max:
        target = cap(start, target, records_max)
    used = {topic for topic, _ in target}
    ids = {topic: topic_id for topic, topic_id in (current.ids | seen.ids).items() if topic in used}
    return Step(Progress(target, ids, start, epochs), tuple(losses), news)


def _resume(
    key: Partition, current: Progress, seen: Observed, epochs: dict[Partition, int], losses: list[str]
) -> int:
    """Where a known partition goes on. Adds what was lost, and says under which epoch it goes on."""
    name, offset = f"{key[0]}-{key[1]}", current.to[key]
    if key not in seen.latest:
        losses.append(f"{name} was deleted; {offset} was its next offset")
        return offset
    if current.ids.get(key[0]) != seen.ids[key[0]]:
        losses.append(f"{name} was deleted and made anew; {offset} was its next offset")
        return offset
    latest, cut = seen.latest[key], seen.cuts.get(key, offset)
    at = offset
    if cut < offset:
        losses.append(gone(name, cut, offset, f"the log was cut at {cut} and written anew from there"))
        at = cut
    elif latest < offset:
        losses.append(gone(name, latest, offset, f"the log now ends at {latest}"))
        if key in epochs:
            # Its new records are told from the old ones when they come: till then it stands where it was.
            return offset
        at = latest
    first = seen.first.get(key, at)
    if first > at:
        losses.append(gone(name, at, first, f"the log now starts at {first}"))
        at = first
    _note_epoch(key, seen, epochs, anew=False)
    return at


def _note_epoch(key: Partition, seen: Observed, epochs: dict[Partition, int], *, anew: bool) -> None:
    epoch = seen.epochs.get(key, -1)
    if anew:
        epochs.pop(key, None)
    if epoch >= 0:
        # A leader of before may still answer: epochs don't fall.
        epochs[key] = max(epoch, epochs.get(key, -1))


def gone(name: str, start: int, end: int, reason: str) -> str:
    """How a lost range is told."""
    return f"{name}: offsets {start} to {end - 1} are gone: {reason}"
