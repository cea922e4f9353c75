"""Checkpoints of Spark's streaming queries, as files: where each source stood after the last committed micro-batch.

Form (Spark's OffsetSeqLog and CommitLog): `offsets/N` has a version, a line of metadata and a line per source,
`commits/N` is there once micro-batch N is done; `metadata` has the query's id. A source's line is its own: the Kafka
connector's is {"topic": {"0": 23}}, Penstock's {"v": ..., "to": {"topic": {"0": 23}}, ...}.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.errors import CommandError

_NO_OFFSET: Final = "-"
_HEAD_LINES: Final = 2

TopicOffsets = dict[str, dict[str, int]]


@dataclass(frozen=True)
class Source:
    """One of the query's sources, in the order of its plan."""

    index: int
    kind: str
    """`penstock`, `kafka` or `other`."""
    starting_offsets: TopicOffsets | None


@dataclass(frozen=True)
class Checkpoint:
    """The last committed micro-batch."""

    query_id: str
    batch_id: int
    sources: tuple[Source, ...]

    def as_dict(self) -> dict[str, Any]:
        sources = [
            {"source": item.index, "kind": item.kind, "startingOffsets": item.starting_offsets}
            for item in self.sources
        ]
        return {"query_id": self.query_id, "batch_id": self.batch_id, "sources": sources}


def read_checkpoint(directory: Path) -> Checkpoint:
    """Raises CommandError where there is none, or nothing is committed yet."""
    committed = set(_numbers(directory / "commits")) & set(_numbers(directory / "offsets"))
    if not committed:
        found = "no micro-batch is committed yet" if (directory / "offsets").is_dir() else "it has no offsets"
        raise CommandError(
            f"{directory} is no checkpoint that can be read: {found}; name a query's checkpointLocation"
        )
    batch_id = max(committed)
    path = directory / "offsets" / str(batch_id)
    lines = path.read_text(errors="replace").splitlines()
    if len(lines) <= _HEAD_LINES or not lines[0].startswith("v"):
        raise CommandError(f"{path} has a form that is not known; it is not Spark's of version 3 or 4")
    sources = tuple(_source(index, line) for index, line in enumerate(lines[_HEAD_LINES:]))
    return Checkpoint(_query_id(directory), batch_id, sources)


def _numbers(directory: Path) -> list[int]:
    if not directory.is_dir():
        return []
    return [int(path.name) for path in directory.iterdir() if path.name.isdecimal()]


def _query_id(directory: Path) -> str:
    try:
        return str(json.loads((directory / "metadata").read_text())["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _source(index: int, line: str) -> Source:
    form = None
    if line.strip() != _NO_OFFSET:
        try:
            form = json.loads(line)
        except (ValueError, RecursionError):
            form = None
    if isinstance(form, dict) and "v" in form and (to := _offsets(form.get("to"))) is not None:
        return Source(index, "penstock", to)
    if (own := _offsets(form)) is not None:
        return Source(index, "kafka", own)
    return Source(index, "other", None)


def _offsets(form: Any) -> TopicOffsets | None:
    """Topic to partition to offset, or None for anything else."""
    if not isinstance(form, dict) or not form:
        return None
    for item in form.values():
        if not isinstance(item, dict):
            return None
        for partition, offset in item.items():
            if not partition.isdecimal() or not isinstance(offset, int) or isinstance(offset, bool):
                return None
    return form
