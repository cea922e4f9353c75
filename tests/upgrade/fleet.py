"""A cluster whose processes are of two builds: each is replaced by one of the other, in its directory, at its ports."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from penstock.errors import CommandError
from penstock.local import ports
from penstock.local.cluster import LocalCluster
from penstock.local.plan import CONTROLLER, GATEWAY, NODE, ClusterSpec
from support.cluster import UP_TIMEOUT_S, wait_until_ready
from support.waiting import wait_for
from support.watched import watched
from upgrade.builds import Build

ROLES: Final = (CONTROLLER, NODE, GATEWAY)
PATIENCE_S: Final = 180.0
NEWER_LOG: Final = "holds a record of a newer version"
"""What a controller says of the log whose build looks at the kinds of records alone."""
LOOKS_AT_LEVELS: Final = 3
"""Controllers whose build understands this level look at the level by themselves (decision 0054)."""


def refused_words(level: int, cluster_level: int) -> str:
    """What a storage node or a gateway of before is told."""
    return f"this build understands metadata.level {level}, the cluster has {cluster_level}; install a newer build"


class Fleet:
    """3 controllers, 3 storage nodes, 2 gateways."""

    def __init__(self, directory: Path, build: Build) -> None:
        self.directory, self.build = directory, build
        self.new = LocalCluster(directory)
        self.old = LocalCluster(directory, environment=build.environment)

    def names(self, *roles: str) -> list[str]:
        """All processes, or those of some roles."""
        return [m.name for m in self.new.state.members if not roles or m.role in roles]

    def to_new(self, name: str, with_signal: signal.Signals = signal.SIGTERM) -> None:
        """Today's build in the place of a process."""
        self._replace(self.new, name, with_signal)
        assert not self.is_old(name)

    def to_old(self, name: str, with_signal: signal.Signals = signal.SIGTERM) -> None:
        """The build of before in the place of a process."""
        self._replace(self.old, name, with_signal)
        assert self.is_old(name)

    def again(self, name: str) -> None:
        """The same build once more."""
        (self.to_old if self.is_old(name) else self.to_new)(name)

    def _replace(self, by: LocalCluster, name: str, with_signal: signal.Signals) -> None:
        self.new.kill(name, with_signal)
        by.start(name)
        wait_until_ready(self.new)

    def is_old(self, name: str) -> bool:
        """Which build a process runs, by its environment as the kernel has it."""
        pid = self.new.state.process(name).pid
        return str(self.build.root).encode() in Path(f"/proc/{pid}/environ").read_bytes()

    def refused(self, name: str, words: str) -> str:
        """Stop a process of today's and start one of before: the one line of its log with these words.

        Then today's is back.
        """
        log = self.directory / name / "log.txt"
        self.new.kill(name, signal.SIGTERM)
        begun = log.stat().st_size

        def said() -> list[str]:
            with log.open("rb") as file:
                file.seek(begun)
                return [line for line in file.read().decode(errors="replace").splitlines() if words in line]

        # It ends, or lives and is not ready: both are what a refused one may do.
        with suppress(CommandError):
            self.old.start(name, timeout_s=PATIENCE_S)
        lines = wait_for(said, f"{name} of {self.build.commit} is refused", PATIENCE_S)
        with suppress(CommandError):
            self.new.kill(name)
        self.new.start(name)
        wait_until_ready(self.new)
        return lines[0]

    def penstock(self, *words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """A command of today's, with the directory of this cluster."""
        done = subprocess.run(
            [str(Path(sys.executable).with_name("penstock")), *words, "--dir", str(self.directory)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert code in (None, done.returncode), (words, done.returncode, done.stdout, done.stderr)
        return done

    def understood(self) -> dict[str, int | None]:
        """Level that each process says it understands, by its name here."""
        told = json.loads(self.penstock("cluster", "upgrade", "--dry-run", "--json", code=None).stdout)
        roles = {"controller": "controller-", "storage node": "node-", "gateway": ""}
        return {roles[each["role"]] + each["name"]: each["level"] for each in told["processes"]}


@contextmanager
def old_cluster(directory: Path, build: Build) -> Iterator[Fleet]:
    """A cluster whose processes are all of before, stopped at the end."""
    fleet = Fleet(directory, build)
    spec = ClusterSpec(controllers=3, nodes=3, gateways=2, port=ports.choose_base())
    try:
        with watched(directory):
            fleet.old.up(spec, UP_TIMEOUT_S)
            assert all(fleet.is_old(name) for name in fleet.names())
            yield fleet
    finally:
        if fleet.new.store.exists():
            fleet.new.down()
