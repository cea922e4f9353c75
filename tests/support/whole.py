"""Which tests `make test` leaves out: those of `tests/whole.txt`, unless PENSTOCK_WHOLE says that all are wanted."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import pytest

LIST: Final = Path(__file__).resolve().parents[1] / "whole.txt"
VARIABLE: Final = "PENSTOCK_WHOLE"
"""Set by `make test WHOLE=1`, and by the targets of long runs. Empty is not set."""


def named(text: str) -> frozenset[str]:
    """Node ids out of the file's text: one a line, comments and empty lines apart."""
    lines = (line.strip() for line in text.splitlines())
    return frozenset(line for line in lines if line and not line.startswith("#"))


def is_whole() -> bool:
    return bool(os.environ.get(VARIABLE))


def skip(items: Sequence[pytest.Item], names: frozenset[str]) -> None:
    """Mark those of `items` that are named, with all their variants or one by one."""
    reason = pytest.mark.skip(reason="of the whole form: make test WHOLE=1")
    for item in items:
        if item.nodeid in names or item.nodeid.partition("[")[0] in names:
            item.add_marker(reason)


def gone(ids: Iterable[str], names: frozenset[str]) -> list[str]:
    """Names that no test has any more, of the files that were collected as a whole: `ids` are what they have."""
    known = set(ids)
    known |= {one.partition("[")[0] for one in known}
    files = {one.partition("::")[0] for one in known}
    return sorted(name for name in names if name.partition("::")[0] in files and name not in known)
