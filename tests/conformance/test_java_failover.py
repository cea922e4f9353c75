"""The Java producer, idempotent as it is by default, while a leader or a gateway is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.java.writer import JavaWriter
from support.cluster import running_cluster
from support.java import needs_java, only_in_conformance
from support.kafka import check_nothing_lost, create_topic, describe, read_all, wait_for_full_isr

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    needs_java,
    only_in_conformance,
]

LONG_S = 90.0
"""A Java client finds a hung connection by its own timers only, the longest of which is 30 s."""


@pytest.mark.parametrize("mode", ["proxy", "direct"])
def test_a_leader_is_killed_under_a_java_producer(tmp_path: Path, mode: str) -> None:
    with running_cluster(tmp_path, controllers=1) as cluster:
        bootstrap = cluster.bootstrap if mode == "proxy" else cluster.direct_bootstrap
        create_topic(bootstrap, "events", 6, 3)
        with JavaWriter(bootstrap, "events") as writer:
            writer.wait_for_acks(300, LONG_S)
            victim = f"node-{describe(bootstrap, 'events')[0].leader}"
            cluster.kill(victim)
            writer.wait_for_acks(300, LONG_S)
            cluster.start(victim)
            wait_for_full_isr(bootstrap, "events", LONG_S)
            writer.wait_for_acks(200, LONG_S)
        print(f"{mode}: longest gap {writer.ledger.longest_gap_s():.2f} s, {len(writer.ledger.acked)} acked")
        check_nothing_lost(writer.ledger, read_all(bootstrap, "events"))


def test_a_java_producer_resumes_on_the_other_gateway(tmp_path: Path) -> None:
    with running_cluster(tmp_path, controllers=1, gateways=2) as cluster:
        first, second = cluster.bootstrap.split(",")
        create_topic(first, "survives", 6)
        # The client is told of one gateway only: it must learn of the other from metadata.
        with JavaWriter(first, "survives") as writer:
            writer.wait_for_acks(300, LONG_S)
            cluster.kill("gateway-1")
            writer.wait_for_acks(300, LONG_S)
        print(f"longest gap {writer.ledger.longest_gap_s():.2f} s, {len(writer.ledger.acked)} acked")
        check_nothing_lost(writer.ledger, read_all(second, "survives"))
