"""An archive's directory: manifests, which alone say what is in it, and how they change.

    DIR/date=YYYY-MM-DD/[hour=HH/]<query>-<batch>-<n>.parquet
    DIR/_penstock/manifest/<batch>-<query>.json   a micro-batch: what it covers, and its files
    DIR/_penstock/staging/                        what a micro-batch is writing
    DIR/_penstock/lock                            locked by the run that writes
    DIR/_penstock/compact.json                    a compaction that is decided, until all of it is done
    DIR/_penstock/checkpoint/                     Spark's

Rule: a file counts once a manifest names it, and a manifest comes by rename. What a killed run left has a name of its
micro-batch, and goes before that is written again. Only plain directories, which driver and executors see alike.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from pyspark_penstock.errors import OptionError
from pyspark_penstock.jobs.frame import JobError, Offsets

_ROOM: Final = "_penstock"
_QUERY_CHARS: Final = 8


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file with records of one partition, from `from_offset` up to, and without, `to_offset`."""

    path: str
    """Relative to the archive's directory."""
    rows: int
    bytes: int
    partition: int
    from_offset: int
    to_offset: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What one micro-batch, or a compaction of several, has put there."""

    batch_id: int
    query_id: str
    topic: str
    topic_id: str
    """In hex."""
    start: Offsets
    end: Offsets
    files: tuple[DataFile, ...] = ()
    isolation: str = "read_uncommitted"
    """With which the topic was read."""

    @property
    def name(self) -> str:
        return f"{self.batch_id:010d}-{self.query_id[:_QUERY_CHARS]}.json"

    def text(self) -> str:
        return json.dumps(
            {
                "batch_id": self.batch_id,
                "query_id": self.query_id,
                "topic": self.topic,
                "topic_id": self.topic_id,
                "isolation": self.isolation,
                "from": {str(part): offset for part, offset in sorted(self.start.items())},
                "to": {str(part): offset for part, offset in sorted(self.end.items())},
                "files": [{name: getattr(item, name) for name in DataFile.__slots__} for item in self.files],
            },
            indent=1,
        )

    @classmethod
    def parse(cls, text: str, where: str) -> Manifest:
        """Raises JobError."""
        try:
            form = json.loads(text)
            return cls(
                int(form["batch_id"]),
                str(form["query_id"]),
                str(form["topic"]),
                str(form["topic_id"]),
                {int(part): int(offset) for part, offset in form["from"].items()},
                {int(part): int(offset) for part, offset in form["to"].items()},
                tuple(DataFile(**item) for item in form["files"]),
                str(form.get("isolation", "read_uncommitted")),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise JobError(
                f"{where}: this is no manifest of an archive ({error!r}); put back a good copy"
            ) from None


def merged(manifests: Iterable[Manifest]) -> Manifest:
    """All of them as one, under the name of the last."""
    ordered = sorted(manifests, key=lambda item: (sum(item.end.values()), item.batch_id))
    parts = sorted({part for item in ordered for part in item.end})
    return replace(
        ordered[-1],
        start={part: min(item.start[part] for item in ordered if part in item.start) for part in parts},
        end={part: max(item.end[part] for item in ordered if part in item.end) for part in parts},
        files=tuple(one for item in ordered for one in item.files),
    )


class ArchiveFiles:
    """The archive in one directory, as its manifests say."""

    def __init__(self, directory: Path, manifests: list[Manifest]) -> None:
        self.directory = directory
        self.room = directory / _ROOM
        self.manifest_room = self.room / "manifest"
        self.checkpoint = self.room / "checkpoint"
        self.manifests = manifests

    @classmethod
    def at(cls, directory: str) -> ArchiveFiles:
        """What is there, which may be nothing. Raises PenstockError."""
        if "://" in directory or not directory.strip():
            raise OptionError(
                f"an archive is a directory that driver and executors see under the same path, not {directory!r}"
            )
        path = Path(directory).absolute()
        found = cls(path, [])
        names = sorted(found.manifest_room.glob("*.json")) if found.manifest_room.is_dir() else []
        found.manifests = [Manifest.parse(item.read_text(), str(item)) for item in names]
        return found

    @classmethod
    def open(cls, directory: str, topic: str) -> ArchiveFiles:
        """An archive that is there, of that topic. Raises PenstockError."""
        found = cls.at(directory)
        if not found.manifests:
            raise JobError(f"there is no archive in {directory}: no manifest in {found.manifest_room}")
        found.check_topic(topic)
        return found

    def check_topic(self, topic: str) -> None:
        """Raises JobError when this is another topic's archive."""
        other = next((item.topic for item in self.manifests if item.topic != topic), None)
        if other is not None:
            raise JobError(
                f"{self.directory} is the archive of topic {other!r}, not of {topic!r}; name another directory"
            )

    def isolation(self, wanted: str) -> str:
        """With which its topic was read; `wanted` for a new archive."""
        return self.manifests[0].isolation if self.manifests else wanted

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While it is written. Raises JobError where another run is at it."""
        self.room.mkdir(parents=True, exist_ok=True)
        with (self.room / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise JobError(
                    f"another run writes the archive in {self.directory}; wait for its end"
                ) from None
            yield

    def check_topic_id(self, topic_id: bytes) -> None:
        """Raises JobError when the topic was made anew since."""
        if any(item.topic_id != topic_id.hex() for item in self.manifests):
            raise JobError(
                f"topic {self.manifests[0].topic!r} was deleted and made anew since {self.directory} was written; "
                "archive it into another directory"
            )

    def files(self) -> list[DataFile]:
        return [item for manifest in self.manifests for item in manifest.files]

    def rows(self) -> int:
        return sum(item.rows for item in self.files())

    def upto(self) -> Offsets:
        """Offsets behind the last archived."""
        return merged(self.manifests).end if self.manifests else {}

    def has(self, query_id: str, batch_id: int) -> bool:
        """Whether that micro-batch is in."""
        return any(item.query_id == query_id and item.batch_id >= batch_id for item in self.manifests)

    def add(self, manifest: Manifest) -> None:
        """By rename, and durably: afterwards the micro-batch is in."""
        self.manifest_room.mkdir(parents=True, exist_ok=True)
        put(self.manifest_room / manifest.name, manifest.text())
        self.manifests.append(manifest)

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """A directory of this attempt alone: tasks of a killed run may still be writing into theirs."""
        whole = self.room / "staging"
        shutil.rmtree(whole, ignore_errors=True)
        yield whole / uuid.uuid4().hex
        shutil.rmtree(whole, ignore_errors=True)

    def prefix(self, query_id: str, batch_id: int) -> str:
        """With which the names of a micro-batch's files begin."""
        return f"{query_id[:_QUERY_CHARS]}-{batch_id:010d}-"

    def drop_leftovers(self, prefix: str) -> None:
        """Removes files of that name that no manifest names: a run was killed before it had one."""
        named = {item.path for item in self.files()}
        for path in self.directory.glob(f"date=*/**/{prefix}*.parquet"):
            if str(path.relative_to(self.directory)) not in named:
                path.unlink()


