"""Spark with the connector's jars, and what its processes take."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from support.spark_connector import connector_jars


@contextmanager
def session() -> Iterator[Any]:
    """Ends with the block; the JVM is this process's only one."""
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
    try:
        yield made
    finally:
        made.stop()


def jvm(spark: Any) -> psutil.Process:
    return psutil.Process(spark.sparkContext._gateway.proc.pid)


def cpu_s(spark: Any) -> float:
    """Of the JVM and its workers, ended ones too."""
    root = jvm(spark)
    total = 0.0
    for process in [root, *root.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def largest_worker_mb(spark: Any) -> float:
    """Of Spark's Python processes, the one with most memory; 0 where there is none."""
    sizes = [0.0]
    for process in jvm(spark).children(recursive=True):
        try:
            sizes.append(process.memory_info().rss / 1e6)
        except psutil.NoSuchProcess:
            continue
    return round(max(sizes), 1)


def jvm_peak_mb(spark: Any) -> float:
    """The most that the JVM has had resident since it began (VmHWM)."""
    for line in Path(f"/proc/{jvm(spark).pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return round(int(line.split()[1]) * 1024 / 1e6, 1)
    raise SystemExit("the system does not tell a process's peak memory: this takes Linux")
