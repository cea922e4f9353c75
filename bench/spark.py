"""Penstock's Spark source beside Spark's Kafka connector: the same session, the same minute, the same machine.

    make bench-spark                                all rows, 5 rounds after one that is dropped
    make bench-spark BENCH="--quick --json"         small topics, 2 rounds; one JSON document on stdout
    make bench-spark BENCH="--only count"           the jobs whose name has that in it

Kafka 4.3.1 and a Penstock of one node and one gateway stand beside Spark on the same cores, with the same JSON records
in two partitions each. Every round runs every system once, one after another; medians are told, and their ratios. CPU
is that of Spark's JVM and its Python workers. `worker_mb` is the largest Python worker after each of 50 reads in a
session of its own turn. No number is a promise: read the ratios of one run.

With --json: `{"rows": [{"job", "size", "mode", "kafka", "penstock", "ratio", "cpu_ratio"}], "worker_mb": [...]}`.
`kafka` and `penstock` are records a second, in the job `micro-batch p50` ms.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from bench.peer import KafkaCluster
from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table

from penstock.local import ports
from support.cluster import running_cluster
from support.kafka import create_topic
from support.spark_connector import connector_jars

PARTITIONS = 2
SIZES = {"1 KiB": (1024, 1_000_000), "100 B": (100, 4_000_000)}
"""By name: bytes of a value, and records."""
QUICK_DIVISOR = 10
MODES = ("gateway", "direct")
MEMORY_READS = 50
LATENCY_RATE_PER_S = 2_000
LATENCY_BATCHES = 40
SCHEMA = "id LONG, city STRING, pad STRING"
_CITIES = ("Berlin", "Lima", "Osaka", "Quito", "Turin")


@dataclass
class Row:
    """One line of the table; see the module."""

    job: str
    size: str
    mode: str
    kafka: float
    penstock: float
    ratio: float
    cpu_ratio: float


@dataclass(frozen=True)
class Addresses:
    """Where both are."""

    kafka: str
    penstock: str
    gateway: str


@dataclass
class Took:
    """What one run cost."""

    wall_s: float
    cpu_s: float


def value_of(number: int, size: int) -> bytes:
    """JSON of exactly so many bytes."""
    text = f'{{"id":{number},"city":"{_CITIES[number % len(_CITIES)]}","pad":"'
    return (text + "x" * (size - len(text) - 2) + '"}').encode()


def fill(bootstrap: str, topic: str, size: int, count: int) -> None:
    """The same records in every system."""
    create_topic(bootstrap, topic, PARTITIONS, 1)
    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 50, "batch.size": 1_000_000,
         "queue.buffering.max.kbytes": 200_000, "log_level": 0}
    )  # fmt: skip
    for number in range(count):
        while True:
            try:
                producer.produce(topic, value_of(number, size), partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 1000 == 0:
            producer.poll(0)
    if producer.flush(300):
        raise SystemExit(f"{topic} was not written whole")


@contextmanager
def systems(folder: Path, sizes: dict[str, tuple[int, int]]) -> Iterator[Addresses]:
    """Both, filled."""
    kafka = KafkaCluster(folder / "kafka", 1, ports.choose_base())
    kafka.start()
    try:
        with running_cluster(folder / "penstock", controllers=1, nodes=1, gateways=1) as penstock:
            for name, (size, count) in sizes.items():
                for bootstrap in (kafka.bootstrap, penstock.bootstrap):
                    fill(bootstrap, topic_of(name), size, count)
            for bootstrap in (kafka.bootstrap, penstock.bootstrap):
                for topic in ("written", "ticks"):
                    create_topic(bootstrap, topic, PARTITIONS, 1)
            yield Addresses(kafka.bootstrap, penstock.bootstrap, penstock.gateway)
    finally:
        kafka.stop()


def topic_of(size: str) -> str:
    return "json-" + size.replace(" ", "").lower()


def session() -> Any:
    """Spark with the connector's jars."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    made = (
        SparkSession.builder.master("local[2]")
        .appName("penstock-bench")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.jars", ",".join(str(jar) for jar in connector_jars()))
        .getOrCreate()
    )
    made.sparkContext.setLogLevel("ERROR")
    return made


def spark_processes(spark: Any) -> list[psutil.Process]:
    """The JVM and all Python workers under it."""
    jvm = psutil.Process(spark.sparkContext._gateway.proc.pid)
    return [jvm, *jvm.children(recursive=True)]


def spark_cpu_s(spark: Any) -> float:
    """Of the JVM and its workers, ended ones too."""
    total = 0.0
    for process in spark_processes(spark):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def largest_worker_mb(spark: Any) -> float:
    """Of Spark's Python processes, the one with most memory."""
    sizes = [0.0]
    for process in spark_processes(spark)[1:]:
        try:
            sizes.append(process.memory_info().rss / 1e6)
        except psutil.NoSuchProcess:
            continue
    return round(max(sizes), 1)


