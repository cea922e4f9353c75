"""A short piece of each crash run with real processes; `make failpoints kill-all power-cut` run them in full."""

from __future__ import annotations

import os
import random
import shutil
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from crash.matrix import case_of, running_matrix
from crash.rig import fast_client, kill_all
from crash.rounds import run_rounds
from support.cluster import running_cluster, start_ready
from support.kafka import create_topic
from support.waiting import wait_for
from support.whole import is_whole

pytestmark = pytest.mark.timeout(1200)
needs_compiler = pytest.mark.skipif(
    shutil.which("gcc") is None and shutil.which("cc") is None, reason="power cuts need gcc"
)

HANDFUL = (
    "log.append.torn_write",
    "log.truncate.after_cut",
    "controller.journal.before_sync",
    "operation.step.after_apply",
)
"""One of the log, one of replication, one of the quorum, one of operations; the middle two in the short form."""


def seed() -> int:
    value = int(os.environ.get("PENSTOCK_CRASH_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"PENSTOCK_CRASH_SEED={value}")
    return value


def test_a_handful_of_failpoints(tmp_path: Path) -> None:
    with running_matrix(tmp_path / "cluster") as matrix:
        for name in HANDFUL if is_whole() else HANDFUL[1:3]:
            result = matrix.run(case_of(name))
            assert result.verdict == "ok"


def test_everything_killed_at_once(tmp_path: Path) -> None:
    report = run_rounds(tmp_path, 2, seed(), print)
    assert report.rounds == 2
    assert report.snapshots > 0


@needs_compiler
def test_power_cuts(tmp_path: Path) -> None:
    report = run_rounds(tmp_path, 2, seed(), print, power_cut=True)
    assert report.rounds == 2


@needs_compiler
def test_power_cut_loses_what_replicated_topics_had_not_flushed(tmp_path: Path) -> None:
    """The layer takes away what was not flushed: without a flush before the ack there is loss."""
    report = run_rounds(tmp_path, 1, seed(), print, power_cut=True, durability="replicated", fate="none")
    assert report.lost_records > 0
    assert report.lost_topics == 0


def test_clients_that_come_back_first_see_every_topic(tmp_path: Path) -> None:
    """Controllers that have just started replay their past; a gateway that showed it would deny topics."""
    with running_cluster(tmp_path / "cluster", controllers=1, nodes=1) as cluster:
        for number in range(30):
            create_topic(cluster.bootstrap, f"t{number}", 1, 1)
        names = [process.name for process in cluster.state.processes]
        for _ in range(2):
            kill_all(cluster)
            counts: list[int] = []
            stop = threading.Event()
            asking = threading.Thread(target=count_topics, args=(cluster.bootstrap, counts, stop))
            asking.start()
            try:
                start_ready(cluster, *names)
                wait_for(lambda: counts, "an answer")  # noqa: B023
            finally:
                stop.set()
                asking.join()
            assert set(counts) == {30}


def count_topics(bootstrap: str, counts: list[int], stop: threading.Event) -> None:
    """Ask again and again, each time as a new client, from before the port is open."""
    while not stop.is_set():
        with suppress(KafkaException):
            counts.append(len(AdminClient(fast_client(bootstrap)).list_topics(timeout=5).topics))
