"""What is measured: rows, who stands in each of them, and the goals.

A row is one load. Its contenders carry the same load; every ratio is between two of them in the same round. Names of
figures end in their unit. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

KAFKA_SYSTEM: Final = "kafka"
PENSTOCK_SYSTEM: Final = "penstock"


class Kind(StrEnum):
    """How a row is measured. In the order in which they run on a system that has just been started."""

    START = "start"
    IDLE = "idle"
    CONNECTIONS = "connections"
    LATENCY = "latency"
    PRODUCE = "produce"
    CONSUME = "consume"
    PARTITIONS = "partitions"
    IDS = "ids"
    OPEN = "open"
    COMMITS = "commits"
    REPEAT = "repeat"
    TRANSACT = "transact"
    COPY = "copy"
    ISOLATION = "isolation"
    FAULT = "fault"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True)
class Layout:
    """The processes of a system. Kafka has its nodes alone: combined brokers, all of them voters."""

    nodes: int = 3
    gateways: int = 1
    controllers: int = 3
    single: bool = False
    """Penstock in one process, and one broker of Kafka."""

    @property
    def text(self) -> str:
        return "one process" if self.single else f"{self.controllers}+{self.nodes}+{self.gateways} processes"


@dataclass(frozen=True)
class Contender:
    """Who carries a load, by which way, and what an ack means there."""

    name: str
    system: str
    way: str = "direct"
    durability: str = "replicated"
    plain: bool = False
    """Writes without transactions beside others that write with them, or reads what is not committed, too."""


KAFKA: Final = Contender("kafka", KAFKA_SYSTEM)
REPLICATED: Final = Contender("replicated", PENSTOCK_SYSTEM)
FSYNC: Final = Contender("fsync", PENSTOCK_SYSTEM, durability="fsync")
GATEWAY_REPLICATED: Final = Contender("gateway-replicated", PENSTOCK_SYSTEM, "gateway")
GATEWAY_FSYNC: Final = Contender("gateway-fsync", PENSTOCK_SYSTEM, "gateway", "fsync")
PENSTOCK: Final = Contender("penstock", PENSTOCK_SYSTEM, durability="fsync")
"""Where neither way nor durability matters; the default counts."""
DIRECT: Final = Contender("direct", PENSTOCK_SYSTEM)
GATEWAY: Final = Contender("gateway", PENSTOCK_SYSTEM, "gateway")
"""Readers: how it was written no longer matters."""


@dataclass(frozen=True)
class Load:
    """What the clients do."""

    partitions: int = 1
    record_bytes: int = 1024
    replication_factor: int = 3
    acks: str = "all"
    keyed: bool = False
    clients: int = 1
    rate_per_s: int = 0
    """0: as fast as it goes."""
    cold: bool = False
    """Read what is no longer in the page cache."""
    connections: int = 0
    """That stand open, and say nothing."""
    commit_ms: int = 0
    """From a transaction's begin until its records end and it is committed."""
    abort_every: int = 0
    """Each so manieth transaction is aborted; 0: none."""
    ids: int = 0
    """Transactional ids that say nothing any more, or whose transactions stay open."""
    fault: str = ""
    """What is done to whom: see bench.runner.transactions."""


@dataclass(frozen=True)
class Goal:
    """`contender`'s figure divided by that of `against`, in one round: at least, or at most, `bound`.

    Against "": the figure as it is.
    """

    contender: str
    figure: str
    bound: float
    at_most: bool = False
    against: str = "kafka"

    @property
    def text(self) -> str:
        sign = "<=" if self.at_most else ">="
        return f"{sign} {self.bound:g} x {self.against}" if self.against else f"{sign} {self.bound:g}"


