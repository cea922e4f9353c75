"""README's table between its marks, from a document of `make bench`.

    make bench-readme DOCUMENT=bench/results/2026-11-28-1a2b3c4.json

The table follows from the document alone, and a test holds README to it. Only what stands in bench/results/ can be
named, so that a reader finds the samples beside the figures.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.runner import store
from bench.runner.documents import Document
from bench.runner.machine import ROOT
from bench.runner.suites import BENCH
from bench.runner.tables import readme_block

README: Final = ROOT / "README.md"
BEGIN: Final = "<!-- figures: written by make bench-readme -->"
END: Final = "<!-- end of figures -->"
_NAMED: Final = re.compile(r"\]\((bench/results/[^)\s]+\.json)\)")


def block(document: Document, name: str) -> str:
    """What stands between the marks. `name`: the document's path from the root. Raises ValueError for a document that
    has none of the rows, or is of another suite."""
    if document.suite != BENCH.name:
        raise ValueError(f"{name} is of {document.suite}: README's figures are those of `{BENCH.command}`")
    made = readme_block(document)
    if made.count("\n| ") < 2:
        raise ValueError(f"{name} has none of the rows that README shows")
    origin, _, table = made.partition("\n\n")
    return (
        f"Penstock beside Apache Kafka, the same machine and the same client in turn: `{BENCH.command}` at "
        f"{document.commit} on {document.date}, all samples in [{name}]({name}). Medians. {origin} Kafka ran with its "
        "defaults, which flush nothing before an ack; so does `replicated`, and `fsync`, the default, flushes every "
        f"record on every in-sync replica.\n\n{table}"
    )


def between(text: str) -> str:
    """What stands between the marks now. Raises ValueError when they are not there."""
    _, found, rest = text.partition(BEGIN)
    made, closed, _ = rest.partition(END)
    if not found or not closed:
        raise ValueError(f"README.md lacks {BEGIN} or {END}: put both around its table")
    return made.strip("\n")


def put(text: str, made: str) -> str:
    """`text` with `made` between its marks. Raises ValueError when they are not there."""
    between(text)
    head, _, rest = text.partition(BEGIN)
    return f"{head}{BEGIN}\n\n{made}\n\n{END}{rest.partition(END)[2]}"


def named(text: str) -> str:
    """The document that the table is of, from the root; "" while it is of none."""
    found = _NAMED.search(between(text))
    return found[1] if found else ""


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """0 when README is written, 1 with one line when it can't be."""
    parser = argparse.ArgumentParser(
        prog="make bench-readme", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("document", type=Path, help="of make bench, in bench/results/")
    options = parser.parse_args(arguments)
    readme = root / README.name
    try:
        file = options.document.resolve()
        if not file.is_relative_to(root / "bench" / "results"):
            raise ValueError(f"{options.document} is not in bench/results/: put it there, and commit it")
        name = str(file.relative_to(root))
        readme.write_text(put(readme.read_text(), block(store.load(file), name)))
    except (OSError, ValueError) as error:
        print(f"bench-readme: {error}", file=sys.stderr)
        return 1
    print(f"written: {readme.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
