"""Data directories of controllers that do not run: what is in one, and fresh ones to begin from.

For export and import (docs/decisions/0057). Reading changes nothing in the directory but its lock file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock_controller.directory import META_FILE, DataDirectory
from penstock_controller.quorum import journal_format, snapshot_format
from penstock_controller.quorum.commands import NO_OP, REGULAR, find_poison
from penstock_controller.quorum.files import REAL_FILES, DamagedFile
from penstock_controller.quorum.journal import JOURNAL_FILE, DurableJournal, stored_term
from penstock_controller.quorum.journal_format import Entry
from penstock_controller.quorum.machine import Machine
from penstock_controller.quorum.snapshot import SNAPSHOT_FILE
from penstock_controller.quorum.snapshot_format import Snapshot
from penstock_core.metadata import MetadataImage
from penstock_core.metadata.restore import Restored
from penstock_runtime.addresses import StartupError

_NO_OP: Final = bytes([NO_OP])


class OfflineError(Exception):
    """A directory cannot be read or made. One line that names it and the mend."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a stopped controller's directory holds."""

    controller_id: int
    image: MetadataImage
    term: int
    index: int
    """Of the last entry that counts in `image`. This controller may have been behind others."""


def read_directory(path: Path) -> Found:
    """All that a stopped controller knows: its snapshot and its log to the end. Raises OfflineError."""
    try:
        if not (path / META_FILE).is_file():
            raise OfflineError(f"{path} is no controller's data_dir: it has no {META_FILE}; give another one")
        controller_id = _controller_id(path)
        directory = DataDirectory(path, controller_id)
        try:
            return _read(path, controller_id)
        finally:
            directory.close()
    except (StartupError, DamagedFile) as error:
        raise OfflineError(str(error)) from None
    except OSError as error:
        raise OfflineError(
            f"{error.filename or path}: {error.strerror}; give a directory that can be read"
        ) from None


def _controller_id(path: Path) -> int:
    for line in (path / META_FILE).read_text(errors="replace").splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "controller.id" and value.strip().isdecimal():
            return int(value)
    raise OfflineError(f"{path / META_FILE} is not that of a controller; give a controller's data_dir")


def _read(path: Path, controller_id: int) -> Found:
    image, index = MetadataImage(), 0
    snapshot_path = path / SNAPSHOT_FILE
    if snapshot_path.exists():
        snapshot = snapshot_format.decode(snapshot_path.read_bytes(), str(snapshot_path))
        image, index = snapshot.image, snapshot.last_index
    entries: list[Entry] = []
    term = 0
    journal_path = path / JOURNAL_FILE
    if journal_path.exists():
        entries = journal_format.recover(journal_path.read_bytes(), str(journal_path)).entries
        term = stored_term(path)
    if poison := find_poison(entries):
        raise OfflineError(f"{journal_path}: {poison}; take another controller's data_dir")
    if entries and entries[0][1] > index + 1 and index:
        raise OfflineError(
            f"{journal_path} starts at {entries[0][1]} but the snapshot ends at {index}; "
            "take another controller's data_dir"
        )
    faults: list[BaseException] = []
    machine = Machine(image, lambda _: None, faults.append)
    for command, at, _ in entries:
        if at <= index:
            continue
        if command[0] == REGULAR:
            machine.entry_index = at
            machine.apply(command[1:])
        else:
            machine.interrupt()
        if faults:
            raise OfflineError(f"{journal_path}: {faults[0]}")
        index = at
    if not machine.image.cluster_id:
        raise OfflineError(
            f"{path} knows no cluster: nothing was ever founded with it; give another data_dir"
        )
    return Found(controller_id, machine.image, max(term, max((e[2] for e in entries), default=0)), index)


def make_directory(path: Path, controller_id: int, restored: Restored) -> None:
    """A fresh data_dir with which a controller begins at `restored`. Raises OfflineError.

    Beside it the others must get directories of the same: a majority of them is all that a quorum remembers.
    """
    try:
        if path.exists():
            raise OfflineError(f"{path} exists already; give another --out, nothing is written over")
        directory = DataDirectory(path, controller_id)
        try:
            directory.join_cluster(restored.image.cluster_id)
            _write(path, restored)
        finally:
            directory.close()
    except StartupError as error:
        raise OfflineError(str(error)) from None
    except OSError as error:
        raise OfflineError(
            f"{error.filename or path}: {error.strerror}; give a directory that can be written"
        ) from None


def _write(path: Path, restored: Restored) -> None:
    # Above every index of before, in all likelihood; and where not, the term outranks what has them.
    index, term = restored.image.version, restored.term
    previous: Entry = (_NO_OP, index - 1, term)
    last: Entry = (_NO_OP, index, term)
    REAL_FILES.replace_durably(
        path / SNAPSHOT_FILE, snapshot_format.encode(Snapshot(previous, last, restored.image))
    )
    journal = DurableJournal(path)
    try:
        journal.setCurrentTerm(term, None)
        journal.replace([previous, last])
    finally:
        close: Callable[[], None] = journal._destroy
        close()


__all__ = ["Found", "OfflineError", "make_directory", "read_directory"]