class Bench:
    """One session with both systems."""

    def __init__(
        self,
        spark: Any,
        at: Addresses,
        sizes: dict[str, tuple[int, int]],
        rounds: int,
        say: Callable[[str], None],
    ) -> None:
        self.say = say
        self.spark = spark
        self.at = at
        self.sizes = sizes
        self.rounds = rounds

    def reader(self, mode: str, topic: str, *, stream: bool = False) -> Any:
        """`mode` is "kafka", or a fetch mode of Penstock's."""
        reader = self.spark.readStream if stream else self.spark.read
        if mode == "kafka":
            return reader.format("kafka").options(
                **{"kafka.bootstrap.servers": self.at.kafka, "subscribe": topic}
            )
        return reader.format("penstock").options(gateway=self.at.gateway, subscribe=topic, fetchMode=mode)

    def _timed(self, work: Callable[[], Any]) -> Took:
        cpu_s, begun_s = spark_cpu_s(self.spark), time.perf_counter()
        work()
        return Took(time.perf_counter() - begun_s, spark_cpu_s(self.spark) - cpu_s)

    def compare(self, job: str, size: str, count: int, work: Callable[[str], Callable[[], Any]]) -> list[Row]:
        """Rounds of all modes, interleaved; the first round is dropped."""
        took: dict[str, list[Took]] = {mode: [] for mode in ("kafka", *MODES)}
        for number in range(self.rounds + 1):
            for mode, runs in took.items():
                run = self._timed(work(mode))
                if number:
                    runs.append(run)
        walls = {mode: statistics.median(run.wall_s for run in runs) for mode, runs in took.items()}
        cpus = {mode: statistics.median(run.cpu_s for run in runs) for mode, runs in took.items()}
        for mode in took:
            self.say(f"  {mode}: {walls[mode]:.2f} s, {cpus[mode] / count * 1e6:.2f} CPU s per M records")
        return [
            Row(
                job,
                size,
                mode,
                round(count / walls["kafka"]),
                round(count / walls[mode]),
                round(walls["kafka"] / walls[mode], 2),
                round(cpus[mode] / max(cpus["kafka"], 0.01), 2),
            )
            for mode in MODES
        ]

    # -- jobs -------------------------------------------------------------------------------

    def count_and_length(self, size: str) -> list[Row]:
        topic, count = topic_of(size), self.sizes[size][1]

        def work(mode: str) -> Callable[[], Any]:
            frame = self.reader(mode, topic).load()
            return lambda: check(frame.selectExpr("count(1)", "sum(length(value))").first(), count)

        return self.compare("count", size, count, work)

    def value_only(self, size: str) -> list[Row]:
        topic, count = topic_of(size), self.sizes[size][1]

        def work(mode: str) -> Callable[[], Any]:
            reader = self.reader(mode, topic)
            frame = (reader if mode == "kafka" else reader.schema("value BINARY")).load()
            return lambda: check(frame.selectExpr("count(1)", "sum(length(value))").first(), count)

        return self.compare("count, value alone", size, count, work)

    def from_json(self, size: str) -> list[Row]:
        topic, count = topic_of(size), self.sizes[size][1]

        def work(mode: str) -> Callable[[], Any]:
            frame = self.reader(mode, topic).load().selectExpr(f"from_json(string(value), '{SCHEMA}') AS v")
            grouped = frame.groupBy("v.city").count().groupBy().sum("count")
            return lambda: check(grouped.first(), count)

        return self.compare("from_json", size, count, work)

    def write(self, size: str) -> list[Row]:
        width, count = self.sizes[size]
        frame = self.spark.range(count).selectExpr(f"lpad(string(id), {width}, 'x') AS value")

        def work(mode: str) -> Callable[[], Any]:
            writer = frame.write.mode("append")
            if mode == "kafka":
                writer = writer.format("kafka").option("kafka.bootstrap.servers", self.at.kafka)
            else:
                writer = writer.format("penstock").options(gateway=self.at.gateway, delivery="at-least-once")
            return lambda: writer.option("topic", "written").save()

        return [
            row for row in self.compare("write, at-least-once", size, count, work) if row.mode == "gateway"
        ]

    def latency(self) -> list[Row]:
        """p50 of micro-batches that have rows, at trigger 0."""
        p50 = {mode: self._micro_batches_ms(mode) for mode in ("kafka", *MODES)}
        return [
            Row(
                "micro-batch p50",
                "100 B",
                mode,
                p50["kafka"],
                p50[mode],
                round(p50[mode] / p50["kafka"], 2),
                0.0,
            )
            for mode in MODES
        ]

    def _micro_batches_ms(self, mode: str) -> float:
        ended = threading.Event()
        bootstrap = self.at.kafka if mode == "kafka" else self.at.penstock
        ticking = threading.Thread(target=tick, args=(bootstrap, ended))
        with tempfile.TemporaryDirectory() as checkpoint:
            query = (
                self.reader(mode, "ticks", stream=True)
                .load()
                .writeStream.format("noop")
                .option("checkpointLocation", checkpoint)
                .trigger(processingTime="0 seconds")
                .start()
            )
            ticking.start()
            try:
                found: dict[int, float] = {}
                while len(found) < LATENCY_BATCHES + 10:
                    time.sleep(0.2)
                    if query.exception() is not None:
                        raise SystemExit(f"the query failed: {query.exception()}")
                    for progress in query.recentProgress:
                        if progress["numInputRows"]:
                            found[progress["batchId"]] = progress["durationMs"]["triggerExecution"]
            finally:
                ended.set()
                query.stop()
                ticking.join()
        # The first ones compile.
        return float(statistics.median(found[batch] for batch in sorted(found)[10:]))

    def memory(self, reads: int) -> list[float]:
        """Largest worker after each read of all records of 1 KiB, in both modes in turn."""
        found = []
        for number in range(reads):
            frame = self.reader(MODES[number % 2], topic_of("1 KiB")).load()
            frame.selectExpr("count(1)", "sum(length(value))").first()
            found.append(largest_worker_mb(self.spark))
        return found


