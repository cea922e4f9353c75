"""The packages of this repository as tests install them: copied, built once for all, into environments without pip."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = ("proto", "libs/core", "libs/kafka", "libs/runtime", "libs/frontend")
OTHERS = ("client", "services/controller", "services/storage-node", "services/gateway")
SPARK = "spark"


def new_environment(folder: Path, base: str = sys.executable) -> Path:
    """An environment of the Python `base` with nothing in it, neither pip nor setuptools; its Python."""
    subprocess.run([base, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin" / "python"


def copy_packages(target: Path, packages: Sequence[str]) -> None:
    """Their folders: setuptools builds in the tree, where other tests read meanwhile, and would take modules that
    are gone from an old build there."""
    ignored = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    for package in packages:
        shutil.copytree(ROOT / package, target / package, ignore=ignored)


def pip(python: Path, *words: str) -> str:
    """What pip says that works in that environment from outside. Modules are compiled when they are used."""
    common = ["-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    command = [
        sys.executable,
        *common,
        *words,
        *(["--quiet", "--no-compile"] if words[0] == "install" else []),
    ]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


class Packages:
    """Wheels of what services, command line and plugin are made of, each built when it is first installed."""

    def __init__(self, scratch: Path) -> None:
        self._copies, self._wheels = scratch / "copies", scratch / "wheels"
        copy_packages(self._copies, (*LIBRARIES, *OTHERS))

    def _wheel(self, package: str) -> Path:
        """As `pip install <folder>` makes one."""
        target = self._wheels / package
        if not target.exists():
            words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
            command = [*words, "--no-deps", "--no-build-isolation", "--wheel-dir", str(target)]
            subprocess.run([*command, str(self._copies / package)], check=True)
        (wheel,) = target.glob("*.whl")
        return wheel

    def install(self, python: Path, packages: Sequence[str]) -> None:
        """Into the environment of that Python, which has what they need by then."""
        pip(python, "install", "--no-deps", *(str(self._wheel(package)) for package in packages))
        pip(python, "check")
