"""Kafka's frameworks in JVMs of their own: Connect, Streams, MirrorMaker 2."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.peer import CACHE, KAFKA_VERSION, compile_java

from support.java import SOURCES, compiled, fetch_artifacts

ARTIFACTS = (
    f"org.apache.kafka:connect-file:{KAFKA_VERSION}",
    f"org.apache.kafka:connect-mirror:{KAFKA_VERSION}",
    f"org.apache.kafka:connect-mirror-client:{KAFKA_VERSION}",
    f"org.apache.kafka:kafka-streams:{KAFKA_VERSION}",
    "org.rocksdb:rocksdbjni:10.1.3",
)
"""What Kafka's broker and tools do not bring along; version of the last as in the pom of kafka-streams."""
SLF4J_VERSION = "1.7.36"
"""Of Kafka's jars, which bring the interface alone: what they have to say goes nowhere without one behind it."""
STOP_TIMEOUT_S = 60
JVM = (
    "-Xmx384m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)
_FATAL = re.compile(r"^(ERROR$|fatal: .*)|\bFATAL\b|OutOfMemoryError|StackOverflowError", re.MULTILINE)
"""State ERROR of a Streams application, what its handler of uncaught errors says, and what no JVM gets over."""


@functools.cache
def class_path() -> str:
    """Kafka's jars, those of the frameworks, and the streams application."""
    jars = fetch_artifacts(CACHE / f"kafka-{KAFKA_VERSION}-frameworks", ARTIFACTS)
    logger = f"slf4j-simple-{SLF4J_VERSION}"
    log = fetch_artifacts(CACHE / logger, [f"org.slf4j:slf4j-simple:{SLF4J_VERSION}"])
    path = os.pathsep.join([compiled(), f"{jars}/*", f"{log}/*"])
    return f"{compile_java(sorted((SOURCES / 'streams').glob('*.java')), path, 'streams')}{os.pathsep}{path}"


def java_command(main_class: str, *arguments: str) -> list[str]:
    """To start a JVM of a framework."""
    return ["java", *JVM, "-cp", class_path(), main_class, *arguments]


@contextmanager
def running(folder: Path, name: str, main_class: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A JVM whose output goes to `<folder>/<name>.txt`; told to end at the end, by stdin and by SIGTERM."""
    command = java_command(main_class, *arguments)
    with (folder / f"{name}.txt").open("ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, cwd=folder
        )
    assert process.stdin is not None
    try:
        yield process
        assert process.poll() is None, (folder / f"{name}.txt").read_text()[-3000:]
    finally:
        process.stdin.close()
        if name != "streams":
            process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Instance:
    """A JVM of a framework, that can be killed; its output is added to `<folder>/<name>.txt`."""

    def __init__(self, folder: Path, name: str, main_class: str, *arguments: str) -> None:
        self.name = name
        self.log = folder / f"{name}.txt"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                java_command(main_class, *arguments),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
            )

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()

    def check(self, *, alive: bool = True) -> None:
        """It runs, unless it was killed, and has not given up. Raises AssertionError with what its log says."""
        said = self.log.read_text(errors="replace")
        ended = self.process.poll()
        assert ended is None or not alive, f"{self.name} ended with {ended}: {said[-3000:]}"
        found = _FATAL.search(said)
        assert found is None, f"{self.name}: {found.group()}: {said[found.start() :][:3000]}"


def properties(path: Path, settings: dict[str, Any]) -> str:
    """A properties file; gives its path."""
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return str(path)


def rest(method: str, url: str, body: Any = None) -> Any:
    """One call of Connect's REST interface; None while it does not answer, or not yet."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or b"null")
    except (urllib.error.URLError, OSError):
        return None


def lines(path: Path) -> Sequence[str]:
    """Whole lines of a file that is being written."""
    return path.read_text().splitlines() if path.exists() else []
