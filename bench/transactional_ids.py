"""What many transactional ids cost: memory of idle ones, and how long the next coordinator reads them.

    .venv/bin/python -m bench.transactional_ids [--ids 100000] [--idle 10000] [--partitions 1] [--json FILE]

A local cluster of one controller, three storage nodes and a gateway. `__transaction_state` has one partition unless
told otherwise, so one node coordinates all ids: the worst case. Each id is made by an InitProducerId of its own. Then
the coordinator gets SIGKILL, and the next one reads all of them: what it took stands in its log, how late its loop
ever was in its metrics. Lateness has the machine's other work in it: on a busy one look at the least of several runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import struct
import sys
import tempfile
import time
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from confluent_kafka.admin import AdminClient
from rich.console import Console
from rich.table import Table

from penstock.local import ports
from penstock.local.cluster import LocalCluster
from penstock.local.plan import ClusterSpec

NODES = ("node-1", "node-2", "node-3")
CONNECTIONS = 48
WARM_COUNT = 200
SETTLE_S = 3.0
TIMEOUT_S = 180.0
FORGOTTEN_S = 65.0
"""After which the gauge of the longest lateness knows nothing of before."""
STATE = "__transaction_state"
IDS = "penstock_node_transactional_ids"
GOAL_IDLE_MB, GOAL_LOAD_S, GOAL_TURN_MS = 10.0, 3.0, 10.0
_COUNTS = re.compile(r"\b(ids|records|ms)=(\d+)")
_PASSING = frozenset({14, 15, 16, 51, 89})


@dataclass
class Result:
    """One run. Memory is resident, of each node, the most."""

    partitions: int
    ids: int
    idle: int
    idle_mb: float
    """More after `idle` ids than before them."""
    made_per_s: float
    load_s: float
    """Longest of the loads of one partition."""
    loaded_s: float
    """From SIGKILL until every partition was loaded."""
    late_ms: float
    """The longest lateness of a timer of a loop that loaded, from just before until just after."""
    loaded_ids: int


class Progress:
    """Lines on stderr, with the seconds since the start."""

    def __init__(self) -> None:
        self._begin_s = time.monotonic()

    def __call__(self, message: str) -> None:
        sys.stderr.write(f"{time.monotonic() - self._begin_s:6.1f} s  {message}\n")


def frame_of(name: str, correlation_id: int) -> bytes:
    """InitProducerId 1, whose headers and strings are plain."""
    text = name.encode()
    body = struct.pack(">hhih", 22, 1, correlation_id, -1) + struct.pack(">h", len(text)) + text
    body += struct.pack(">i", 600_000)
    return struct.pack(">i", len(body)) + body


def look_up(correlation_id: int) -> bytes:
    """FindCoordinator 1, which has the coordinators' topic made."""
    text = b"application"
    body = struct.pack(">hhih", 10, 1, correlation_id, -1) + struct.pack(">h", len(text)) + text + b"\x01"
    return struct.pack(">i", len(body)) + body


async def make_ids(address: str, first: int, end: int) -> None:
    """Each by a request of its own; whoever is told to come again does."""
    host, _, port = address.rpartition(":")
    numbers = iter(range(first, end))

    async def done(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frame: bytes) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        while True:
            writer.write(frame)
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            _, _, code = struct.unpack_from(">iih", await reader.readexactly(size))
            if not code:
                return
            if code not in _PASSING or time.monotonic() > deadline_s:
                raise RuntimeError(f"a request was answered with code {code}")
            await asyncio.sleep(0.05)

    async def run() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            await done(reader, writer, look_up(0))
            for number in numbers:
                await done(reader, writer, frame_of(f"application-{number:08d}", number))
        finally:
            writer.close()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(CONNECTIONS):
            tasks.create_task(run())


def metric(cluster: LocalCluster, node: str, name: str) -> float:
    """The sum of all its series."""
    (member,) = (member for member in cluster.state.members if member.name == node)
    with urllib.request.urlopen(f"http://127.0.0.1:{member.ports['http']}/metrics", timeout=10) as response:
        text: str = response.read().decode()
    return sum(float(line.split()[-1]) for line in text.splitlines() if re.match(rf"{name}[ {{]", line))


def resident_mb(cluster: LocalCluster) -> list[float]:
    pids = {process.name: process.pid for process in cluster.status().processes}
    return [psutil.Process(pids[node]).memory_info().rss / 1e6 for node in NODES if pids[node] is not None]


