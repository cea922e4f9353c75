"""The C client: compiled once for each text of it, started as a process, its line of JSON read."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import confluent_kafka
from bench.peer import CACHE
from bench.runner.java import java_entry
from bench.runner.machine import Missing
from bench.runner.pauses import Story

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
# Of both clients the same: how much may wait in the client is how long a commit has to flush.
TRANSACT: Final[Mapping[str, Mapping[str, str]]] = {
    "librdkafka": {
        "producer:linger.ms": "5",
        "producer:batch.size": "1000000",
        "producer:queue.buffering.max.kbytes": "32768",
        "producer:enable.idempotence": "true",
    },
    "java": {
        "producer:linger.ms": "5",
        "producer:batch.size": "1000000",
        "producer:buffer.memory": "33554432",
        "producer:enable.idempotence": "true",
    },
}
AT_ONCE: Final[Mapping[str, Mapping[str, str]]] = {
    "librdkafka": {"producer:linger.ms": "0", "producer:enable.idempotence": "true"},
    "java": {
        "producer:linger.ms": "0",
        "producer:enable.idempotence": "true",
        "consumer:fetch.max.wait.ms": "500",
    },
}
ENDURE: Final[Mapping[str, str]] = {
    "producer:linger.ms": "0",
    "producer:enable.idempotence": "true",
    "producer:retry.backoff.ms": "20",
    "reconnect.backoff.ms": "20",
    "reconnect.backoff.max.ms": "200",
    "consumer:isolation.level": "read_committed",
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
    """50, 99, 99.9 and 100 %; of one client, as all latencies here."""
    end_to_end_ms: tuple[float, ...]
    commit_ms: tuple[float, ...] = ()
    """Of the call that commits."""
    transaction_ms: tuple[float, ...] = ()
    """From when it was due, or begun, until it was committed."""
    transactions: int = 0
    """Committed ones."""
    committed: int = 0
    """Records in them."""
    begin_ns: int = 0
    """CLOCK_MONOTONIC's."""
    end_ns: int = 0


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
    units = [str(path) for path in sources if path.suffix == ".c"]
    digest = hashlib.sha256(
        b"".join(path.read_bytes() for path in sources) + str(library).encode()
    ).hexdigest()
    program = CACHE / f"driver-{digest[:16]}"
    if not program.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        made = program.with_name(f"{program.name}.{os.getpid()}")
        done = subprocess.run(
            ["gcc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", *units, str(library), "-o", str(made),
             f"-Wl,-rpath,{library.parent}", "-Wl,--allow-shlib-undefined", "-pthread"],
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

    def __init__(
        self, program: Path, folder: Path, client: Mapping[str, str], java: Sequence[str] = ()
    ) -> None:
        """`client`: librdkafka's settings to come in. `java` starts the Java client."""
        self._name = "librdkafka"
        self._programs = {"librdkafka": (str(program),), "java": tuple(java)}
        self._folder = folder
        self._client = dict(client)

    def by(self, client: str) -> Driver:
        """The same for one of bench.runner.transaction_rows.CLIENTS."""
        made = copy.copy(self)
        made._name = client
        return made

    def run(
        self, what: str, bootstrap: str, settings: Mapping[str, str], clients: int = 1, **arguments: object
    ) -> Told:
        """`clients` processes side by side. Raises ClientFailed; none is left running."""
        command = self._command(what, bootstrap, settings, arguments)
        timeout_s = float(str(arguments.get("timeout_s", 60))) + GRACE_S
        started: list[subprocess.Popen[str]] = []
        try:
            for _ in range(clients):
                started.append(
                    subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                )
            return together([_told(process, timeout_s) for process in started])
        finally:
            for process in started:
                if process.poll() is None:
                    process.kill()
                process.communicate()

    @contextmanager
    def telling(
        self, what: str, bootstrap: str, settings: Mapping[str, str], **arguments: object
    ) -> Iterator[Story]:
        """A client that runs until the block ends, and what it tells meanwhile. Raises ClientFailed when it ended by
        itself or told something else."""
        command = self._command(what, bootstrap, settings, arguments)
        story, wrong = Story(), []
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

        def listen() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                try:
                    story.add(line)
                except ValueError as error:
                    wrong.append(str(error))
            story.ended = True

        listener = threading.Thread(target=listen, name="what the client tells")
        listener.start()
        try:
            yield story
            ended = story.ended
        finally:
            process.kill()
            listener.join()
            # Nothing is left in it but what was said on stderr.
            error = process.stderr.read() if process.stderr is not None else ""
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
            process.wait()
        if wrong or ended:
            said = wrong or error.strip().splitlines() or ["the client ended by itself"]
            raise ClientFailed(said[-1])

    def _command(
        self, what: str, bootstrap: str, settings: Mapping[str, str], arguments: Mapping[str, object]
    ) -> list[str]:
        entry = self._client if self._name == "librdkafka" else java_entry(self._client)
        whole = {"bootstrap.servers": bootstrap, **entry, **settings}
        file = self._folder / "client.properties"
        file.touch(0o600)
        file.write_text("".join(f"{name}={value}\n" for name, value in whole.items()))
        said = (f"{name}={value}" for name, value in arguments.items())
        return [*self._programs[self._name], str(file), what, *said]


def _told(process: subprocess.Popen[str], timeout_s: float) -> dict[str, Any]:
    try:
        out, error = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise ClientFailed(f"the client did not end within {timeout_s:g} s") from None
    if process.returncode != 0:
        raise ClientFailed(
            (error.strip().splitlines() or [f"the client ended with {process.returncode}"])[-1]
        )
    return told_in(out)


def told_in(out: str) -> dict[str, Any]:
    """The last line of what a client wrote, which is JSON. Raises ClientFailed for another one."""
    last = (out.strip().splitlines() or [""])[-1]
    try:
        told: dict[str, Any] = json.loads(last)
        missing = {"records", "bytes", "begin_ns", "end_ns", "cpu_s"} - set(told)
    except (ValueError, TypeError):
        raise ClientFailed(f"the client wrote {last[:200]!r}, and no result") from None
    if missing:
        raise ClientFailed(f"the client's result has no {', '.join(sorted(missing))}")
    return told


def together(told: Sequence[Mapping[str, Any]]) -> Told:
    """What clients say together; latencies are the first one's."""
    begin, end = min(one["begin_ns"] for one in told), max(one["end_ns"] for one in told)
    return Told(
        sum(one["records"] for one in told),
        sum(one["bytes"] for one in told),
        (end - begin) / 1e9,
        sum(one["cpu_s"] for one in told),
        tuple(told[0].get("ack_ms", ())),
        tuple(told[0].get("end_to_end_ms", ())),
        tuple(told[0].get("commit_ms", ())),
        tuple(told[0].get("transaction_ms", ())),
        sum(one.get("transactions", 0) for one in told),
        sum(one.get("committed", 0) for one in told),
        begin,
        end,
    )
