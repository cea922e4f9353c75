"""How one contender of a row of transactions is measured: a function for each kind of row."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil
from bench.runner.driver import AT_ONCE, ENDURE, THROUGHPUT, TRANSACT, ClientFailed, Told
from bench.runner.figures import at
from bench.runner.machine import Used, counting, need_files
from bench.runner.measures import Bench, Figures, memory, percentiles, throughput
from bench.runner.pauses import Story, longest_pause_s, steady
from bench.runner.plan import Step
from bench.runner.rows import Kind
from bench.runner.systems import NODES, START_TIMEOUT_S, Running, SystemFailed
from bench.runner.transactional_ids import STATE_TOPIC, Cluster, Refused, make
from confluent_kafka import Producer

from penstock_kafka.wire.groups import transaction_partition

TIMEOUT_S: Final = 240
RECORDS_OF_ONE: Final = 1000
"""Of a transaction in what is read."""
WARM_IDS: Final = 200
FILES_OF_ONE: Final = 32
"""Of a producer: librdkafka has pipes beside its sockets."""
FILES_OF_OTHERS: Final = 500
SETTLED: Final = 20
"""So many commits, and records read, make a client that goes on."""
OBSERVED_S: Final = 20.0
"""How long is looked after a fault at least: a node that hangs is missed only when its session is over."""
GIVEN_UP_S: Final = 150.0
DEAD_TIMEOUT_S: Final = 30.0
RECENT_NS: Final = 1_000_000_000
REST_S: Final = 3.0
"""What a system is given after many ids, before its memory is read."""
FLUSHES: Final = 100
FLUSH_BYTES: Final = 4096
_STRIKES: Final = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}


def transact(bench: Bench, step: Step) -> Figures:
    """As fast as it goes, with a commit now and then, or without transactions."""
    load = step.row.load
    topic = bench.topic(step, load)
    bench.settle()
    with (
        bench.watch.over(bench.running.processes()),
        counting(bench.running.processes()) as samples,
    ):
        told = bench.driver.by(step.row.client).run(
            "transact", bench.running.bootstraps["direct"], TRANSACT[step.row.client],
            topic=topic, partitions=load.partitions, records=bench.size.records(load.record_bytes),
            warm_up=_warm(bench, load.record_bytes), record_bytes=load.record_bytes, commit_ms=load.commit_ms,
            plain=int(step.contender.plain), transactional_id=topic, timeout_s=TIMEOUT_S,
        )  # fmt: skip
    bench.forget(topic)
    return {**throughput(told, *_spent(told, samples)), **_of_transactions(told), **memory(bench.running)}


def _warm(bench: Bench, record_bytes: int) -> int:
    return max(1, round(bench.size.warm_up_megabytes * 1e6 / record_bytes))


def _of_transactions(told: Told) -> Figures:
    if not told.transactions:
        return {}
    return {
        "transactions_per_s": told.transactions / told.elapsed_s,
        **percentiles("commit", told.commit_ms),
        **percentiles("transaction", told.transaction_ms),
    }


def commits(bench: Bench, step: Step) -> Figures:
    """At a fixed rate, a record in each partition; where a system does not reach it, for twice the time."""
    load = step.row.load
    topic = bench.topic(step, load)
    bench.settle()
    flushes_ms = flush_times_ms(bench.running.data)

    def run(seconds: float) -> Told:
        records = max(10, round(load.rate_per_s * seconds))
        return bench.driver.by(step.row.client).run(
            "commits", bench.running.bootstraps["direct"], AT_ONCE[step.row.client],
            topic=topic, partitions=load.partitions, records=records, skip=records // 5,
            record_bytes=load.record_bytes, rate_per_s=load.rate_per_s, transactional_id=topic, timeout_s=TIMEOUT_S,
        )  # fmt: skip

    run(bench.size.latency_s / 2)
    bench.settle()
    with bench.watch.over(bench.running.processes()):
        told = run(2 * bench.size.latency_s)
    bench.forget(topic)
    return {
        **_of_transactions(told),
        "disk_flush_p50_ms": statistics.median(flushes_ms),
        "disk_flush_p99_ms": flushes_ms[int(0.99 * (len(flushes_ms) - 1))],
    }


def flush_times_ms(folder: Path, count: int = FLUSHES) -> list[float]:
    """Of 4 KiB each, written behind one another to a file there and flushed, in ascending order; nothing is left."""
    found = []
    file = folder / "flushes"
    handle = os.open(file, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        for _ in range(count):
            os.write(handle, b"x" * FLUSH_BYTES)
            begin = time.perf_counter()
            os.fdatasync(handle)
            found.append(1000 * (time.perf_counter() - begin))
    finally:
        os.close(handle)
        file.unlink()
    return sorted(found)


def repeat(bench: Bench, step: Step) -> Figures:
    """Producers with transactions of one record each, back to back."""
    load = step.row.load
    need_files(FILES_OF_OTHERS + load.clients * FILES_OF_ONE)
    topic = bench.topic(step, load)
    bench.settle()
    with (
        bench.watch.over(bench.running.processes()),
        counting(bench.running.processes()) as samples,
    ):
        told = bench.driver.by(step.row.client).run(
            "repeat", bench.running.bootstraps["direct"], AT_ONCE[step.row.client],
            topic=topic, partitions=load.partitions, producers=load.clients, record_bytes=load.record_bytes,
            warm_up_ms=round(500 * bench.size.latency_s), measure_ms=round(1000 * bench.size.latency_s),
            transactional_id=topic, timeout_s=TIMEOUT_S,
        )  # fmt: skip
    bench.forget(topic)
    before, after = _spent(told, samples)
    count = max(1, told.transactions)
    return {
        **_of_transactions(told),
        "cpu_of_a_transaction_ms": 1000 * (sum(after.cpu_s.values()) - sum(before.cpu_s.values())) / count,
        "client_cpu_of_a_transaction_ms": 1000 * told.cpu_s / count,
        **memory(bench.running),
    }


def copy(bench: Bench, step: Step) -> Figures:
    """A member that copies what a topic holds, and then what comes at a fixed rate."""
    load = step.row.load
    topic, out = bench.topic(step, load), bench.topic(step, load)
    warm = _warm(bench, load.record_bytes)
    records = bench.size.records(load.record_bytes) // 4
    bench.produce(step, topic, warm + records)
    common = {
        "partitions": load.partitions, "record_bytes": load.record_bytes, "commit_ms": load.commit_ms,
        "timeout_s": TIMEOUT_S,
    }  # fmt: skip
    bench.settle()
    with bench.watch.over(bench.running.processes()):
        with counting(bench.running.processes()) as samples:
            told = bench.driver.by("java").run(
                "copy", bench.running.bootstraps["direct"], TRANSACT["java"], topic=topic, out=out,
                records=records, warm_up=warm, transactional_id=out, **common,
            )  # fmt: skip
        slow, beside = bench.topic(step, load), bench.topic(step, load)
        paced = max(100, round(load.rate_per_s * bench.size.latency_s))
        flow = bench.driver.by("java").run(
            "flow", bench.running.bootstraps["direct"], AT_ONCE["java"], topic=slow, out=beside,
            records=paced, skip=paced // 5, rate_per_s=load.rate_per_s, transactional_id=beside, **common,
        )  # fmt: skip
    for each in (topic, out, slow, beside):
        bench.forget(each)
    return {
        **throughput(told, *_spent(told, samples)),
        **_of_transactions(told),
        **percentiles("end_to_end", flow.end_to_end_ms),
        **memory(bench.running),
    }


def _spent(told: Told, samples: Sequence[tuple[int, Mapping[str, float]]]) -> tuple[Used, Used]:
    """What servers had used when a client's clock began, and when it ended."""
    return Used(at(samples, told.begin_ns), {}), Used(at(samples, told.end_ns), {})


