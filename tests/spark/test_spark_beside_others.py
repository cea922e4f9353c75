"""Beside a module that is broken: Spark's look-up of sources then finds none at all, ours included."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from unit.spark.spark_memory_gateway import MemoryGateway

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

APPLICATION = """
    import sys
    import pyspark_penstock
    from pyspark.sql import SparkSession

    spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
             .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
             .config("spark.driver.memory", "1g").getOrCreate())
    spark.dataSource.register(pyspark_penstock.DefaultSource)
    frame = spark.read.format("penstock").option("gateway", sys.argv[1]).option("subscribe", "flights").load()
    print("rows", frame.count())
    spark.stop()
"""


def test_a_broken_module_beside_ours_leaves_an_explicit_register(
    cluster: MemoryGateway, tmp_path: Path
) -> None:
    cluster.create("flights", 1)
    cluster.append("flights", 0, [b"v"] * 100)
    (tmp_path / "pyspark_zzz.py").write_text("raise RuntimeError('broken')\n")
    script = tmp_path / "application.py"
    script.write_text(textwrap.dedent(APPLICATION))
    ran = subprocess.run(
        [sys.executable, str(script), cluster.addresses[0]],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert "rows 100" in ran.stdout.splitlines(), ran.stderr[-3000:]
