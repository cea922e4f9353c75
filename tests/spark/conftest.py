"""One Spark session per module, and the in-memory gateway of the unit tests."""

from __future__ import annotations

import os
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


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
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
        .config("spark.sql.streaming.stopTimeout", "60s")
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
