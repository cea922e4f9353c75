"""Apache Kafka's own tools and broker, from Maven Central, as judges of what Penstock writes.

The jars are those of the benchmarks (`bench.peer`): fetched once by mvn, into a cache folder.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.peer import KafkaCluster, fetch_jars
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from penstock.local import ports
from support.kafka import client_config
from support.waiting import wait_for

DUMP_TIMEOUT_S = 240
ARGUMENT_BYTES_MAX = 100_000
"""Linux takes 128 KiB in one argument."""
JVM = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

_TROUBLE = re.compile(
    r"mismatch|not found in the log|out of order|isvalid: false|exception|corrupt|failed|error",
    re.IGNORECASE,
)
_NOT_TROUBLE = re.compile(r"^(baseOffset: .* isvalid: true|\| |SLF4J|Dumping |Non-consecutive offsets in )")


def dump_log_segments(files: Sequence[Path], *options: str) -> str:
    """What DumpLogSegments says of these files; it takes them in one argument, so many are many calls."""
    if sum(len(str(file)) + 1 for file in files) > ARGUMENT_BYTES_MAX and len(files) > 1:
        half = len(files) // 2
        return dump_log_segments(files[:half], *options) + dump_log_segments(files[half:], *options)
    command = ["java", *JVM, "-cp", f"{fetch_jars()}/*", "org.apache.kafka.tools.DumpLogSegments", *options]
    done = subprocess.run(
        [*command, "--files", ",".join(map(str, files))],
        capture_output=True,
        text=True,
        timeout=DUMP_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout + done.stderr


def complaints(output: str, *, gaps_allowed: bool = False) -> list[str]:
    """Every line of a dump that says that something is wrong.

    Of a log whose first offset is not 0 the tool of Kafka 4.3 says that -1 is followed by it: it
    says so of every second segment that Kafka itself has written (there is a test of that).
    """
    found = []
    for line in output.splitlines():
        gap = re.match(r"\s+(-?\d+) is followed by (\d+)", line)
        if gap is not None:
            if gap[1] != "-1" and not gaps_allowed:
                found.append(line)
        elif _TROUBLE.search(line) and not _NOT_TROUBLE.match(line):
            found.append(line)
    return found


def check_directories(directories: Sequence[Path], *, gaps_allowed: bool = False) -> str:
    """DumpLogSegments over every segment, index and snapshot in them: deeply, then the indexes' own checks."""
    files = [
        f
        for d in directories
        for f in sorted(d.iterdir())
        if f.suffix in (".log", ".index", ".timeindex", ".txnindex")
    ]
    files += [f for d in directories for f in sorted(d.glob("*.snapshot"))]
    assert any(f.suffix == ".log" for f in files)
    output = dump_log_segments(files, "--deep-iteration", "--verify-index-only")
    assert not complaints(output, gaps_allowed=gaps_allowed), complaints(output, gaps_allowed=gaps_allowed)
    indexes = [f for f in files if f.suffix in (".index", ".timeindex") and f.stat().st_size]
    if indexes:
        sanity = dump_log_segments(indexes, "--index-sanity-check")
        assert not complaints(sanity), complaints(sanity)
    return output


def ports_in_a_row(count: int) -> int:
    """The first of so many free ones, of this worker's part: Kafka listens seconds later, and others start clusters."""
    candidates = (ports.choose_base() for _ in range(500))
    return next(p for p in candidates if all(ports.is_free(p + i) for i in range(count)))


@contextmanager
def running_kafka(folder: Path, **more: Any) -> Iterator[KafkaCluster]:
    """A real broker of one node, stopped at the end; `more` are words of `KafkaCluster`."""
    cluster = KafkaCluster(folder, 1, first_port=ports_in_a_row(3), **more)
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop()


def wait_for_kafka(kafka: KafkaCluster) -> None:
    """Until it answers. Raises AssertionError with what it said last, at once when it has ended by itself."""
    admin = AdminClient(client_config(kafka.bootstrap))

    def answers() -> bool:
        assert all(process.poll() is None for process in kafka.processes), kafka.last_words()
        try:
            return bool(admin.list_topics(timeout=5).brokers)
        except KafkaException:
            return False

    try:
        wait_for(answers, "Kafka answers", 300)
    except AssertionError as error:
        raise AssertionError(f"{error}: {kafka.last_words()}") from None
