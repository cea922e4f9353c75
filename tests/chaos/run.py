"""One run of one scenario: load before, during and after the fault, then the checker's verdict.

Rules: nothing is judged while the fault lasts. After the heal the cluster must by itself
serve every partition, bring every replica back and keep every process alive, each within
a deadline. A run with too few acks before the fault proves nothing and is void.

Theory of the figures. *Gap*: the longest time without an ack of one partition, the worst of
them. *Next ack*: from the fault until each partition has acked a record sent when the harm was done.
*Recovered*: from the heal until every replica is in sync.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chaos.audit import audit, words
from chaos.checker import ALLOWED, Verdict, check
from chaos.cluster import Cluster
from chaos.history import History, Polls
from chaos.load import Reader, Sender
from chaos.replicas import read_replica
from chaos.scene import ASSIGNMENT, Phases, Scene
from chaos.transactional_part import TOPIC as TRANSACTIONAL_TOPIC
from chaos.transactional_part import TransactionalPart
from support.kafka import Ledger
from support.waiting import wait_for

TOPIC = "chaos"
RATE_PER_S = 300.0
ACKS_PER_S_MIN = 100.0
SERVED_TIMEOUT_S = 120.0
GATEWAY_SENDER, DIRECT_SENDER, GATEWAY_READER, DIRECT_READER, FINAL_GATEWAY, FINAL_DIRECT = range(1, 7)
REPLICA_PROCESS = 100


@dataclass
class Result:
    """A row of the table. Times in s; None where there is none."""

    scenario: str
    status: str = "ok"
    """ok, skipped, void, or what went wrong: anomalies, failed."""
    seed: int = 0
    acks_before: int = 0
    acks_per_s: float = 0.0
    acked: int = 0
    lost: int = 0
    duplicated: int = 0
    anomalies: dict[str, int] = field(default_factory=dict)
    gap_s: float | None = None
    gap_direct_s: float | None = None
    next_ack_s: float | None = None
    recovered_s: float | None = None
    notes: list[str] = field(default_factory=list)
    directory: str = ""

    @property
    def good(self) -> bool:
        return self.status in ("ok", "skipped")


class Run(Scene):
    """What a scenario is given: the cluster, who leads, and the marks in time that it must set; and the load."""

    def __init__(
        self,
        cluster: Cluster,
        phases: Phases,
        dice: random.Random,
        *,
        is_transactional: bool = False,
        is_audited: bool = False,
    ) -> None:
        super().__init__(cluster, phases, dice, [TOPIC])
        self.is_audited = is_audited
        self.others = History()
        """What clients did that a scenario brought along."""
        self.ballast: Ledger | None = None
        """What a scenario wrote to a topic of its own."""
        through, straight = cluster.clients("kafka"), cluster.clients("direct")
        self.create_topic(TOPIC)
        partitions = len(ASSIGNMENT)
        self.sender = Sender(GATEWAY_SENDER, through, TOPIC, partitions, RATE_PER_S)
        self.direct_sender = Sender(DIRECT_SENDER, straight, TOPIC, partitions, RATE_PER_S / 2)
        self.reader = Reader(GATEWAY_READER, through, TOPIC, partitions)
        self.direct_reader = Reader(DIRECT_READER, straight, TOPIC, partitions)
        self.transactions: TransactionalPart | None = None
        if is_transactional:
            self.create_topic(TRANSACTIONAL_TOPIC)
            self.topics.append(TRANSACTIONAL_TOPIC)
            self.transactions = TransactionalPart(cluster, partitions)

    def wait_for_acks(self, more: int = 100, timeout_s: float = SERVED_TIMEOUT_S) -> None:
        goal = self.sender.acked_count + more
        wait_for(lambda: self.sender.acked_count >= goal, f"{more} more acks", timeout_s)

    def abandon(self) -> None:
        """After a failure: mend what can be mended and end the clients, so that it can still be judged."""
        if self.cluster.network is not None:
            self.cluster.network.mend()
        self.cluster.start(*self.cluster.names)
        self.wait_in_sync()
        self.finish()

    def clients(self) -> list[Sender | Reader | TransactionalPart]:
        """The whole load, producers first."""
        found: list[Sender | Reader | TransactionalPart] = [self.sender, self.direct_sender]
        if self.transactions is not None:
            found.append(self.transactions)
        return [*found, self.reader, self.direct_reader]

    def finish(self) -> None:
        """End the load, and wait for all its answers."""
        for client in self.clients():
            client.finish()


def carry_out(run: Run, inject: Any, result: Result) -> None:
    """All phases of a run; fills `result` and raises AssertionError where a deadline passed."""
    for client in run.clients():
        client.start()
    begun_s = time.monotonic()
    _wait_until_served(run, begun_s, "before the fault")
    ready_s = time.monotonic()
    _wait_until_changed(run, "before the fault")
    time.sleep(run.phases.before_s)
    inject(run)
    assert run.fault_s is not None, "the scenario set no mark where its fault began"
    assert run.heal_s is not None, "the scenario set no mark where it healed"
    result.acks_before = run.sender.acks_in(ready_s, run.fault_s)
    result.acks_per_s = result.acks_before / (run.fault_s - ready_s)
    _wait_until_served(run, run.heal_s, "after the heal")
    _wait_until_changed(run, "after the heal")
    run.wait_in_sync()
    result.recovered_s = time.monotonic() - run.heal_s
    time.sleep(run.phases.after_s)
    run.finish()
    # A busy machine may have put a replica out of sync since; all that was sent is on each of them before they stop.
    run.wait_in_sync()
    result.gap_s = run.sender.longest_gap_s()
    result.gap_direct_s = run.direct_sender.longest_gap_s()
    struck_s = run.struck_s or run.fault_s
    next_ack_s = run.sender.served_after_s(struck_s)
    result.next_ack_s = None if next_ack_s is None else struck_s - run.fault_s + next_ack_s
    result.acked = run.sender.acked_count + run.direct_sender.acked_count
    errors = run.sender.errors + run.direct_sender.errors
    if errors:
        run.note(f"{len(errors)} sends failed, the first: {errors[0]}")


def judge(run: Run, result: Result) -> Verdict:
    """Read all of it back, from both kinds of listener and from every replica's disk, and check.

    The cluster is down afterwards.
    """
    cluster = run.cluster
    partitions = len(ASSIGNMENT)
    history = run.others
    for sender in (run.sender, run.direct_sender):
        history.sends.extend(sender.sends)
    for reader in (run.reader, run.direct_reader):
        history.polls.extend(reader.polls)
    for process, use in ((FINAL_GATEWAY, "kafka"), (FINAL_DIRECT, "direct")):
        last = Reader(process, cluster.clients(use), TOPIC, partitions)
        last.read_to_end()
        history.polls.extend(last.polls)
    if run.transactions is not None:
        run.transactions.read_back()
    # What is lost never comes back; a gateway may hear late of what is not.
    try:
        wait_for(lambda: not run.lost_topics(), "all topics that were acknowledged")
    except AssertionError:
        raise AssertionError(f"topics that were acknowledged are gone: {run.lost_topics()}") from None
    dead = [name for name in cluster.names if not cluster.is_running(name)]
    assert not dead, f"{dead[0]} ended by itself: {cluster.last_words(dead[0])}"
    for name in cluster.traces():
        run.note(f"stack trace in the log of {name}")
    findings = _audit(run) if run.is_audited else []
    placed = run.placed()
    placed_transactions = run.placed(TRANSACTIONAL_TOPIC) if run.transactions is not None else {}
    cluster.down()
    replicas = {}
    for name in cluster.nodes:
        node_id = cluster.state.member(name).id
        # What was moved away may lie there for a while.
        held = [partition for partition, nodes in placed.items() if node_id in nodes]
        replicas[name] = read_replica(cluster.data_dir(name), REPLICA_PROCESS + node_id, TOPIC, held)
        history.polls.extend(replicas[name])
    verdict = check(history)
    if run.transactions is not None:
        verdict.take(_judge_transactions(run, run.transactions, placed_transactions))
    result.lost, result.duplicated = verdict.lost, verdict.duplicated
    result.anomalies = {str(kind): found.count for kind, found in verdict.found.items()}
    compare_replicas(placed, {cluster.state.member(name).id: polls for name, polls in replicas.items()})
    if findings:
        result.status = "anomalies"
        result.anomalies |= dict(Counter(f"audit: {one['kind']}" for one in findings))
    if run.transactions is not None:
        assert not run.transactions.fatal(), f"fatal errors of producers: {run.transactions.fatal()}"
    return verdict


def _audit(run: Run) -> list[dict[str, Any]]:
    """What the audit of the loads' topics has found, while the cluster is up."""
    findings = []
    for topic in (TOPIC, *([TRANSACTIONAL_TOPIC] if run.transactions is not None else [])):
        found = audit(run.cluster, topic)
        run.note(words(topic, found))
        findings += found["findings"]
    return findings


