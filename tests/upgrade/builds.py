"""A build of before, out of this repository's own history: its packages, and how processes come to run them.

Theory: the packages are pure Python, so the same interpreter and the same third-party packages run them. `PYTHONPATH`
stands before what is installed into the environment; `check` asks the packages themselves where they came from.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
REPOSITORY: Final = HERE.parent.parent
BASE_FILE: Final = HERE / "base"
BEFORE_TRANSACTIONS: Final = "before-transactions"
"""Names the last commit that had nothing of transactions."""
WITH_TRANSACTIONS: Final = "with-transactions"
"""Names an earlier one that has them, and understands the same level."""
BASE_VARIABLE: Final = "PENSTOCK_UPGRADE_BASE"
"""Names another commit to come from; `make upgrade-test BASE=COMMIT` sets it."""
SOURCES: Final = ("proto/src", "libs/*/src", "services/*/src", "client/src")
_ASK: Final = """
import importlib, json, sys
files = {name: importlib.import_module(name).__file__ for name in sys.argv[1:]}
from penstock_core.limits import FEATURE_LEVEL
from penstock_proto.v1 import metadata_pb2
print(json.dumps({"files": files | {"penstock_proto": metadata_pb2.__file__}, "level": FEATURE_LEVEL}))
"""


class NoSuchCommitError(Exception):
    """The commit to come from is not in this clone."""


@dataclass(frozen=True)
class Build:
    """A checkout of before."""

    commit: str
    root: Path

    @property
    def environment(self) -> dict[str, str]:
        """With it a process of the same interpreter runs this build."""
        return {"PYTHONPATH": os.pathsep.join(map(str, self.sources))}

    @property
    def sources(self) -> list[Path]:
        """Folders of its packages."""
        return sorted(path for pattern in SOURCES for path in self.root.glob(pattern))

    def check(self) -> int:
        """The level that this build understands; fails unless every package comes from here."""
        import json

        packages = sorted(file.parent.name for path in self.sources for file in path.glob("*/__init__.py"))
        assert {"penstock_controller", "penstock_storage_node", "penstock_gateway"} <= set(packages)
        done = subprocess.run(
            [sys.executable, "-P", "-c", _ASK, *packages],
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        told = json.loads(done.stdout)
        strange = {
            name: file for name, file in told["files"].items() if not Path(file).is_relative_to(self.root)
        }
        assert not strange, f"these packages are not of {self.commit}: {strange}"
        level: int = told["level"]
        return level


def commit_in(name: str) -> str:
    """The commit that a file beside this one names."""
    return (HERE / name).read_text().strip()


def base_commit() -> str:
    """The commit to come from: of the environment, else of the file beside this one."""
    return os.environ.get(BASE_VARIABLE, "").strip() or BASE_FILE.read_text().strip()


def unpack(commit: str, directory: Path, repository: Path = REPOSITORY) -> Build:
    """Take a build out of the history, into `directory`. Raises NoSuchCommitError, which says what to do."""
    if not re.fullmatch(r"[0-9a-f]{7,40}", commit):
        raise NoSuchCommitError(f"{commit!r} is no commit; {BASE_FILE} or {BASE_VARIABLE} has to name one")
    known = _git(repository, "cat-file", "-e", f"{commit}^{{commit}}")
    if known.returncode:
        raise NoSuchCommitError(
            f"commit {commit} is not in this clone, and upgrades are tested from it: "
            "fetch the whole history (`git fetch --unshallow`)"
        )
    archive = _git(repository, "archive", "--format=tar", commit)
    assert archive.returncode == 0, archive.stderr.decode()
    directory.mkdir(parents=True)
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
        tar.extractall(directory, filter="data")
    return Build(commit, directory)


def _git(repository: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(repository), *words], capture_output=True, check=False)
