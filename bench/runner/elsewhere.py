"""Rows that are measured by modules of their own: called as programs, what they write as JSON read into samples.

Those modules start their systems themselves, in turn, and have rounds of their own; noise is not judged there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.runner.documents import Sample
from bench.runner.machine import ROOT
from bench.runner.rows import Row

TIMEOUT_S: Final = 3600


class ModuleFailed(Exception):
    """A module did not come to its end; the text is its last line."""


def command(row: Row, rounds: int, *, quick: bool, file: Path, systems: Sequence[str]) -> list[str]:
    """How the row's module is called."""
    call = [sys.executable, "-m", row.module]
    if row.module == "bench.failover":
        return [*call, "--times", str(2 if quick else max(rounds, 20)), "--json"]
    if row.module == "bench.transactional_ids":
        return [*call, *(["--ids", "5000", "--idle", "1000"] if quick else []), "--json", str(file)]
    if row.module == "bench.groups":
        small = ["--groups", "10", "--seconds", "3"] if quick else []
        return [
            *call, "--parts", "cost", "--rounds", str(rounds), "--systems", ",".join(systems), *small,
            "--json", str(file),
        ]  # fmt: skip
    return [
        *call,
        "--rounds",
        str(rounds),
        "--json",
        "--only",
        "count 1 KiB",
        *(["--quick"] if quick else []),
    ]


def samples_of(row: Row, held: Any) -> list[Sample]:
    """What the module's JSON says, as samples. Raises LookupError or TypeError for another form."""
    return list(_READERS[row.module](row, held))


def run(row: Row, rounds: int, *, quick: bool, folder: Path, systems: Sequence[str]) -> list[Sample]:
    """Raises ModuleFailed."""
    file = folder / f"{row.name}.json"
    done = subprocess.run(
        command(row, rounds, quick=quick, file=file, systems=systems),
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT / "tests"), "TMPDIR": str(folder)},
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        raise ModuleFailed(f"{row.module}: {last}")
    try:
        return samples_of(row, json.loads(file.read_text() if file.exists() else done.stdout))
    except (ValueError, LookupError, TypeError) as error:
        raise ModuleFailed(f"{row.module} wrote something else than expected: {error}") from None


def _failover(row: Row, held: Sequence[Mapping[str, Any]]) -> Iterator[Sample]:
    figures: dict[str, float] = {}
    for one in held:
        name = one["fault"].replace("-", "_")
        figures |= {f"{name}_p50_s": one["p50_s"], f"{name}_max_s": one["max_s"]}
    yield Sample(row.name, "penstock", 0, figures)


def _groups(row: Row, held: Mapping[str, Any]) -> Iterator[Sample]:
    """Penstock by way of its gateway, Kafka as it is."""
    ways = {"kafka": "direct", "penstock": "proxy"}
    for system, way in ways.items():
        mine = [one for one in held["cost"] if (one["system"], one["way"]) == (system, way)]
        for number in range(min((len(one["rounds_ms"]) for one in mine), default=0)):
            figures = {f"{one['kind'].replace('-', '_')}_cpu_ms": one["rounds_ms"][number] for one in mine}
            yield Sample(row.name, system, number, figures)


def _spark(row: Row, held: Mapping[str, Any]) -> Iterator[Sample]:
    """The module tells medians alone."""
    for system in ("kafka", "penstock"):
        figures = {
            "_".join(f"{one['job']} {one['size']} {one['mode']}".lower().split()): float(one[system])
            for one in held["rows"]
        }
        yield Sample(row.name, system, 0, figures)


def _transactional_ids(row: Row, held: Mapping[str, Any]) -> Iterator[Sample]:
    figures = {
        "idle_ids_rss_mb": float(held["idle_mb"]),
        "load_s": float(held["load_s"]),
        "loop_late_ms": float(held["late_ms"]),
        "killed_to_loaded_s": float(held["loaded_s"]),
    }
    yield Sample(row.name, "penstock", 0, figures)


_READERS: Final[Mapping[str, Callable[[Row, Any], Iterator[Sample]]]] = {
    "bench.failover": _failover,
    "bench.groups": _groups,
    "bench.spark": _spark,
    "bench.transactional_ids": _transactional_ids,
}
