"""Spark Connect over a standalone master with two workers: read and write, with our packages installed and sent along.

The long form has both ways in which the packages come to server and workers: make spark-connect-test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.cluster import running_cluster
from support.kafka import create_topic, produce, read_all
from support.spark import WAIT_S
from support.spark_connect import client, connect_server, without_our_packages, zip_of_our_packages
from support.spark_standalone import standalone_spark

if TYPE_CHECKING:
    from penstock.local.cluster import LocalCluster

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(3600)]

COUNT = 3000
IS_LONG = "PENSTOCK_SPARK_CONNECT" in os.environ
long_form = pytest.mark.skipif(not IS_LONG, reason="of the long form: make spark-connect-test")


@pytest.fixture(scope="module")
def penstock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path_factory.mktemp("connect"), controllers=1, nodes=1, gateways=1) as cluster:
        create_topic(cluster.bootstrap, "source", 2, 1)
        produce(cluster.bootstrap, "source", COUNT)
        yield cluster


@pytest.fixture(scope="module")
def spark_master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address; it has two workers."""
    with standalone_spark(tmp_path_factory.mktemp("standalone")) as master:
        yield master


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return without_our_packages(tmp_path_factory.mktemp("bare") / "environment")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return zip_of_our_packages(tmp_path_factory.mktemp("zip") / "penstock.zip")


@pytest.fixture
def topics(penstock: LocalCluster) -> Iterator[None]:
    """Empty topics to write to."""
    for topic in ("written", "streamed", "copied"):
        create_topic(penstock.bootstrap, topic, 2, 1)
    yield
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": penstock.bootstrap})
    for future in admin.delete_topics(["written", "streamed", "copied"]).values():
        future.result(WAIT_S)


def done(result: subprocess.CompletedProcess[str]) -> Any:
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    return json.loads(result.stdout)


def committed(cluster: LocalCluster, topic: str) -> Counter[bytes]:
    found = read_all(cluster.bootstrap, topic, WAIT_S, **{"isolation.level": "read_committed"})
    return Counter(record.value for record in found)


def check_read(found: Any, cluster: LocalCluster) -> None:
    """What a consumer finds, row for row."""
    wanted = [
        [item.partition, item.offset, item.value.decode()] for item in read_all(cluster.bootstrap, "source")
    ]
    assert len(wanted) == COUNT
    assert found == sorted(wanted)


def source_values(cluster: LocalCluster) -> Counter[bytes]:
    return Counter(item.value for item in read_all(cluster.bootstrap, "source"))


FILES = Counter(b"%d" % number for number in range(1000))
"""What a stream of files writes."""


def check_all(found: Any, cluster: LocalCluster) -> None:
    """Steps of a client, and what they have written: each row once."""
    check_read(found["batch_read"], cluster)
    source = source_values(cluster)
    written = {
        "batch_write": ("written", source),
        "stream_write": ("streamed", FILES),
        "stream_read": ("copied", source),
    }
    for step in written.keys() & found.keys():
        topic, wanted = written[step]
        assert found[step] is True, found[step]
        assert committed(cluster, topic) == wanted, step
    assert "no such topic" in found["refused"]["text"], found["refused"]


def test_packages_that_are_sent_along(
    penstock: LocalCluster, spark_master: str, bare: Path, archive: Path, topics: None, tmp_path: Path
) -> None:
    """Neither client nor server nor workers have a wheel of ours. It goes for batches alone: Spark (4.3) runs a stream
    in a copy of the client's session, whose artifacts workers do not get, and looks for what a stream's source is made
    of in a folder of the server where no session's artifacts are. The long form has what streams say then."""
    streams = ["stream_write", "stream_read"] if IS_LONG else []
    with connect_server(tmp_path / "server", spark_master, bare) as remote:
        words = ["--remote", remote, "--gateway", penstock.gateway, "--directory", str(tmp_path)]
        steps = ["before", "batch_read", "batch_write", *streams, "refused"]
        found = done(client(bare, *words, "--zip", str(archive), *steps))
    assert found["module"] == "pyspark.sql.connect.session"
    assert found["from"].startswith(str(archive))
    assert "[DATA_SOURCE_NOT_FOUND]" in found["before"]["text"]
    for step in streams:
        assert "ModuleNotFoundError: No module named 'pyspark_penstock'" in found.pop(step)["text"], step
    for topic in ("streamed", "copied"):
        assert committed(penstock, topic) == Counter()
    check_all(found, penstock)


@long_form
def test_packages_that_are_installed(
    penstock: LocalCluster, spark_master: str, topics: None, tmp_path: Path
) -> None:
    """Nothing is registered."""
    python = Path(sys.executable)
    with connect_server(tmp_path / "server", spark_master, python) as remote:
        words = ["--remote", remote, "--gateway", penstock.gateway, "--directory", str(tmp_path)]
        steps = ["batch_read", "sql", "batch_write", "stream_write", "stream_read", "refused"]
        found = done(client(python, *words, *steps))
    check_all(found, penstock)
    partitions = Counter(item.partition for item in read_all(penstock.bootstrap, "source"))
    assert found["sql"] == [[partition, partitions[partition]] for partition in (0, 1)]
