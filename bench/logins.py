"""Logins: TCP, TLS and SCRAM-SHA-512, beside Apache Kafka; and what 1,000 of them at once do to everybody else.

    .venv/bin/python -m bench.logins                                       three rounds of every system
    .venv/bin/python -m bench.logins --rounds 1 --systems penstock-direct,penstock-gateway   (no Java needed)

Each round starts every secure system one after another. A process of its own, at the lowest priority, logs in again and
again, 32 connections at a time, from twenty addresses; then three times 1,000 at once, while a producer that was there
before sends 200 records a second. What the servers spent is their processor time; logins a second have the client's
work in them, which is the same for all.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from bench.compare import ROOT, SYSTEMS, Running, create_topic, note_ack
from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table

from penstock_core.security.scram import ScramMechanism
from penstock_core.security.scram_client import ScramClient

MECHANISM = ScramMechanism.SHA_512
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
AT_A_TIME = 32
SOURCES = 20
"""Addresses that logins come from: Penstock bounds what one may open in a second, Kafka does not."""
AT_ONCE, STORMS = 1_000, 3
ACKS_PER_S = 200
QUIET_S = 10.0
CLIENT_TIMEOUT_S = 300
HERE = ("kafka", "penstock-direct", "penstock-gateway")


@dataclass
class Row:
    """What one system did in one round; times of acks are the longest, of storms the median of each one's."""

    system: str
    logins_per_s: float
    cpu_ms_per_login: float
    storm_s: float
    ack_quiet_ms: float
    ack_storm_ms: float
    ack_worst_storm_ms: float
    ack_quiet_p99_ms: float
    ack_storm_p99_ms: float
    failed: int


class LoginFailed(Exception):
    """A server that did not let in whom it knows."""


async def log_in(
    address: tuple[str, int], context: ssl.SSLContext, source: str, who: tuple[str, str]
) -> None:
    """One login on a connection of its own.

    Raises:
        LoginFailed: the server refused.
        OSError, EOFError: or hung up.
    """
    reader, writer = await asyncio.open_connection(
        *address, ssl=context, server_hostname="localhost", local_addr=(source, 0)
    )

    async def ask(api_key: int, correlation_id: int, body: bytes) -> bytes:
        frame = struct.pack(">hhih", api_key, 1, correlation_id, -1) + body
        writer.write(struct.pack(">i", len(frame)) + frame)
        (length,) = struct.unpack(">i", await reader.readexactly(4))
        answer = await reader.readexactly(length)
        if answer[4:6] != b"\0\0":
            raise LoginFailed(f"code {struct.unpack_from('>h', answer, 4)[0]}")
        return answer[6:]

    async def token(correlation_id: int, said: bytes) -> bytes:
        answer = await ask(SASL_AUTHENTICATE, correlation_id, struct.pack(">i", len(said)) + said)
        (text_length,) = struct.unpack_from(">h", answer)
        at = 2 + max(0, text_length)
        (length,) = struct.unpack_from(">i", answer, at)
        return answer[at + 4 : at + 4 + length]

    try:
        name = MECHANISM.mechanism_name.encode()
        await ask(SASL_HANDSHAKE, 1, struct.pack(">h", len(name)) + name)
        scram = ScramClient(MECHANISM, *who, secrets.token_hex(10))
        first = await token(2, scram.first())
        scram.finish(await token(3, scram.final(first)))
    finally:
        writer.transport.abort()


async def log_in_often(wanted: Mapping[str, str], count: int, at_a_time: int) -> tuple[float, int]:
    """Seconds for all, and how many failed."""
    context = ssl.create_default_context(cafile=wanted["ssl.ca.location"])
    host, _, port = wanted["bootstrap.servers"].rpartition(":")
    address, who = (host, int(port)), (wanted["sasl.username"], wanted["sasl.password"])
    numbers, failed = iter(range(count)), 0

    async def one_after_another() -> None:
        nonlocal failed
        for number in numbers:
            try:
                await log_in(address, context, f"127.0.0.{2 + number % SOURCES}", who)
            except (OSError, EOFError, LoginFailed) as error:
                failed += 1
                print(f"{type(error).__name__}: {error}", file=sys.stderr)

    began_s = time.perf_counter()
    await asyncio.gather(*(one_after_another() for _ in range(at_a_time)))
    return time.perf_counter() - began_s, failed


