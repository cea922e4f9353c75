"""Rounds of "everything dies at once under load": `kill -9`, or a power cut.

Each round: load of at least 100 acks/s, transactions (`crash.transactional`) and topics being
made; kill every process within milliseconds; (power cut: drop unsynced bytes and names); start
all; every acknowledged topic is there, every log is as long as what was acknowledged, every
transaction whole or not there. At the end every record is read back: none lost, none doubled,
order kept per key.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from crash.power_cut import PowerCut
from crash.rig import EndOffsets, TopicChurn, kill_all, wait_for_load
from crash.transactional import TransactionalRounds
from penstock.local.cluster import LocalCluster
from support.cluster import running_cluster, start_ready
from support.kafka import Load, check_nothing_lost, create_topic, read_all, wait_for_full_isr
from support.transactions import Outcome
from support.waiting import wait_for

SNAPSHOT_EVERY = 20
"""Metadata commands between two snapshots of a controller: several in each round."""
SETTINGS = {
    "controller": {"raft_snapshot_every": str(SNAPSHOT_EVERY)},
    "storage-node": {"checkpoint_interval_ms": "1000"},
}
NOTHING_BESIDE = {"group_flush": "false", "flush_interval_ms": "3600000"}
"""So that topics of durability `replicated` are flushed neither with others of their filesystem nor after a while:
what they lose is then what no ack waited for, and not what happened to be young."""
RATE_PER_S = 400
TOPIC = "records"


@dataclass
class Report:
    """What a run has shown."""

    kind: str
    seed: int
    rounds: int = 0
    acked_records: int = 0
    acked_topics: int = 0
    snapshots: int = 0
    acks_per_s_before: list[int] = field(default_factory=list)
    back_in_s: list[float] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    lost_records: int = 0
    lost_topics: int = 0
    transactions_committed: int = 0
    transactions_aborted: int = 0
    transactions_unknown: int = 0
    """Of which no client knows how they ended: whole or not there."""
    decided_in_s: list[float] = field(default_factory=list)
    """From the start until every transaction's producer was replaced, and every last stable offset at its watermark."""
    took_s: float = 0.0

    def count_transactions(self, transactions: TransactionalRounds) -> None:
        self.transactions_committed = transactions.count(Outcome.COMMITTED)
        self.transactions_aborted = transactions.count(Outcome.ABORTED)
        self.transactions_unknown = transactions.count(Outcome.UNKNOWN)

    def last_round(self) -> str:
        """In a line."""
        return (
            f"round {self.rounds}: {self.acked_records} records, {self.acked_topics} topics, "
            f"{self.transactions_committed} transactions, {self.acks_per_s_before[-1]} acks/s before, "
            f"back in {self.back_in_s[-1]:.1f} s, all decided in {self.decided_in_s[-1]:.1f} s"
            + (f", {self.dropped[-1]} files and names lost something" if self.dropped else "")
        )

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    def lines(self) -> list[str]:
        """A table for people."""
        rows = [
            ("rounds", str(self.rounds)),
            ("seed", str(self.seed)),
            ("acks in the second before a kill, least", str(min(self.acks_per_s_before, default=0))),
            ("records acknowledged", str(self.acked_records)),
            ("records lost", str(self.lost_records)),
            ("topics acknowledged", str(self.acked_topics)),
            ("topics lost", str(self.lost_topics)),
            (
                "transactions committed / aborted / unknown",
                f"{self.transactions_committed} / {self.transactions_aborted} / {self.transactions_unknown}",
            ),
            ("all transactions decided after, median / most", f"{of(self.decided_in_s)}"),
            ("controller snapshots written", str(self.snapshots)),
            ("100 acks again after, median / most", of(self.back_in_s)),
            ("took", f"{self.took_s:.0f} s"),
        ]
        if self.dropped:
            rows.insert(-1, ("files and names that lost something", str(sum(self.dropped))))
        return [f"{what:42} {value}" for what, value in rows]


def of(times_s: list[float]) -> str:
    """Median and most."""
    times = sorted(times_s) or [0.0]
    return f"{times[len(times) // 2]:.1f} s / {times[-1]:.1f} s"


def snapshots_of(cluster: LocalCluster) -> dict[str, int]:
    """Which snapshot file each controller has: another number means another file."""
    found = {}
    for member in cluster.state.of_role("controller"):
        path = cluster.directory / member.name / "data" / "raft-snapshot"
        if path.exists():
            found[member.name] = path.stat().st_mtime_ns
    return found