@dataclass(frozen=True)
class Row:
    """One line of the tables."""

    name: str
    title: str
    kind: Kind
    figures: tuple[str, ...]
    """What is shown of it, the most important first."""
    contenders: tuple[Contender, ...]
    load: Load = Load()
    layout: Layout = Layout()
    goals: tuple[Goal, ...] = ()
    group: str = ""
    """Rows of one group run in one visit to a system, one after another."""
    quick: bool = False
    """Part of --quick."""
    module: str = ""
    """Of rows that are measured by a module of their own: which."""
    client: str = "librdkafka"
    """Or java."""

    @property
    def systems(self) -> tuple[str, ...]:
        """In the order of the contenders."""
        return tuple(dict.fromkeys(contender.system for contender in self.contenders))

    def contender(self, name: str) -> Contender:
        """Raises LookupError for one that is not in this row."""
        for contender in self.contenders:
            if contender.name == name:
                return contender
        raise LookupError(f"{self.name} has no contender {name}")


SPEED: Final = "mb_per_s"
CPU: Final = "servers_cpu_s_per_gb"
ONE_NODE: Final = Layout(1, 1, 1)
_THROUGHPUT: Final = (SPEED, CPU, "client_cpu_s_per_gb", "servers_rss_mb", "node_rss_mb")
_LATENCY: Final = (
    *("ack_p50_ms", "ack_p99_ms", "ack_p999_ms"),
    *("end_to_end_p50_ms", "end_to_end_p99_ms", "end_to_end_p999_ms"),
)
_WRITERS: Final = (KAFKA, REPLICATED, FSYNC, GATEWAY_REPLICATED, GATEWAY_FSYNC)
_READERS: Final = (KAFKA, DIRECT, GATEWAY)


def _beside_direct(figure_bound: float = 0.8) -> tuple[Goal, ...]:
    return (
        Goal("gateway-replicated", SPEED, figure_bound, against="replicated"),
        Goal("gateway-fsync", SPEED, figure_bound, against="fsync"),
        Goal("gateway-replicated", CPU, 1.35, at_most=True, against="replicated"),
        Goal("gateway-fsync", CPU, 1.35, at_most=True, against="fsync"),
    )


def _produce(
    name: str, title: str, load: Load, *goals: Goal, group: str = "produce", quick: bool = False
) -> Row:
    return Row(
        name, title, Kind.PRODUCE, _THROUGHPUT, _WRITERS, load,
        goals=(*goals, *_beside_direct()), group=group, quick=quick,
    )  # fmt: skip


def _consume(name: str, title: str, load: Load, *, quick: bool = False) -> Row:
    goals = (
        Goal("direct", SPEED, 1.5),
        Goal("gateway", SPEED, 0.8, against="direct"),
        Goal("gateway", CPU, 1.35, at_most=True, against="direct"),
    )
    return Row(
        name, title, Kind.CONSUME, _THROUGHPUT, _READERS, load, goals=goals, group="consume", quick=quick
    )


def _latency(rate_per_s: int, *, quick: bool = False) -> Row:
    return Row(
        f"latency-{rate_per_s}",
        f"RF 3, acks=all, 1 KiB, {rate_per_s:,} records/s, 5 in flight",
        Kind.LATENCY,
        _LATENCY,
        _WRITERS,
        Load(rate_per_s=rate_per_s),
        goals=(
            Goal("replicated", "ack_p99_ms", 0.25, at_most=True),
            Goal("fsync", "ack_p99_ms", 0.5, at_most=True),
            Goal("gateway-replicated", "ack_p99_ms", 0.5, at_most=True),
        ),
        group="latency",
        quick=quick,
    )


_FIVE_AND_THREE: Final = (
    Goal("replicated", SPEED, 5),
    Goal("fsync", SPEED, 3),
    Goal("replicated", CPU, 0.2, at_most=True),
    Goal("fsync", CPU, 0.3, at_most=True),
)
_FOUR: Final = (Goal("replicated", SPEED, 4), Goal("fsync", SPEED, 4))


def _lone(name: str, title: str, record_bytes: int) -> Row:
    return Row(
        name, title, Kind.PRODUCE, _THROUGHPUT, _WRITERS,
        Load(record_bytes=record_bytes, replication_factor=1, acks="1"),
        layout=ONE_NODE, goals=(Goal("replicated", SPEED, 2), Goal("fsync", SPEED, 2)), group="lone",
    )  # fmt: skip


