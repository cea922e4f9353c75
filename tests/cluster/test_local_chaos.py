"""Any process killed, stopped or ended under load, again and again, by a seed: nothing acked is lost.

`PENSTOCK_CHAOS_SEED` and `PENSTOCK_CHAOS_SECONDS` repeat and lengthen a run.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from support.cluster import running_cluster
from support.kafka import Load, check_nothing_lost, create_topic, read_all, wait_for_full_isr

SECONDS = float(os.environ.get("PENSTOCK_CHAOS_SECONDS", "25"))
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
STOPPED_MAX_S = 4.0
"""Longer than a node's session: some stopped nodes are fenced, others never missed."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_random_faults_lose_and_double_nothing(tmp_path: Path) -> None:
    seed = int(os.environ.get("PENSTOCK_CHAOS_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"PENSTOCK_CHAOS_SEED={seed}")
    dice = random.Random(seed)
    with running_cluster(tmp_path, gateways=2) as cluster:
        create_topic(cluster.bootstrap, "t", 6, 3)
        names = cluster.alive()
        end_s = time.monotonic() + SECONDS
        with Load(cluster.bootstrap, "t", rate_per_s=4_000) as load:
            while time.monotonic() < end_s:
                name, signal_number = dice.choice(names), dice.choice(SIGNALS)
                print(f"{name} {signal_number.name}")
                cluster.kill(name, signal_number, timeout_s=120)
                # Nobody but a client's own timeout tells it that the gateway it talks to hangs.
                if not (signal_number is signal.SIGSTOP and name.startswith("gateway")):
                    load.wait_for_acks(1_000)
                if signal_number is signal.SIGSTOP:
                    # How long it is stopped is the fault itself, not a wait for something.
                    time.sleep(dice.uniform(0, STOPPED_MAX_S))
                cluster.start(name)
                load.wait_for_acks(500)
                wait_for_full_isr(cluster.bootstrap, "t")
        check_nothing_lost(load.ledger, read_all(cluster.bootstrap, "t"))
