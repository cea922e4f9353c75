"""From builds of before to this one under load of both generations of clients (`support.both_generations`).

Two ways. From a build that has transactions these go on all through, there and back. From builds of before there were
any, plain producers go on all through; once the level is raised transactions begin beside them, by the protocol in
which clients add partitions themselves, and change over when `transaction.version` is raised. Nobody is restarted for
any of it.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from penstock.local.plan import CONTROLLER, GATEWAY, NODE
from penstock_core.limits import FEATURE_LEVEL
from support.both_generations import BothGenerations
from support.java import needs_java
from upgrade.builds import BEFORE_TRANSACTIONS, WITH_TRANSACTIONS, Build, base_commit, commit_in, unpack
from upgrade.fleet import Fleet, old_cluster
from upgrade.steps import LONG, WALK, at_random, raise_level, refuse_old, upgrade_all

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.alone,
    pytest.mark.timeout(5_400),
    pytest.mark.skipif(not LONG, reason="many processes are replaced: make upgrade-test"),
    needs_java,
]
TRANSACTIONS_LEVEL = 4


def load_of(fleet: Fleet) -> BothGenerations:
    return BothGenerations(fleet.new.bootstrap, fleet.new.direct_bootstrap)


def set_version(fleet: Fleet, load: BothGenerations, level: int, *words: str) -> None:
    """Clients read it with the next connection that they make."""
    fleet.penstock("feature", "set", f"transaction.version={level}", *words)
    load.go_on()
    for name in ("gateway-1", "gateway-2", "node-1"):
        fleet.again(name)
    load.wait_for_protocol(is_new=level == 2)


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """One that has transactions."""
    found = unpack(commit_in(WITH_TRANSACTIONS), tmp_path / "build")
    assert found.check() == FEATURE_LEVEL
    return found


def test_transactions_go_on_in_every_mixture_of_builds(build: Build, tmp_path: Path) -> None:
    with old_cluster(tmp_path / "cluster", build) as fleet, load_of(fleet).at_work() as load:
        load.begin_transactions()
        load.wait_for_protocol(is_new=True)
        for role, forward in WALK:
            replace = fleet.to_new if forward else fleet.to_old
            for name in fleet.names(role):
                # One of each role is killed, on its way back: among old ones and new ones.
                is_killed = not forward and name.endswith("-1")
                replace(name, signal.SIGKILL if is_killed else signal.SIGTERM)
                load.go_on()
        assert not any(fleet.is_old(name) for name in fleet.names())


def test_transactions_go_on_in_an_order_at_random_and_change_over_half_way(
    build: Build, tmp_path: Path
) -> None:
    with old_cluster(tmp_path / "cluster", build) as fleet:
        names = at_random(fleet.names())
        half = len(names) // 2
        with load_of(fleet).at_work() as load:
            load.begin_transactions()
            for count, name in enumerate(names):
                if count == half:
                    set_version(fleet, load, 1, "--downgrade")
                    set_version(fleet, load, 2)
                fleet.to_new(name, signal.SIGKILL if count == half else signal.SIGTERM)
                load.go_on()
            for count, name in enumerate(reversed(names)):
                fleet.to_old(name, signal.SIGKILL if count == half else signal.SIGTERM)
                load.go_on()
            for name in names:
                fleet.to_new(name)
                load.go_on()


@pytest.mark.parametrize("before", [BEFORE_TRANSACTIONS, "base"])
def test_transactions_begin_after_the_upgrade(tmp_path: Path, before: str) -> None:
    commit = base_commit() if before == "base" else commit_in(before)
    build = unpack(commit, tmp_path / "build")
    assert build.check() < TRANSACTIONS_LEVEL
    with old_cluster(tmp_path / "cluster", build) as fleet:
        with load_of(fleet).at_work() as load:
            # One of each role to the new build and back, killed.
            for name in ("node-1", "gateway-1", "controller-1"):
                fleet.to_new(name)
                load.go_on()
                fleet.to_old(name, signal.SIGKILL)
                load.go_on()
            upgrade_all(fleet, load, fleet.names(NODE, GATEWAY, CONTROLLER))
            raise_level(fleet)
            load.go_on()
            load.begin_transactions()
            load.wait_for_protocol(is_new=False)
            set_version(fleet, load, 2)
            refused = refuse_old(fleet, load)
        print(refused)
