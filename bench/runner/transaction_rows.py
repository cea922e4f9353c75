"""Rows of `make bench-transactions`, and their goals. Pure.

What is divided by what: a figure by Kafka's of the same round; the rate with transactions by that of the same system
without them (contenders that end in -plain); reading what is committed by reading all.
"""

from __future__ import annotations

from typing import Final

from bench.runner.rows import (
    CPU,
    DIRECT,
    FSYNC,
    GATEWAY_FSYNC,
    KAFKA,
    KAFKA_SYSTEM,
    PENSTOCK,
    PENSTOCK_SYSTEM,
    REPLICATED,
    ROWS,
    SPEED,
    Contender,
    Goal,
    Kind,
    Load,
    Row,
)

KAFKA_PLAIN: Final = Contender("kafka-plain", KAFKA_SYSTEM, plain=True)
REPLICATED_PLAIN: Final = Contender("replicated-plain", PENSTOCK_SYSTEM, plain=True)
FSYNC_PLAIN: Final = Contender("fsync-plain", PENSTOCK_SYSTEM, durability="fsync", plain=True)
DIRECT_PLAIN: Final = Contender("direct-plain", PENSTOCK_SYSTEM, plain=True)
"""Readers: how it was written no longer matters."""

CLIENTS: Final = {"librdkafka": "old protocol", "java": "new protocol"}
"""By client, what it speaks: partitions added by the client, or by their leaders with an epoch for each transaction."""
TRANSACTIONS: Final = "transactions_per_s"
_THREE: Final = (KAFKA, REPLICATED, FSYNC)


def _spoken(client: str) -> str:
    return f"{client} ({CLIENTS[client]})"


def _transact(commit_ms: int, of_plain: float, client: str, *, quick: bool = False) -> Row:
    every = f"{commit_ms} ms" if commit_ms < 1000 else f"{commit_ms // 1000} s"
    return Row(
        f"transact-{commit_ms}ms-{client}",
        f"1 KiB, 12 partitions, a commit each {every}, {_spoken(client)}",
        Kind.TRANSACT,
        (SPEED, CPU, TRANSACTIONS, "commit_p50_ms", "commit_p99_ms", "client_cpu_s_per_gb", "node_rss_mb"),
        (KAFKA, REPLICATED, FSYNC, KAFKA_PLAIN, REPLICATED_PLAIN, FSYNC_PLAIN),
        Load(partitions=12, commit_ms=commit_ms),
        goals=(
            Goal("replicated", SPEED, of_plain, against="replicated-plain"),
            Goal("fsync", SPEED, of_plain, against="fsync-plain"),
            Goal("replicated", SPEED, 1.5),
            Goal("fsync", SPEED, 1),
        ),
        group=f"transact-{client}",
        quick=quick,
        client=client,
    )


def _commits(partitions: int, client: str, *, quick: bool = False) -> Row:
    what = "1 partition" if partitions == 1 else f"{partitions} partitions"
    return Row(
        f"commit-{partitions}p-{client}",
        f"20 transactions/s of a record in each of {what}: the commit, {_spoken(client)}",
        Kind.COMMITS,
        ("commit_p50_ms", "commit_p99_ms", "transaction_p50_ms", "transaction_p99_ms", TRANSACTIONS,
         "disk_flush_p50_ms", "disk_flush_p99_ms"),
        _THREE,
        Load(partitions=partitions, rate_per_s=20),
        goals=tuple(Goal(name, "commit_p99_ms", 1, at_most=True) for name in ("replicated", "fsync")),
        group=f"commit-{client}",
        quick=quick,
        client=client,
    )  # fmt: skip


def _repeat(producers: int, client: str, *, quick: bool = False) -> Row:
    what = "one producer" if producers == 1 else f"{producers} producers at once"
    goals = (
        (Goal("replicated", TRANSACTIONS, 1.5), Goal("fsync", TRANSACTIONS, 1))
        if producers == 1
        else (Goal("replicated", TRANSACTIONS, 1), Goal("fsync", TRANSACTIONS, 1))
    )
    return Row(
        f"back-to-back-{producers}-{client}",
        f"transactions of one record, back to back, {what}, {_spoken(client)}",
        Kind.REPEAT,
        (TRANSACTIONS, "cpu_of_a_transaction_ms", "transaction_p50_ms", "transaction_p99_ms", "node_rss_mb"),
        _THREE,
        Load(partitions=12, clients=producers),
        goals=goals,
        group="back-to-back" if producers == 1 else f"back-to-back-{producers}",
        quick=quick,
        client=client,
    )


