"""A server of Spark Connect, a Python that has none of our packages, and these as one zip."""

from __future__ import annotations

import os
import signal
import site
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from penstock.local import ports
from support.packages import ROOT, new_environment
from support.spark import WAIT_S
from support.spark_sink_runs import STARTUP, members
from support.waiting import wait_for

CLIENT_TIMEOUT_S = 3 * WAIT_S
"""Of all steps of a client: on a busy machine each Python that plans takes long to come up."""
SHIPPED = {
    "pyspark_penstock": ROOT / "spark/src",
    "penstock_core": ROOT / "libs/core/src",
    "penstock_proto": ROOT / "proto/src",
}
"""What the data source is made of, all of it Python, and where it is."""


def without_our_packages(folder: Path) -> Path:
    """The Python of an environment that has whatever this one has, but for the packages of this repository."""
    python = new_environment(folder)
    (target,) = folder.glob("lib/python*/site-packages")
    for path in Path(site.getsitepackages()[0]).iterdir():
        if "penstock" not in path.name and path.name != "__pycache__":
            (target / path.name).symlink_to(path)
    found = subprocess.run(
        [python, "-c", "import pyspark, cramjam, google_crc32c; import pyspark_penstock"],
        cwd=folder, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "ModuleNotFoundError: No module named 'pyspark_penstock'" in found.stderr, found.stderr
    return python


def zip_of_our_packages(path: Path) -> Path:
    """As docs/spark.md says that it is made: with its folders, without which Python finds no package that is a folder
    and nothing else."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package, source in SHIPPED.items():
            for file in [source / package, *sorted((source / package).rglob("*"))]:
                if file.suffix == ".py" or (file.is_dir() and file.name != "__pycache__"):
                    archive.write(file, file.relative_to(source))
    return path


@contextmanager
def connect_server(directory: Path, master: str, python: Path) -> Iterator[str]:
    """Where clients find it. It and its executors run `python`."""
    directory.mkdir()
    port = ports.choose_base()
    confs = STARTUP | {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.executor.memory": "512m",
        "spark.sql.streaming.stopTimeout": "180s",
    }
    words = [word for name, value in confs.items() for word in ("--conf", f"{name}={value}")]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {
        "SPARK_CONNECT_MODE": "0",  # as start-connect-server.sh has it
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(directory),
        "PYSPARK_PYTHON": str(python),
    }
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    submit = Path(pyspark.__file__).parent / "bin/spark-submit"
    log = directory / "log.txt"
    with log.open("w") as output:
        process = subprocess.Popen(
            [str(submit), "--class", server, "--name", "Connect", "--master", master, *words],
            env=environment, cwd=directory, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    try:

        def is_up() -> bool:
            assert process.poll() is None, log.read_text()[-3000:]
            return "Spark Connect server started at" in log.read_text()

        wait_for(is_up, "the server of Spark Connect", WAIT_S)
        yield f"sc://127.0.0.1:{port}"
    finally:
        for pid in members(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait(60)


def client(python: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs support/spark_connect_client.py with it."""
    script = Path(__file__).with_name("spark_connect_client.py")
    return subprocess.run(
        [str(python), "-P", str(script), *words],  # nothing of this folder is a module there
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=CLIENT_TIMEOUT_S, check=False,
    )  # fmt: skip
