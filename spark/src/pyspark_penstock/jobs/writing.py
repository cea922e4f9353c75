"""What the jobs that write topics share: the delivery, the topic they write to, and what a job needs to go on.

Only committed records are copied: a copy of what a transaction has aborted could not be told from a record.

A job that goes on where it ended has a checkpoint, and a sink whose name follows from its topics. Where the checkpoint
is lost the next run is another query under the same sink, which is refused: nothing is written twice.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from pyspark_penstock.errors import OptionError, PenstockError
from pyspark_penstock.gateway import (
    Backoff,
    GatewayClient,
    TopicInfo,
    TopicMissingError,
    UnknownCallError,
    select_topics,
)
from pyspark_penstock.jobs.archive_files import put
from pyspark_penstock.jobs.frame import Cluster, JobError, Offsets, Span
from pyspark_penstock.sink.calls import SinkCalls

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DELIVERY = "exactly-once"
"""Of every job."""
SCHEMA: Final = (
    "key BINARY, value BINARY, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
TIME: Final = "CASE WHEN unix_micros(timestamp) >= 0 THEN timestamp END AS timestamp"
"""Of a copy: the record's, but now for one that has none."""
MEASURES: Final = (
    "count(*) AS rows",
    "coalesce(sum(coalesce(length(key), 0) + coalesce(length(value), 0)), 0) AS bytes",
)
_EXISTS: Final = 36
"""TOPIC_ALREADY_EXISTS: somebody else made it just now, or this call did, whose answer was lost."""
_ROUNDS_MAX: Final = 10
_NOTE = "penstock-job.json"
_NAME_CHARS = 50
_HEAD_LINES = 2
_FOREIGN = "sinkTakeover"
"""Stands in what the sink says to another query."""
_PLANNED_ANEW = "which was made of other input"
"""Stands in what it says of a micro-batch that was lost and planned anew; jobs have no other sinkId to choose."""


@dataclass(frozen=True, slots=True)
class Target:
    """The topic that is written."""

    cluster: Cluster
    topic: str
    topic_id: bytes
    partitions: int

    def options(self, **names: str) -> dict[str, str]:
        """Of the sink. `names`: who writes, so that what is repeated is known: sinkId, or txnAppId and txnVersion."""
        where = {name: value for name, value in self.cluster.raw().items() if name != "isolation"}
        return where | {"topic": self.topic, "delivery": DELIVERY} | names


def target_of(cluster: Cluster, topic: str, source: str, partitions: int = 0) -> Target:
    """The topic as it is. With `partitions` it has to have so many, and is made with them where it is missing.

    Raises PenstockError.
    """
    if topic == source:
        raise OptionError(
            f"topic {topic!r} can't be read and written by the same job; name another one to write to"
        )
    if not topic or "," in topic:
        raise OptionError(f"one topic is written, not {topic!r}; name it")
    options = cluster.options(topic)
    client = GatewayClient.of(options)
    try:
        found = select_topics(client, options)[topic]
    except TopicMissingError:
        if not partitions:
            raise JobError(
                f"there is no topic {topic!r} to write to; make it first: penstock topic create {topic} --partitions N"
            ) from None
        found = _made(client, topic, partitions)
    if partitions and partitions != len(found.partitions):
        raise JobError(
            f"topic {topic!r} has {len(found.partitions)} partitions, not {partitions}: name another topic, which is "
            "made where it is missing, or leave the number out"
        )
    return Target(cluster, topic, found.topic_id, len(found.partitions))


def _made(client: GatewayClient, topic: str, partitions: int) -> TopicInfo:
    """Makes it. Raises PenstockError."""
    try:
        code, reason = client.create_topic(topic, partitions)
    except UnknownCallError:
        raise JobError(
            f"the gateway is of an older build, which makes no topics; make it first: penstock topic create {topic} "
            f"--partitions {partitions}"
        ) from None
    if code and code != _EXISTS:
        raise JobError(f"topic {topic!r} can't be made: {reason or f'Kafka error {code}'}")
    backoff = Backoff(100)
    for _ in range(_ROUNDS_MAX):  # another gateway than the one that made it may hear of it a moment later
        found = client.describe([topic]).get(topic)
        if found is not None:
            return found
        backoff.wait()
    raise JobError(f"topic {topic!r} was made, and no gateway shows it; see the right Describe on it")


class Known(Protocol):
    """A topic whose id is known, wherever its records are read."""

    @property
    def topic(self) -> str: ...

    @property
    def topic_id(self) -> bytes: ...


