"""How the command speaks: tables and progress for people, JSON for machines, errors in one line.

Rules: results go to stdout, everything else to stderr. When stdout is no terminal, tables
have no colour and no box, so that `cut`, `awk` and diffs work on them. Names and ids come from clients: what a
terminal would obey in them is written out. `--json` prints one
document (or one per line for streams) and nothing else on stdout.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from penstock.text import harmless

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.local.cluster import Progress

STATE_STYLES = {"running": "green", "starting": "yellow", "stopped": "yellow", "dead": "red"}


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    click.echo(json.dumps(value, indent=2))


def console(*, stderr: bool = False) -> Console:
    """A rich console that never wraps or colours what goes into a file or a pipe."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    if stream.isatty():
        return Console(stderr=stderr, highlight=False)
    return Console(stderr=stderr, highlight=False, width=10_000, color_system=None, soft_wrap=True)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> None:
    """A table: boxed and coloured at a terminal, plain aligned columns elsewhere."""
    texts = [[_text(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        _print_plain(columns, texts)
        return
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD, title=title or None, title_justify="left", header_style="bold", pad_edge=False
    )
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], int) for row in rows)
        table.add_column(column, justify="right" if numeric else "left")
    for row in texts:
        table.add_row(*[_styled(cell) for cell in row])
    console().print(table)


def print_facts(facts: Sequence[tuple[str, object]]) -> None:
    """Names and values, one pair per line, aligned."""
    width = max((len(name) for name, _ in facts), default=0)
    for name, value in facts:
        label = click.style(f"{name:<{width}}", dim=True) if sys.stdout.isatty() else f"{name:<{width}}"
        click.echo(f"{label}  {_text(value)}")


def note(message: str) -> None:
    """A remark for people, on stderr."""
    click.echo(harmless(message, keep="\n"), err=True)


@contextmanager
def spinner(first: str) -> Iterator[Progress]:
    """A line that tells what is being waited for; at no terminal it says nothing."""
    if not sys.stderr.isatty():
        yield lambda _message: None
        return
    with console(stderr=True).status(first) as status:
        yield lambda message: status.update(harmless(message).replace("[", "\\["))


def _print_plain(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    lines = [[column.upper().replace(" ", "_") for column in columns], *rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        click.echo("  ".join(cells).rstrip())


def _text(cell: object) -> str:
    if cell is None or cell == "":
        return "-"
    if isinstance(cell, (list, tuple)):
        return harmless(",".join(str(part) for part in cell)) or "-"
    return harmless(str(cell))


def _styled(cell: str) -> Any:
    from rich.text import Text

    return Text(cell, style=STATE_STYLES.get(cell, ""))
