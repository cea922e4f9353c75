"""Kafka's frameworks in JVMs of their own: Connect, Streams, MirrorMaker 2."""

from __future__ import annotations

import functools
import json
import os
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
STOP_TIMEOUT_S = 60
JVM = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@functools.cache
def class_path() -> str:
    """Kafka's jars, those of the frameworks, and the streams application."""
    jars = fetch_artifacts(CACHE / f"kafka-{KAFKA_VERSION}-frameworks", ARTIFACTS)
    path = f"{compiled()}{os.pathsep}{jars}/*"
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
