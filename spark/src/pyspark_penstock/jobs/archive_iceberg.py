"""An archive as a table of Iceberg: one snapshot per micro-batch, which refers to the archive's own files.

Rule: a micro-batch is in the archive first, by its manifest, and in the table then. How far the table is, by offsets,
is a property of it, set by the commit that adds the files: both happen or neither. So a run that was killed between
the two is made good by the next, from the manifests, and nothing is added twice. The other way round a micro-batch
without a manifest would be written again, over files that a snapshot refers to.

Snapshots name query and micro-batch too, but they expire, and are not asked.

The table has no partitions: PyIceberg takes a file's partition from the bounds of its times, and has none beyond
the year 9999; producers write such times. Each file is of one day, or hour, and of one partition of the topic, so
readers choose files by the bounds of `timestamp`, `partition` and `offset` as they would by partitions.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from pyspark_penstock.errors import OptionError
from pyspark_penstock.jobs.archive_catalog import CatalogFile
from pyspark_penstock.jobs.archive_files import ArchiveFiles, DataFile, Manifest, by_text, in_order
from pyspark_penstock.jobs.frame import JobError, Offsets

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

TOPIC: Final = "penstock.topic"
TOPIC_ID: Final = "penstock.topic-id"
ARCHIVE: Final = "penstock.archive"
"""The archive's directory."""
OFFSETS: Final = "penstock.offsets"
"""JSON: by partition, the offset behind the last that is in the table."""
QUERY_ID: Final = "penstock.query-id"
BATCH_ID: Final = "penstock.batch-id"
_BOUNDS: Final = "write.metadata.metrics.column.timestamp"


def names_of(table: str) -> tuple[str, ...]:
    """Namespaces and name of a table. Raises OptionError."""
    names = tuple(table.split("."))
    if len(names) < 2 or not all(name.strip() == name != "" for name in names):
        raise OptionError(f"a table is named by its namespace and its name, NS.T, not {table!r}")
    return names


class ArchiveTable:
    """The table of one archive."""

    def __init__(self, file: CatalogFile, table: Table, name: str, files: ArchiveFiles) -> None:
        self.name = name
        self.location = table.location()
        self.snapshots_added = 0
        self._file = file
        self._table = table
        self._files = files

    @classmethod
    @contextmanager
    def opened(
        cls, file: CatalogFile, name: str, files: ArchiveFiles, topic: str, topic_id: bytes
    ) -> Iterator[ArchiveTable]:
        """The table, made where it is not there, with all that the archive has. Raises PenstockError.

        `files` are to be those of a run that is alone with them.
        """
        names = names_of(name)
        if any(sign in str(files.directory) for sign in "#?"):
            raise OptionError(
                f"{files.directory}: a table names files by URIs, so no # or ? may be in it; name another directory"
            )
        with file.opened() as catalog:
            with file.explained(f"does not give table {name}"):
                table = _found(catalog, names)
            is_new = table is None
            if table is None:
                with file.explained(f"does not make table {name}, where its property warehouse says"):
                    table = _made(catalog, names, files, topic, topic_id)
            opened = cls(file, table, name, files)
            if not is_new:
                opened._check(topic, topic_id)
            files.note_table(str(table.metadata.table_uuid), name)
            opened.catch_up()
            yield opened

    def catch_up(self) -> None:
        """Adds what manifests have and the table has not. Raises JobError."""
        for manifest in in_order(self._files.manifests):
            self.add(manifest)

    def add(self, manifest: Manifest) -> None:
        """Adds a micro-batch that is in the archive, unless it is in the table. Raises JobError."""
        upto = self.upto()
        if all(end <= upto.get(part, -1) for part, end in manifest.end.items()):
            return
        if any(start < upto.get(part, start) for part, start in manifest.start.items()):
            raise JobError(
                f"table {self.name} has a part of {self._files.manifest_room / manifest.name} only: manifests were "
                "changed since; drop the table without its files, and the next run makes it again from the manifests"
            )
        with self._file.explained(f"does not take micro-batch {manifest.batch_id} into table {self.name}"):
            self._commit(manifest, upto | manifest.end)
        self.snapshots_added += bool(manifest.files)

    def upto(self) -> Offsets:
        """Offsets behind the last that are in the table. Raises JobError."""
        try:
            form = json.loads(self._table.properties[OFFSETS])
            return {int(part): int(offset) for part, offset in form.items()}
        except (KeyError, ValueError, AttributeError, TypeError, RecursionError):
            raise JobError(
                f"table {self.name} has no {OFFSETS} among its properties that can be read: put it back, or drop the "
                "table without its files, and the next run makes it again from the manifests"
            ) from None

    def _commit(self, manifest: Manifest, upto: Offsets) -> None:
        """All of it at once. Files that are in the table already are refused by PyIceberg."""
        marks = {QUERY_ID: manifest.query_id, BATCH_ID: str(manifest.batch_id)}
        paths = [f"file://{self._files.directory / item.path}" for item in manifest.files]
        with self._table.transaction() as transaction:
            transaction.set_properties({OFFSETS: json.dumps(by_text(upto), separators=(",", ":"))})
            is_bounded = all(map(_has_bounds, manifest.files))
            before = self._table.properties.get(_BOUNDS)
            if not is_bounded:
                transaction.set_properties({_BOUNDS: "counts"})
            if paths:
                transaction.add_files(paths, snapshot_properties=marks)
            if not is_bounded:
                if before is None:
                    transaction.remove_properties(_BOUNDS)
                else:
                    transaction.set_properties({_BOUNDS: before})

    def _check(self, topic: str, topic_id: bytes) -> None:
        """Raises JobError unless the table is this archive's, of this topic, and has no more than it."""
        told, name, directory = self._table.properties, self.name, self._files.directory
        if ARCHIVE not in told:
            raise JobError(f"table {name} was not made by archive; name another one, which it makes")
        if told.get(TOPIC) != topic:
            raise JobError(
                f"table {name} is the archive of topic {told.get(TOPIC)!r}, not of {topic!r}; name another table"
            )
        if told[ARCHIVE] != str(directory):
            raise JobError(
                f"table {name} is of the archive in {told[ARCHIVE]}, not in {directory}; name another table, or that "
                "directory"
            )
        if told.get(TOPIC_ID) != topic_id.hex():
            raise JobError(
                f"topic {topic!r} was deleted and made anew since table {name} was written; archive it into another "
                "directory and another table"
            )
        if (others := _other_columns(self._table.schema())) != "":
            raise JobError(
                f"table {name} has not the archive's columns ({others}): change them back, or name another table"
            )
        upto, there = self.upto(), self._files.upto()
        is_known = str(self._table.metadata.table_uuid) in self._files.tables()
        if any(offset > there.get(part, -1) for part, offset in upto.items()) or (upto and not is_known):
            raise JobError(
                f"table {name} has records that the archive in {directory} has not: put back its manifests and "
                f"{self._files.table_notes}, or drop the table without its files, and the next run makes it again"
            )


