"""One session that reads the same topic again and again: a process of its own, so that its JVM is too.

    python -m bench.connector.memory SYSTEM ADDRESS TOPIC RECORDS READS

SYSTEM is kafka (ADDRESS: bootstrap servers) or penstock (a gateway's gRPC address), which is read through gateways and
directly in turn. Prints one JSON document: {"system", "jvm_peak_mb", "worker_mb"}.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from bench.connector.documents import CONNECTOR, Memory
from bench.connector.goals import DIRECT, GATEWAY
from bench.connector.sessions import jvm_peak_mb, largest_worker_mb, session

TIMEOUT_S = 3 * 3600.0


def measured(system: str, address: str, topic: str, count: int, reads: int) -> Memory:
    """In a process of its own. Raises SystemExit when it fails."""
    done = subprocess.run(
        [sys.executable, "-m", __name__, system, address, topic, str(count), str(reads)],
        env=os.environ.copy(),
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"the session of {system} ended with {done.returncode}: see above")
    held = json.loads(done.stdout.splitlines()[-1])
    return Memory(held["system"], held["jvm_peak_mb"], tuple(held["worker_mb"]))


def read_often(spark: Any, system: str, address: str, topic: str, count: int, reads: int) -> list[float]:
    """The largest worker after each read."""
    found = []
    for number in range(reads):
        if system == CONNECTOR:
            options = {"kafka.bootstrap.servers": address, "subscribe": topic}
        else:
            options = {"gateway": address, "subscribe": topic, "fetchMode": (GATEWAY, DIRECT)[number % 2]}
        frame = spark.read.format(system).options(**options).load()
        row = frame.selectExpr("count(1)", "sum(length(value))").first()
        if row[0] != count:
            raise SystemExit(f"{row[0]} records were read, {count} are there")
        found.append(largest_worker_mb(spark))
    return found


def main() -> None:
    system, address, topic, count, reads = sys.argv[1:]
    with session() as spark:
        workers = read_often(spark, system, address, topic, int(count), int(reads))
        peak = jvm_peak_mb(spark)
    print(json.dumps({"system": system, "jvm_peak_mb": peak, "worker_mb": workers}))


if __name__ == "__main__":
    main()
