"""From a build of before to this one and back, process by process, under load: nothing lost, doubled or failed.

The short form runs with every other test: one order, one client. `make upgrade-test` runs a walk over every mixture of
roles of two builds, each back again, with three clients, and the whole matrix, each order from one end to the other; it
prints the seed of the order that it drew.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import combinations
from pathlib import Path

import pytest

from penstock.local.plan import CONTROLLER, GATEWAY, NODE
from penstock_core.limits import FEATURE_LEVEL
from support.clients import LEAKING_DIALS, READERS, WRITERS, Writer, forget_leaks
from support.groups import MEMBERS, GroupLedger, GroupMember
from support.kafka import check_nothing_lost, create_topic, number_of, read_all
from support.waiting import wait_for
from upgrade.builds import Build, NoSuchCommitError, base_commit, unpack
from upgrade.fleet import PATIENCE_S, ROLES, old_cluster
from upgrade.steps import LONG, WALK, mixtures, orders, raise_level, refuse_old, upgrade_all

pytestmark = [pytest.mark.cluster, pytest.mark.alone, pytest.mark.timeout(3_600), LEAKING_DIALS]

SHORT_CLIENTS = ("confluent-kafka",)
RATE_PER_S = 60
PARTITIONS = 3
ACKS = 20


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """The build to come from. A clone without it fails."""
    return unpack(base_commit(), tmp_path_factory.mktemp("before") / "build")


@pytest.fixture(autouse=True)
def nothing_unclosed_is_left() -> Iterator[None]:
    """kafka-python leaves sockets of dials that failed."""
    yield
    forget_leaks()


class Clients:
    """A writer and a member of a group of each client, each with a topic of its own."""

    def __init__(self, bootstrap: str, names: tuple[str, ...]) -> None:
        self._bootstrap, self._names = bootstrap, names
        self._topics = {name: f"moved-{name}" for name in names}
        self._ledgers = {name: GroupLedger() for name in names}
        self._writers: dict[str, Writer] = {}
        self._members: dict[str, GroupMember] = {}

    @contextmanager
    def at_work(self) -> Iterator[Clients]:
        """Until left; then no request may have failed, and each record that was acknowledged is there once."""
        with ExitStack() as members:
            for name, topic in self._topics.items():
                create_topic(self._bootstrap, topic, PARTITIONS)
                member = MEMBERS[name](self._bootstrap, topic, f"g-{topic}", self._ledgers[name])
                self._members[name] = member
                members.callback(member.stop)
            with ExitStack() as writers:
                for name, topic in self._topics.items():
                    writer = WRITERS[name](self._bootstrap, topic, rate_per_s=RATE_PER_S)
                    self._writers[name] = writers.enter_context(writer)
                self.go_on()
                yield self
            for name, writer in self._writers.items():
                written = set(writer.ledger.values.values())
                wait_for(partial(self._members[name].has_read, written), f"{name} has read all", PATIENCE_S)
        for name, topic in self._topics.items():
            check_nothing_lost(self._writers[name].ledger, read_all(self._bootstrap, topic))
            assert not self._ledgers[name].gaps
            numbers = [number_of(value) for value in READERS[name](self._bootstrap, topic)]
            assert len(numbers) == len(set(numbers)) == len(self._writers[name].ledger.acked)

    def go_on(self) -> None:
        """Everybody gets more acks, and reads more."""
        wanted = {name: ledger.count + ACKS for name, ledger in self._ledgers.items()}
        for name, writer in self._writers.items():
            writer.wait_for_acks(ACKS, PATIENCE_S)
            wait_for(partial(self._has, name, wanted[name]), f"{name} reads", PATIENCE_S)
            self._members[name].check()

    def _has(self, name: str, count: int) -> bool:
        return self._ledgers[name].count >= count

    def figures(self) -> dict[str, object]:
        """For the reader of the output."""
        return {
            name: {"acked": len(w.ledger.acked), "longest_gap_s": round(w.ledger.longest_gap_s(), 2)}
            for name, w in self._writers.items()
        }


def test_processes_of_before_run_their_own_packages(build: Build) -> None:
    """The environment has today's packages too; those of before come first, all of them."""
    assert build.check() < FEATURE_LEVEL


def test_the_walk_has_every_mixture_and_every_way_back() -> None:
    """What an order of roles is made of: which of them are new. So each is the first one, and each the last but one."""
    seen = mixtures(WALK)
    assert set(seen) == {frozenset(c) for n in (1, 2, 3) for c in combinations(ROLES, n)}
    assert seen[-1] == set(ROLES)
    assert {role for role, forward in WALK if not forward} == set(ROLES)


