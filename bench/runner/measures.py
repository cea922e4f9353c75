"""How one contender of a row is measured on a system that runs: a function for each kind of row."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final

from bench.runner.connections import idle_connections
from bench.runner.driver import LATENCY, THROUGHPUT, Driver, Told
from bench.runner.machine import Used, Watch, drop_from_cache, settle
from bench.runner.page_cache import PageCache
from bench.runner.plan import Size, Step
from bench.runner.rows import PENSTOCK_SYSTEM, Kind, Load
from bench.runner.systems import Running, SystemFailed
from confluent_kafka import KafkaException

Figures = dict[str, float]
REST_S: Final = 3.0
"""What a system that has just done something is given before it counts as having nothing to do."""
REST_FOR_PARTITIONS_S: Final = 90.0
"""The same after thousands of partitions were made: both say so before all their directories are there."""
TIMEOUT_S: Final = 240
_ACKS: Final = ("p50", "p99", "p999")


@dataclass
class Bench:
    """What a measurement has at hand during one visit."""

    running: Running
    driver: Driver
    size: Size
    watch: Watch
    cache: PageCache | None = None
    """None where a run is too small to meet what it is for."""
    filled: dict[tuple[str, str], str] = field(default_factory=dict)
    """Topics that hold records to read, by row and durability."""
    held: dict[str, Told] = field(default_factory=dict)
    """What was written to them."""
    _numbers: int = 0

    def topic(self, step: Step, load: Load) -> str:
        """A new one, as the row wants it."""
        self._numbers += 1
        name = f"{step.row.name}-{step.contender.name}-{self._numbers}"
        config = {}
        if load.replication_factor >= 3:
            config["min.insync.replicas"] = "2"
        if step.contender.system == PENSTOCK_SYSTEM:
            config["penstock.durability"] = step.contender.durability
        self.running.create_topic(name, max(1, load.partitions), load.replication_factor, config)
        return name

    def settle(self) -> None:
        """Before a run."""
        settle(self.cache)

    def forget(self, topic: str) -> None:
        """Deleted, so that disks do not fill; nobody waits for it."""
        self.running.admin().delete_topics([topic], operation_timeout=0)

    def produce(self, step: Step, topic: str, records: int, way: str = "", clients: int = 0) -> Told:
        load = step.row.load
        return self.driver.run(
            "produce", self.running.bootstraps[way or step.contender.way],
            {**THROUGHPUT, "producer:acks": load.acks}, clients or load.clients,
            topic=topic, partitions=load.partitions, records=records, record_bytes=load.record_bytes,
            keyed=int(load.keyed), timeout_s=TIMEOUT_S,
        )  # fmt: skip

    def consume(self, step: Step, topic: str, records: int, clients: int) -> Told:
        load = step.row.load
        return self.driver.run(
            "consume", self.running.bootstraps[step.contender.way], THROUGHPUT, clients,
            topic=topic, partitions=load.partitions, records=records, record_bytes=load.record_bytes,
            timeout_s=TIMEOUT_S,
        )  # fmt: skip

    def latency(self, step: Step, topic: str, *, seconds: float, with_reader: bool) -> Told:
        load = step.row.load
        records = max(20, round(load.rate_per_s * seconds))
        return self.driver.run(
            "latency", self.running.bootstraps[step.contender.way], {**LATENCY, "producer:acks": load.acks},
            topic=topic, partitions=load.partitions, records=records, skip=records // 5,
            record_bytes=load.record_bytes, rate_per_s=load.rate_per_s, with_reader=int(with_reader),
            timeout_s=TIMEOUT_S,
        )  # fmt: skip


def start(bench: Bench, step: Step) -> Figures:
    """From the command to the first acknowledged record, whatever is ready before."""
    factor = step.row.load.replication_factor
    bench.running.create_topic("first", 1, factor, {"min.insync.replicas": str(min(2, factor))})
    bench.running.one_ack("first")
    took_s = time.perf_counter() - bench.running.begun
    return {"start_to_ack_s": took_s, **memory(bench.running)}


def idle(bench: Bench, step: Step) -> Figures:
    """Cores that all processes use together while nobody asks for anything."""
    load = step.row.load
    bench.running.wait_ready(step.row.layout.nodes)
    if load.partitions:
        bench.topic(step, load)
    with _connections(bench, step):
        time.sleep(REST_FOR_PARTITIONS_S if load.partitions else REST_S)
        with bench.watch.over(bench.running.processes()):
            before, begin = bench.running.used(), time.perf_counter()
            time.sleep(bench.size.idle_s)
            after, took_s = bench.running.used(), time.perf_counter() - begin
    return {
        "idle_cores": (sum(after.cpu_s.values()) - sum(before.cpu_s.values())) / took_s,
        **{f"{role}_cores": (after.cpu_s[role] - before.cpu_s.get(role, 0)) / took_s for role in after.cpu_s},
        **memory(bench.running),
    }


def connections(bench: Bench, step: Step) -> Figures:
    """Acks beside them, and what all of it takes in memory."""
    topic = bench.topic(step, step.row.load)
    bench.latency(step, topic, seconds=bench.size.latency_s / 2, with_reader=False)
    with _connections(bench, step), bench.watch.over(bench.running.processes()):
        told = bench.latency(step, topic, seconds=bench.size.latency_s, with_reader=False)
        held = memory(bench.running)
    bench.forget(topic)
    return {**percentiles("ack", told.ack_ms), **held}


def latency(bench: Bench, step: Step) -> Figures:
    """At a fixed rate: until the ack, and until a reader in the same process has the record."""
    topic = bench.topic(step, step.row.load)
    bench.latency(step, topic, seconds=bench.size.latency_s / 2, with_reader=True)
    bench.settle()
    with bench.watch.over(bench.running.processes()):
        before = bench.running.used()
        told = bench.latency(step, topic, seconds=bench.size.latency_s, with_reader=True)
        after = bench.running.used()
    bench.forget(topic)
    return {
        **percentiles("ack", told.ack_ms),
        **percentiles("end_to_end", told.end_to_end_ms),
        "reached_per_s": told.records / told.elapsed_s,
        "servers_cores": (sum(after.cpu_s.values()) - sum(before.cpu_s.values())) / told.elapsed_s,
    }


def produce(bench: Bench, step: Step) -> Figures:
    """As fast as it goes."""
    load = step.row.load
    topic = bench.topic(step, load)
    warm = max(1, round(bench.size.warm_up_megabytes * 1e6 / load.record_bytes / load.clients))
    bench.produce(step, topic, warm)
    bench.settle()
    with bench.watch.over(bench.running.processes()):
        before = bench.running.used()
        told = bench.produce(step, topic, bench.size.records(load.record_bytes, load.clients))
        after = bench.running.used()
    bench.forget(topic)
    return {**throughput(told, before, after), **memory(bench.running)}


def consume(bench: Bench, step: Step) -> Figures:
    """From the beginning; what is read was written once in this visit, straight to the leaders."""
    load = step.row.load
    records = bench.size.records(load.record_bytes)
    key = step.row.name, step.contender.durability
    if key not in bench.filled:
        bench.filled[key] = bench.topic(step, load)
        bench.produce(step, bench.filled[key], records, way="direct", clients=1)
    topic = bench.filled[key]
    bench.settle()
    if load.cold:
        drop_from_cache(bench.running.data)
        bench.settle()
    else:
        bench.consume(step, topic, records, 1)
    with bench.watch.over(bench.running.processes()):
        before = bench.running.used()
        # Each of several readers reads all of it.
        told = bench.consume(step, topic, records, load.clients)
        after = bench.running.used()
    return {**throughput(told, before, after), **memory(bench.running)}


def partitions(bench: Bench, step: Step) -> Figures:
    """Created and in sync; killed all at once, and back to the first ack."""
    load = step.row.load
    begin = time.perf_counter()
    topic = bench.topic(step, load)
    bench.running.wait_for(topic, load.partitions, load.replication_factor)
    created_s = time.perf_counter() - begin
    held = memory(bench.running)
    begin = time.perf_counter()
    bench.running.start_again()
    bench.running.one_ack(topic)
    restart_s = time.perf_counter() - begin
    bench.running.wait_for(topic, load.partitions, load.replication_factor)
    whole_s = time.perf_counter() - begin
    return {"created_s": created_s, "restart_to_ack_s": restart_s, "restart_to_whole_s": whole_s, **held}


MEASURES: Final[Mapping[Kind, Callable[[Bench, Step], Figures]]] = {
    Kind.START: start,
    Kind.IDLE: idle,
    Kind.CONNECTIONS: connections,
    Kind.LATENCY: latency,
    Kind.PRODUCE: produce,
    Kind.CONSUME: consume,
    Kind.PARTITIONS: partitions,
}
FAILURES: Final = (SystemFailed, KafkaException)


def _connections(bench: Bench, step: Step) -> AbstractContextManager[None]:
    count = step.row.load.connections
    way = "gateway" if "gateway" in bench.running.bootstraps else "direct"
    return idle_connections(bench.running.bootstraps[way], count) if count else nullcontext()


def percentiles(what: str, values_ms: tuple[float, ...]) -> Figures:
    """By figure; none where there are none."""
    return {f"{what}_{name}_ms": value for name, value in zip(_ACKS, values_ms, strict=False)}


def throughput(told: Told, before: Used, after: Used) -> Figures:
    """Rate, and what servers and clients took for it."""
    gigabytes = told.size_bytes / 1e9
    by_role = {role: after.cpu_s[role] - before.cpu_s.get(role, 0.0) for role in after.cpu_s}
    return {
        "mb_per_s": told.size_bytes / 1e6 / told.elapsed_s,
        "records_per_s": told.records / told.elapsed_s,
        "servers_cpu_s_per_gb": sum(by_role.values()) / gigabytes,
        "client_cpu_s_per_gb": told.cpu_s / gigabytes,
        **{f"{role.replace('-', '_')}_cpu_s_per_gb": cpu_s / gigabytes for role, cpu_s in by_role.items()},
    }


def memory(running: Running) -> Figures:
    """Resident now: of all processes, and of the largest that holds partitions."""
    held = running.used().rss_bytes
    total = sum(size for sizes in held.values() for size in sizes)
    return {"servers_rss_mb": total / 1e6, "node_rss_mb": running.node_rss_mb()}
