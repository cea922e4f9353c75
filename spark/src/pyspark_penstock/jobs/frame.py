"""What every job has: where it reads, up to which offsets, what it says at its end, and errors in one line.

Offsets are fixed before anything is read, so that a job on a topic that is written meanwhile has an end and says what
it covered. `from` is a first offset and `to` the one behind the last, in results and in findings alike.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark_penstock.errors import GatewayError, OptionError, PenstockError
from pyspark_penstock.gateway import GatewayClient, TopicMissingError, select_topics
from pyspark_penstock.options import EARLIEST, LATEST, SourceOptions, parse_options
from pyspark_penstock.planning import ends, keys_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEFAULT_GATEWAY: Final = "127.0.0.1:9094"
FINDINGS_MAX: Final = 100
"""Of one kind in one partition; those above are told as one that spans them."""
SAMPLES_MAX: Final = 20

Progress = Callable[[str], None]
Offsets = dict[int, int]
"""By partition."""


class JobError(PenstockError):
    """A job can't be run as it was asked for, or did not get to its end. One line, with the mend."""


def quiet(_message: str) -> None:
    """Progress that nobody wants to hear of."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that should not be. Offsets from `start` up to, and without, `end`."""

    kind: str
    topic: str
    partition: int
    start: int
    end: int
    count: int
    sample: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "topic": self.topic,
            "partition": self.partition,
            "from": self.start,
            "to": self.end,
            "count": self.count,
            "sample": self.sample[:SAMPLES_MAX],
        }


def fold(findings: Iterable[Finding], most: int = FINDINGS_MAX) -> list[Finding]:
    """Neighbours of one kind as one, and at most so many of a kind in a partition: the last spans the rest."""
    groups: dict[tuple[str, str, int], list[Finding]] = {}
    for item in sorted(findings, key=lambda one: (one.kind, one.topic, one.partition, one.start)):
        group = groups.setdefault((item.kind, item.topic, item.partition), [])
        if group and (group[-1].end >= item.start or len(group) >= most):
            group[-1] = _joined(group[-1], item)
        else:
            group.append(item)
    return [item for group in groups.values() for item in group]


def _joined(one: Finding, other: Finding) -> Finding:
    return Finding(
        one.kind,
        one.topic,
        one.partition,
        min(one.start, other.start),
        max(one.end, other.end),
        one.count + other.count,
        (one.sample + other.sample)[:SAMPLES_MAX],
    )


@dataclass(frozen=True, slots=True)
class Cluster:
    """Gateways, and the client file to come in with ("" for nobody)."""

    gateway: str = DEFAULT_GATEWAY
    credentials_file: str = ""
    isolation: str = "read_uncommitted"

    def raw(self) -> dict[str, str]:
        """Options of the source that say where."""
        options = {"gateway": self.gateway, "isolation": self.isolation}
        return options | ({"credentialsFile": self.credentials_file} if self.credentials_file else {})

    def options(self, topic: str) -> SourceOptions:
        """Raises OptionError."""
        return parse_options(self.raw() | {"subscribe": topic}, streaming=False)


@dataclass(frozen=True, slots=True)
class Span:
    """A topic as a job found it: its partitions from the log's start to its end, as far as a reader may see."""

    cluster: Cluster
    topic: str
    topic_id: bytes
    first: Offsets
    end: Offsets
    high: Offsets
    """The high watermarks: `end`, but for a reader of committed records, who has markers beyond his end."""

    def frame(
        self,
        spark: SparkSession,
        schema: str,
        first: Mapping[int, int] | None = None,
        end: Mapping[int, int] | None = None,
        **more: str,
    ) -> DataFrame:
        """Rows of the span, or of a part of it."""
        options = self.cluster.raw() | {
            "subscribe": self.topic,
            "startingOffsets": _json({self.topic: self.first | dict(first or {})}),
            "endingOffsets": _json({self.topic: self.end | dict(end or {})}),
            # Retention may take records while a job runs: what was there is compared, and the rest is told.
            "failOnDataLoss": "false",
        }
        return spark.read.format("penstock").options(**(options | more)).schema(schema).load()

    def first_now(self) -> Offsets:
        """Where the log starts by now."""
        client = GatewayClient.of(self.cluster.options(self.topic))
        found = ends(client, [(self.topic, part) for part in self.first], EARLIEST)
        return {part: offset for (_, part), offset in found.items()}


