"""A short subset of the scenario matrix: `make chaos` runs all of it, and longer.

No time is asserted here, only promises; `PENSTOCK_CHAOS_SEED` repeats what is random.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

import chaos.scenarios
from chaos.__main__ import SHORT, SHORT_SECONDS
from chaos.report import one_line
from chaos.runner import run_scenario
from chaos.scenario import SCENARIOS
from chaos.scene import Phases

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("name", "is_secure"), [*((name, False) for name in SHORT), ("everything-kill", True)]
)
def test_nothing_is_lost_or_doubled(tmp_path: Path, name: str, is_secure: bool) -> None:
    assert chaos.scenarios.__all__
    scenario = SCENARIOS[name]
    if scenario.missing():
        pytest.skip(scenario.missing())
    seed = int(os.environ.get("PENSTOCK_CHAOS_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"PENSTOCK_CHAOS_SEED={seed}")
    phases = Phases(SHORT_SECONDS, SHORT_SECONDS, SHORT_SECONDS)
    # On a machine that is busy with other tests, little load before the fault proves less but is no defect.
    result = run_scenario(scenario, phases, seed, tmp_path, is_secure=is_secure)
    print(one_line(result))
    assert result.status in ("ok", "void"), one_line(result)
    assert (result.lost, result.duplicated) == (0, 0), one_line(result)


def test_the_matrix_is_large_enough() -> None:
    assert len(SCENARIOS) >= 30
    assert set(SHORT) <= set(SCENARIOS)
    assert all(scenario.what for scenario in SCENARIOS.values())
