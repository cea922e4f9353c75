"""A short round of the bank: `make bank` has all faults, and more orders.

Its faults need no root. No time is asserted here, only promises; `PENSTOCK_BANK_SEED` repeats what is random.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from chaos.bank.report import lines_of
from chaos.bank.round import Plan, run_round
from support.java import needs_java

FAULTS = ("member-kill", "coordinator-kill", "gateway-loss")
HOLD_S = (1.0, 2.0)
RATE_PER_S = 20.0
MEMBERS = 4

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1800), needs_java]


def test_no_order_is_lost_done_twice_or_seen_by_halves(tmp_path: Path) -> None:
    seed = int(os.environ.get("PENSTOCK_BANK_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"PENSTOCK_BANK_SEED={seed}")
    result = run_round(1, seed, Plan(FAULTS, HOLD_S, RATE_PER_S, members=MEMBERS), tmp_path, print)
    print("\n".join(lines_of(result)))
    assert result.good, lines_of(result)
    assert len(result.steps) == len(FAULTS)
