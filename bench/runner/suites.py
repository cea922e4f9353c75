"""Which rows a command measures, and how its documents are called. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench.runner.rows import ROWS, Row
from bench.runner.transaction_rows import TRANSACTION_ROWS


@dataclass(frozen=True)
class Suite:
    """`name` is in the documents and in their names; the first suite has none."""

    name: str
    command: str
    rows: Sequence[Row]


BENCH: Final = Suite("", "make bench", ROWS)
TRANSACTIONS: Final = Suite("transactions", "make bench-transactions", TRANSACTION_ROWS)
SUITES: Final = {suite.name: suite for suite in (BENCH, TRANSACTIONS)}


def rows_of(name: str) -> Sequence[Row]:
    """Of the suite of a document. Raises ValueError for one that is unknown."""
    try:
        return SUITES[name].rows
    except KeyError:
        raise ValueError(f"a document of the suite {name}, and there is none of that name") from None
