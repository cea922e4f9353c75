"""Every attack in its short form against real processes: refused or bounded, nobody lost, nobody shut out.

`make security` has the long form and the costs; times are of no interest here.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.local.cluster import LocalCluster
from penstock.local.processes import ProcessState
from security.attacks.shown_client_ids import CLIENT_ID
from security.measure import (
    as_whom,
    attackable,
    honest_config,
    load,
    made,
    names,
    runs,
)
from security.target import NARROW_TOPIC, STRANGER, Target
from support.kafka import produce

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalCluster, Target]]:
    with attackable(tmp_path_factory.mktemp("attacked"), small=True) as both:
        yield both


@pytest.mark.parametrize("name", names())
def test_an_attack_is_refused_and_others_go_on(attacked: tuple[LocalCluster, Target], name: str) -> None:
    cluster, target = attacked
    hold_out(cluster, target, name)


def hold_out(cluster: LocalCluster, target: Target, name: str) -> None:
    outcome = made(name, target)
    assert outcome.refused, outcome.said
    assert all(p.state is ProcessState.RUNNING for p in cluster.status().processes)
    ledger = produce(cluster.bootstrap, NARROW_TOPIC, 20, **honest_config(cluster))
    assert len(ledger.acked) == 20, ledger.errors


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalCluster, Target]]:
    with attackable(tmp_path_factory.mktemp("secured") / "c", small=True, secure=True) as both:
        yield both


WAITING = {"announced_frames", "slow_senders"}
"""They take half a minute; what ends them is the same for whom the cluster knows: `make security`."""


@pytest.mark.parametrize(
    ("name", "who"),
    [(n, w) for n, w in runs(secure=True) if w == STRANGER or n not in WAITING],
)
def test_an_attack_on_a_secure_cluster_is_refused(
    secured: tuple[LocalCluster, Target], name: str, who: str
) -> None:
    cluster, target = secured
    hold_out(cluster, as_whom(who, cluster, target), name)


def test_no_byte_of_a_client_id_reaches_a_log_raw(attacked: tuple[LocalCluster, Target]) -> None:
    cluster, target = attacked
    load("shown_client_ids").run(target)
    text = cluster.log_file("gateway-1").read_bytes().decode()
    assert "\\x1b[2J" in text and "\\u202eresu" in text
    assert not {c for c in CLIENT_ID if not c.isprintable()} & set(text.replace("\n", ""))
    assert "\ninjected line" not in text
