"""A gateway of two dies under each client: the client goes on by itself, and nothing acked is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.clients import CLIENTS, READERS, WRITERS
from support.cluster import running_cluster
from support.kafka import check_nothing_lost, create_topic, read_all

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

RESUME_TIMEOUT_S = 120.0
"""A figure to look at is printed: a test run shares its machine with other work."""


@pytest.mark.parametrize("client", CLIENTS)
def test_client_resumes_on_the_other_gateway(tmp_path: Path, client: str) -> None:
    with running_cluster(tmp_path, controllers=1, gateways=2) as cluster:
        first, second = cluster.bootstrap.split(",")
        create_topic(first, "survives", 6)
        # The client is told of one gateway only: it must learn of the other from metadata.
        with WRITERS[client](first, "survives") as writer:
            writer.wait_for_acks(300)
            cluster.kill("gateway-1")
            # All of what was in flight is answered, and new records are acknowledged.
            writer.wait_for_acks(300, RESUME_TIMEOUT_S)
        gap_s = writer.ledger.longest_gap_s()
        print(f"{client}: longest gap between acks {gap_s:.2f} s, {len(writer.ledger.acked)} acked")
        check_nothing_lost(writer.ledger, read_all(second, "survives"))
        assert len(READERS[client](second, "survives")) == len(writer.ledger.acked)
