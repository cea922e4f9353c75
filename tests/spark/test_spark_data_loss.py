"""Streams of Spark on a cluster that loses what they have not read yet: what is left is read to the end, each new
record once, or the query stops and its last line names the range, as `failOnDataLoss` says.

One node of a real cluster: logs are trimmed by the command, cut in their file, and topics go and come.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from conformance.wire import leaders_known
from penstock.local.cluster import LocalCluster
from penstock_kafka.records.batch import BatchInfo, read_header
from support.cluster import running_cluster, start_ready
from support.kafka import client_config, create_topic, delete_topic, describe, read_all
from support.spark import WAIT_S, only_in_long_form
from support.spark_driver import Ran, SparkDriver, spark_driver
from support.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(1800)]

BATCH = 10
"""Records that are produced together, and stored as one batch."""
CAP = 100
"""Offsets of a micro-batch."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("loss")
    with running_cluster(directory, controllers=1, nodes=1, gateways=1, steady=True) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkDriver]:
    with spark_driver(tmp_path_factory.mktemp("driver")) as started:
        yield started


def create(cluster: LocalCluster, topic: str, **config: str) -> None:
    create_topic(cluster.bootstrap, topic, 1, 1, **config)
    wait_for(lambda: leaders_known(cluster.bootstrap, topic) == 1, f"{topic} is known", WAIT_S)


def produce(cluster: LocalCluster, topic: str, start: int, end: int, word: str = "first") -> None:
    """Values `word offset`, in batches of BATCH."""
    producer = Producer(client_config(cluster.bootstrap, **{"acks": "all", "linger.ms": 1000}))
    for number in range(start, end):
        producer.produce(topic, f"{word} {number}".encode(), partition=0)
        if (number + 1) % BATCH == 0:
            assert producer.flush(WAIT_S) == 0


def wanted(topic: str, start: int, end: int, word: str = "first") -> list[tuple[str, int, int, str]]:
    return [(topic, 0, offset, f"{word} {offset}") for offset in range(start, end)]


def trim_command(cluster: LocalCluster, topic: str, offset: int) -> list[str]:
    return [
        *(sys.executable, "-m", "penstock.cli.main", "topic", "trim", topic),
        *("--before-offset", str(offset), "--bootstrap", cluster.bootstrap),
    ]


class Query:
    """One stream, by its checkpoint."""

    def __init__(self, driver: SparkDriver, cluster: LocalCluster, directory: Path, *topics: str) -> None:
        self._driver = driver
        self._checkpoint = directory / "checkpoint"
        self._options = {
            "gateway": cluster.gateway,
            "subscribe": ",".join(topics),
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(CAP),
        }

    def run(self, *, strict: bool = True, **more: Any) -> Ran:
        options = self._options | {"failOnDataLoss": "true" if strict else "false"}
        return self._driver.run(options, self._checkpoint, **more)

    def plans(self) -> list[tuple[str, int, int, str]]:
        """Reads the first micro-batch and plans the second one, at which it dies; the rows."""
        ran = self.run(fail_at=1)
        assert ran.error is not None and "crash of the test" in ran.error
        return ran.rows

    def reads(self) -> list[tuple[str, int, int, str]]:
        """Everything that is there; the rows."""
        ran = self.run()
        assert ran.error is None
        return ran.rows

    def stops(self, *ranges: str, **more: Any) -> Ran:
        """With failOnDataLoss=true: the last line names what is lost, and what to do."""
        ran = self.run(**more)
        assert ran.error is not None
        assert "DataLossError: " in ran.error
        assert all(text in ran.error for text in ranges), ran.error
        assert 'set option("failOnDataLoss", "false") to go on with what is left' in ran.error
        return ran

    def goes_on(self, *ranges: str, **more: Any) -> list[tuple[str, int, int, str]]:
        """With failOnDataLoss=false: to its end, and the driver's log names what is lost; the rows."""
        ran = self.run(strict=False, **more)
        assert ran.error is None, ran.error
        assert all(text in ran.log for text in ranges), ran.log
        return ran.rows


def test_a_log_is_trimmed_inside_the_planned_range(
    driver: SparkDriver, node: LocalCluster, tmp_path: Path
) -> None:
    """Of a micro-batch that stands in the checkpoint and has not been read."""
    create(node, "trimmed")
    produce(node, "trimmed", 0, 300)
    query = Query(driver, node, tmp_path, "trimmed")
    assert query.plans() == wanted("trimmed", 0, 100)
    subprocess.run(trim_command(node, "trimmed", 150), check=True, capture_output=True, timeout=WAIT_S)
    lost = "trimmed-0: offsets 100 to 149 are gone: the log now starts at 150"
    assert query.stops(lost).rows == []
    assert query.goes_on(lost) == wanted("trimmed", 150, 300)