def test_there_and_back_and_the_level_under_load(build: Build, tmp_path: Path) -> None:
    with old_cluster(tmp_path / "cluster", build) as fleet:
        with Clients(fleet.new.bootstrap, SHORT_CLIENTS).at_work() as clients:
            # A new one among old ones, killed half-way, and back.
            for name, how in (("node-1", signal.SIGKILL), ("controller-1", signal.SIGTERM)):
                fleet.to_new(name)
                clients.go_on()
                fleet.to_old(name, how)
                clients.go_on()
            upgrade_all(fleet, clients, fleet.names(NODE, GATEWAY, CONTROLLER))
            assert set(fleet.understood().values()) == {FEATURE_LEVEL}
            raise_level(fleet)
            clients.go_on()
            refused = refuse_old(fleet, clients)
        print(json.dumps({"refused": refused, **clients.figures()}, indent=1))


@pytest.mark.skipif(not LONG, reason="the whole matrix: make upgrade-test")
def test_every_mixture_of_builds_under_load(build: Build, tmp_path: Path) -> None:
    with old_cluster(tmp_path / "cluster", build) as fleet:
        *steps, (last, _) = WALK
        with Clients(fleet.new.bootstrap, tuple(WRITERS)).at_work() as clients:
            for role, forward in steps:
                replace = fleet.to_new if forward else fleet.to_old
                for name in fleet.names(role):
                    # One of each role is killed, on its way back: among old ones and new ones.
                    is_killed = not forward and name.endswith("-1")
                    replace(name, signal.SIGKILL if is_killed else signal.SIGTERM)
                    clients.go_on()
            upgrade_all(fleet, clients, fleet.names(last))
            assert set(fleet.understood().values()) == {FEATURE_LEVEL}
            raise_level(fleet)
            clients.go_on()
            refused = refuse_old(fleet, clients)
        print(json.dumps({"refused": refused, **clients.figures()}, indent=1))


@pytest.mark.skipif(not LONG, reason="the whole matrix: make upgrade-test")
@pytest.mark.parametrize("order", ["controller first", "storage-node first", "gateway first", "at random"])
def test_every_order_with_every_client(build: Build, tmp_path: Path, order: str) -> None:
    """All to the new build and all back, killed on the way; then for good, and the level; then old ones are refused."""
    with old_cluster(tmp_path / "cluster", build) as fleet:
        names = orders(fleet)[order]
        with Clients(fleet.new.bootstrap, tuple(WRITERS)).at_work() as clients:
            for count, name in enumerate(names):
                fleet.to_new(name, signal.SIGKILL if count == len(names) // 2 else signal.SIGTERM)
                clients.go_on()
            for count, name in enumerate(reversed(names)):
                fleet.to_old(name, signal.SIGKILL if count == len(names) // 2 else signal.SIGTERM)
                clients.go_on()
            upgrade_all(fleet, clients, names)
            raise_level(fleet)
            clients.go_on()
            refused = refuse_old(fleet, clients)
        print(json.dumps({"order": names, "refused": refused, **clients.figures()}, indent=1))


@pytest.mark.skipif(not LONG, reason="the whole matrix: make upgrade-test")
def test_back_from_a_level_of_which_nothing_is_in_use(build: Build, tmp_path: Path) -> None:
    """The level falls again, and processes of before take part as they did."""
    if build.check() < 2:
        pytest.skip(f"there is no way back to level 1, and {build.commit} understands no other")
    with old_cluster(tmp_path / "cluster", build) as fleet:
        with Clients(fleet.new.bootstrap, SHORT_CLIENTS).at_work() as clients:
            upgrade_all(fleet, clients, fleet.names())
            raise_level(fleet)
            fleet.penstock("cluster", "upgrade", "--downgrade", "--level", str(build.check()), "--yes")
            clients.go_on()
            for name in reversed(fleet.names()):
                fleet.to_old(name)
                clients.go_on()
        print(json.dumps(clients.figures(), indent=1))


def test_a_clone_without_the_commit_fails_with_the_mend(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path / "shallow")], check=True)
    with pytest.raises(NoSuchCommitError, match=r"is not in this clone.*git fetch --unshallow"):
        unpack(base_commit(), tmp_path / "build", tmp_path / "shallow")
