"""One Spark session per module, and the in-memory gateway of the unit tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pyspark_penstock  # noqa: F401  # quietens gRPC, which reads its settings at first import

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "spark"))

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from unit.spark.spark_memory_gateway import MemoryGateway


@pytest.fixture(scope="session")
def spark_jvm() -> Iterator[None]:
    """Spark's JVM outlives its sessions, and would keep the terminal of whoever runs the tests open."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")  # where its web pages are served, too
        yield
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    process = gateway.proc
    process.stdin.close()  # the JVM ends when it reads the end of its input
    try:
        process.wait(timeout=120)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(timeout=30)


@pytest.fixture(scope="module")
def spark(spark_jvm: None) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    # Spark starts its workers with the python3 of PATH, which needn't be the one that runs the tests.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .appName("penstock-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.stopTimeout", "180s")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def cluster() -> Iterator[MemoryGateway]:
    from unit.spark.spark_memory_gateway import MemoryGateway

    memory = MemoryGateway()
    memory.start()
    yield memory
    memory.stop()
