"""An operation followed to its end: a bar at a terminal, lines elsewhere. Ctrl-C only stops watching."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.output import console, note, print_json
from penstock.cli.plans import counted
from penstock.cli.rates import rate_text, size_text, span_text
from penstock.errors import CommandError, ExitCode
from penstock.text import harmless

if TYPE_CHECKING:
    from penstock.cli.admin import Admin

Json = dict[str, Any]
Tell = Callable[[Json], None]

POLL_S: Final = 0.5
PATIENCE_S: Final = 60.0
"""How long gateways may be away while an operation is watched."""


def follow(
    admin: Admin,
    operation: Json,
    *,
    wait_s: float | None = None,
    watch: bool = False,
    as_json: bool = False,
    good: str = "done",
    clock_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Look at an operation until it has ended, or `wait_s` is over; its exit code, 0 only for the state `good`.

    Raises CommandError GOES_ON when the time is over, FAILED when it ended otherwise.
    """
    from penstock_core.operation_documents import ENDED, operation_document

    number = operation["operation_id"]
    heard_s = begun_s = clock_s()
    over = False
    try:
        with telling(watch=watch, as_json=as_json) as tell:
            while True:
                tell(operation)
                now_s = clock_s()
                over = wait_s is not None and now_s - begun_s >= wait_s
                if operation["state"] in ENDED or over:
                    break
                sleep(POLL_S if wait_s is None else min(POLL_S, begun_s + wait_s - now_s))
                try:
                    operation = operation_document(admin.operation(number))
                    heard_s = clock_s()
                except CommandError as error:
                    if error.exit_code != ExitCode.UNREACHABLE or clock_s() - heard_s > PATIENCE_S:
                        raise
    except KeyboardInterrupt:
        note(f"operation {number} goes on; `penstock operation watch {number}` shows it again")
        return ExitCode.INTERRUPTED
    if as_json:
        print_json(operation)
    return outcome(operation, good, wait_s)


def outcome(operation: Json, good: str, wait_s: float | None) -> int:
    """What to return for an operation that ended, or that `wait_s` was too short for. Raises CommandError."""
    number, state = operation["operation_id"], operation["state"]
    if state == good:
        note(ended_text(operation))
        return ExitCode.OK
    if state in ("done", "cancelled", "failed"):
        raise CommandError(ended_text(operation))
    why = operation["reason"] or operation["waiting_for"]
    raise CommandError(
        f"operation {number} is {state} after {wait_s:g} s{f' ({harmless(why)})' if why else ''} and goes on; "
        f"`penstock operation watch {number}` shows how far it is",
        ExitCode.GOES_ON,
    )


def ended_text(operation: Json) -> str:
    """What came of it, in a line."""
    progress = operation["progress"]
    words = f"operation {operation['operation_id']} ({operation['kind']}) is {operation['state']}"
    if operation["state"] == "failed":
        words = f"operation {operation['operation_id']} ({operation['kind']}) failed"
    if operation["reason"]:
        words += f" ({harmless(operation['reason'])})"
    if operation["steps"]:
        words += f": {progress['steps_done']:,} of {counted(progress['steps_total'], 'step')}"
    else:
        words += f": {counted(progress['moves_done'], 'move')}, {size_text(progress['bytes_done'])}"
    if progress["moves_skipped"]:
        words += f", {progress['moves_skipped']:,} skipped"
    if operation["started_ms"] and operation["finished_ms"]:
        words += f" in {span_text((operation['finished_ms'] - operation['started_ms']) / 1000)}"
    return words


def progress_text(operation: Json) -> str:
    """How far it is, in a line."""
    progress, state, phase = operation["progress"], operation["state"], operation["phase"]
    words = [
        state,
        *([harmless(phase)] if phase and phase != state else []),
        f"{progress['ratio'] * 100:.0f}%",
        f"{progress['steps_done']:,} of {counted(progress['steps_total'], 'step')}"
        if operation["steps"]
        else f"{progress['moves_done']:,} of {counted(progress['moves_total'], 'move')}",
    ]
    if progress["bytes_total"]:
        words.append(f"{size_text(progress['bytes_done'])} of {size_text(progress['bytes_total'])}")
    if progress["moves_skipped"]:
        words.append(f"{progress['moves_skipped']:,} skipped")
    if operation["throttle"]["measured_bytes_per_s"]:
        words.append(rate_text(operation["throttle"]["measured_bytes_per_s"]))
    if operation["eta_s"] is not None:
        words.append(f"{span_text(operation['eta_s'])} left")
    why = operation["reason"] or operation["waiting_for"]
    if why:
        words.append(harmless(why))
    return ", ".join(words)


@contextmanager
def telling(*, watch: bool, as_json: bool) -> Iterator[Tell]:
    """A bar where people look; lines where they asked for them; else nothing."""
    if sys.stderr.isatty():
        with _bar() as tell:
            yield tell
    elif watch:
        yield _lines(err=as_json)
    else:
        yield lambda _operation: None


def _lines(*, err: bool) -> Tell:
    """A line whenever something changed that counts."""
    last: list[object] = []

    def tell(operation: Json) -> None:
        progress = operation["progress"]
        now = [
            operation["state"],
            operation["phase"],
            operation["reason"],
            operation["waiting_for"],
            progress["moves_done"],
            progress["moves_skipped"],
            progress["steps_done"],
            int(progress["ratio"] * 100),
        ]
        if now != last:
            last[:] = now
            click.echo(
                f"operation {operation['operation_id']} ({operation['kind']}): {progress_text(operation)}",
                err=err,
            )

    return tell


@contextmanager
def _bar() -> Iterator[Tell]:
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.fields[name]}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[words]}", markup=False),
    )
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=1.0, name="", words="")

        def tell(operation: Json) -> None:
            progress.update(
                task,
                completed=operation["progress"]["ratio"],
                name=f"operation {operation['operation_id']}",
                words=progress_text(operation),
            )

        yield tell
