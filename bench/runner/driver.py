"""The C client: compiled once for each text of it, started as a process, its line of JSON read."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import confluent_kafka
from bench.peer import CACHE
from bench.runner.machine import Missing

SOURCE: Final = Path(__file__).resolve().parent / "native"
GRACE_S: Final = 30
"""Beyond its own timeout, until the driver is killed."""
THROUGHPUT: Final[Mapping[str, str]] = {
    "producer:linger.ms": "5",
    "producer:batch.size": "1000000",
    "producer:queue.buffering.max.kbytes": "262144",
    # By default a reader that has read ahead enough looks a second later whether there is room again.
    "consumer:fetch.queue.backoff.ms": "5",
}
LATENCY: Final[Mapping[str, str]] = {
    "producer:linger.ms": "0",
    "producer:max.in.flight.requests.per.connection": "5",
    "consumer:fetch.queue.backoff.ms": "5",
}


class ClientFailed(Exception):
    """A client did not come to its end; the text is its own last line."""


@dataclass(frozen=True)
class Told:
    """What clients that ran side by side say together."""

    records: int
    size_bytes: int
    elapsed_s: float
    """From when the first one began until the last one ended."""
    cpu_s: float
    ack_ms: tuple[float, ...]
    """50, 99, 99.9 and 100 %; of one client."""
    end_to_end_ms: tuple[float, ...]


def build() -> Path:
    """The compiled driver. Raises Missing without the library, or with what gcc says."""
    library = next(
        Path(confluent_kafka.__file__).parent.parent.glob("confluent_kafka.libs/librdkafka-*"), None
    )
    if library is None:
        raise Missing(
            "confluent-kafka has no librdkafka of its own here: install its wheel, as `make setup` does"
        )
    sources = sorted(SOURCE.glob("*.[ch]"))
    digest = hashlib.sha256(
        b"".join(path.read_bytes() for path in sources) + str(library).encode()
    ).hexdigest()
    program = CACHE / f"driver-{digest[:16]}"
    if not program.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        made = program.with_name(f"{program.name}.{os.getpid()}")
        done = subprocess.run(
            ["gcc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", str(SOURCE / "driver.c"), str(library),
             "-o", str(made), f"-Wl,-rpath,{library.parent}", "-Wl,--allow-shlib-undefined", "-pthread"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise Missing(
                f"gcc does not compile the driver: {(done.stderr.splitlines() or ['it says nothing'])[0]}"
            )
        made.replace(program)
    return program


class Driver:
    """Starts clients against one system; settings go to them by a file, which no list of processes shows."""

    def __init__(self, program: Path, folder: Path, client: Mapping[str, str]) -> None:
        self._program = program
        self._folder = folder
        self._client = dict(client)

    def run(
        self, what: str, bootstrap: str, settings: Mapping[str, str], clients: int = 1, **arguments: object
    ) -> Told:
        """`clients` processes side by side. Raises ClientFailed; none is left running."""
        file = self._folder / "client.properties"
        file.touch(0o600)
        whole = {"bootstrap.servers": bootstrap, **self._client, **settings}
        file.write_text("".join(f"{name}={value}\n" for name, value in whole.items()))
        command = [
            str(self._program),
            str(file),
            what,
            *(f"{name}={value}" for name, value in arguments.items()),
        ]
        timeout_s = float(str(arguments.get("timeout_s", 60))) + GRACE_S
        started: list[subprocess.Popen[str]] = []
        try:
            for _ in range(clients):
                started.append(
                    subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                )
            return _together([_told(process, timeout_s) for process in started])
        finally:
            for process in started:
                if process.poll() is None:
                    process.kill()
                process.communicate()


def _told(process: subprocess.Popen[str], timeout_s: float) -> dict[str, Any]:
    try:
        out, error = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise ClientFailed(f"the client did not end within {timeout_s:g} s") from None
    if process.returncode != 0:
        raise ClientFailed(
            (error.strip().splitlines() or [f"the client ended with {process.returncode}"])[-1]
        )
    told: dict[str, Any] = json.loads(out)
    return told


def _together(told: Sequence[Mapping[str, Any]]) -> Told:
    begin, end = min(one["begin_ns"] for one in told), max(one["end_ns"] for one in told)
    return Told(
        sum(one["records"] for one in told),
        sum(one["bytes"] for one in told),
        (end - begin) / 1e9,
        sum(one["cpu_s"] for one in told),
        tuple(told[0].get("ack_ms", ())),
        tuple(told[0].get("end_to_end_ms", ())),
    )
