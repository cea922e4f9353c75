"""How long a client waits when a leader dies, hangs, or the active controller dies.

    .venv/bin/python -m bench.failover                              20 of each
    .venv/bin/python -m bench.failover --faults leader-killed --times 5
    .venv/bin/python -m bench.failover --partitions 6 --json

The client is confluent-kafka as it comes, idempotent with acks=all and `retry.backoff.ms`
20, and knows one gateway's address. The gap is the longest time between two acks of *one*
partition, so that partitions that go on hide nothing. For controllers it is the time
from the kill to the first topic that could be created afterwards, less the time that
creating one takes without a fault.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from penstock.local.cluster import LocalCluster
from penstock.local.plan import ClusterSpec

TOPIC = "failover"
RATE_PER_S = 1000
SETTLED_ACKS = 1500
WAIT_S = 60.0
TIMES = 20


@dataclass
class Result:
    """Gaps of one kind of fault, in seconds."""

    fault: str
    gaps_s: list[float] = field(default_factory=list)

    @property
    def p50_s(self) -> float:
        return statistics.median(self.gaps_s)

    @property
    def max_s(self) -> float:
        return max(self.gaps_s)


class Flow:
    """A producer in a thread, and the time of each partition's last ack."""

    def __init__(self, bootstrap: str, partitions: int) -> None:
        self.last_s = dict.fromkeys(range(partitions), time.monotonic())
        self.gap_s = dict.fromkeys(range(partitions), 0.0)
        self.acks = dict.fromkeys(range(partitions), 0)
        self.failures: list[str] = []
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "retry.backoff.ms": 20,
                "linger.ms": 2,
                "logger": _quiet(),
            }
        )
        self._thread = threading.Thread(target=self._run, args=(partitions,), name="flow")

    def __enter__(self) -> Flow:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.flush(WAIT_S)

    def forget_gaps(self) -> None:
        for partition in self.gap_s:
            self.gap_s[partition] = 0.0

    def wait_for_acks(self, more: int) -> None:
        """Until every partition has its share of `more` new acks."""
        wanted = {p: n + more // len(self.acks) for p, n in self.acks.items()}
        wait(lambda: all(self.acks[p] >= n for p, n in wanted.items()), f"{more} acks", self.failures)

    def _run(self, partitions: int) -> None:
        begun, number = time.monotonic(), 0
        while not self._stop.is_set():
            due = int((time.monotonic() - begun) * RATE_PER_S)
            while number < due and not self._stop.is_set():
                try:
                    self._producer.produce(
                        TOPIC, b"x" * 100, partition=number % partitions, on_delivery=self._done
                    )
                    number += 1
                except BufferError:
                    self._producer.poll(0.05)
            self._producer.poll(0.002)

    def _done(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failures.append(error.str())
            return
        partition, now = message.partition(), time.monotonic()
        self.gap_s[partition] = max(self.gap_s[partition], now - self.last_s[partition])
        self.last_s[partition] = now
        self.acks[partition] += 1


def wait(holds: Callable[[], bool], what: str, failures: list[str]) -> None:
    """Until `holds`; ends the program when that takes too long or a record failed."""
    deadline = time.monotonic() + WAIT_S
    while not holds():
        if failures:
            sys.exit(f"a record was not acknowledged: {failures[0]}")
        if time.monotonic() > deadline:
            sys.exit(f"not within {WAIT_S:g} s: {what}")
        time.sleep(0.005)


def _quiet() -> Any:
    import logging

    logger = logging.getLogger("bench.librdkafka")
    logger.propagate = False
    logger.addHandler(logging.NullHandler())
    return logger


def leaders(
    admin: AdminClient, fault: str, times: int, cluster: LocalCluster, bootstrap: str, partitions: int
) -> Result:
    """Kill (or stop) the leader of partition 0, again and again."""
    stop = fault == "leader-stopped"
    result = Result(fault)

    def state() -> Any:
        return admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions

    def whole() -> bool:
        return all(len(p.isrs) == len(p.replicas) for p in state().values())

    with Flow(bootstrap, partitions) as flow:
        for i in range(times):
            wait(whole, "every replica in sync", flow.failures)
            flow.wait_for_acks(SETTLED_ACKS)
            victim = f"node-{state()[0].leader}"
            flow.forget_gaps()
            cluster.kill(victim, signal.SIGSTOP if stop else signal.SIGKILL)
            flow.wait_for_acks(SETTLED_ACKS)
            result.gaps_s.append(max(flow.gap_s.values()))
            progress(fault, i, times, result.gaps_s[-1])
            cluster.start(victim)
        # What comes next makes topics on all nodes.
        wait(whole, "every replica in sync", flow.failures)
    return result


def controllers(admin: AdminClient, times: int, cluster: LocalCluster) -> Result:
    """Kill the active controller, again and again."""
    result = Result("controller-killed")

    def create(name: str) -> float:
        begun = time.monotonic()
        admin.create_topics([NewTopic(name, 1, 3)], request_timeout=30)[name].result(timeout=30)
        return time.monotonic() - begun

    for i in range(times):
        usual_s = statistics.median(create(f"before-{i}-{n}") for n in range(5))
        wait(lambda: active_controller(cluster) != "", "an active controller", [])
        victim = active_controller(cluster)
        cluster.kill(victim)
        result.gaps_s.append(max(0.0, create(f"after-{i}") - usual_s))
        progress(result.fault, i, times, result.gaps_s[-1])
        cluster.start(victim)
    return result


def active_controller(cluster: LocalCluster) -> str:
    """Name of the controller that says it is active, or ""."""
    for member in cluster.state.members:
        if member.role != "controller":
            continue
        with contextlib.suppress(OSError):
            url = f"http://127.0.0.1:{member.ports['http']}/metrics"
            with urllib.request.urlopen(url, timeout=2) as response:
                if b"penstock_controller_is_active 1.0" in response.read():
                    return member.name
    return ""


def progress(fault: str, index: int, times: int, gap_s: float) -> None:
    print(f"{fault} {index + 1}/{times}: {gap_s:.2f} s", file=sys.stderr, flush=True)


FAULTS = ("leader-killed", "leader-stopped", "controller-killed")


def main(argv: list[str] | None = None) -> int:
    """Run the faults that were asked for; 0 when all ended."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.failover", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--faults", default=",".join(FAULTS), help="comma-separated, of: " + ", ".join(FAULTS)
    )
    parser.add_argument("--times", type=int, default=TIMES, help="how often each (20)")
    parser.add_argument("--partitions", type=int, default=1, help="partitions of the topic (1)")
    parser.add_argument("--direct", action="store_true", help="produce straight to the leaders")
    parser.add_argument("--port", type=int, default=9592, help="first port of the cluster (9592)")
    parser.add_argument("--json", action="store_true", help="the result for machines on stdout")
    options = parser.parse_args(argv)
    faults = options.faults.split(",")
    if unknown := sorted(set(faults) - set(FAULTS)):
        parser.error(f"unknown fault {unknown[0]}: choose of {', '.join(FAULTS)}")
    results = []
    with tempfile.TemporaryDirectory(prefix="penstock-failover-") as scratch:
        cluster = LocalCluster(Path(scratch))
        cluster.up(ClusterSpec(controllers=3, nodes=3, gateways=1, port=options.port))
        try:
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "logger": _quiet()})
            bootstrap = cluster.direct_bootstrap if options.direct else cluster.bootstrap
            new = NewTopic(TOPIC, options.partitions, 3)
            admin.create_topics([new])[TOPIC].result(timeout=30)
            for fault in faults:
                if fault == "controller-killed":
                    results.append(controllers(admin, options.times, cluster))
                else:
                    results.append(
                        leaders(admin, fault, options.times, cluster, bootstrap, options.partitions)
                    )
        finally:
            cluster.down()
    if options.json:
        print(json.dumps([asdict(r) | {"p50_s": r.p50_s, "max_s": r.max_s} for r in results], indent=2))
        return 0
    table = Table(title="longest wait of a client, seconds")
    for name in ("fault", "times", "p50", "max"):
        table.add_column(name, justify="left" if name == "fault" else "right")
    for r in results:
        table.add_row(r.fault, str(len(r.gaps_s)), f"{r.p50_s:.2f}", f"{r.max_s:.2f}")
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