def _judge_transactions(run: Run, part: TransactionalPart, placed: Mapping[int, Sequence[int]]) -> Verdict:
    """Of the transactional load, once all processes have ended."""
    on_disk = {}
    for name in run.cluster.nodes:
        node_id = run.cluster.state.member(name).id
        held = [partition for partition, nodes in placed.items() if node_id in nodes]
        data = run.cluster.data_dir(name)
        on_disk[node_id] = read_replica(data, REPLICA_PROCESS + node_id, TRANSACTIONAL_TOPIC, held)
    compare_replicas(placed, on_disk)
    verdict = part.judge(on_disk.values())
    allowed = {str(kind): found.count for kind, found in verdict.found.items() if kind in ALLOWED}
    run.note(f"{part.figures()}; counted and allowed: {allowed}")
    return verdict


def _wait_until_served(run: Run, since_s: float, when: str) -> None:
    for who, sender in (("through the gateway", run.sender), ("direct", run.direct_sender)):
        wait_for(
            lambda sender=sender: sender.served_after_s(since_s) is not None,  # type: ignore[misc]
            f"every partition acknowledges {who} {when}",
            SERVED_TIMEOUT_S,
        )
    if run.transactions is not None:
        run.transactions.wait_until_served(since_s, when)


def _wait_until_changed(run: Run, when: str) -> None:
    """A node that is fenced for a moment, or an election, may have one topic refused, but not one after another."""
    wait_for(run.change_metadata, f"a metadata change {when}", SERVED_TIMEOUT_S)


def compare_replicas(placed: Mapping[int, Sequence[int]], replicas: Mapping[int, Polls]) -> None:
    """All in sync, the load ended, the nodes stopped cleanly: the same places are filled on each partition's nodes."""
    filled: dict[tuple[int, int], set[int]] = defaultdict(set)
    for node_id, polls in replicas.items():
        for partition, offset in zip(polls.partition, polls.offset, strict=True):
            filled[node_id, partition].add(offset)
    for partition, nodes in placed.items():
        fullest = max(nodes, key=lambda node_id: len(filled[node_id, partition]))
        for node_id in nodes:
            missing = filled[fullest, partition] - filled[node_id, partition]
            assert not missing, (
                f"node-{node_id} was in sync and lacks {len(missing)} records of partition {partition}, "
                f"such as {min(missing)}"
            )


def signal_all(cluster: Cluster, names: Sequence[str], number: signal.Signals) -> None:
    """Hit all of them at once and, where that ends them, wait until they are gone."""
    if number is signal.SIGKILL:
        cluster.kill(*names)
    elif number is signal.SIGTERM:
        cluster.terminate(*names)
    else:
        cluster.signal(number, *names)
