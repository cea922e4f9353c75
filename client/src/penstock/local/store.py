"""DIR/cluster.json: read, replaced as a whole, and guarded by a lock between commands."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.errors import CommandError, ExitCode
from penstock.local.plan import SECURE_DIRECTORY, ClusterState, ProcessRecord

STATE_FILE = "cluster.json"
LOCK_FILE = "cluster.lock"


def write_private(path: Path, text: str) -> None:
    """Replace a file in one step by one that its owner alone may read: settings of people may hold secrets."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    scratch.replace(path)


class Store:
    """The files of one local cluster's directory that belong to no role."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        self.state_file = self.directory / STATE_FILE

    def exists(self) -> bool:
        return self.state_file.exists()

    def load(self) -> ClusterState:
        """The state; raises a usage error that says how to make one when there is none."""
        try:
            text = self.state_file.read_text()
        except FileNotFoundError:
            raise CommandError(
                f"no local cluster in {self.directory}: `penstock local up` starts one, --dir names another",
                ExitCode.USAGE,
            ) from None
        except OSError as error:
            raise CommandError(
                f"cannot read {self.state_file}: {error.strerror}; check its owner and --dir"
            ) from error
        return ClusterState.from_json(text, self.state_file)

    def save(self, state: ClusterState) -> None:
        """Replace cluster.json in one step: a reader never sees half of it."""
        write_private(self.state_file, state.to_json())

    @contextmanager
    def locked(self, *, create: bool = False) -> Iterator[None]:
        """Hold the directory's lock: one changing command at a time; others wait their turn."""
        try:
            if create:
                self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            elif not self.exists():
                self.load()
            descriptor = os.open(self.directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            self.load()
            raise
        except OSError as error:
            raise CommandError(
                f"cannot use {self.directory}: {error.strerror}; choose another --dir"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def forget(self, state: ClusterState, record: ProcessRecord) -> None:
        """Take a process of one member out of the state, then remove its directory."""
        state.members = [member for member in state.members if member.name not in record.members]
        state.processes = [process for process in state.processes if process is not record]
        self.save(state)
        self.clear(record.name)

    def clear(self, name: str) -> None:
        """Remove what is there of a member that the state does not know, or not yet."""
        shutil.rmtree(self.directory / name, ignore_errors=True)

    def wipe(self, state: ClusterState, keep: str | None = None) -> None:
        """Remove what `up` made here, and the directory itself if nothing else is in it.

        Files named `keep` (a log, say) stay where they are.
        """
        for name in {*(member.name for member in state.members), *(p.name for p in state.processes)}:
            place = self.directory / name
            for entry in list(place.iterdir()) if place.is_dir() else ():
                if entry.name == keep:
                    continue
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
            with suppress(OSError):
                place.rmdir()
        shutil.rmtree(self.directory / SECURE_DIRECTORY, ignore_errors=True)
        for file in (self.state_file, self.directory / LOCK_FILE):
            file.unlink(missing_ok=True)
        with suppress(OSError):
            self.directory.rmdir()