def _idle(name: str, title: str, bound: float, *, load: Load | None = None, quick: bool = False) -> Row:
    return Row(
        name, title, Kind.IDLE, ("idle_cores", "servers_rss_mb"), (KAFKA, PENSTOCK), load or Load(partitions=0),
        goals=(Goal("penstock", "idle_cores", bound, at_most=True, against=""),), group=name, quick=quick,
    )  # fmt: skip


def _connections(count: int) -> Row:
    return Row(
        f"connections-{count}",
        f"{count:,} connections that say nothing, 1,000 records/s beside them",
        Kind.CONNECTIONS,
        ("servers_rss_mb", "ack_p50_ms", "ack_p99_ms"),
        (KAFKA, GATEWAY_FSYNC),
        Load(rate_per_s=1000, connections=count),
        goals=(
            Goal("gateway-fsync", "servers_rss_mb", 0.5, at_most=True),
            Goal("gateway-fsync", "ack_p99_ms", 0.5, at_most=True),
        ),
        group=f"connections-{count}",
    )


def _growth(what: str, number: int, layout: Layout, load: Load, contenders: tuple[Contender, ...]) -> Row:
    return Row(
        f"growth-{what}-{number}", f"as work grows: {number:,} {what}, RF {load.replication_factor}, 1 KiB",
        Kind.PRODUCE, _THROUGHPUT, contenders, load, layout, group=f"growth-{what}-{number}",
    )  # fmt: skip