@only_in_long_form
@pytest.mark.parametrize("end", [150, 250])
def test_a_log_is_trimmed_under_a_task(
    driver: SparkDriver, node: LocalCluster, tmp_path: Path, end: int
) -> None:
    """Between the plan of a micro-batch and its reading; with 250 nothing is left of it."""
    for strict in (True, False):
        topic = f"under-{end}-{strict}".lower()
        create(node, topic)
        produce(node, topic, 0, 300)
        query = Query(driver, node, tmp_path / topic, topic)
        then = {"command": trim_command(node, topic, end), "command_at": 1}
        lost = f"offsets 100 to {min(end, 200) - 1} are gone: the log now starts at {end}"
        if strict:
            ran = query.stops(f"topic {topic} partition 0: {lost}", **then)
            assert ran.rows == wanted(topic, 0, 100)
        else:
            rows = query.goes_on(f"topic {topic} partition 0: {lost}", **then)
            assert rows == wanted(topic, 0, 100) + wanted(topic, end, 300)


def cut(cluster: LocalCluster, ends: dict[str, int]) -> None:
    """Logs that end there in their files, as those of a disk that forgot the rest; the node starts with them."""
    cluster.kill("node-1")
    for topic, end in ends.items():
        (log,) = cluster.directory.glob(f"node-1/**/{topic}-0/00000000000000000000.log")
        data = log.read_bytes()
        position = 0
        while position < len(data):
            batch: BatchInfo = read_header(data, position)
            if batch.base_offset >= end:
                break
            position += batch.size_bytes
        assert batch.base_offset == end, "no batch begins there"
        with log.open("r+b") as file:
            file.truncate(position)
    start_ready(cluster, "node-1")
    for topic in ends:
        wait_for(lambda: describe(cluster.bootstrap, topic)[0].leader > 0, f"{topic} is led again", WAIT_S)  # noqa: B023


def test_logs_are_cut_and_written_anew(driver: SparkDriver, node: LocalCluster, tmp_path: Path) -> None:
    """Below where the query had read to; all that is new is read, where the log ends below that too."""
    ends = {"shorter": 170, "longer": 270}
    for topic in ends:
        create(node, topic, unclean_leader_election_enable="true")
        produce(node, topic, 0, 200)
    query = Query(driver, node, tmp_path, *ends)
    assert query.reads() == sorted(wanted("shorter", 0, 200) + wanted("longer", 0, 200))
    cut(node, dict.fromkeys(ends, 120))
    for topic, end in ends.items():
        produce(node, topic, 120, end, "anew")
        assert len(read_all(node.bootstrap, topic)) == end
    lost = [
        f"{topic}-0: offsets 120 to 199 are gone: the log was cut at 120 and written anew from there"
        for topic in ends
    ]
    assert query.stops(*lost).rows == []
    assert query.goes_on(*lost) == wanted("longer", 120, 270, "anew") + wanted("shorter", 120, 170, "anew")


@pytest.mark.parametrize("planned", [False, pytest.param(True, marks=only_in_long_form)])
def test_one_topic_of_two_is_deleted(
    driver: SparkDriver, node: LocalCluster, tmp_path: Path, planned: bool
) -> None:
    """`planned`: while a micro-batch of both stands in the checkpoint."""
    stays, goes = f"stays-{planned}".lower(), f"goes-{planned}".lower()
    for topic in (stays, goes):
        create(node, topic)
        produce(node, topic, 0, 100)
    query = Query(driver, node, tmp_path, goes, stays)
    if planned:
        assert query.plans() == wanted(goes, 0, 50) + wanted(stays, 0, 50)
    else:
        assert query.reads() == wanted(goes, 0, 100) + wanted(stays, 0, 100)
    delete_topic(node.bootstrap, goes)
    produce(node, stays, 100, 150)
    lost = [f"{goes}-0 was deleted; 100 was its next offset"]
    if planned:
        read = f"topic {goes} partition 0: offsets 50 to 99 are gone: the topic was deleted or made anew"
        query.stops(read)
        lost.append(read)
    else:
        query.stops(*lost)
    assert query.goes_on(*lost) == wanted(stays, 50 if planned else 100, 150)
    # And again, when there is nothing to be told of it but that it is still gone.
    produce(node, stays, 150, 200)
    assert query.goes_on() == wanted(stays, 150, 200)


@pytest.mark.parametrize("planned", [False, pytest.param(True, marks=only_in_long_form)])
def test_a_topic_is_made_anew(driver: SparkDriver, node: LocalCluster, tmp_path: Path, planned: bool) -> None:
    topic = f"again-{planned}".lower()
    create(node, topic)
    produce(node, topic, 0, 150)
    query = Query(driver, node, tmp_path, topic)
    if planned:
        assert query.plans() == wanted(topic, 0, 100)
    else:
        assert query.reads() == wanted(topic, 0, 150)
    delete_topic(node.bootstrap, topic)
    create(node, topic)
    produce(node, topic, 0, 70, "anew")
    lost = [f"{topic}-0 was deleted and made anew; 150 was its next offset"]
    if planned:
        read = f"topic {topic} partition 0: offsets 100 to 149 are gone: the topic was deleted or made anew"
        query.stops(read)
        lost.append(read)
    else:
        query.stops(*lost)
    assert query.goes_on(*lost) == wanted(topic, 0, 70, "anew")