def isolation(bench: Bench, step: Step) -> Figures:
    """All that is committed, or all; written once in this visit, in transactions of a thousand records."""
    load = step.row.load
    key = step.row.name, step.contender.durability
    if key not in bench.filled:
        topic = bench.filled[key] = bench.topic(step, load)
        records = bench.size.records(load.record_bytes)
        bench.held[topic] = bench.driver.run(
            "transact", bench.running.bootstraps["direct"], TRANSACT["librdkafka"], topic=topic,
            partitions=load.partitions, records=records, record_bytes=load.record_bytes,
            commit_records=RECORDS_OF_ONE, abort_every=load.abort_every, transactional_id=topic, timeout_s=TIMEOUT_S,
        )  # fmt: skip
    topic = bench.filled[key]
    written = bench.held[topic]
    # And the one record of the writer's first transaction.
    wanted = (written.records if step.contender.plain else written.committed) + 1

    def read() -> Told:
        level = "read_uncommitted" if step.contender.plain else "read_committed"
        return bench.driver.run(
            "consume", bench.running.bootstraps["direct"], {**THROUGHPUT, "consumer:isolation.level": level},
            topic=topic, partitions=load.partitions, records=wanted, record_bytes=load.record_bytes,
            timeout_s=TIMEOUT_S,
        )  # fmt: skip

    bench.settle()
    read()
    with bench.watch.over(bench.running.processes()):
        before = bench.running.used()
        told = read()
        after = bench.running.used()
    return {
        **throughput(told, before, after),
        "log_mb_per_s": (written.records + 1) * load.record_bytes / 1e6 / told.elapsed_s,
        **memory(bench.running),
    }


