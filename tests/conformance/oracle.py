"""Kafka's outcomes, kept: what the fast subset of `make test` is compared with, where no Kafka runs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from conformance.frame import SCENARIOS, Cell, Outcome
from conformance.runner import key
from conformance.targets import KAFKA

ORACLE = Path(__file__).parent / "oracle.json"
SAME_FROM = 100
"""An outcome of more entries is kept as each value once, with the names of all that have it."""
_SAME = "same"


def read_oracle() -> dict[str, Outcome]:
    """Outcomes by "scenario client"."""
    found: dict[str, Outcome] = json.loads(ORACLE.read_text())
    return {name: _spread(outcome) for name, outcome in found.items()}


def write_oracle(cells: Iterable[Cell]) -> None:
    """Keep what Kafka gave for the fast scenarios; what was not run now stays as it was."""
    kept = read_oracle() if ORACLE.exists() else {}
    kept |= {
        key(cell): cell.outcome
        for cell in cells
        if cell.target == KAFKA and cell.status == "green" and SCENARIOS[cell.scenario].fast
    }
    kept = {name: outcome for name, outcome in kept.items() if _still_fast(name)}
    lines = [f"{json.dumps(name)}: {_compact(kept[name])}" for name in sorted(kept)]
    ORACLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _compact(outcome: Outcome) -> str:
    if isinstance(outcome, dict) and len(outcome) > SAME_FROM:
        cells: dict[str, list[str]] = {}
        for name in sorted(outcome):
            cells.setdefault(json.dumps(outcome[name], sort_keys=True), []).append(name)
        outcome = {_SAME: [[json.loads(value), names] for value, names in cells.items()]}
    return json.dumps(outcome, sort_keys=True, separators=(",", ":"))


def _spread(outcome: Outcome) -> Outcome:
    """What `_compact` was given."""
    if isinstance(outcome, dict) and set(outcome) == {_SAME}:
        return {name: value for value, names in outcome[_SAME] for name in names}
    return outcome


def _still_fast(name: str) -> bool:
    scenario = SCENARIOS.get(name.partition(" ")[0])
    return scenario is not None and scenario.fast