def sink_name(job: str, source: Known, target: Target, *words: str) -> str:
    """The same for a job on the same two topics, and for no other: a topic that is made anew has another id."""
    told = json.dumps([job, source.topic_id.hex(), target.topic_id.hex(), *words])
    digest = hashlib.sha256(told.encode()).hexdigest()[:16]
    names = (re.sub(r"[^A-Za-z0-9._-]", "_", name)[:_NAME_CHARS] for name in (source.topic, target.topic))
    return "-".join([job, *names, digest])


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A query's directory, on a file system of the driver's."""

    directory: Path

    @classmethod
    def at(
        cls,
        given: str,
        sink: str,
        told: dict[str, Any],
        *,
        mend: str = "name another with --checkpoint",
    ) -> Checkpoint:
        """Where it is asked for, or else under the user's state. `told`: the job; no other may go on there.

        Raises PenstockError.
        """
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", given):
            raise OptionError(
                f"the checkpoint must be a directory of this machine, not {given}; name its path"
            )
        directory = Path(given).absolute() if given else state_directory() / sink
        note = directory / _NOTE
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if note.exists():
                found = json.loads(note.read_text())
                other = sorted(name for name in told if found.get(name) != told[name])
                if other:
                    said = ", ".join(f"{name} {found.get(name)!r}" for name in other)
                    raise JobError(f"{directory} is the checkpoint of another job ({said}); {mend}")
            elif (directory / "metadata").exists():
                raise JobError(
                    f"{directory} is the checkpoint of another query; name another with --checkpoint"
                )
            else:
                put(note, json.dumps(told, indent=2) + "\n")  # a part of one would shut later runs out
        except (OSError, ValueError, AttributeError) as error:
            raise JobError(
                f"the checkpoint {directory} can't be used ({error}); name another with --checkpoint"
            ) from None
        return cls(directory)

    def check_sink(self, target: Target, sink: str) -> None:
        """Raises JobError where the sink has a micro-batch of this query that is not in the checkpoint.

        Spark doesn't flush a checkpoint to the disk. A micro-batch that is lost there is planned anew under its number,
        with a later end, and would be left out as one that is done.
        """
        options = target.cluster.options(target.topic)
        try:
            last = SinkCalls(options.gateways, options.credentials_file).last(sink)
        except PenstockError:
            return  # what is wrong the query tells
        if last is None or last.query != self._query_id():
            return
        if not (self.directory / "offsets" / str(last.epoch)).exists():
            raise JobError(
                f"{self.directory} has lost micro-batch {last.epoch}, which is in {target.topic}: it was put back, or "
                "not on the disk when the power went; put back a newer one, or write to a new topic"
            )

    def _query_id(self) -> str:
        try:
            return str(json.loads((self.directory / "metadata").read_text())["id"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def upto(self, topic: str) -> Offsets:
        """Where the last micro-batch that is done has ended; empty before there is one."""
        done = {path.name for path in (self.directory / "commits").glob("[0-9]*")}
        planned = {path.name for path in (self.directory / "offsets").glob("[0-9]*")}
        last = max((int(name) for name in done & planned if name.isdecimal()), default=None)
        if last is None:
            return {}
        line = (self.directory / "offsets" / str(last)).read_text().splitlines()[_HEAD_LINES]
        offsets = json.loads(line)["to"].get(topic, {})
        return {int(part): offset for part, offset in offsets.items()}


def state_directory() -> Path:
    """Where jobs keep what they need to go on, unless they are told a place."""
    room = os.environ.get("XDG_STATE_HOME", "")
    return (Path(room) if room else Path.home() / ".local" / "state") / "penstock" / "spark"


@contextmanager
def written_by_one(source: Span, target: Target, checkpoint: Checkpoint) -> Iterator[None]:
    """Says of a refused sink what to do about it. Raises JobError."""
    try:
        yield
    except Exception as error:
        if _PLANNED_ANEW in str(error):
            raise JobError(
                f"{checkpoint.directory} has lost a micro-batch that is in {target.topic}, and planned it anew: it was "
                "put back, or not on the disk when the power went; put back a newer one, or write to a new topic"
            ) from error
        if _FOREIGN not in str(error):
            raise
        raise JobError(
            f"{target.topic} has been written from {source.topic} by a run whose checkpoint is not "
            f"{checkpoint.directory}: name that one with --checkpoint, or write to a new topic"
        ) from error


def stream(source: Span, spark: Any, most: int) -> DataFrame:
    """The committed records of the source from its start, or from where the checkpoint says."""
    options = source.cluster.raw() | {
        "subscribe": source.topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(most),
        "includeHeaders": "true",
    }
    rows: DataFrame = spark.readStream.format("penstock").options(**options).schema(SCHEMA).load()
    return rows


def to_key(kind: Any, name: str) -> str:
    """SQL for a column of any plain type as a key. Raises OptionError."""
    text = kind.simpleString()
    if text == "binary" or text == "string":
        return name
    if text.startswith(("array", "map", "struct", "variant", "void")):
        raise OptionError(f"a key of type {text} can't be written; make it a string, e.g. by to_json(...)")
    return f"CAST({name} AS STRING)"