def put(path: Path, text: str) -> None:
    """Writes a file that is there whole or not at all, also after a loss of power."""
    beside = path.with_name(f".{path.name}.tmp")
    with beside.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    flush_directory(path.parent)


def flush_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def by_text(offsets: Mapping[int, int]) -> dict[str, Any]:
    """As options of the source have it."""
    return {str(part): offset for part, offset in sorted(offsets.items())}


def move_in(staging: Path, directory: Path, prefix: str) -> Iterable[DataFile]:
    """Moves Spark's files out of `staging` under names of ours, and says what each holds, by its footer."""
    touched = set()
    for number, path in enumerate(sorted(staging.glob("date=*/**/*.parquet"))):
        found = described(path)
        if not found["rows"]:
            continue
        folders = [part for part in path.relative_to(staging).parent.parts if not part.startswith("_")]
        target = directory.joinpath(*folders, f"{prefix}{number:05d}.parquet")
        target.parent.mkdir(parents=True, exist_ok=True)
        with path.open("rb") as file:
            os.fsync(file.fileno())
        path.replace(target)
        touched |= {target.parent, target.parent.parent}
        yield DataFile(path=str(target.relative_to(directory)), **found)
    for folder in touched:
        flush_directory(folder)


def described(path: Path) -> dict[str, int]:
    """Rows, size, partition and offsets of a file. Raises JobError for one of several partitions."""
    with pq.ParquetFile(path) as file:
        metadata = file.metadata
        names = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        bounds = {}
        for name in ("partition", "offset"):
            column = names.index(name)
            stats = [group.column(column).statistics for group in groups if group.num_rows]
            bounds[name] = (
                (min(item.min for item in stats), max(item.max for item in stats)) if stats else (0, -1)
            )
    return {
        "rows": metadata.num_rows,
        "bytes": path.stat().st_size,
        "partition": bounds["partition"][0],
        "from_offset": bounds["offset"][0],
        "to_offset": bounds["offset"][1] + 1,
    }
