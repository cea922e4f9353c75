"""What planning costs: 10,000 partitions of replication factor 3 on 30 nodes, beside placing them, in one run.

    .venv/bin/python -m bench.planner [--rounds 5] [--partitions 10000] [--nodes 30] [--json FILE]
    .venv/bin/python -m bench.planner --idle 60      and a cluster with nothing to do: CPU of its active controller

`place` is what making a topic of that shape takes. A plan is the whole of it: targets, gates, times, the nodes' shares.
Both are made in slices between which a controller does other things; the longest one is how long it can be held up.
All of it is CPU time, since what else a machine does is nobody's plan. Read the ratios: medians over rounds, each of
which makes all of them one after another. Garbage is collected between them.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from bench.failover import active_controller
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from penstock.local.cluster import LocalCluster
from penstock.local.plan import ClusterSpec
from penstock_controller.state.operations.plans.plan import PlanView, plan_steps
from penstock_controller.state.operations.reports import Reports
from penstock_controller.state.placement import Load, place_steps
from penstock_core.ids import NodeId, TopicId
from penstock_core.metadata import MetadataImage
from penstock_proto.v1 import metadata_pb2 as meta
from penstock_proto.v1 import operations_pb2 as pb

TOPICS = 100
FACTOR = 3
RACKS = 3
SIZE_BYTES = 10_000_000
DISK_BYTES = 1 << 40
SETTLE_S = 10.0


@dataclass(frozen=True)
class Timed:
    """One run of something that is made in slices."""

    what: str
    seconds: float
    largest_slice_ms: float
    slices: int
    moves: int = 0


def timed(what: str, steps: Generator[None, None, Any], moves: Callable[[Any], int] = lambda _: 0) -> Timed:
    """Run to the end."""
    gc.collect()
    longest, slices = 0.0, 0
    begun = at = time.thread_time()
    while True:
        is_over, value = step(steps)
        now = time.thread_time()
        longest, slices, at = max(longest, now - at), slices + 1, now
        if is_over:
            return Timed(what, now - begun, 1000 * longest, slices, moves(value))


def step(steps: Generator[None, None, Any]) -> tuple[bool, Any]:
    """Whether it was the last one, and what came of all."""
    try:
        next(steps)
    except StopIteration as end:
        return True, end.value
    return False, None


def racks_of(nodes: int) -> dict[NodeId, str]:
    return {NodeId(n): f"rack-{n % RACKS}" for n in range(1, nodes + 1)}


def place(nodes: int, partitions: int, seed: int) -> Generator[None, None, list[list[list[NodeId]]]]:
    """All topics, one after another, as CreateTopics places them."""
    rng, cluster, racks = random.Random(seed), Load(), racks_of(nodes)
    placed = []
    for _ in range(TOPICS):
        found = yield from place_steps(racks, partitions // TOPICS, FACTOR, cluster, Load(), rng)
        yield from cluster.add_all(found)
        placed.append(found)
    return placed


def drained(steps: Generator[None, None, Any]) -> Any:
    is_over, value = False, None
    while not is_over:
        is_over, value = step(steps)
    return value


def image_of(nodes: int, placed: list[list[list[NodeId]]]) -> tuple[MetadataImage, Reports]:
    """What an active controller knows of such a cluster."""
    records = [meta.MetadataRecord(feature=meta.FeatureRecord(name="metadata.level", level=3))]
    for node_id, rack in racks_of(nodes).items():
        node = meta.NodeRecord(
            node_id=node_id, node_epoch=node_id, directory_id=node_id.to_bytes(16, "big"), rack=rack
        )
        records.append(meta.MetadataRecord(node=node))
    sizes: dict[NodeId, list[pb.ReplicaSize]] = {NodeId(n): [] for n in range(1, nodes + 1)}
    for number, topic in enumerate(placed):
        name = f"topic-{number:03}"
        topic_id = TopicId(name.encode().ljust(16, b"-"))
        records.append(meta.MetadataRecord(topic=meta.TopicRecord(topic_id=topic_id, name=name)))
        for partition, replicas in enumerate(topic):
            row = meta.PartitionRecord(
                topic_id=topic_id,
                partition=partition,
                replicas=replicas,
                isr=replicas,
                leader=replicas[0],
                leader_epoch=1,
                partition_epoch=1,
            )
            records.append(meta.MetadataRecord(partition=row))
            for node_id in replicas:
                size = pb.ReplicaSize(topic_id=topic_id, partition=partition, size_bytes=SIZE_BYTES)
                sizes[node_id].append(size)
    reports = Reports()
    for node_id, held in sizes.items():
        report = pb.NodeReport(
            disk_total_bytes=DISK_BYTES,
            disk_free_bytes=DISK_BYTES - SIZE_BYTES * len(held),
            log_bytes=SIZE_BYTES * len(held),
            first_of_all=True,
            last_of_all=True,
            sizes=held,
        )
        reports.take(node_id, node_id, report, 1)
    return MetadataImage().apply(records, 1), reports


def request_of(kind: str, **parameters: Any) -> pb.PlanRequest:
    return pb.PlanRequest(kind=kind, parameters=meta.OperationParameters(**parameters))


def one_round(nodes: int, partitions: int, seed: int) -> list[Timed]:
    found = [timed("place", place(nodes, partitions, seed))]
    even, full = image_of(nodes, drained(place(nodes, partitions, seed)))
    # Three nodes came after everything was made; and a cluster that grew without a plan.
    thin, thin_reports = image_of(nodes, drained(place(nodes - 3, partitions, seed)))
    rng = random.Random(seed)
    ids = list(racks_of(nodes))
    wild, wild_reports = image_of(
        nodes, [[rng.sample(ids, FACTOR) for _ in range(partitions // TOPICS)] for _ in range(TOPICS)]
    )
    for what, image, reports, request in (
        ("node drain", even, full, request_of("node-drain", node_ids=[2])),
        ("node add, 3 of them", thin, thin_reports, request_of("node-add", node_ids=ids[-3:])),
        ("rebalance, nothing to do", even, full, request_of("rebalance")),
        ("rebalance, 3 empty nodes", thin, thin_reports, request_of("rebalance")),
        ("rebalance, placed at random", wild, wild_reports, request_of("rebalance")),
    ):
        view = PlanView(reports=reports, alive=lambda _: True)
        found.append(timed(what, plan_steps(image, request, view), lambda plan: len(plan.moves)))
    return found


def idle_cpu(seconds: float) -> dict[str, float]:
    """CPU seconds per minute of each controller of a cluster with nothing to do, before and after an operation."""
    figures = {}
    with tempfile.TemporaryDirectory(prefix="penstock-idle-") as directory:
        cluster = LocalCluster(Path(directory))
        cluster.up(ClusterSpec(controllers=3, nodes=3, gateways=1, port=26600))
        try:
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
            for made in admin.create_topics([NewTopic("idle", 300, 3)], operation_timeout=60).values():
                made.result(60)
            time.sleep(SETTLE_S)
            active = active_controller(cluster)
            processes = {r.name: psutil.Process(r.pid) for r in cluster.state.processes if r.pid}
            before = {name: sum(process.cpu_times()[:2]) for name, process in processes.items()}
            time.sleep(seconds)
            for name, process in processes.items():
                if name.startswith("controller-"):
                    used = sum(process.cpu_times()[:2]) - before[name]
                    figures[f"{name}{' (active)' if name == active else ''}"] = 60 * used / seconds
        finally:
            cluster.down()
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=30)
    parser.add_argument("--idle", type=float, default=0, metavar="S", help="look at an idle cluster so long")
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    rounds = [one_round(given.nodes, given.partitions, seed) for seed in range(1, given.rounds + 1)]
    placing = statistics.median(found[0].seconds for found in rounds)
    table = Table(
        "what", "CPU s", "of place", "largest slice, ms", "slices", "moves",
        title=f"{given.partitions:,} partitions, RF {FACTOR}, {given.nodes} nodes; medians of {given.rounds}",
    )  # fmt: skip
    for of_kind in zip(*rounds, strict=True):
        seconds = statistics.median(t.seconds for t in of_kind)
        slice_ms = statistics.median(t.largest_slice_ms for t in of_kind)
        most = of_kind[0]
        cells = (f"{seconds:.2f}", f"{seconds / placing:.2f}", f"{slice_ms:.2f}", f"{most.slices:,}")
        table.add_row(most.what, *cells, f"{most.moves:,}")
    console = Console()
    console.print(table)
    idle = idle_cpu(given.idle) if given.idle else {}
    for name, used in idle.items():
        console.print(f"{name}: {used:.2f} CPU seconds a minute")
    if given.json:
        told = {"rounds": [[asdict(t) for t in found] for found in rounds], "idle_cpu_s_per_minute": idle}
        given.json.write_text(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
