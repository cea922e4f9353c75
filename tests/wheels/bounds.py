"""The oldest versions that packages allow, as constraints for pip.

What our packages ask for directly is pinned to its lower bound; what those ask for in turn is pip's choice.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from email.parser import BytesParser
from email.policy import compat32
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

LOWER = frozenset({">=", "==", "~="})


class Wheel(NamedTuple):
    """What a wheel's METADATA says."""

    path: Path
    name: str
    requires: tuple[Requirement, ...]
    extras: tuple[str, ...]

    def with_extras(self, *extras: str) -> str:
        """The word for `pip install`: no index is asked for a package of ours."""
        return f"{self.path}[{','.join(extras)}]" if extras else str(self.path)


class NoLowerBoundError(Exception):
    """A requirement that any old version meets."""


def read_wheel(path: Path) -> Wheel:
    """Its name, requirements and extras."""
    with zipfile.ZipFile(path) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        message = BytesParser(policy=compat32).parsebytes(archive.read(name))
    return Wheel(
        path,
        canonicalize_name(message["Name"]),
        tuple(Requirement(text) for text in message.get_all("Requires-Dist", [])),
        tuple(message.get_all("Provides-Extra", [])),
    )


def lower_bounds(requirements: Iterable[Requirement], own: Iterable[str] = ()) -> dict[str, Version]:
    """The oldest version of each package that all requirements allow, but for packages in `own`.

    Raises NoLowerBoundError, which names the requirement.
    """
    ours = set(own)
    found: dict[str, Version] = {}
    for requirement in requirements:
        name = canonicalize_name(requirement.name)
        if name in ours:
            continue
        lowest = [Version(each.version) for each in requirement.specifier if each.operator in LOWER]
        if not lowest:
            raise NoLowerBoundError(f"{requirement}: say since which version, as in {name}>=1.2")
        found[name] = max(*lowest, found.get(name, lowest[0]))
    return found


def pulled_in(wheels: Iterable[Wheel], name: str) -> set[str]:
    """Names of one of some wheels and of those that come with it."""
    by_name = {wheel.name: wheel for wheel in wheels}
    found, waiting = set[str](), [name]
    while waiting:
        name = waiting.pop()
        if name in by_name and name not in found:
            found.add(name)
            # Requirements of extras are left out: nobody asks for them.
            waiting += [
                canonicalize_name(each.name) for each in by_name[name].requires if each.marker is None
            ]
    return found


def constraints(bounds: dict[str, Version]) -> str:
    """Text of a file for `pip install --constraint`."""
    return "".join(f"{name}=={version}\n" for name, version in sorted(bounds.items()))