def span_of(cluster: Cluster, topic: str) -> Span:
    """Raises PenstockError: a bad option, no gateway, no such topic."""
    if not topic or "," in topic:
        raise OptionError(f"one topic is read, not {topic!r}; name it")
    options = cluster.options(topic)
    client = GatewayClient.of(options)
    try:
        topics = select_topics(client, options)
    except TopicMissingError:
        raise JobError(f"there is no topic {topic!r}; create it first, or correct the name") from None
    keys = keys_of(topics)
    first, end = ends(client, keys, EARLIEST), ends(client, keys, LATEST)
    high = end
    if options.read_committed:
        high = ends(GatewayClient.of(replace(options, read_committed=False)), keys, LATEST)
    return Span(
        cluster,
        topic,
        topics[topic].topic_id,
        {part: offset for (_, part), offset in first.items()},
        {part: max(offset, first[name, part]) for (name, part), offset in end.items()},
        {part: max(offset, first[name, part]) for (name, part), offset in high.items()},
    )


class Outcome:
    """Gathers what a job says at its end."""

    def __init__(self, job: str, *, started_s: float | None = None) -> None:
        self.job = job
        self.rows = 0
        self.bytes = 0
        self.start: dict[str, Offsets] = {}
        self.end: dict[str, Offsets] = {}
        self.findings: list[Finding] = []
        self.more: dict[str, Any] = {}
        self._started_s = time.monotonic() if started_s is None else started_s

    def cover(self, topic: str, first: Mapping[int, int], end: Mapping[int, int]) -> None:
        """Notes what was read of a topic."""
        self.start[topic] = dict(first)
        self.end[topic] = dict(end)

    def as_dict(self) -> dict[str, Any]:
        seconds = max(time.monotonic() - self._started_s, 1e-3)
        return {
            "job": self.job,
            "ok": not self.findings,
            "rows": self.rows,
            "bytes": self.bytes,
            "seconds": round(seconds, 3),
            "rows_per_s": round(self.rows / seconds, 1),
            "from": _by_text(self.start),
            "to": _by_text(self.end),
            "findings": [item.as_dict() for item in self.findings],
            **self.more,
        }


def _by_text(offsets: Mapping[str, Offsets]) -> dict[str, dict[str, int]]:
    return {name: {str(part): item[part] for part in sorted(item)} for name, item in offsets.items()}


def _json(offsets: Mapping[str, Offsets]) -> str:
    return json.dumps(_by_text(offsets))


_OURS = re.compile(r"pyspark_penstock(?:\.\w+)*\.(?P<kind>\w+): (?P<text>.+)")
_ANY = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception): .+")


def one_line(error: BaseException) -> str:
    """What to say of an error of Spark or of ours: our own sentence if it holds one, else its most telling line."""
    if isinstance(error, PenstockError):
        return str(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in reversed(lines):
        if (found := _OURS.search(line)) is not None:
            return found["text"]
    telling = [line for line in lines if _ANY.match(line)]
    chosen = telling[-1] if telling else (lines[0] if lines else "no reason given")
    return f"{type(error).__name__}: {chosen}" if not telling else chosen


def exit_code(error: BaseException) -> int:
    """What `penstock spark run` ends with: 2 a bad option, 3 no gateway reached, 1 for the rest."""
    if isinstance(error, OptionError):
        return 2
    return 3 if isinstance(error, GatewayError) and str(error).startswith("no gateway answers") else 1