def fault(bench: Bench, step: Step) -> Figures:
    """A producer and a reader go on while a node is struck; what one waits for a commit, and the other for a record."""
    load = step.row.load
    whom, _, how = load.fault.partition("-")
    topic = bench.topic(step, load)
    leader = leaders(bench.running, topic)[0]
    # So that each fault strikes one of the two alone.
    name, coordinator = coordinated_elsewhere(topic, coordinators(bench.running), leader)
    struck = leader if whom == "leader" else coordinator
    victim = bench.running.node(struck)
    # Around the client, too: beside its load no system is at rest.
    with (
        bench.watch.over(bench.running.processes()) as counter,
        bench.driver.telling(
            "endure", bench.running.bootstraps[step.contender.way], ENDURE, topic=topic, partitions=load.partitions,
            record_bytes=load.record_bytes, rate_per_s=load.rate_per_s, transactional_id=name,
        ) as story,
    ):  # fmt: skip
        _go_on(story, time.monotonic_ns(), 0.0)
        counter.cpu_s()
        struck_ns = time.monotonic_ns()
        victim.send_signal(_STRIKES[how])
        _go_on(story, struck_ns, min(OBSERVED_S, 2 * bench.size.latency_s))
        until_ns = time.monotonic_ns()
    # What is only stopped, or not quite dead, would be let go on and not be started.
    with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
        victim.kill()
        victim.wait(DEAD_TIMEOUT_S)
    bench.running.heal()
    return {
        "commit_pause_s": longest_pause_s(story.times_ns["commit"], struck_ns, until_ns),
        "reader_standstill_s": longest_pause_s(story.times_ns["read"], struck_ns, until_ns),
        "aborted": float(story.count_since("aborted", struck_ns)),
        "fatal": float(story.count_since("fatal", struck_ns)),
    }


def _go_on(story: Story, since_ns: int, seconds: float) -> None:
    """Until commits and reads go on, and at least so long; or until the client has ended or nobody waits any more."""
    begun = time.monotonic()
    while not story.ended and (now := time.monotonic()) - begun < GIVEN_UP_S:
        recent_ns = max(since_ns, time.monotonic_ns() - RECENT_NS)
        if (
            now - begun >= seconds
            and steady(story, ("commit", "read"), since_ns, SETTLED)
            and steady(story, ("commit", "read"), recent_ns, 1)
        ):
            return
        time.sleep(0.05)


