"""An honest client and a clock at every event loop, in a process of their own.

    python -m security.witness GATEWAY NODE,NODE,... TOPIC SECONDS [CA USER]

(with a CA over TLS, and signed in; the password is the first line of standard input)
prints JSON when standard input is closed and SECONDS are over. The client produces 1 KiB (acks=all) through
the gateway again and again, 128 KiB every 200 ms, and opens a new connection every 500 ms. The clock asks every
process for ApiVersions on a connection that it has: what that takes is how long its loop was busy with others.
"""

from __future__ import annotations

import json
import socket
import statistics
import struct
import sys
import threading
import time
from contextlib import suppress

from penstock_kafka.records.build import NewRecord, build_batch
from penstock_kafka.wire.produce import (
    ProducePartition,
    ProduceSkim,
    decode_produce_response,
    encode_produce_request,
)
from security.target import Entry, answer, frame

VERSION = 9
PATIENCE_S = 30.0
API_VERSIONS = frame(18, 0, b"", flexible=False)


class Witness:
    """What is seen until `over`."""

    def __init__(self, gateway: str, topic: str, entry: Entry) -> None:
        self.gateway = gateway
        self.entry = entry
        self.topic = topic
        self.over = threading.Event()
        self.small_ms: list[float] = []
        self.large_ms: list[float] = []
        self.new_ms: list[float] = []
        self.failures: dict[str, int] = {"small": 0, "large": 0, "new": 0}
        self.lag_ms: dict[str, float] = {}

    def connect(self, address: str) -> socket.socket:
        """A connection to `host:port`."""
        return self.entry.connect(address, timeout_s=PATIENCE_S)

    def produce(self, kind: str, into: list[float], size: int, pause_s: float) -> None:
        batch = memoryview(build_batch([NewRecord(None, b"x" * size)]))
        skim = ProduceSkim(None, -1, 30_000, [ProducePartition(self.topic, None, 0, batch)])
        body = b"".join(bytes(b) for b in encode_produce_request(VERSION, 7, "honest", skim))
        request = struct.pack(">i", len(body)) + body
        connection: socket.socket | None = None
        while not self.over.is_set():
            began = time.monotonic()
            try:
                connection = connection or self.connect(self.gateway)
                connection.sendall(request)
                response = answer(connection)
                if response is None or decode_produce_response(response, VERSION).results[0].error:
                    raise ConnectionError("no ack")
                into.append((time.monotonic() - began) * 1000)
            except OSError:
                self.failures[kind] += 1
                into.append((time.monotonic() - began) * 1000)
                if connection is not None:
                    connection.close()
                connection = None
                time.sleep(0.1)
            time.sleep(pause_s)

    def come_anew(self) -> None:
        while not self.over.is_set():
            began = time.monotonic()
            try:
                with self.connect(self.gateway) as connection:
                    connection.sendall(API_VERSIONS)
                    if answer(connection) is None:
                        raise ConnectionError("closed")
            except OSError:
                self.failures["new"] += 1
            self.new_ms.append((time.monotonic() - began) * 1000)
            time.sleep(0.5)

    def watch(self, address: str) -> None:
        self.lag_ms[address] = 0.0
        connection = self.connect(address)
        while not self.over.is_set():
            began = time.monotonic()
            with suppress(OSError):
                connection.sendall(API_VERSIONS)
                if answer(connection) is None:
                    connection = self.connect(address)
            self.lag_ms[address] = max(self.lag_ms[address], (time.monotonic() - began) * 1000)
            time.sleep(0.02)


def p99(values: list[float]) -> float:
    """The 99th percentile."""
    return statistics.quantiles(values, n=100)[98] if len(values) > 1 else sum(values)


def main() -> None:
    gateway, nodes, topic, seconds = sys.argv[1:5]
    entry = (
        Entry(sys.argv[5], sys.argv[6], sys.stdin.readline().rstrip("\n")) if len(sys.argv) > 5 else Entry()
    )
    witness = Witness(gateway, topic, entry)
    jobs = [
        threading.Thread(target=witness.produce, args=("small", witness.small_ms, 1024, 0.005)),
        threading.Thread(target=witness.produce, args=("large", witness.large_ms, 128 * 1024, 0.2)),
        threading.Thread(target=witness.come_anew),
        *(threading.Thread(target=witness.watch, args=(a,)) for a in (gateway, *nodes.split(","))),
    ]
    for job in jobs:
        job.start()
    print("begun", flush=True)
    began = time.monotonic()
    sys.stdin.read()
    time.sleep(max(0.0, began + float(seconds) - time.monotonic()))
    witness.over.set()
    for job in jobs:
        job.join()
    document = {
        "small_p99_ms": p99(witness.small_ms),
        "small_count": len(witness.small_ms),
        "large_max_ms": max(witness.large_ms, default=0.0),
        "new_max_ms": max(witness.new_ms, default=0.0),
        "failures": witness.failures,
        "lag_ms": max(witness.lag_ms.values()),
    }
    print(json.dumps(document), flush=True)


if __name__ == "__main__":
    main()