def _isolation(name: str, title: str, bound: float, abort_every: int, *, quick: bool = False) -> Row:
    return Row(
        name, title, Kind.ISOLATION, (SPEED, CPU, "log_mb_per_s", "client_cpu_s_per_gb"),
        (KAFKA, KAFKA_PLAIN, DIRECT, DIRECT_PLAIN), Load(partitions=12, abort_every=abort_every),
        goals=(Goal("direct", SPEED, bound, against="direct-plain"),), group="isolation", quick=quick,
    )  # fmt: skip


FAULTS: Final = {
    "leader-killed": ("kill -9 of the leader of the data", 2),
    "coordinator-killed": ("kill -9 of the coordinator", 2),
    "leader-stopped": ("SIGSTOP of the leader of the data", 3),
    "coordinator-stopped": ("SIGSTOP of the coordinator", 3),
}
"""By name: in words, and how many seconds are too many."""
PAUSES: Final = ("commit_pause_s", "reader_standstill_s")


def _fault(name: str, *, quick: bool = False) -> Row:
    words, bound = FAULTS[name]
    return Row(
        f"fault-{name}", f"{words}: longest pause between commits, longest standstill of a reader at the LSO",
        Kind.FAULT, (*PAUSES, "aborted", "fatal"), (KAFKA, FSYNC, GATEWAY_FSYNC), Load(rate_per_s=20, fault=name),
        goals=tuple(
            goal for who in ("fsync", "gateway-fsync") for figure in PAUSES for goal in (
                Goal(who, figure, 0.2, at_most=True),
                Goal(who, figure, bound, at_most=True, against=""),
            )
        ),
        group=f"fault-{name}", quick=quick,
    )  # fmt: skip


_COPY: Final = Row(
    "copy-100ms",
    f"consume, transform, produce with offsets, a commit each 100 ms, {_spoken('java')}; end to end at 1,000 records/s",
    Kind.COPY,
    ("records_per_s", "end_to_end_p50_ms", "end_to_end_p99_ms", TRANSACTIONS, CPU, "client_cpu_s_per_gb"),
    _THREE,
    Load(partitions=12, commit_ms=100, rate_per_s=1000),
    goals=tuple(
        goal
        for name in ("replicated", "fsync")
        for goal in (Goal(name, "records_per_s", 1.2), Goal(name, "end_to_end_p99_ms", 1, at_most=True))
    ),
    group="copy",
    client="java",
)

TRANSACTION_ROWS: Final[tuple[Row, ...]] = (
    *(
        _transact(commit_ms, of_plain, client, quick=(commit_ms, client) == (100, "java"))
        for client in CLIENTS for commit_ms, of_plain in ((100, 0.85), (1000, 0.95))
    ),
    *(
        _commits(partitions, client, quick=(partitions, client) == (10, "java"))
        for client in CLIENTS for partitions in (1, 10, 100)
    ),
    *(
        _repeat(producers, client, quick=(producers, client) == (1, "java"))
        for producers in (1, 100, 500) for client in CLIENTS
    ),
    _COPY,
    _isolation("read-committed", "read committed 1 KiB, 12 partitions, warm; no aborts", 0.97, 0),
    _isolation(
        "read-committed-aborts", "read committed 1 KiB, 12 partitions, warm; one in ten aborted", 0.9, 10
    ),
    *(_fault(name, quick=name == "coordinator-killed") for name in FAULTS),
    Row(
        "idle-ids-10000", "10,000 idle transactional ids", Kind.IDS, ("more_node_rss_mb", "made_per_s"),
        (KAFKA, PENSTOCK), Load(ids=10_000),
        goals=(Goal("penstock", "more_node_rss_mb", 10, at_most=True, against=""),), group="ids",
    ),
    Row(
        "open-1000", "1,000 transactions open at once", Kind.OPEN, ("more_node_rss_mb", "made_per_s"),
        (KAFKA, PENSTOCK), Load(partitions=12, ids=1000), group="ids",
    ),
    *(row for row in ROWS if row.name == "transactional-ids"),
)  # fmt: skip
