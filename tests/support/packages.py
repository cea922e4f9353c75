"""The packages of this repository as tests install them: copied, and the libraries built once for all tests."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = ("proto", "libs/core", "libs/kafka", "libs/runtime", "libs/frontend")
OTHERS = ("client", "services/controller", "services/storage-node", "services/gateway")


class Packages:
    """Copies of the packages' folders: setuptools builds in the tree, where other tests read meanwhile, and would
    take modules that are gone from an old build there."""

    def __init__(self, scratch: Path) -> None:
        self._copies, self._wheels = scratch / "copies", scratch / "wheels"
        self._built: dict[str, Path] = {}
        ignored = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
        for package in (*LIBRARIES, *OTHERS):
            shutil.copytree(ROOT / package, self._copies / package, ignore=ignored)

    def _wheel(self, package: str) -> Path:
        """As `pip install <folder>` makes one."""
        if package not in self._built:
            target = self._wheels / package
            pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
            command = [*pip, "--no-deps", "--no-build-isolation", "--wheel-dir", str(target)]
            subprocess.run([*command, str(self._copies / package)], check=True)
            (self._built[package],) = target.glob("*.whl")
        return self._built[package]

    def install(self, python: Path, packages: Iterable[str]) -> None:
        """Into the environment of that Python, which builds all but the libraries by what it holds itself."""
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        paths = [self._wheel(p) if p in LIBRARIES else self._copies / p for p in packages]
        subprocess.run([*pip, "--no-deps", "--no-build-isolation", *map(str, paths)], check=True)
        subprocess.run([str(python), "-m", "pip", "check"], check=True)
