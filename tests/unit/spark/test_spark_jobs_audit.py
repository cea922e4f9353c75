"""What an audit says of an archive while retention is at work. No Spark: rows are sets of (partition, offset)."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pyspark_penstock.jobs import compare
from pyspark_penstock.jobs.archive_files import ArchiveFiles, Manifest
from pyspark_penstock.jobs.audit import _with_archive
from pyspark_penstock.jobs.frame import Cluster, Finding, Offsets, Outcome, Span

TOPIC_ID = b"t" * 16
UPTO = 80
audit = sys.modules[_with_archive.__module__]
"""The module: the package has a function of its name."""


class Rows(frozenset[tuple[int, int]]):
    """Stands for a DataFrame."""

    def where(self, clause: str) -> Rows:
        found = re.findall(r"partition = (\d+) AND offset >= (\d+) AND offset < (\d+)", clause)
        if not found:
            return self
        return Rows(
            (int(p), n) for p, low, high in found for n in range(int(low), int(high)) if (int(p), n) in self
        )


class Topic(Span):
    """Partition 0 from 0 to 100. Its log starts where `starts` say, one after the other, at each look at it and each
    read of it."""

    starts: list[int]
    lacks: ClassVar[range] = range(0)

    def __init__(self, starts: list[int]) -> None:
        super().__init__(Cluster(), "flights", TOPIC_ID, {0: 0}, {0: 100}, {0: 100})
        object.__setattr__(self, "starts", starts)

    def _start(self) -> int:
        return self.starts.pop(0) if len(self.starts) > 1 else self.starts[0]

    def first_now(self) -> Offsets:
        return {0: self._start()}

    def frame(
        self,
        spark: Any,
        schema: str,
        first: Mapping[int, int] | None = None,
        end: Mapping[int, int] | None = None,
        **more: str,
    ) -> Any:
        assert first is not None
        assert end is not None
        low = max(first[0], self._start())
        return Rows((0, n) for n in range(low, end[0]) if n not in self.lacks)


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ArchiveFiles:
    """An archive of everything up to UPTO."""

    def of_archive(_: Any, ours: Rows, theirs: Rows, names: tuple[str, str]) -> list[Finding]:
        kinds = ("missing", sorted(ours - theirs)), ("extra", sorted(theirs - ours))
        return [
            Finding(kind, names[0], 0, some[0][1], some[-1][1] + 1, len(some)) for kind, some in kinds if some
        ]

    monkeypatch.setattr(audit, "replace", lambda one, **_: one)  # the isolation
    monkeypatch.setattr(compare, "hashed", lambda frame, **_: frame)
    monkeypatch.setattr(compare, "sums", lambda frame: frame)
    monkeypatch.setattr(compare, "differing", lambda one, other: [] if one == other else [0])
    monkeypatch.setattr(compare, "of_archive", of_archive)
    monkeypatch.setattr(audit, "read_archive", lambda *_, **__: Rows((0, n) for n in range(UPTO)))
    manifest = Manifest(0, "q", "flights", TOPIC_ID.hex(), {0: 0}, {0: UPTO})
    return ArchiveFiles(tmp_path, [manifest])


def found(files: ArchiveFiles, starts: list[int], **more: Any) -> tuple[list[tuple[str, int, int]], int]:
    outcome = Outcome("audit")
    _with_archive(None, Topic(starts), files, False, outcome)  # type: ignore[arg-type]
    return [(one.kind, one.start, one.end) for one in outcome.findings], outcome.more["archive"]["behind"]


@pytest.mark.parametrize(
    "starts",
    [
        [0],
        # While the offsets were being explained, which takes minutes.
        [30],
        # Between the look and the read, more than once.
        [0, 30],
        [0, 30, 30, 50, 50],
        # At each look and each read.
        [*range(0, 60, 2)],
        # All that the archive has.
        [90],
        [100],
    ],
)
def test_what_retention_takes_during_an_audit_is_rightly_in_the_archive(
    files: ArchiveFiles, starts: list[int]
) -> None:
    last = starts[-1]
    assert found(files, starts) == ([], 100 - max(last, UPTO))


def test_what_the_topic_lacks_above_its_start_is_told(
    files: ArchiveFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Topic, "lacks", range(70, 75))
    for starts in ([0], [0, 30], [0, 30, 30, 50, 50]):
        assert found(files, starts)[0] == [("extra", 70, 75)]
    assert found(files, [0, 72])[0] == [("extra", 72, 75)]
    assert found(files, [0, 75])[0] == []


def test_what_is_not_in_the_archive_is_told_whatever_retention_does(
    files: ArchiveFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Rows((0, n) for n in range(UPTO) if n != 70)
    monkeypatch.setattr(audit, "read_archive", lambda *_, **__: rows)
    assert found(files, [0, 30]) == ([("missing", 70, 71)], 20)
    monkeypatch.setattr(audit, "read_archive", lambda *_, **__: Rows((0, n) for n in range(UPTO + 5)))
    assert found(files, [0, 30])[0] == []  # beyond what the manifests name nobody looks