def newer(cluster: LocalCluster, than: dict[str, int]) -> bool:
    """Whether some controller has written a snapshot since."""
    return any(than.get(name) != at for name, at in snapshots_of(cluster).items())


def run_rounds(
    directory: Path,
    rounds: int,
    seed: int,
    say: Callable[[str], None],
    *,
    power_cut: bool = False,
    durability: str = "fsync",
    fate: str | None = None,
) -> Report:
    """Do it. Raises AssertionError on the first thing lost (records of `replicated` topics are counted).

    `fate` of unsynced bytes: see `disk_model.cut`.
    """
    report = Report("power-cut" if power_cut else "kill-all", seed)
    began = time.monotonic()
    if not power_cut:
        _rounds(directory, rounds, random.Random(seed), say, report, None, durability, fate)
    else:
        with PowerCut(directory / "cluster", directory / "scratch") as power:
            _rounds(directory, rounds, random.Random(seed), say, report, power, durability, fate)
    report.took_s = time.monotonic() - began
    return report


def _load(bootstrap: str, durability: str) -> Load:
    return Load(
        bootstrap,
        TOPIC,
        rate_per_s=RATE_PER_S,
        timeout_s=120.0,
        **{
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "retry.backoff.ms": 20,
            "batch.size": 65_536,
            # An idempotent producer rightly gives up when what it wrote is gone.
            "enable.idempotence": durability == "fsync",
        },
    )


def _settings(durability: str) -> dict[str, dict[str, str]]:
    if durability == "fsync":
        return SETTINGS
    return SETTINGS | {"storage-node": SETTINGS["storage-node"] | NOTHING_BESIDE}


def _rounds(
    directory: Path,
    rounds: int,
    dice: random.Random,
    say: Callable[[str], None],
    report: Report,
    power: PowerCut | None,
    durability: str,
    fate: str | None,
) -> None:
    with running_cluster(directory / "cluster", settings=_settings(durability)) as cluster:
        bootstrap = cluster.bootstrap
        create_topic(bootstrap, TOPIC, 6, 3, **{"penstock.durability": durability, "segment.bytes": "262144"})
        names = [process.name for process in cluster.state.processes]
        ends = EndOffsets(bootstrap, TOPIC)
        load = _load(bootstrap, durability)
        snapshots = snapshots_of(cluster)
        with load, TopicChurn(bootstrap) as churn, TransactionalRounds(bootstrap) as transactions:
            transactions.begin()
            for number in range(1, rounds + 1):
                churn.wait_for_acks(dice.randint(2, 8))
                load.wait_for_acks(dice.randint(50, 400), 120.0)
                report.acks_per_s_before.append(wait_for_load(load))
                transactions.wait_for_commits(dice.randint(1, 5))
                transactions.leave_one()
                # The kill shall meet controllers at work on snapshots, not once at the beginning.
                wait_for(lambda: newer(cluster, snapshots), "a controller snapshot", 120.0)  # noqa: B023
                kill_all(cluster)
                dropped = power.cut(dice, fate) if power is not None else 0
                killed = time.monotonic()
                start_ready(cluster, *names)
                load.wait_for_acks(100, 120.0)
                report.back_in_s.append(time.monotonic() - killed)
                report.decided_in_s.append(transactions.check(killed))
                if power is not None:
                    report.dropped.append(dropped)
                churn.check()
                if durability == "fsync":
                    ends.check(load.ledger)
                after = snapshots_of(cluster)
                report.snapshots += len(set(after.items()) - set(snapshots.items()))
                snapshots = after
                report.rounds = number
                report.acked_records = len(load.ledger.acked)
                report.acked_topics = churn.acked_count
                report.count_transactions(transactions)
                say(report.last_round())
        wait_for_full_isr(bootstrap, TOPIC, 120)
        records = read_all(bootstrap, TOPIC, 120.0)
        if durability == "fsync":
            check_nothing_lost(load.ledger, records)
        else:
            there = {(record.partition, record.offset): record.value for record in records}
            report.lost_records = sum(
                there.get((p, o if o is not None else -1)) != load.ledger.values[number]
                for number, (p, o) in load.ledger.acked.items()
            )
        churn.check()
