"""An archive's directory: manifests, which alone say what is in it, and how they change.

    DIR/date=YYYY-MM-DD/[hour=HH/]<query>-<batch>-<n>.parquet
    DIR/_penstock/manifest/<batch>-<query>.json   a micro-batch: what it covers, and its files
    DIR/_penstock/staging/                        what a micro-batch is writing, and a checkpoint that goes
    DIR/_penstock/lock                            locked by the run that writes
    DIR/_penstock/compact.json                    a compaction that is decided, until all of it is done
    DIR/_penstock/iceberg.json                    tables that refer to the files, which then no compaction may take away
    DIR/_penstock/checkpoint/                     Spark's

Rule: a file counts once a manifest names it, and a manifest comes by rename. What a killed run left has a name of its
micro-batch, and goes before that is written again. While `compact.json` is there its manifest stands for all that it
takes the place of. Only plain directories, which driver and executors see alike.
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
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq

from pyspark_penstock.errors import OptionError
from pyspark_penstock.jobs.frame import JobError, Offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WRITE: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.sources.partitionOverwriteMode": "static",
}
"""Spark's own default for times, INT96, is nobody else's, and neither are the lists of its older versions."""
_ROOM: Final = "_penstock"
_LOOKS_MAX: Final = 10
"""How often manifests are read anew while somebody changes them."""
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


def in_order(manifests: Iterable[Manifest]) -> list[Manifest]:
    """As they came: a query without the checkpoint of the one before counts its micro-batches anew."""
    return sorted(manifests, key=lambda item: (sum(item.end.values()), item.batch_id))


def merged(manifests: Iterable[Manifest]) -> Manifest:
    """All of them as one, under the name of the last."""
    ordered = in_order(manifests)
    parts = sorted({part for item in ordered for part in item.end})
    return replace(
        ordered[-1],
        start={part: min(item.start[part] for item in ordered if part in item.start) for part in parts},
        end={part: max(item.end[part] for item in ordered if part in item.end) for part in parts},
        files=tuple(one for item in ordered for one in item.files),
    )


@dataclass(frozen=True, slots=True)
class Compaction:
    """What takes the place of what."""

    manifest: Manifest
    manifests: tuple[str, ...]
    """Names of those that it takes the place of, beside the one of its own name."""
    files: tuple[str, ...]
    """Those that go."""

    def text(self) -> str:
        return json.dumps(
            {
                "manifest": json.loads(self.manifest.text()),
                "manifests": sorted(self.manifests),
                "files": sorted(self.files),
            }
        )

    @classmethod
    def parse(cls, text: str, where: str) -> Compaction:
        """Raises JobError."""
        try:
            form = json.loads(text)
            manifest = Manifest.parse(json.dumps(form["manifest"]), where)
            return cls(manifest, tuple(map(str, form["manifests"])), tuple(map(str, form["files"])))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise JobError(
                f"{where}: this is no note of a compaction ({error!r}); put back a good copy"
            ) from None

    def after(self, manifests: Iterable[Manifest]) -> list[Manifest]:
        """What there is once it is done."""
        replaced = {*self.manifests, self.manifest.name}
        return [*(item for item in manifests if item.name not in replaced), self.manifest]


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
        found = cls(Path(directory).absolute(), [])
        found.manifests = found._read()
        return found

    def _read(self) -> list[Manifest]:
        """Manifests as they are at one moment: a compaction may be at it, or was killed while it was."""
        for _ in range(_LOOKS_MAX):
            decided, names = self.decided(), self._names()
            try:
                found = [Manifest.parse(item.read_text(), str(item)) for item in names]
            except FileNotFoundError:
                continue
            if (decided, names) == (self.decided(), self._names()):
                return found if decided is None else decided.after(found)
        raise JobError(f"the manifests in {self.manifest_room} change all the time; try again")

    def _names(self) -> list[Path]:
        return sorted(self.manifest_room.glob("*.json")) if self.manifest_room.is_dir() else []

    @property
    def compaction(self) -> Path:
        """The note of one that is decided."""
        return self.room / "compact.json"

    def decided(self) -> Compaction | None:
        """A compaction of which not all is done. Raises JobError."""
        try:
            text = self.compaction.read_text()
        except FileNotFoundError:
            return None
        return Compaction.parse(text, str(self.compaction))

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

    def is_in(self, wanted: Manifest) -> bool:
        """Whether all that a micro-batch covers is in. Raises JobError where some of it is.

        By offsets: the number of a micro-batch is planned anew where the checkpoint has lost it, with another end.
        """
        upto = self.upto()
        is_same = self.has(wanted.query_id, wanted.batch_id)
        begun = is_same or any(start < upto.get(part, start) for part, start in wanted.start.items())
        if begun and any(end > upto.get(part, -1) for part, end in wanted.end.items()):
            raise JobError(
                f"micro-batch {wanted.batch_id} is in {self.directory} with other offsets than the checkpoint has: "
                f"remove {self.checkpoint}, and the next run goes on where the manifests end"
            )
        return begun

    def drop_old_checkpoint(self) -> bool:
        """Removes a checkpoint that knows less than the manifests: one that was put back, or was not on the disk yet
        when the power went. Without it a query begins where the manifests end."""
        query = self._query_id()
        mine = [item for item in self.manifests if item.query_id == query]
        if not mine:
            return False
        last = max(mine, key=lambda item: item.batch_id)
        try:
            planned = self.planned(last.batch_id, last.topic)[1]
        except (OSError, ValueError, AttributeError, IndexError, TypeError):
            planned = {}
        if planned and all(last.end.get(part) == offset for part, offset in planned.items()):
            return False
        self._drop_checkpoint()
        return True

    def drop_newer_checkpoint(self, topic: str) -> bool:
        """Removes a checkpoint that has committed what is in no manifest: manifests were put back, or taken away. From
        there on a query would leave a hole; without it, it begins where the manifests end."""
        commits = self.checkpoint / "commits"
        done = [int(path.name) for path in commits.glob("[0-9]*") if path.name.isdecimal()]
        if not done:
            return False
        try:
            planned = self.planned(max(done), topic)[1]
        except (OSError, ValueError, AttributeError, IndexError, TypeError):
            return False
        upto = self.upto()
        if all(offset <= upto.get(part, -1) for part, offset in planned.items()):
            return False
        self._drop_checkpoint()
        return True

    def _drop_checkpoint(self) -> None:
        """Whole or not at all: of one that is half there, after a kill, Spark goes on from what is left."""
        room = self._staging_room
        shutil.rmtree(room, ignore_errors=True)
        room.mkdir(parents=True, exist_ok=True)
        self.checkpoint.rename(room / uuid.uuid4().hex)
        shutil.rmtree(room, ignore_errors=True)

    def _query_id(self) -> str:
        """That of the checkpoint; "" where there is none."""
        try:
            return str(json.loads((self.checkpoint / "metadata").read_text())["id"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def planned(self, batch_id: int, topic: str) -> tuple[Offsets, Offsets]:
        """Where a micro-batch begins and ends, which Spark notes in the checkpoint before it runs."""
        form = json.loads((self.checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[-1])
        start, end = (
            {int(part): int(offset) for part, offset in form.get(name, {}).get(topic, {}).items()}
            for name in ("from", "to")
        )
        return start, end

    def add(self, manifest: Manifest) -> None:
        """By rename, and durably: afterwards the micro-batch is in."""
        if not self.manifest_room.is_dir():
            self.manifest_room.mkdir(parents=True)
            flush_directory(self.room)
            flush_directory(self.directory)
        put(self.manifest_room / manifest.name, manifest.text())
        self.manifests.append(manifest)

    @property
    def table_notes(self) -> Path:
        """The note of tables that refer to the files."""
        return self.room / "iceberg.json"

    def tables(self) -> dict[str, str]:
        """Names of tables of Iceberg that refer to the files, by their UUIDs. Raises JobError."""
        try:
            form = json.loads(self.table_notes.read_text())
            return {str(uuid): str(name) for uuid, name in form["tables"].items()}
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise JobError(
                f"{self.table_notes}: this is no note of an archive's tables ({error!r}); put back a good copy"
            ) from None

    def note_table(self, table_uuid: str, name: str) -> None:
        """To come before the table refers to a file. Raises JobError."""
        known = self.tables()
        if known.get(table_uuid) != name:
            put(self.table_notes, json.dumps({"tables": known | {table_uuid: name}}, indent=1))

    def check_no_table(self) -> None:
        """Raises JobError when a table refers to the files, so that none may be taken away."""
        if names := sorted(set(self.tables().values())):
            raise JobError(
                f"files in {self.directory} cannot be joined, since the Iceberg tables {', '.join(names)} refer to "
                f"them; leave out compact, or drop the tables without their files and remove {self.table_notes}"
            )

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """A directory of this attempt alone: tasks of a killed run may still be writing into theirs."""
        whole = self._staging_room
        shutil.rmtree(whole, ignore_errors=True)
        yield whole / uuid.uuid4().hex
        shutil.rmtree(whole, ignore_errors=True)

    @property
    def _staging_room(self) -> Path:
        return self.room / "staging"

    def prefix(self, query_id: str, batch_id: int) -> str:
        """With which the names of a micro-batch's files begin."""
        return f"{query_id[:_QUERY_CHARS]}-{batch_id:010d}-"

    def drop_leftovers(self, prefix: str) -> None:
        """Removes files of that name that no manifest names: a run was killed before it had one."""
        named = {item.path for item in self.files()}
        for path in self.directory.glob(f"date=*/**/{prefix}*.parquet"):
            if str(path.relative_to(self.directory)) not in named:
                path.unlink()


@contextmanager
def written_for_all(spark: SparkSession) -> Iterator[None]:
    """What the session writes meanwhile every reader of Parquet reads."""
    kept = {name: spark.conf.get(name, None) for name in _WRITE}
    try:
        for name, value in _WRITE.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, before in kept.items():
            if before is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, before)


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
        touched |= {target.parent, *target.parent.parents} - set(directory.parents)
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
