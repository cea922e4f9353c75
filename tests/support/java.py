"""Kafka's own Java clients and tools for tests, by one long-lived JVM.

`JavaDriver` compiles `tests/conformance/java/*.java` (once, into the cache folder of the benchmarks' jars), starts it
and speaks its protocol: one JSON object per line each way, many at a time. A JVM takes a second to start and several
to be quick, so one is shared by a whole test run (`shared_driver`); a test that wants to kill a client with SIGKILL
starts its own.
"""

from __future__ import annotations

import atexit
import base64
import functools
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bench.peer import compile_java, fetch_jars, keep_folder, only_one_fetches

SOURCES = Path(__file__).resolve().parents[1] / "conformance" / "java"
OLDER_VERSION = "3.9.2"
"""Of the clients of before 4.0, which speak transactions as those of 2.5 did."""
OLDER_NEEDS = (
    "jackson-core-*.jar",
    "jackson-databind-*.jar",
    "jackson-annotations-*.jar",
    "slf4j-api-*.jar",
    "lz4-java-*.jar",
    "snappy-java-*.jar",
    "zstd-jni-*.jar",
)
FETCH_TIMEOUT_S = 600
CALL_TIMEOUT_S = 120.0
JVM = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


def missing_java() -> str | None:
    """Why Java tests cannot run on this machine; None when they can."""
    for command, package in (("java", "a JDK"), ("javac", "a JDK"), ("mvn", "maven")):
        if shutil.which(command) is None:
            return f"{command} is not installed: Kafka's Java clients need {package} (Java 17) and maven"
    return None


needs_java = pytest.mark.skipif(missing_java() is not None, reason=missing_java() or "")
"""Mark of a test that is skipped where the Java clients cannot run."""
only_in_conformance = pytest.mark.skipif(
    "PENSTOCK_CONFORMANCE" not in os.environ, reason="takes minutes: make conformance-java runs it"
)
"""Mark of a test that is too long for `make test`."""


class JavaError(Exception):
    """What a call in the JVM has thrown: `name` and `code` are the Kafka protocol's, `kind` the Java class."""

    def __init__(self, name: str, code: int, kind: str, message: str) -> None:
        super().__init__(f"{name} ({kind}): {message}")
        self.name = name
        self.code = code
        self.kind = kind
        self.message = message


@dataclass(frozen=True)
class ToolRun:
    """How a command line tool ended; `exit` is None while it still runs."""

    exit: int | None
    stdout: str
    stderr: str

    @property
    def text(self) -> str:
        return self.stdout + self.stderr


@functools.cache
def compiled() -> str:
    """Class path with the driver; compiles it when its sources are new."""
    jars = fetch_jars()
    classes = compile_java(sorted(SOURCES.glob("*.java")), f"{jars}/*", "driver")
    return f"{classes}{os.pathsep}{jars}/*"


@functools.cache
def compiled_older() -> str:
    """Class path with the same driver and the clients of before 4.0; what these have not is left out of it."""
    jars = fetch_jars()
    older = fetch_artifacts(
        jars.parent / f"kafka-clients-{OLDER_VERSION}", [f"org.apache.kafka:kafka-clients:{OLDER_VERSION}"]
    )
    beside = sorted(jar for pattern in OLDER_NEEDS for jar in jars.glob(pattern))
    path = os.pathsep.join([*map(str, sorted(older.glob("*.jar"))), *map(str, beside)])
    replaced = {file.name: file for file in (SOURCES / "older").glob("*.java")}
    sources = [replaced.get(file.name, file) for file in sorted(SOURCES.glob("*.java"))]
    return f"{compile_java(sources, path, 'driver-older')}{os.pathsep}{path}"


def fetch_artifacts(folder: Path, artifacts: Sequence[str]) -> Path:
    """Jars by their Maven coordinates, without what they depend on, in a folder that is kept.

    Dependencies are left out since Maven would have to read the poms of all of them: some name hosts of
    their own.
    """
    if not folder.exists():
        with only_one_fetches():
            if not folder.exists():
                _fetch_artifacts(folder, artifacts)
    return folder


