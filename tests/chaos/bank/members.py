"""The members of the bank's group: eight processes (or fewer), half by librdkafka and half by Kafka's own client, and
of each half two through the gateways and two on the direct listeners.

Rules: one that ends by itself is started anew, under the same transactional id, as an application's supervisor does;
what it told stays in a file of each process. One that a fault has killed is dead until that is healed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from chaos.bank.member import SESSION_TIMEOUT_MS, TRANSACTION_TIMEOUT_MS
from chaos.bank.told import Fatal, Told, read_told
from chaos.cluster import Cluster
from chaos.janitor import Janitor
from penstock.local.processes import identity
from support.java import compiled
from support.waiting import wait_for

TESTS = Path(__file__).resolve().parents[2]
LIBRDKAFKA, JAVA = "librdkafka", "java"
KINDS = (
    (LIBRDKAFKA, "kafka"), (JAVA, "kafka"), (LIBRDKAFKA, "direct"), (JAVA, "direct"),
    (LIBRDKAFKA, "kafka"), (JAVA, "kafka"), (LIBRDKAFKA, "direct"), (JAVA, "direct"),
)  # fmt: skip
JVM = ("-Xmx160m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
FIRST_PROCESS = 1_000
READY_TIMEOUT_S = 420.0
"""Eight at once on a machine that has much else to do: a JVM alone wants seconds of processor time."""
LOOK_EVERY_S = 0.2
SOON_S, LOOK_CLOSELY_S = 10.0, 0.002
OPEN = (b"begin", b"read", b"commit")
LINE_BYTES_MAX = 65_536


@dataclass(frozen=True)
class Ended:
    """A process of a member that ended by itself. `during` is the fault of that moment."""

    told: Told
    code: int
    during: str
    last_words: str

    @property
    def fatal(self) -> Fatal | None:
        return self.told.fatal

    @property
    def explanation(self) -> str:
        return self.fatal.explanation if self.fatal is not None else ""

    def line(self) -> str:
        """For people."""
        why = (
            self.fatal.why
            if self.fatal is not None
            else f"code {self.code} without a word: {self.last_words}"
        )
        return f"{self.told.member} during {self.during}: {why[:300]} [{self.explanation or 'NOT EXPLAINED'}]"


class _Process:
    """One process of a member."""

    def __init__(
        self, member: str, number: int, command: list[str], directory: Path, janitor: Janitor
    ) -> None:
        self.member = member
        self.number = number
        self._told = directory / f"{member}.{number}.jsonl"
        self._errors = directory / f"{member}.{number}.err"
        environment = {**os.environ, "PYTHONPATH": str(TESTS)}
        with self._told.open("wb") as told, self._errors.open("wb") as errors:
            self.popen = subprocess.Popen(
                command, cwd=TESTS, env=environment, stdin=subprocess.DEVNULL, stdout=told, stderr=errors
            )
        janitor.process(self.popen.pid, identity(self.popen.pid))

    def told(self) -> Told:
        text = self._told.read_text(errors="replace")
        return read_told(self.member, self.number, text.splitlines())

    def is_in_transaction(self) -> bool:
        """Whether the last that it told is of one that is open."""
        with self._told.open("rb") as told:
            told.seek(max(0, self._told.stat().st_size - LINE_BYTES_MAX))
            lines = told.read().splitlines()
        return (
            any(b'"what": "%s"' % what in lines[-1].replace(b'":"', b'": "') for what in OPEN)
            if lines
            else False
        )

    def last_words(self) -> str:
        return " | ".join(self._errors.read_text(errors="replace").splitlines()[-3:])[-300:]


class Members:
    """See the module's text. Use as a context manager: all are dead at its end."""

    def __init__(
        self, cluster: Cluster, protocol: str, directory: Path, janitor: Janitor, count: int = len(KINDS)
    ) -> None:
        """`count`: four are one of each client by each way in."""
        self._kinds = KINDS[:count]
        directory.mkdir(parents=True, exist_ok=True)
        self._cluster = cluster
        self._protocol = protocol
        self._directory = directory
        self._janitor = janitor
        self._class_path = compiled()
        self._all: list[_Process] = []
        self._now: dict[int, _Process] = {}
        self._down: set[int] = set()
        """Whom a fault has killed."""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look_after, name="members", daemon=True)
        self._failure: BaseException | None = None
        self.ended: list[Ended] = []
        self.during = "the beginning"
        """The fault of this moment."""

    def __enter__(self) -> Members:
        for number in range(len(self._kinds)):
            self._start(number)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def names(self) -> list[str]:
        """Transactional ids."""
        return [self.name(number) for number in range(len(self._kinds))]

    def name(self, number: int) -> str:
        return f"teller-{number}-{self._kinds[number][0]}"

    def of_kind(self, kind: str) -> list[int]:
        """Numbers of the members by this client."""
        return [number for number, (by, _) in enumerate(self._kinds) if by == kind]

    def wait_ready(self) -> None:
        """Until each has its transactional id."""

        def ready() -> bool:
            self.check()
            with self._lock:
                now = list(self._now.values())
            return all(process.told().is_ready for process in now)

        wait_for(ready, "every member has its transactional id", READY_TIMEOUT_S)

    def kill(self, number: int) -> None:
        """kill -9, in the midst of a transaction if there is one soon: nobody hears of it. Dead until `start`."""
        self._await_transaction(number)
        with self._lock:
            self._down.add(number)
            self._now[number].popen.kill()
            self._now[number].popen.wait()

    def hang(self, number: int) -> None:
        """SIGSTOP, in the midst of a transaction if there is one soon."""
        self._await_transaction(number)
        self._signal(number, signal.SIGSTOP)

    def go_on(self, number: int) -> None:
        """SIGCONT."""
        self._signal(number, signal.SIGCONT)

    def start(self, *numbers: int) -> None:
        """Those that were killed."""
        with self._lock:
            self._down.difference_update(numbers)
            for number in numbers:
                self._start(number)

    def check(self) -> None:
        """Whether they are looked after."""
        if self._failure is not None:
            raise AssertionError(f"nobody looks after the members: {self._failure!r}")

    def stop(self) -> None:
        """kill -9 of all."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        for process in self._now.values():
            process.popen.kill()
        for process in self._now.values():
            process.popen.wait()

    def told(self) -> list[Told]:
        """By all processes that there were."""
        return [process.told() for process in self._all]

    # --- inside ------------------------------------------------------------------

    def _signal(self, number: int, which: signal.Signals) -> None:
        with self._lock:
            self._now[number].popen.send_signal(which)

    def _await_transaction(self, number: int) -> None:
        """Not for ever: a member may have no partition, or nothing to do."""
        deadline_s = time.monotonic() + SOON_S
        while not self._now[number].is_in_transaction() and time.monotonic() < deadline_s:
            time.sleep(LOOK_CLOSELY_S)

    def _look_after(self) -> None:
        try:
            while not self._stop.wait(LOOK_EVERY_S):
                with self._lock:
                    for number, process in self._now.items():
                        code = process.popen.poll()
                        if code is not None and number not in self._down:
                            self.ended.append(Ended(process.told(), code, self.during, process.last_words()))
                            self._start(number)
        except BaseException as error:
            self._failure = error

    def _start(self, number: int) -> None:
        by, use = self._kinds[number]
        name, process = self.name(number), FIRST_PROCESS + len(self._all)
        more = [self._cluster.bootstrap(use), name, self._protocol, str(process)]
        if by == JAVA:
            limits = [str(SESSION_TIMEOUT_MS), str(TRANSACTION_TIMEOUT_MS)]
            command = ["java", *JVM, "-cp", self._class_path, "BankMember", *more, *limits]
        else:
            command = [sys.executable, "-m", "chaos.bank.member", *more]
        self._now[number] = _Process(name, process, command, self._directory, self._janitor)
        self._all.append(self._now[number])