ROWS: Final[tuple[Row, ...]] = (
    _produce(
        "produce-1k-1p", "RF 3, acks=all, 1 KiB, 1 partition", Load(), *_FIVE_AND_THREE, quick=True
    ),
    _produce(
        "produce-1k-100p",
        "RF 3, acks=all, 1 KiB, 100 partitions",
        Load(partitions=100),
        *_FIVE_AND_THREE,
        quick=True,
    ),
    _produce("produce-100b-1p", "RF 3, acks=all, 100 B, 1 partition", Load(record_bytes=100), *_FOUR, quick=True),
    _produce(
        "produce-100b-100p",
        "RF 3, acks=all, 100 B, 100 partitions, keyed",
        Load(100, 100, keyed=True),
        *_FOUR,
    ),
    _produce(
        "produce-1k-3-clients",
        "RF 3, acks=all, 1 KiB, 100 partitions, 3 producers",
        Load(partitions=100, clients=3),
        *_FOUR,
        group="clients",
    ),
    _produce(
        "produce-1k-10-clients",
        "RF 3, acks=all, 1 KiB, 100 partitions, 10 producers",
        Load(partitions=100, clients=10),
        group="clients",
    ),
    _lone("produce-lone-1k", "RF 1, acks=1, 1 KiB, 1 partition", 1024),
    _lone("produce-lone-100b", "RF 1, acks=1, 100 B, 1 partition", 100),
    _consume("consume-1k-1p", "read 1 KiB, 1 partition, warm", Load(), quick=True),
    _consume("consume-1k-1p-cold", "read 1 KiB, 1 partition, cold", Load(cold=True)),
    _consume("consume-1k-100p", "read 1 KiB, 100 partitions, warm", Load(partitions=100)),
    _consume("consume-100b-1p", "read 100 B, 1 partition, warm", Load(record_bytes=100)),
    _consume("consume-100b-100p", "read 100 B, 100 partitions, warm", Load(100, 100)),
    _consume(
        "consume-1k-10-clients", "read 1 KiB, 100 partitions, warm, 10 readers", Load(partitions=100, clients=10)
    ),
    _latency(100),
    _latency(1000, quick=True),
    _latency(5000),
    _latency(20000),
    _idle("idle", "no clients", 0.03, quick=True),
    _idle("idle-1000-connections", "1,000 connections that say nothing", 0.05, load=Load(0, connections=1000)),
    _idle("idle-10000-partitions", "10,000 partitions of RF 3, no clients", 0.1, load=Load(10_000)),
    Row(
        "start-cluster", "start of the cluster to the first acked record", Kind.START,
        ("start_to_ack_s", "servers_rss_mb"), (KAFKA, PENSTOCK),
        goals=(Goal("penstock", "start_to_ack_s", 0.15, at_most=True),), group="start", quick=True,
    ),
    Row(
        "start-single", "start of the one-process broker to the first acked record", Kind.START,
        ("start_to_ack_s", "servers_rss_mb"), (KAFKA, PENSTOCK), Load(replication_factor=1),
        Layout(1, 1, 1, single=True),
        goals=(Goal("penstock", "start_to_ack_s", 0.3, at_most=True),), group="start-single",
    ),
    Row(
        "partitions-10000", "10,000 partitions of RF 3", Kind.PARTITIONS,
        ("created_s", "restart_to_ack_s", "servers_rss_mb", "node_rss_mb"), (KAFKA, PENSTOCK), Load(10_000),
        goals=tuple(
            Goal("penstock", figure, 0.5, at_most=True)
            for figure in ("created_s", "restart_to_ack_s", "node_rss_mb")
        ),
        group="partitions-10000",
    ),
    _connections(1000),
    _connections(5000),
    *(
        _growth("partitions", number, Layout(), Load(number), (KAFKA, REPLICATED, GATEWAY_REPLICATED))
        for number in (10, 1000)
    ),
    *(
        _growth("nodes", number, Layout(number), Load(30, replication_factor=min(3, number)), (KAFKA, REPLICATED))
        for number in (1, 5)
    ),
    *(
        _growth("gateways", number, Layout(gateways=number), Load(100, clients=4), (GATEWAY_REPLICATED,))
        for number in (1, 2, 4)
    ),
    *(
        Row(
            f"processes-{number}", f"{number} storage nodes and {number} gateways on the same cores, RF 1, 1 KiB",
            Kind.PRODUCE, _THROUGHPUT, (REPLICATED, GATEWAY_REPLICATED),
            Load(8, replication_factor=1, acks="1", clients=2), Layout(number, number, 1),
            group=f"processes-{number}",
        )
        for number in (1, 2, 4)
    ),
    Row(
        "failover", "longest wait of a client by gateway", Kind.ELSEWHERE,
        ("leader_killed_p50_s", "leader_killed_max_s", "leader_stopped_max_s", "controller_killed_p50_s"),
        (PENSTOCK,), module="bench.failover",
    ),
    Row(
        "groups", "CPU of a heartbeat and of a commit, gateway and coordinator", Kind.ELSEWHERE,
        ("heartbeat_cpu_ms", "consumer_heartbeat_cpu_ms", "commit_cpu_ms"), (KAFKA, PENSTOCK),
        module="bench.groups",
    ),
    Row(
        "spark", "records/s of Spark's source and of Spark's Kafka connector, counted", Kind.ELSEWHERE,
        ("count_1_kib_direct", "count_1_kib_gateway"), (KAFKA, PENSTOCK), module="bench.spark",
    ),
    Row(
        "transactional-ids", "10,000 idle transactional ids; 100,000 read by the next coordinator", Kind.ELSEWHERE,
        ("idle_ids_rss_mb", "load_s", "loop_late_ms", "killed_to_loaded_s"), (PENSTOCK,),
        module="bench.transactional_ids",
        goals=(
            Goal("penstock", "idle_ids_rss_mb", 10, at_most=True, against=""),
            Goal("penstock", "load_s", 3, at_most=True, against=""),
            Goal("penstock", "loop_late_ms", 10, at_most=True, against=""),
        ),
    ),
)  # fmt: skip


def choose(
    pattern: str, *, quick: bool, rows: Sequence[Row] = ROWS, command: str = "make bench"
) -> tuple[Row, ...]:
    """Rows of which the name matches, by re.search; with `quick` only those of the short run, unless they were asked
    for by a pattern. Raises LookupError when there is none, ValueError for a pattern that is none."""
    import re

    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"ONLY={pattern}: {error}") from None
    found = tuple(row for row in rows if wanted.search(row.name) and (row.quick or not quick or pattern))
    if not found:
        raise LookupError(f"ONLY={pattern}: no row has such a name; `{command} BENCH=--list` shows them")
    return found
