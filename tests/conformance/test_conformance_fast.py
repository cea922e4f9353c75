"""The quick scenarios against Penstock, compared with what Kafka gave when `make conformance` last recorded it.

All of them run once, several at a time, for the whole module: each test looks at its cells.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conformance.clients import registry
from conformance.frame import SCENARIOS, Cell
from conformance.oracle import read_oracle
from conformance.report import one_line
from conformance.runner import Runner, key
from conformance.scenarios import load
from conformance.targets import DIRECT, PROXY, SECURE, Worlds

load()
JOBS = 4
PROXY_CLIENTS = ("confluent-kafka", "kafka-python", registry.RAW)
DIRECT_CLIENTS = ("aiokafka", registry.RAW)
"""A part of what `make conformance` runs, for the time's sake."""
FAST = [scenario for scenario in SCENARIOS.values() if scenario.fast]
ORACLE = read_oracle()

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Cell]]:
    """Every cell, with its colour."""
    with Worlds(tmp_path_factory.mktemp("conformance")) as worlds:
        runner = Runner(worlds, lambda _: None, JOBS)
        try:
            found = runner.run(FAST, PROXY_CLIENTS, [PROXY]) + runner.run(FAST, DIRECT_CLIENTS, [DIRECT])
            yield runner.settled(found, ORACLE)
        finally:
            runner.close()


@pytest.mark.parametrize("name", [scenario.name for scenario in FAST])
def test_as_with_kafka(cells: list[Cell], name: str) -> None:
    mine = [cell for cell in cells if cell.scenario == name]
    wrong = [cell for cell in mine if cell.status in ("red", "none")]
    assert not wrong, "\n".join(line for cell in wrong for line in (one_line(cell), *cell.diff))
    # Of the matrix of rights and of signing in there may be entries that a page explains, by name.
    by_entries = all(scenario.world == SECURE for scenario in FAST if scenario.name == name)
    assert any(cell.status == "green" or (by_entries and cell.status == "known") for cell in mine)


def test_every_outcome_that_is_needed_was_recorded() -> None:
    """`make conformance CONFORMANCE=--record` writes them."""
    named = {name.partition(" ")[0] for name in ORACLE}
    assert {scenario.name for scenario in FAST} <= named
    assert all(key(Cell(s.name, c, "", "")) in ORACLE for s in FAST for c in s.clients)
