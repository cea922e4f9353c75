"""What the demo shows: one line per step, a bar while it runs, a table at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text


@dataclass
class Step:
    """A step that runs; `tell` what came of it before it ends."""

    said: str = ""

    def tell(self, text: str) -> None:
        self.said = text


class Screen:
    """At a terminal with colour and progress, elsewhere plain lines."""

    def __init__(self) -> None:
        live = sys.stdout.isatty()
        self._console = (
            Console(highlight=False) if live else Console(highlight=False, width=110, color_system=None)
        )
        self._live = live

    def title(self, text: str, below: str) -> None:
        self._console.print(
            Panel(Text(below), title=Text(text, style="bold"), title_align="left", expand=False)
        )

    @contextmanager
    def step(self, doing: str, total: int | None = None) -> Iterator[tuple[Step, Callable[[int], None]]]:
        """A step with a spinner, or a bar up to `total`; gives the step and a function for progress."""
        step = Step()
        begun = time.perf_counter()
        try:
            if total is not None and self._live:
                columns = (
                    TextColumn("[cyan]…[/] {task.description}"),
                    BarColumn(),
                    MofNCompleteColumn(),
                    TimeElapsedColumn(),
                )
                with Progress(*columns, console=self._console, transient=True) as progress:
                    task = progress.add_task(doing, total=total)
                    yield step, lambda count: progress.update(task, completed=count)
            elif self._live:
                with self._console.status(Text(doing)):
                    yield step, lambda _count: None
            else:
                yield step, lambda _count: None
        except BaseException:
            self._line("✗", "red", step.said or doing, time.perf_counter() - begun)
            raise
        self._line("✓", "green", step.said or doing, time.perf_counter() - begun)

    def table(self, title: str, rows: Sequence[tuple[str, str, bool | None]]) -> None:
        """The table of what was proved: name, value, and whether it held (None: a measure, not a claim)."""
        table = Table(
            title=title, title_justify="left", box=box.ROUNDED, show_header=False, title_style="bold"
        )
        table.add_column(justify="left")
        table.add_column(justify="right")
        table.add_column(justify="center")
        marks = {True: Text("✓", style="green"), False: Text("✗", style="bold red"), None: Text("")}
        for name, value, held in rows:
            table.add_row(name, value, marks[held])
        self._console.print()
        self._console.print(table)

    def say(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def complain(self, text: str) -> None:
        Console(stderr=True, highlight=False, soft_wrap=True).print(Text(f"demo: {text}", style="red"))

    def _line(self, mark: str, style: str, text: str, took_s: float) -> None:
        line = Text.assemble((mark, style), " ", text)
        line.truncate(96, overflow="ellipsis")
        line.pad_right(max(0, 98 - len(line)))
        self._console.print(line + Text(f"{took_s:6.1f} s", style="dim"), soft_wrap=True)