class Clients:
    """The process that logs in."""

    def __init__(self, running: Running, count: int, at_a_time: int) -> None:
        first = running.bootstrap.partition(",")[0]
        wanted = {**running.client, "bootstrap.servers": first}
        self._process = subprocess.Popen(
            ["nice", "-n", "19", sys.executable, "-m", "bench.logins", "--client", f"{count},{at_a_time}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(wanted) + "\n")  # a password: by no argument
        self._process.stdin.close()

    @property
    def done(self) -> bool:
        return self._process.poll() is not None

    def result(self) -> tuple[float, int]:
        """Seconds for all, and how many failed."""
        assert self._process.stdout is not None
        with self._process.stdout as told:
            text = told.read()
        if self._process.wait(CLIENT_TIMEOUT_S) != 0:
            raise SystemExit("the process that logs in failed; what it said stands above")
        seconds, failed = json.loads(text)
        return seconds, failed


class Honest:
    """A producer on connections that stay."""

    def __init__(self, running: Running) -> None:
        self._producer = Producer(
            {"bootstrap.servers": running.bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0, **running.client}
        )  # fmt: skip

    def send(self, seconds: float, clients: Clients | None = None) -> list[float]:
        """Times of its acks in ms, sorted: for so long, and until those clients are done."""
        took: list[float] = []
        began_s, count = time.perf_counter(), 0
        while time.perf_counter() < began_s + seconds or (clients is not None and not clients.done):
            while time.perf_counter() < began_s + count / ACKS_PER_S:
                self._producer.poll(0.0005)
            sent_s, count = time.perf_counter(), count + 1
            self._producer.produce(
                "logins", b"x" * 1024, partition=0, on_delivery=partial(note_ack, took, sent_s)
            )
        self._producer.flush(60)
        return sorted(took)


def measure(name: str, folder: Path, logins: int) -> Row:
    """A system, from its start to its end."""
    opener, _ = SYSTEMS[name]
    with opener(folder, True) as running:
        create_topic(running.bootstrap, "logins", {"min.insync.replicas": "2"}, client=running.client)
        Clients(running, logins // 2, AT_A_TIME).result()  # warms the peer's JVM
        cpu_before_s = running.cpu_seconds()
        seconds, failed = Clients(running, logins, AT_A_TIME).result()
        cpu_s, logins_per_s = running.cpu_seconds() - cpu_before_s, logins / seconds
        honest = Honest(running)
        honest.send(QUIET_S / 2)
        quiet = honest.send(QUIET_S)
        stormy: list[list[float]] = []
        storm_s: list[float] = []
        for _ in range(STORMS):
            storm = Clients(running, AT_ONCE, AT_ONCE)
            stormy.append(honest.send(0, storm))
            seconds, more = storm.result()
            storm_s.append(seconds)
            failed += more
    longest = [took[-1] for took in stormy]
    return Row(
        name, logins_per_s, cpu_s / logins * 1000, statistics.median(storm_s), quiet[-1],
        statistics.median(longest), max(longest), quiet[int(len(quiet) * 0.99)],
        statistics.median(took[int(len(took) * 0.99)] for took in stormy), failed,
    )  # fmt: skip


def show(rows: list[Row]) -> None:
    """Medians of the rounds."""
    table = Table(title=f"logins: TCP, TLS, SCRAM-SHA-512; a storm is {AT_ONCE:,} at once; medians")
    columns = list(asdict(rows[0]))
    for column in columns:
        table.add_column(column, justify="left" if column == "system" else "right")
    for system in dict.fromkeys(row.system for row in rows):
        same = [asdict(row) for row in rows if row.system == system]
        table.add_row(system, *(f"{statistics.median(float(r[c]) for r in same):.2f}" for c in columns[1:]))
    Console(width=160).print(table)


def main() -> int:
    """Exit code 0 when every login came in."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--logins", type=int, default=2_000, help="logins of the first part")
    parser.add_argument("--systems", default=",".join(HERE), help="comma-separated: " + ", ".join(HERE))
    parser.add_argument("--json", type=Path, help="write every row here")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        count, at_a_time = map(int, options.client.split(","))
        print(json.dumps(asyncio.run(log_in_often(json.loads(sys.stdin.readline()), count, at_a_time))))
        return 0
    unknown = set(options.systems.split(",")) - set(HERE)
    if unknown:
        raise SystemExit(f"no such system: {', '.join(sorted(unknown))}; there are {', '.join(HERE)}")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch:
        for number in range(options.rounds):
            for name in options.systems.split(","):
                folder = Path(scratch) / f"{number}-{name}"
                folder.mkdir()
                rows.append(measure(name, folder, options.logins))
                print(json.dumps(asdict(rows[-1])), flush=True)
    show(rows)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 1 if any(row.failed for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