def _fetch_artifacts(folder: Path, artifacts: Sequence[str]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(dir=folder.parent))
    for artifact in artifacts:
        command = [
            "mvn",
            "-q",
            "-B",
            "dependency:copy",
            f"-Dartifact={artifact}",
            f"-DoutputDirectory={building}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    keep_folder(building, folder)


class JavaDriver:
    """The JVM. Thread-safe; calls on different handles run side by side. Close it. `options` are the JVM's own."""

    def __init__(self, log: Path | None = None, *, options: Sequence[str] = (), older: bool = False) -> None:
        """`older`: with the clients of before 4.0."""
        command = ["java", *JVM, *options, "-cp", compiled_older() if older else compiled(), "Driver"]
        with open(log or os.devnull, "ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
            )
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._ended = False
        self._reader = threading.Thread(target=self._read, name="answers of the JVM", daemon=True)
        self._reader.start()

    def start(self, op: str, **arguments: Any) -> Future[Any]:
        """Send a command; the result comes later. None stands for what is not told."""
        told = {name: value for name, value in arguments.items() if value is not None}
        future: Future[Any] = Future()
        with self._lock:
            number = next(self._ids)
            if self._ended or self._process.stdin is None:
                raise JavaError("UNKNOWN_SERVER_ERROR", -1, "Ended", "the JVM has ended")
            self._waiting[number] = future
            try:
                self._process.stdin.write(json.dumps({"id": number, "op": op, **told}) + "\n")
                self._process.stdin.flush()
            except OSError:
                del self._waiting[number]
                raise JavaError("UNKNOWN_SERVER_ERROR", -1, "Ended", "the JVM has ended") from None
        return future

    def call(self, op: str, *, wait_s: float = CALL_TIMEOUT_S, **arguments: Any) -> Any:
        """Send a command and wait for its result. Raises JavaError."""
        return self.start(op, **arguments).result(timeout=wait_s)

    def tool(
        self, name: str, *arguments: str, stdin: str = "", timeout_s: float = 60.0, exit: int | None = 0
    ) -> ToolRun:
        """Run a tool's main to its end; `exit` is the code that is expected, None for any."""
        done = self.call(
            "tool.run",
            wait_s=timeout_s + 60,
            tool=tool_class(name),
            arguments=list(arguments),
            stdin=stdin,
            timeout_ms=int(timeout_s * 1000),
        )
        run = ToolRun(done["exit"], done["stdout"], done["stderr"])
        assert exit is None or run.exit == exit, f"{name} ended with {run.exit}:\n{run.text}"
        return run

    def kill(self) -> None:
        """SIGKILL: every client in the JVM dies."""
        self._process.kill()
        self._reader.join(30)
        self._close_pipes()

    def close(self) -> None:
        """End the JVM, with what is still open in it."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            try:
                self._process.stdin.close()
            except OSError:
                self._process.kill()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(30)
        self._close_pipes()

    def _close_pipes(self) -> None:
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                try:
                    pipe.close()
                except OSError:
                    continue  # what was still to be written has no reader any more

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            with self._lock:
                future = self._waiting.pop(answer["id"])
            if "error" in answer:
                e = answer["error"]
                future.set_exception(JavaError(e["name"], e["code"], e["type"], e["message"]))
            else:
                future.set_result(answer.get("result"))
        with self._lock:
            self._ended = True
            left, self._waiting = self._waiting, {}
        for future in left.values():
            future.set_exception(JavaError("UNKNOWN_SERVER_ERROR", -1, "Ended", "the JVM has ended"))


def run_tool_process(name: str, *arguments: str, timeout_s: float = 300.0) -> ToolRun:
    """Run a tool in a JVM of its own, for those that the driver cannot run: they speak to the JVM itself of its end."""
    done = subprocess.run(
        ["java", *JVM, "-cp", compiled(), tool_class(name), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"{name} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return ToolRun(done.returncode, done.stdout, done.stderr)


_TOOL_PACKAGES = {
    "ConfigCommand": "kafka.admin",
    "ConsumerGroupCommand": "org.apache.kafka.tools.consumer.group",
    "ConsoleConsumer": "org.apache.kafka.tools.consumer",
    "ReassignPartitionsCommand": "org.apache.kafka.tools.reassign",
}


def tool_class(name: str) -> str:
    """Full name of a tool's class."""
    return f"{_TOOL_PACKAGES.get(name, 'org.apache.kafka.tools')}.{name}"


@functools.cache
def shared_driver() -> JavaDriver:
    """The JVM of this test run."""
    driver = JavaDriver()
    atexit.register(driver.close)
    return driver


@functools.cache
def shared_older_driver() -> JavaDriver:
    """The JVM of this test run with the clients of before 4.0."""
    driver = JavaDriver(older=True)
    atexit.register(driver.close)
    return driver


def encode(value: bytes | None) -> str | None:
    """Bytes as the driver takes them."""
    return None if value is None else base64.b64encode(value).decode()


def decode(value: str | None) -> bytes | None:
    """Bytes as the driver gives them."""
    return None if value is None else base64.b64decode(value)


def record(
    value: bytes | None,
    key: bytes | None = None,
    *,
    partition: int | None = None,
    timestamp_ms: int | None = None,
    headers: Sequence[tuple[str, bytes | None]] = (),
) -> dict[str, Any]:
    """A record for `producer.send`."""
    return {
        "value": encode(value),
        "key": encode(key),
        "partition": partition,
        "timestamp": timestamp_ms,
        "headers": [[name, encode(content)] for name, content in headers],
    }