def check(row: Any, count: int) -> None:
    if row[0] != count:
        raise SystemExit(f"{row[0]} records were read, {count} are there")


def tick(bootstrap: str, ended: threading.Event) -> None:
    """Writes at an even rate until told to end."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0})
    begun_s, number = time.perf_counter(), 0
    while not ended.is_set():
        while number < (time.perf_counter() - begun_s) * LATENCY_RATE_PER_S:
            producer.produce("ticks", value_of(number, 100), partition=number % PARTITIONS)
            number += 1
        producer.poll(0.005)
    producer.flush(60)


def measure(bench: Bench, only: str, reads: int) -> tuple[list[Row], list[float]]:
    """All jobs whose name has `only` in it."""
    jobs: list[tuple[str, Callable[[], list[Row]]]] = []
    for size in bench.sizes:
        jobs += [
            (f"count {size}", lambda size=size: bench.count_and_length(size)),  # type: ignore[misc]
            (f"value alone {size}", lambda size=size: bench.value_only(size)),  # type: ignore[misc]
            (f"from_json {size}", lambda size=size: bench.from_json(size)),  # type: ignore[misc]
        ]
    jobs += [("write 100 B", lambda: bench.write("100 B")), ("micro-batch p50", bench.latency)]
    rows: list[Row] = []
    for name, job in jobs:
        if only in name:
            bench.say(name)
            rows += job()
    if only not in "memory":
        return rows, []
    bench.say("memory")
    return rows, bench.memory(reads)


def is_needed(size: str, only: str) -> bool:
    """Whether records of that size are read by what was chosen."""
    if only in "memory":
        return not only or size == "1 KiB"
    return size in only or not any(each in only for each in SIZES)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="bench.spark", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="after one that is dropped; default %(default)s"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the records, 2 rounds, 10 reads for memory"
    )
    parser.add_argument("--reads", type=int, default=0, help="for memory; default 50, 10 with --quick")
    parser.add_argument(
        "--only", default="", metavar="WORDS", help="jobs whose name has these in it; memory is one"
    )
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    arguments = parser.parse_args()
    divisor = QUICK_DIVISOR if arguments.quick else 1
    sizes = {
        name: (size, count // divisor)
        for name, (size, count) in SIZES.items()
        if is_needed(name, arguments.only)
    }
    rounds = 2 if arguments.quick else arguments.rounds
    reads = arguments.reads or (10 if arguments.quick else MEMORY_READS)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="bench-spark-") as folder, systems(Path(folder), sizes) as at:
        spark = session()
        try:
            rows, worker_mb = measure(Bench(spark, at, sizes, rounds, say), arguments.only, reads)
        finally:
            spark.stop()
    if arguments.json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "worker_mb": worker_mb}))
        return
    show(rows, worker_mb)


def show(rows: list[Row], worker_mb: list[float]) -> None:
    """As a table."""
    table = Table("job", "size", "mode", "Kafka", "Penstock", "ratio", "CPU")
    for row in rows:
        table.add_row(
            row.job,
            row.size,
            row.mode,
            f"{row.kafka:,.0f}",
            f"{row.penstock:,.0f}",
            f"{row.ratio}",
            f"{row.cpu_ratio}",
        )
    Console().print(table)
    if worker_mb:
        late = worker_mb[-30:]
        print(
            f"largest worker: {max(worker_mb)} MB; over the last {len(late)} reads {min(late)} to {max(late)} MB"
        )


if __name__ == "__main__":
    main()
