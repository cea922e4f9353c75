"""What has to hold, in plain words, and the tests that show it.

A pattern is a file or folder below `tests` (`*` as in a shell), or one of these, `::` and a pattern of its tests. A
test counts for the line with the longest pattern that fits, so that a folder may be one line's and a file in it
another's. A pattern that fits nothing is a mistake (a test says so), and so is a line without a test that ran.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).resolve().parents[1]
SWITCHES: Final = {
    "PENSTOCK_PLANNER_SHAPES": "5000",
    "PENSTOCK_ALERTS": "1",
    "PENSTOCK_UPGRADE_MATRIX": "1",
    "PENSTOCK_OPERATIONS_LONG": "1",
    "PENSTOCK_COMPOSE_LONG": "1",
}
"""What makes tests long; `make test` runs their short forms."""
SIMULATION: Final = "simulation"
PLANTED: Final = "planted"
CHAOS: Final = "chaos"
SPEED: Final = "speed"
"""A measurement: `bench.drain`."""


@dataclass(frozen=True)
class Line:
    """`name` is for ONLY and JSON, `what` for people; `others` are not pytest's."""

    name: str
    what: str
    patterns: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


_PLANNING: Final = "unit/controller/state/operations"
LINES: Final = (
    Line(
        "planner",
        "plans keep their rules and move the least, over 5,000 shapes",
        (f"{_PLANNING}/test_planner.py", f"{_PLANNING}/test_plan*.py"),
    ),
    Line(
        "engine",
        "steps, gates, throttle, times and findings are decided from what is so",
        (_PLANNING, "unit/controller/state/observations", "node/test_catch_up_throttle.py"),
    ),
    Line("simulation", "simulated clusters that are operated keep I1 to I8", others=(SIMULATION,)),
    Line("planted", "bugs that are planted into operations are found", others=(PLANTED,)),
    Line("chaos", "operations under faults of real processes lose nothing", others=(CHAOS,)),
    Line(
        "drain",
        "a drain is its plan, a node gets its share, rebalance moves the least, a removed directory is refused",
        ("cluster/test_operations*.py", "cluster/test_rebalance*.py"),
    ),
    Line(
        "speed",
        "a drain of 5 GB takes the time and copies the bytes of its plan, at the rate that it was given",
        others=(SPEED,),
    ),
    Line(
        "failover",
        "an operation goes on under other controllers, is paused, throttled, resumed, cancelled",
        ("cluster/test_operations*.py::*controller*",),
    ),
    Line(
        "factor",
        "other replication factors on live topics; moves by Kafka's own tool are listed",
        ("cluster/test_operations*.py::*replication_factor*", "cluster/test_*reassign*.py"),
    ),
    Line(
        "replace",
        "a node or a controller whose disk is lost is replaced",
        ("cluster/test_operations*.py::*place*", "cluster/test_*replace*.py"),
    ),
    Line("restart", "every process is restarted once, and no client sees it", ("cluster/test_rolling_*.py",)),
    Line("upgrade", "from an earlier build in every order of roles, and back", ("upgrade",)),
    Line(
        "domains",
        "a host and a rack are lost as `cluster check` had said",
        ("cluster/test_failure_domains.py",),
    ),
    Line(
        "disk",
        "a full disk gives up leadership and comes back by itself",
        ("cluster/test_full_disk.py", "node/test_full_disk.py"),
    ),
    Line(
        "containers",
        "containers and processes come and go by one command; slots keep their data",
        ("compose", "cluster/test_scale.py", "cluster/test_slots.py", "unit/deploy"),
    ),
    Line("metrics", "the whole catalogue is told, dashboards have data", ("observability",)),
    Line(
        "alerts",
        "alerts fire by their fault and no sooner",
        ("observability/test_alerts*.py", "observability/test_rules.py"),
    ),
    Line(
        "explain",
        "what happened reads well to a stranger; a bundle holds no secret",
        (
            "cluster/test_explain.py",
            "unit/client/test_cli_explain.py",
            "unit/client/test_pseudonyms.py",
            "cluster/test_no_secret_is_told.py",
        ),
    ),
    Line(
        "disaster",
        "controllers come back from a survivor, from a backup, from nothing but the nodes",
        ("cluster/test_disaster.py", "unit/client/test_cli_backup.py", "unit/controller/test_offline.py"),
    ),
    Line("runbooks", "every runbook runs as written", ("cluster/test_runbooks.py",)),
    Line(
        "bad-input",
        "what cannot be is refused in one line, and changes nothing",
        (
            "cluster/test_operations*.py::*bad_requests*",
            "cluster/test_strays.py",
            "unit/client/test_cli_operations.py",
            "unit/client/test_cli_plans.py",
            "unit/client/test_cli_moves.py",
        ),
    ),
)


class NoSuchLineError(Exception):
    """No line's name or text has the word."""


def chosen(words: Sequence[str], lines: Sequence[Line] = LINES) -> list[Line]:
    """Lines that contain one of these words, all where there are none. Raises NoSuchLineError."""
    if not words:
        return list(lines)
    for word in words:
        if not any(_has(line, word) for line in lines):
            raise NoSuchLineError(f"no line has the word {word!r}; --list shows them")
    return [line for line in lines if any(_has(line, word) for word in words)]


def _has(line: Line, word: str) -> bool:
    return word.lower() in f"{line.name} {line.what}".lower()


def files_of(pattern: str) -> list[str]:
    """Files and folders below `tests` of a pattern, as they are named to pytest."""
    path = pattern.partition("::")[0]
    return sorted(str(found.relative_to(TESTS)) for found in TESTS.glob(path))


def targets(lines: Iterable[Line]) -> list[str]:
    """What pytest is called with, each once, in the order of the lines."""
    found = dict.fromkeys(file for line in lines for pattern in line.patterns for file in files_of(pattern))
    return [file for file in found if not any(str(above) in found for above in Path(file).parents)]


def line_of(test: str, lines: Sequence[Line] = LINES) -> Line | None:
    """Whose test this is: `cluster/test_x.py::test_y[z]`, or with `tests/` before it."""
    file, _, name = test.removeprefix("tests/").partition("::")
    best: tuple[int, Line] | None = None
    for line in lines:
        for pattern in line.patterns:
            path, _, wanted = pattern.partition("::")
            fits = fnmatchcase(file, path) or file.startswith(f"{path}/")
            if (
                fits
                and (not wanted or fnmatchcase(name, wanted))
                and (best is None or len(pattern) > best[0])
            ):
                best = (len(pattern), line)
    return best[1] if best else None