def _found(catalog: Catalog, names: tuple[str, ...]) -> Table | None:
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    try:
        return catalog.load_table(names)
    except (NoSuchTableError, NoSuchNamespaceError):
        return None


def _made(
    catalog: Catalog, names: tuple[str, ...], files: ArchiveFiles, topic: str, topic_id: bytes
) -> Table:
    if not catalog.namespace_exists(names[:-1]):
        catalog.create_namespace_if_not_exists(names[:-1])
    return catalog.create_table(
        names,
        _schema(),
        properties={
            TOPIC: topic,
            TOPIC_ID: topic_id.hex(),
            ARCHIVE: str(files.directory),
            OFFSETS: "{}",
            # Engines then delete no file when they expire snapshots or drop the table: they are the archive's too.
            "gc.enabled": "false",
            # As Iceberg has it by default, and PyIceberg has not: or each commit looks through all that came before.
            "commit.manifest-merge.enabled": "true",
        },
    )


def _schema() -> Schema:
    """The columns of read_archive.SCHEMA, by the same names."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import (
        BinaryType,
        IntegerType,
        ListType,
        LongType,
        NestedField,
        StringType,
        StructType,
        TimestamptzType,
    )

    header = StructType(
        NestedField(10, "key", StringType(), required=False),
        NestedField(11, "value", BinaryType(), required=False),
    )
    return Schema(
        NestedField(1, "key", BinaryType(), required=False),
        NestedField(2, "value", BinaryType(), required=False),
        NestedField(3, "topic", StringType(), required=False),
        NestedField(4, "partition", IntegerType(), required=False),
        NestedField(5, "offset", LongType(), required=False),
        NestedField(6, "timestamp", TimestamptzType(), required=False),
        NestedField(7, "timestampType", IntegerType(), required=False),
        NestedField(8, "headers", ListType(9, header, element_required=False), required=False),
    )


def _other_columns(schema: Schema) -> str:
    """What of the archive's columns a table lacks or has otherwise; it may have more."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    wanted, found = (
        {each.name: str(each.type) for each in schema_to_pyarrow(one, include_field_ids=False)}
        for one in (_schema(), schema)
    )
    told = [
        f"{name} is {found.get(name, 'missing')}" for name, kind in wanted.items() if found.get(name) != kind
    ]
    return ", ".join(told)


def _has_bounds(item: DataFile) -> bool:
    """Whether PyIceberg can tell the bounds of a file's times: Python has years 1 to 9999, topics have others too."""
    day = next(part for part in PurePosixPath(item.path).parts if part.startswith("date="))
    try:
        dt.date.fromisoformat(day.removeprefix("date="))
    except ValueError:
        return False
    return True
