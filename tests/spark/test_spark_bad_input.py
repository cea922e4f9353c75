"""What is wrong around a query, through Spark itself: one sentence that names the thing and the mend is the last line
of what Spark raises. Options are in `test_spark_streaming` (streams) and `test_spark_batch`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import textwrap
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.local.plan import NODE
from support.cluster import running_cluster
from support.spark import WAIT_S, last_error_line, only_in_long_form, run_to_end
from support.spark_standalone import standalone_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from unit.spark.spark_memory_gateway import MemoryGateway

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(1800)]


def stream(spark: SparkSession, address: str) -> DataFrame:
    reader = spark.readStream.format("penstock").option("gateway", address)
    return reader.option("subscribe", "flights").option("startingOffsets", "earliest").load()


def runs(frame: DataFrame, checkpoint: Path) -> None:
    """To its end. Raises what Spark raises."""
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    run_to_end(writer.trigger(availableNow=True).start)


@pytest.fixture(scope="module")
def kafka_ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Addresses where clients of Kafka come in: at a gateway, and at a storage node."""
    directory = tmp_path_factory.mktemp("ports")
    with running_cluster(directory, controllers=1, nodes=1, gateways=1) as cluster:
        (node,) = cluster.state.of_role(NODE)
        yield {"gateway": cluster.bootstrap, "node": f"127.0.0.1:{node.ports['direct']}"}


@only_in_long_form  # gRPC waits 20 s for a peer that speaks something else
@pytest.mark.parametrize("kind", ["batch", "stream"])
@pytest.mark.parametrize("whose", ["gateway", "node"])
def test_a_kafka_port_is_no_gateway(
    spark: SparkSession, kafka_ports: dict[str, str], tmp_path: Path, whose: str, kind: str
) -> None:
    address = kafka_ports[whose]
    begun_s = time.monotonic()

    def read() -> None:
        if kind == "batch":
            reader = spark.read.format("penstock").option("gateway", address)
            reader.option("subscribe", "flights").load().count()
        else:
            runs(stream(spark, address), tmp_path)

    with pytest.raises(Exception, match="no gateway answers") as refused:
        read()
    print(f"told after {time.monotonic() - begun_s:.1f} s")
    last = last_error_line(refused.value)
    assert f"GatewayError: no gateway answers at {address} (" in last, last
    assert last.endswith("option gateway takes the gateway's gRPC address, which is not its Kafka port"), last


def test_a_checkpoint_of_a_newer_form(spark: SparkSession, cluster: MemoryGateway, tmp_path: Path) -> None:
    cluster.create("flights", 1)
    cluster.append("flights", 0, [b"v"] * 10)
    runs(stream(spark, cluster.addresses[0]), tmp_path)
    (file,) = (tmp_path / "offsets").glob("[0-9]*")
    lines = file.read_text().splitlines()
    assert json.loads(lines[-1])["v"] == 1
    file.write_text("\n".join([*lines[:-1], json.dumps(json.loads(lines[-1]) | {"v": 2})]))
    (tmp_path / "offsets" / f".{file.name}.crc").unlink(missing_ok=True)
    cluster.append("flights", 0, [b"v"] * 10)
    with pytest.raises(Exception, match="form 2") as refused:
        runs(stream(spark, cluster.addresses[0]), tmp_path)
    assert last_error_line(refused.value).endswith(
        "PenstockError: the checkpoint has offsets of form 2, this version reads form 1; use the penstock-spark that "
        "wrote it, or a new checkpoint"
    )


def test_a_sink_is_not_written_to_without_micro_batches(
    spark: SparkSession, cluster: MemoryGateway, tmp_path: Path
) -> None:
    """Of a source that can do so; Spark itself would fail with an internal error of its own."""
    cluster.create("copies", 1)
    rows = spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS value")
    writer = rows.writeStream.format("penstock").options(gateway=cluster.addresses[0], topic="copies")
    writer = writer.option("checkpointLocation", str(tmp_path))
    writer = writer.trigger(continuous="1 second")
    with pytest.raises(Exception, match="no micro-batches") as refused:
        run_to_end(writer.start)
    assert last_error_line(refused.value).endswith(
        "OptionError: this query has no micro-batches, and Spark hands rows to a sink in Python by micro-batches "
        "alone: its trigger is continuous or realTime; use trigger(processingTime=...) or trigger(availableNow=True)"
    )


