"""The failpoint matrix: every named failpoint met under load by a real cluster, and nothing lost.

Three nodes, three controllers, a gateway; one cluster for all, a topic of its own for each
failpoint. For each: load of at least 100 acks/s, or the run is void; the target is killed
and started again with the failpoint armed; something makes it come up (`Case.provoke`);
the process dies there; it is started again. Then: every acknowledged record is there
once, in order, every acknowledged topic exists, every replica is in sync.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from crash.rig import TopicChurn, wait_for_load
from penstock.errors import CommandError, ExitCode
from penstock.local.cluster import LocalCluster
from penstock.local.processes import ProcessState, process_state
from penstock_core.failpoints import FAILPOINTS
from penstock_core.limits import FEATURE_LEVEL
from support.cluster import STEADY_SESSION_MS, running_cluster, start_ready
from support.kafka import (
    Load,
    check_nothing_lost,
    create_topic,
    delete_topic,
    describe,
    read_all,
    wait_for_full_isr,
)
from support.transactions import Outcome, TransactionalLoad, check_story, is_decided, read_to_end
from support.waiting import wait_for

VARIABLE = "PENSTOCK_FAILPOINTS"
ALLOWED = "PENSTOCK_ALLOW_FAILPOINTS"
SETTINGS = {
    "controller": {
        "raft_snapshot_every": "20",
        "leader_rebalance_interval_ms": "500",
        # Who is killed is known by its refused connections. Who is only held up, by `diverge` or by a busy
        # machine, stays in sync and can take over.
        "node_session_timeout_ms": STEADY_SESSION_MS,
    },
    "storage-node": {
        "checkpoint_interval_ms": "500",
        "retention_check_interval_ms": "300",
        "compaction_interval_ms": "500",
    },
}
NODES = ("node-1", "node-2", "node-3")
CONTROLLERS = ("controller-1", "controller-2", "controller-3")
HIT_TIMEOUT_S = 120.0
RATE_PER_S = 600
DIVERGE_TRIES_MAX = 10
BATCHED = {
    "batch.size": 8_192,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
}


@dataclass(frozen=True)
class Case:
    """How one failpoint is met."""

    name: str
    targets: tuple[str, ...]
    """Processes that are started with it armed; those of several that still live are killed after the first hit."""
    at_hit: int
    provoke: str
    """`load`, `bounce` (another node dies and comes back), `diverge` (the target's log gets
    a tail that nobody else has), `behind` (the target misses a snapshot's worth of commands),
    `operation` (somebody changes a topic's replication factor), `upgrade` (somebody raises the level) or
    `transactions` (producers commit and abort some)."""

    @property
    def arming(self) -> str:
        action = "torn" if self.name.endswith(".torn_write") else "kill"
        return f"{self.name}={action}@{self.at_hit}"


_LATE = {
    # Well into the load; what is not named here dies at the first hit.
    **dict.fromkeys(("log.append.before_write", "log.append.torn_write", "log.append.after_write"), 150),
    **dict.fromkeys(("log.flush.before_sync", "log.flush.after_sync"), 150),
    **dict.fromkeys(("log.roll.before_create", "log.roll.after_snapshot", "log.roll.after_create"), 20),
    **dict.fromkeys(("log.index.before_save", "log.index.between_files"), 20),
    **dict.fromkeys(("replication.send.before_frame", "replication.watermark.advanced"), 150),
    **dict.fromkeys(("replication.append.before_stage", "replication.append.after_stage"), 300),
    **dict.fromkeys(
        ("replication.ack.before_send", "replication.ack.received", "produce.before_answer"), 150
    ),
    **dict.fromkeys(
        ("log.checkpoint.before_write", "log.checkpoint.between_files", "node.session.before_beat"), 4
    ),
    **dict.fromkeys(("log.file.before_rename", "log.file.before_directory_sync"), 12),
    **dict.fromkeys(("controller.journal.before_write", "controller.journal.torn_write"), 30),
    **dict.fromkeys(("controller.journal.before_sync", "controller.journal.after_sync"), 30),
    **dict.fromkeys(("controller.apply.before", "controller.apply.after"), 40),
    **dict.fromkeys(("controller.file.before_rename", "controller.file.before_directory_sync"), 6),
    **dict.fromkeys(("controller.snapshot.begin", "controller.snapshot.before_sync"), 2),
    **dict.fromkeys(("controller.snapshot.before_rename", "controller.snapshot.after_rename"), 2),
    **dict.fromkeys(("controller.compact.before_replace", "controller.compact.after_replace"), 2),
    **dict.fromkeys(("controller.command.before_propose", "controller.answer.before"), 15),
    **dict.fromkeys(("gateway.forward.before_send", "gateway.forward.after_send"), 100),
    **dict.fromkeys(("gateway.answer.before", "gateway.answer.after"), 100),
    **dict.fromkeys((name for name in FAILPOINTS if name.startswith("transactions.")), 20),
}
_ACTIVE_ONLY = (
    *("controller.command.before_propose", "controller.answer.before", "controller.leader.elected"),
    *("controller.active.begin", "controller.fence.before", "controller.isr.before"),
    *("controller.term.before_store", "controller.term.after_store"),
    *("operation.start.applied", "operation.step.before_propose", "operation.step.after_apply"),
    "upgrade.level.applied",
)
"""Only the active controller meets them, or one that is elected: all are armed, the first dies."""
_BOUNCED = ("isr.before_propose", "isr.after_propose", "controller.fence.before", "controller.isr.before")


def case_of(name: str) -> Case:
    """How a failpoint is met."""
    provoke = "load"
    if name in _BOUNCED:
        provoke = "bounce"
    elif name == "controller.snapshot.received":
        provoke = "behind"
    elif name.startswith("operation."):
        provoke = "operation"
    elif name.startswith("upgrade."):
        provoke = "upgrade"
    elif name.startswith("transactions."):
        provoke = "transactions"
    elif "truncate" in name:
        provoke = "diverge"
    if name.startswith("gateway."):
        targets: tuple[str, ...] = ("gateway-1",)
    elif name in _ACTIVE_ONLY:
        targets = CONTROLLERS
    elif name.startswith("controller."):
        targets = ("controller-1",)
    else:
        targets = ("node-1",)
    return Case(name, targets, _LATE.get(name, 1), provoke)


class _Planned:
    """Nothing that somebody asks for."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._asking = ThreadPoolExecutor(1)
        self._answered: Future[None] | None = None

    def prepare(self) -> None:
        """Before anything is armed."""

    def begin(self) -> None:
        """Once it is."""

    def check(self) -> None:
        """Everybody runs again: what was asked for has been done, once. Raises AssertionError."""

    def ask(self, *words: str) -> None:
        """Run a command until it is not refused; it may lose whom it asked, as it does when that one dies."""

        def until_not_refused() -> None:
            wait_for(lambda: self.run(*words)[0] != ExitCode.REFUSED, " ".join(words))

        self._answered = self._asking.submit(until_not_refused)

    def asked(self) -> None:
        """Wait until the command is over."""
        assert self._answered is not None
        self._answered.result(HIT_TIMEOUT_S)
        self._asking.shutdown()

    def run(self, *words: str) -> tuple[int, str]:
        """Exit code and stdout of a command."""
        done = subprocess.run(
            [sys.executable, "-m", "penstock.cli.main", *words, "--gateway", self._cluster.gateway, "--json"],
            capture_output=True,
            text=True,
            timeout=HIT_TIMEOUT_S,
            check=False,
        )
        return done.returncode, done.stdout


class _Operation(_Planned):
    """A topic of one replica gets three."""

    def prepare(self) -> None:
        self._moved = f"{self._topic}-moved"
        create_topic(self._cluster.bootstrap, self._moved, 6, 1)

    def begin(self) -> None:
        self.ask("topic", "set-replication-factor", self._moved, "3", "--yes")

    def check(self) -> None:
        self.asked()
        (found,) = wait_for(self._ended, f"the operation on {self._moved} ended")
        assert found["state"] == "done", found
        replicas = [p.replicas for p in describe(self._cluster.bootstrap, self._moved).values()]
        assert [len(set(each)) for each in replicas] == [3] * 6, replicas
        wait_for_full_isr(self._cluster.bootstrap, self._moved, 120.0)
        delete_topic(self._cluster.bootstrap, self._moved)

    def _ended(self) -> list[Any]:
        code, out = self.run("operation", "list", "--all")
        found = (
            [o for o in json.loads(out) if o["parameters"]["topics"] == [self._moved]] if code == 0 else []
        )
        return found if found and all(o["state"] in ("done", "failed", "cancelled") for o in found) else []


class _Upgrade(_Planned):
    """The level falls by one, and is raised again."""

    def prepare(self) -> None:
        wait_for(lambda: self.run("cluster", "upgrade", "--downgrade", "--yes")[0] == 0, "the level fell")

    def begin(self) -> None:
        self.ask("cluster", "upgrade", "--yes")

    def check(self) -> None:
        self.asked()
        found = wait_for(self._level, "an answer about the level")
        assert found is not None
        code, out = found
        assert json.loads(out)["level"] == FEATURE_LEVEL, (code, out)

    def _level(self) -> tuple[int, str] | None:
        found = self.run("cluster", "upgrade", "--dry-run")
        return found if found[0] == 0 else None


class _Transactions(_Planned):
    """Producers with as many coordinators as there are nodes, most likely, write to partitions of all of them."""

    PARTITIONS = 6
    PRODUCERS = 6

    def prepare(self) -> None:
        self._written = f"{self._topic}-transactional"
        create_topic(self._cluster.bootstrap, self._written, self.PARTITIONS, 3)
        self._loads = [
            TransactionalLoad(
                self._cluster.bootstrap, self._written, self.PARTITIONS, f"{self._topic}-{number}"
            )
            for number in range(self.PRODUCERS)
        ]

    def begin(self) -> None:
        for load in self._loads:
            load.__enter__()

    def check(self) -> None:
        for load in self._loads:
            load.stop()
        stories = [load.story for load in self._loads]
        assert sum(story.count(Outcome.COMMITTED) for story in stories)
        fatal = [why for story in stories for why in story.fatal]
        assert not fatal, fatal
        bootstrap = self._cluster.bootstrap
        wait_for(
            lambda: is_decided(bootstrap, self._written, self.PARTITIONS), "every transaction is decided"
        )
        check_story(stories, read_to_end(bootstrap, self._written, "read_committed"))
        delete_topic(bootstrap, self._written)


PLANNED: dict[str, type[_Planned]] = {
    "operation": _Operation,
    "upgrade": _Upgrade,
    "transactions": _Transactions,
}


@dataclass
class Result:
    """One row of the table."""

    failpoint: str
    died: str
    acks_per_s_before: int
    acked: int
    lost: int
    doubled: int
    longest_gap_s: float
    whole_again_s: float
    verdict: str


class Matrix:
    """One cluster, and cases run on it one after another."""

    def __init__(self, cluster: LocalCluster, churn: TopicChurn) -> None:
        self._cluster = cluster
        self._churn = churn
        self._count = 0

    def run(self, case: Case) -> Result:
        """Raises AssertionError when something was lost or never came back."""
        cluster = self._cluster
        self._count += 1
        topic = f"failpoint-{self._count}"
        create_topic(cluster.bootstrap, topic, 6, 3, **{"segment.bytes": "16384"})
        with Load(cluster.bootstrap, topic, rate_per_s=RATE_PER_S, timeout_s=120.0, **BATCHED) as load:
            before = wait_for_load(load, case.name)
            seen = self._hits(case)
            planned = PLANNED.get(case.provoke, _Planned)(cluster, topic)
            planned.prepare()
            self._arm(case, topic, load)
            if case.provoke == "bounce":
                self._bounce()
            planned.begin()
            died = wait_for(lambda: self._died(case, seen) or "", f"failpoint {case.name} hit", HIT_TIMEOUT_S)
            hit_at = time.monotonic()
            self._restart(case)
            load.wait_for_acks(200, 120.0)
            wait_for_full_isr(cluster.bootstrap, topic, 120.0)
            planned.check()
            whole_s = time.monotonic() - hit_at
        check_nothing_lost(load.ledger, read_all(cluster.bootstrap, topic, 120.0))
        self._churn.check()
        delete_topic(cluster.bootstrap, topic)
        ledger = load.ledger
        return Result(case.name, died, before, len(ledger.acked), 0, 0, ledger.longest_gap_s(), whole_s, "ok")

    # --- making it come up -------------------------------------------------------------------

    def _arm(self, case: Case, topic: str, load: Load) -> None:
        if case.provoke == "diverge":
            self._diverge(topic, load)
        elif case.provoke == "behind":
            self._cluster.kill(case.targets[0])
            self._churn.wait_for_acks(60)
        else:
            for name in case.targets:
                self._cluster.kill(name)
        with armed(case.arming), suppress(CommandError):  # it may die before it is ready
            self._cluster.start(*case.targets)

    def _bounce(self) -> None:
        self._cluster.kill("node-2")
        self._cluster.start("node-2")

    def _diverge(self, topic: str, load: Load) -> None:
        """Records that only node-1 has: its followers hang, it appends, it dies, others take over.

        The followers are killed too, once they are the leaders: what node-1 had sent them waits in the buffers
        of their connections, and would be appended by whoever goes on.
        """
        cluster = self._cluster

        def leads() -> bool:
            parts = describe(cluster.bootstrap, topic).values()
            return any(p.leader == 1 for p in parts) and all(len(p.isrs) == len(NODES) for p in parts)

        def is_succeeded() -> bool:
            return all(p.leader in (2, 3) for p in describe(cluster.bootstrap, topic).values())

        for _ in range(DIVERGE_TRIES_MAX):
            wait_for(leads, f"node-1 leads some of {topic}, and all are in sync")
            for name in NODES[1:]:
                cluster.kill(name, signal.SIGSTOP)
            # What is under way to node-1 is appended there; its followers' files stand still.
            alone = wait_until(lambda: self._is_ahead(topic), 5.0)
            if alone:
                cluster.kill("node-1")
                # They have to be in sync still when it is seen that node-1 is gone.
                alone = wait_until(is_succeeded, 5.0)
                for name in NODES[1:]:
                    cluster.kill(name)
                with suppress(CommandError):  # node-1 is missing
                    cluster.start(*NODES[1:])
            else:
                for name in NODES[1:]:
                    cluster.kill(name, signal.SIGCONT)
            if alone and self._has_a_tail(topic):
                load.wait_for_acks(200, 120.0)
                return
            start_ready(cluster, *(name for name in NODES if name not in cluster.alive()))
        raise AssertionError(f"node-1 never held a record of {topic} alone")

    def _is_ahead(self, topic: str) -> bool:
        """Whether node-1 holds more of some partition than both others."""
        first, *others = (sizes(self._cluster.directory / name / "data", topic) for name in NODES)
        return any(all(size > other.get(name, 0) for other in others) for name, size in first.items())

    def _has_a_tail(self, topic: str) -> bool:
        """Whether some log of node-1, which is dead, is no beginning of its new leader's."""
        own = logs(self._cluster.directory / "node-1" / "data", topic)
        theirs: dict[str, bytes] = {}

        def all_are_led() -> bool:
            for number, part in describe(self._cluster.bootstrap, topic).items():
                if part.leader not in (2, 3):
                    return False
                name = f"{topic}-{number}"
                found = logs(self._cluster.directory / f"node-{part.leader}" / "data", topic)
                theirs[name] = found.get(name, b"")
            # Whoever has more has written as a leader, and takes nothing of its predecessor any more.
            return all(len(theirs[name]) > len(log) for name, log in own.items())

        wait_for(all_are_led, f"others lead all of {topic}")
        return any(not theirs[name].startswith(log) for name, log in own.items())

    # --- looking -------------------------------------------------------------------------------

    def _hits(self, case: Case) -> dict[str, int]:
        line = f"failpoint {case.name}: "
        return {name: self._cluster.log_file(name).read_text().count(line) for name in case.targets}

    def _died(self, case: Case, seen: dict[str, int]) -> str | None:
        now = self._hits(case)
        for name in case.targets:
            record = self._cluster.state.process(name)
            is_dead = process_state(record.pid, record.identity) is ProcessState.DEAD
            if is_dead and now[name] > seen[name]:
                return name
        return None

    def _restart(self, case: Case) -> None:
        cluster = self._cluster
        for name in case.targets:
            with suppress(CommandError):  # dead already
                cluster.kill(name)
        dead = [record.name for record in cluster.state.processes if record.name not in cluster.alive()]
        start_ready(cluster, *dead)


@contextmanager
def armed(text: str) -> Iterator[None]:
    """Processes started meanwhile have the failpoint armed."""
    os.environ[VARIABLE], os.environ[ALLOWED] = text, "true"
    try:
        yield
    finally:
        del os.environ[VARIABLE], os.environ[ALLOWED]


def sizes(data: Path, topic: str) -> dict[str, int]:
    """Bytes of each of a topic's logs on one node."""
    found: dict[str, int] = {}
    for path in data.glob(f"{topic}-*/*.log"):
        found[path.parent.name] = found.get(path.parent.name, 0) + path.stat().st_size
    return found


def logs(data: Path, topic: str) -> dict[str, bytes]:
    """Each of a topic's logs on one node, whole."""
    found: dict[str, bytes] = {}
    for path in sorted(data.glob(f"{topic}-*/*.log")):
        found[path.parent.name] = found.get(path.parent.name, b"") + path.read_bytes()
    return found


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether it came true in time."""
    with suppress(AssertionError):
        return wait_for(condition, "", timeout_s)
    return False


@contextmanager
def running_matrix(directory: Path) -> Iterator[Matrix]:
    """A cluster under side load: topics come and go, old segments are deleted, others compacted."""
    with running_cluster(directory, settings=SETTINGS) as cluster:
        short = {"segment.bytes": "16384", "retention.bytes": "32768"}
        create_topic(cluster.bootstrap, "short", 3, 3, **short)
        compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
        create_topic(cluster.bootstrap, "compacted", 3, 3, **compacted, **{"segment.bytes": "16384"})
        sides = [
            Load(cluster.bootstrap, topic, rate_per_s=100, timeout_s=120.0, **BATCHED)
            for topic in ("short", "compacted")
        ]
        with sides[0], sides[1], TopicChurn(cluster.bootstrap, pause_s=0.05) as churn:
            yield Matrix(cluster, churn)


def run_matrix(
    directory: Path, seed: int, say: Callable[[str], None], words: Sequence[str], *, listing: bool = False
) -> tuple[dict[str, object], list[str], bool]:
    """All failpoints, or those whose names hold one of the words: (figures, table, whether all is well)."""
    cases = [case_of(name) for name in FAILPOINTS if not words or any(word in name for word in words)]
    if listing:
        return {}, [f"{case.arming:48} {','.join(case.targets):12} {case.provoke}" for case in cases], True
    random.Random(seed).shuffle(cases)
    results: list[Result] = []
    left = list(cases)
    while left:
        # After a failure the cluster is not to be trusted: go on with a new one.
        try:
            with running_matrix(directory / f"cluster-{len(results)}") as matrix:
                while left:
                    case = left.pop(0)
                    results.append(matrix.run(case))
                    say(row(results[-1]))
        except (AssertionError, CommandError) as error:
            text = str(error).splitlines()[0]
            results.append(Result(case.name, "", 0, 0, -1, -1, 0.0, 0.0, f"FAILED: {text}"))
            say(row(results[-1]))
    bad = [result for result in results if result.verdict != "ok"]
    lines = ["", HEAD, *(row(result) for result in sorted(results, key=lambda r: r.failpoint))]
    lines.append(f"{len(results)} failpoints, {len(results) - len(bad)} survived, seed {seed}")
    return {"seed": seed, "results": [asdict(result) for result in results]}, lines, not bad


HEAD = f"{'failpoint':40} {'died':13} {'acks/s':>7} {'acked':>7} {'lost':>5} {'twice':>6} {'gap s':>6} {'whole s':>8}"


def row(result: Result) -> str:
    """One line of the table."""
    return (
        f"{result.failpoint:40} {result.died:13} {result.acks_per_s_before:7} {result.acked:7} {result.lost:5} "
        f"{result.doubled:6} {result.longest_gap_s:6.1f} {result.whole_again_s:8.1f} "
        + ("" if result.verdict == "ok" else result.verdict)
    )