def leaders(running: Running, topic: str) -> dict[int, int]:
    """Ids of nodes, by partition."""
    found = running.admin().list_topics(topic, timeout=30).topics[topic].partitions
    return {number: one.leader for number, one in found.items()}


def coordinators(running: Running) -> dict[int, int]:
    """By partition of the state topic, which is made when somebody first asks for it."""
    asking = Producer(
        {"bootstrap.servers": running.bootstraps["direct"], "transactional.id": "first", "log_level": 0,
         **running.client}
    )  # fmt: skip
    asking.init_transactions(START_TIMEOUT_S)
    count = len(leaders(running, STATE_TOPIC))
    running.wait_for(STATE_TOPIC, count, 3)
    return leaders(running, STATE_TOPIC)


def coordinated_elsewhere(
    begin: str, nodes: Mapping[int, int], leader: int, *, ending: str = ""
) -> tuple[str, int]:
    """A name of which the transactional id, that and `ending`, is coordinated by another node than the data's leader,
    and that node. `nodes` are `coordinators`."""
    names = (f"{begin}-{n}" for n in range(1000))
    return next(
        (name, node)
        for name in names
        if (node := nodes[transaction_partition(name + ending, len(nodes))]) != leader
    )


def many_ids(bench: Bench, step: Step) -> Figures:
    """Memory of nodes after so many ids, or so many open transactions, beside that before them."""
    load = step.row.load
    if bench.running.client:
        raise ClientFailed("raw requests do not sign in: this row is measured without --secure")
    bench.running.wait_ready(step.row.layout.nodes)
    opened = step.row.kind is Kind.OPEN
    topic = bench.topic(step, load) if opened else ""
    nodes = coordinators(bench.running)
    brokers = bench.running.admin().list_topics(timeout=30).brokers
    addresses = {number: f"{one.host}:{one.port}" for number, one in brokers.items()}
    cluster = Cluster(addresses, nodes, topic, leaders(bench.running, topic) if opened else {})
    # A load of ids before, so that what a first one costs does not count.
    try:
        asyncio.run(make(cluster, [f"{step.row.name}-warm-{n}" for n in range(WARM_IDS)], opened=opened))
        time.sleep(REST_S)
        with bench.watch.over(bench.running.processes()):
            before, begin = _resident(bench), time.perf_counter()
            names = [
                f"{step.row.name}-{bench.size.latency_s}-{time.monotonic_ns()}-{n}" for n in range(load.ids)
            ]
            asyncio.run(make(cluster, names, opened=opened))
            took_s = time.perf_counter() - begin
            time.sleep(REST_S)
            after = _resident(bench)
    except Refused as error:
        raise ClientFailed(str(error)) from None
    return {
        "more_node_rss_mb": max(after[pid] - before[pid] for pid in before),
        "made_per_s": load.ids / took_s,
        **memory(bench.running),
    }


def _resident(bench: Bench) -> dict[int, float]:
    """MB of each node, by process."""
    try:
        return {
            process.pid: process.memory_info().rss / 1e6
            for role, process in bench.running.processes() if role in NODES
        }  # fmt: skip
    except psutil.NoSuchProcess as error:
        raise SystemFailed(f"{bench.running.name}: process {error.pid} has ended by itself") from None


TRANSACTION_MEASURES: Final[Mapping[Kind, Callable[[Bench, Step], Figures]]] = {
    Kind.TRANSACT: transact,
    Kind.COMMITS: commits,
    Kind.REPEAT: repeat,
    Kind.COPY: copy,
    Kind.ISOLATION: isolation,
    Kind.FAULT: fault,
    Kind.IDS: many_ids,
    Kind.OPEN: many_ids,
}
