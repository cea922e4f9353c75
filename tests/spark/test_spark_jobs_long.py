"""Jobs that write, as commands on a cluster: killed at random, at a rate, on a Spark of several workers.

The long form: make spark-jobs-test.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from penstock.local.cluster import LocalCluster
from penstock.local.ports import choose_free
from pyspark_penstock.jobs.pacing import GRAIN_S
from support.cluster import running_cluster
from support.kafka import create_topic, produce, read_all
from support.spark_jobs import command, done
from support.waiting import wait_for

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(
        "PENSTOCK_SPARK_JOBS" not in os.environ, reason="of the long form: make spark-jobs-test"
    ),
]

KILLS = int(os.environ.get("PENSTOCK_SPARK_KILLS", "5"))
COUNT = 100_000
RATE_PER_S = 5_000
COMPOSE = Path(__file__).parents[2] / "deploy" / "compose" / "compose.yaml"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("jobs")
    with running_cluster(directory, controllers=1, nodes=1, gateways=1) as made:
        create_topic(made.bootstrap, "flights", 2, 1)
        produce(made.bootstrap, "flights", COUNT, keys=100)
        yield made


def check_order(cluster: LocalCluster, topic: str) -> None:
    """Records of a key are in one partition, in the order in which they were produced."""
    where: dict[bytes, set[int]] = {}
    last: Counter[bytes] = Counter()
    numbers = {item.value: number for number, item in enumerate(read_all(cluster.bootstrap, "flights"))}
    for item in read_all(cluster.bootstrap, topic):
        assert item.key is not None
        where.setdefault(item.key, set()).add(item.partition)
        assert numbers[item.value] >= last[item.key], item
        last[item.key] = numbers[item.value] + 1
    assert all(len(parts) == 1 for parts in where.values())


def test_a_repartition_that_is_killed(cluster: LocalCluster, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    create_topic(cluster.bootstrap, "copy", 5, 1)
    words = command(
        cluster, "repartition", "--topic", "flights", "--to", "copy", "--partitions", "5",
        "--checkpoint", str(tmp_path / "c"),
    )  # fmt: skip
    for _ in range(KILLS):
        process = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            print("ended", process.wait(dice.uniform(8, 40)))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    result = done(words)
    assert sum(result["to"]["flights"].values()) == COUNT
    audit = ("--against", "copy", "--keys-moved", "--isolation", "read_committed")
    assert done(command(cluster, "audit", "--topic", "flights", *audit))["findings"] == []
    check_order(cluster, "copy")


def test_a_replay_at_a_rate(cluster: LocalCluster) -> None:
    create_topic(cluster.bootstrap, "again", 2, 1)
    words = ("replay", "--topic", "flights", "--to", "again", "--rate", str(RATE_PER_S), "--keep-partitions")
    result = done(command(cluster, *words))
    assert result["rows"] == COUNT
    # Never faster than it was asked for; how much slower says how busy the machine is, and is for docs/results.
    assert result["seconds"] >= COUNT / RATE_PER_S - GRAIN_S
    print(
        f"{result['rows']} records in {result['seconds']} s ({COUNT / RATE_PER_S:g} +- 3): {result['rate']} a second"
    )
    ours, theirs = (
        Counter((item.partition, item.value) for item in read_all(cluster.bootstrap, topic))
        for topic in ("flights", "again")
    )
    assert ours == theirs


@contextmanager
def standalone(tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """A master and two workers of compose's settings on two host names of this machine."""
    (script,) = yaml.safe_load(COMPOSE.read_text())["services"]["spark-secret"]["command"]
    subprocess.run([sys.executable, "-c", script.replace("/conf/", f"{tmp_path}/")], check=True)
    environment = {
        "SPARK_CONF_DIR": str(tmp_path), "PYSPARK_PYTHON": sys.executable,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }  # fmt: skip
    port, web = choose_free(2, set())
    master = f"spark://127.0.0.1:{port}"
    spark_class = str(Path(sys.executable).parent / "spark-class")
    roles = [
        ("127.0.0.1", ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port),
                       "--webui-port", str(web)]),
        *((host, ["org.apache.spark.deploy.worker.Worker", "--host", host, "--cores", "1", "--memory", "1g",
                  "--work-dir", str(tmp_path / host), master]) for host in ("127.0.0.2", "127.0.0.3")),
    ]  # fmt: skip
    started = []
    try:
        for host, words in roles:
            with (tmp_path / f"{host}.log").open("wb") as output:
                process = subprocess.Popen(
                    [spark_class, *words],
                    stdout=output,
                    stderr=output,
                    env=os.environ | environment | {"SPARK_LOCAL_IP": host},
                )
            started.append(process)
        log = tmp_path / "127.0.0.1.log"
        wait_for(lambda: log.read_text().count("Registering worker") == 2, "two workers are registered", 120)
        yield master, environment
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(timeout=60)


def test_a_spark_of_several_workers(cluster: LocalCluster, tmp_path: Path) -> None:
    create_topic(cluster.bootstrap, "spread", 3, 1)
    driver = ("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1")
    with standalone(tmp_path) as (master, environment):

        def run(*words: str) -> Any:
            return done(command(cluster, *words, *driver, master=master), environment=environment)

        assert run("audit", "--topic", "flights")["rows"] == COUNT
        copied = run(
            "repartition", "--topic", "flights", "--to", "spread", "--checkpoint", str(tmp_path / "c")
        )
        assert copied["rows"] == COUNT
        audited = run(
            "audit",
            "--topic",
            "flights",
            "--against",
            "spread",
            "--keys-moved",
            "--isolation",
            "read_committed",
        )
        assert audited["findings"] == []
        began_s = time.monotonic()
        (tmp_path / "strange").mkdir()
        secret = (tmp_path / "spark-defaults.conf").read_text().replace("secret ", "secret 0")
        (tmp_path / "strange" / "spark-defaults.conf").write_text(secret)
        strange = environment | {"SPARK_CONF_DIR": str(tmp_path / "strange")}
        words = command(cluster, "audit", "--topic", "flights", *driver, master=master)
        told = done(words, 1, strange)
        print(f"refused after {time.monotonic() - began_s:.0f} s: {told}")
        assert told.strip().splitlines()[-1].startswith("penstock: error: ")