@pytest.mark.parametrize(
    ("trigger", "mode", "sentence"),
    [
        (
            {"continuous": "1 second"},
            "append",
            "Data source penstock does not support continuous processing.",
        ),
        ({"realTime": "5 minutes"}, "update", "is not supported in Real-time Mode."),
    ],
    ids=["continuous", "realTime"],
)
def test_what_spark_says_of_a_source_without_micro_batches(
    spark: SparkSession,
    cluster: MemoryGateway,
    tmp_path: Path,
    trigger: dict[str, str],
    mode: str,
    sentence: str,
) -> None:
    """It asks no source, and tells none of its trigger: the page has the words, and what to do."""
    cluster.create("flights", 1)
    writer = stream(spark, cluster.addresses[0]).writeStream.format("console").outputMode(mode)
    writer = writer.option("checkpointLocation", str(tmp_path)).trigger(**trigger)
    with pytest.raises(Exception, match=re.escape(sentence)) as refused:
        run_to_end(writer.start)
    assert "internal error" not in str(refused.value).lower()
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    assert sentence.removesuffix(".") in page


APPLICATION = """
    import sys
    from pyspark.sql import SparkSession
    from support.spark import last_error_line

    master, path, gateway = sys.argv[1:]
    spark = (SparkSession.builder.master(master).config("spark.ui.enabled", "false")
             .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
             .config("spark.driver.memory", "1g").config("spark.executor.memory", "512m")
             .config("spark.executorEnv.PATH", path).getOrCreate())
    try:
        rows = spark.read.format("penstock").option("gateway", gateway).option("subscribe", "flights").load().count()
        print("rows", rows)
    except Exception as error:
        print("last", last_error_line(error))
    spark.stop()
"""


def environment_without(wheel: str, directory: Path) -> Path:
    """Folder of the `python3` of an environment that has all that this one has but one wheel."""
    venv.create(directory, symlinks=True, with_pip=False)
    (packages,) = directory.glob("lib/python*/site-packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if re.split(r"[-.]", entry.name)[0] != wheel:
            (packages / entry.name).symlink_to(entry)
    return directory / "bin"


@only_in_long_form
def test_a_wheel_is_missing_on_a_worker(cluster: MemoryGateway, tmp_path: Path) -> None:
    """Of a standalone Spark; on the driver everything is there."""
    cluster.create("flights", 1)
    cluster.append("flights", 0, [b"v"] * 10)
    ours = Path(sys.executable).parent
    theirs = environment_without("cramjam", tmp_path / "environment")
    script = tmp_path / "application.py"
    script.write_text(textwrap.dedent(APPLICATION))
    paths = {"ours": ours, "theirs": theirs}
    told = {}
    with standalone_spark(tmp_path) as master:
        for name, folder in paths.items():
            words = [master, f"{folder}:{os.environ['PATH']}", cluster.addresses[0]]
            ran = subprocess.run(
                [sys.executable, str(script), *words],
                env={
                    **os.environ,
                    "PATH": f"{ours}:{os.environ['PATH']}",
                    "PYTHONPATH": str(Path(__file__).parents[1]),
                    "PYSPARK_PYTHON": "python3",  # of PATH, as Spark has it where nothing is said
                },
                capture_output=True,
                text=True,
                timeout=WAIT_S,
                check=False,
            )
            assert ran.returncode == 0, ran.stderr[-3000:]
            told[name] = ran.stdout.splitlines()
    assert "rows 10" in told["ours"]
    (last,) = (line for line in told["theirs"] if line.startswith("last"))
    assert last.endswith(
        f"MissingPartError: penstock-spark needs the package cramjam, which is not installed for {theirs}/python3: "
        "install penstock-spark with pip, which brings it, on the driver and wherever executors run"
    )