def leaders(cluster: LocalCluster) -> dict[int, int]:
    """Of each partition of the coordinators' topic."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    found = admin.list_topics(STATE, timeout=10).topics[STATE].partitions
    return {number: partition.leader for number, partition in found.items()}


def loads(folder: Path, node: str) -> list[dict[str, int]]:
    """What a node's log says of what it has loaded so far."""
    lines = (folder / node / "log.txt").read_text(errors="replace").splitlines()
    return [
        {name: int(number) for name, number in _COUNTS.findall(line)}
        for line in lines
        if "coordinator loaded" in line and STATE in line
    ]


def measure(folder: Path, *, ids: int, idle: int, partitions: int, note: Progress) -> Result:
    """One run."""
    cluster = LocalCluster(folder)
    settings = {"controller": {"transaction_state_log_num_partitions": str(partitions)}}
    spec = ClusterSpec(controllers=1, nodes=3, gateways=1, port=ports.choose_base(), settings=settings)
    cluster.up(spec)
    try:
        asyncio.run(make_ids(cluster.bootstrap, 0, WARM_COUNT))
        time.sleep(SETTLE_S)
        before = resident_mb(cluster)
        asyncio.run(make_ids(cluster.bootstrap, WARM_COUNT, WARM_COUNT + idle))
        time.sleep(SETTLE_S)
        more = [after - was for after, was in zip(resident_mb(cluster), before, strict=True)]
        note(f"{idle} ids: {', '.join(f'{each:+.1f} MB' for each in more)}")
        began_s = time.monotonic()
        left = max(0, ids - idle - WARM_COUNT)
        asyncio.run(make_ids(cluster.bootstrap, WARM_COUNT + idle, WARM_COUNT + idle + left))
        rate = left / (time.monotonic() - began_s)
        note(f"{ids} ids, {rate:.0f} a second")
        # What a loop was late with before is out of the gauge's sight by then.
        time.sleep(FORGOTTEN_S)
        return _take_over(cluster, folder, note, Result(partitions, ids, idle, max(more), rate, 0, 0, 0, 0))
    finally:
        cluster.down()


def _take_over(cluster: LocalCluster, folder: Path, note: Progress, result: Result) -> Result:
    led = leaders(cluster)
    dead = f"node-{max(set(led.values()), key=list(led.values()).count)}"
    living = [node for node in NODES if node != dead]
    had = {node: metric(cluster, node, IDS) for node in living}
    known = {node: len(loads(folder, node)) for node in living}
    began_s = time.monotonic()
    cluster.kill(dead)
    while (have := sum(metric(cluster, node, IDS) for node in living)) < result.ids:
        if time.monotonic() - began_s > TIMEOUT_S:
            raise RuntimeError(f"{have:.0f} of {result.ids} ids are there after {TIMEOUT_S:.0f} s")
        time.sleep(0.05)
    result.loaded_s = time.monotonic() - began_s
    result.loaded_ids = int(have - sum(had.values()))
    # What a log has to say often is said once: of many partitions not all are there.
    rows = [row for node in living for row in loads(folder, node)[known[node] :]]
    result.load_s = max(row["ms"] for row in rows) / 1000
    time.sleep(1)
    loaders = [node for node in living if metric(cluster, node, IDS) > had[node]]
    result.late_ms = max(metric(cluster, node, "penstock_loop_lag_seconds_max") * 1000 for node in loaders)
    note(f"{dead} killed: {result.loaded_ids} ids loaded in {result.load_s:.2f} s")
    return result


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.transactional_ids", description=__doc__)
    parser.add_argument("--ids", type=int, default=100_000, help="how many the next coordinator reads")
    parser.add_argument("--idle", type=int, default=10_000, help="how many memory is looked at with")
    parser.add_argument("--partitions", type=int, default=1, help=f"of {STATE}")
    parser.add_argument("--json", type=Path, help="the result goes there too")
    options = parser.parse_args()
    note = Progress()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch:
        result = measure(
            Path(scratch), ids=options.ids, idle=options.idle, partitions=options.partitions, note=note
        )
    table = Table("row", "measured", "goal")
    table.add_row(
        f"{result.idle:,} idle ids, more RSS of a node", f"{result.idle_mb:.1f} MB", f"{GOAL_IDLE_MB:g} MB"
    )
    table.add_row("longest load of one partition", f"{result.load_s:.2f} s", f"{GOAL_LOAD_S:g} s")
    table.add_row(
        "longest lateness of the loop meanwhile", f"{result.late_ms:.0f} ms", f"{GOAL_TURN_MS:g} ms"
    )
    table.add_row(
        f"from SIGKILL until {result.loaded_ids:,} ids were loaded",
        f"{result.loaded_s:.2f} s",
        f"{GOAL_LOAD_S:g} s",
    )
    table.add_row("ids made a second", f"{result.made_per_s:.0f}", "")
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(asdict(result), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
