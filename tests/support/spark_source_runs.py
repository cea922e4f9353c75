"""Runs of `spark_source_faults`: what is killed under a task that stands, and what has been read in the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq

from penstock.local.cluster import LocalCluster
from support.kafka import describe
from support.spark_sink_runs import LIGHT_JVM, RUN_TIMEOUT_S, STARTUP, members
from support.spark_source_faults import put
from support.waiting import wait_for

WAIT_S = 400.0
_DRIVER = Path(__file__).with_name("spark_source_faults.py")
_EXECUTOR = b"CoarseGrainedExecutorBackend"
_EXECUTORS = 2
"""One on each worker of `standalone_spark`."""

Place = tuple[int, int, bytes]
"""Partition, offset, value."""


class Reading:
    """A driver of its own, and all that it has started."""

    def __init__(self, directory: Path, gateway: str, master: str, **given: str) -> None:
        """`directory` is there, and may be armed."""
        self.directory = directory
        words = [str(_DRIVER), "--directory", str(directory), "--gateway", gateway, "--master", master]
        words += [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]
        confs = STARTUP | {
            "spark.executor.memory": "600m",
            "spark.cores.max": "4",
            # What is compiled further costs more than it saves, for half of all executors are killed soon.
            "spark.executor.extraJavaOptions": LIGHT_JVM,
        }
        words += [word for name, value in confs.items() for word in ("--conf", f"{name}={value}")]
        with (directory / "log.txt").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, *words],
                env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(_DRIVER.parents[1])},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._last_go: Path | None = None

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """While the driver lives."""

        def there() -> bool:
            found = condition()
            assert found or self.process.poll() is None, self.said()
            return found

        wait_for(there, what, RUN_TIMEOUT_S)

    def wait_until_in_a_task(self, directory: Path, strike: str) -> tuple[int, int]:
        """Process id of the Python worker that has received some of a task's rows and waits, and the partition."""
        self._last_go = directory / f"go-{strike}"
        reached = directory / f"reached-{strike}"
        self.wait_for(reached.exists, f"a task in the middle of its rows for strike {strike}")
        worker, partition = reached.read_text().split()
        return int(worker), int(partition)

    def committed(self) -> int:
        """Number of the last micro-batch that Spark has noted as done, -1 before the first."""
        return max(self._commits(), default=-1)

    def wait_for_commit(self, batch_id: int) -> None:
        self.wait_for(lambda: self.committed() >= batch_id, f"micro-batch {batch_id} is done")

    def wait_for_executors(self) -> None:
        """Until there are as many as at first."""
        application = (self.directory / "application").read_text().encode()
        self.wait_for(lambda: len(_executors(application)) == _EXECUTORS, "executors")

    def check_done(self) -> None:
        code = self.process.wait(RUN_TIMEOUT_S)
        assert code == 0, self.said()

    def said(self) -> str:
        return (self.directory / "log.txt").read_text()[-3000:]

    def kill(self) -> None:
        if self._last_go is not None:
            self._last_go.touch()  # a worker of an executor is in no session of ours
        for pid in members(self.process.pid):
            os.kill(pid, signal.SIGKILL)
        self.process.wait(RUN_TIMEOUT_S)

    def rows(self, first: int = 0) -> Counter[Place]:
        """What was written by micro-batches from `first` on, by pyarrow alone."""
        return written(self._outputs(first))

    def places(self) -> Counter[tuple[int, int]]:
        """Partition and offset of all that was written."""
        found: Counter[tuple[int, int]] = Counter()
        for path in self._outputs(0):
            columns = pq.ParquetFile(path).read(["partition", "offset"]).to_pydict()
            found.update(zip(columns["partition"], columns["offset"], strict=True))
        return found

    def _outputs(self, first: int) -> list[Path]:
        paths = self.directory.glob("out/batch=*/part-*.parquet")
        return [path for path in paths if int(path.parent.name.partition("=")[2]) >= first]

    def _commits(self) -> list[int]:
        directory = self.directory / "checkpoint" / "commits"
        if not directory.is_dir():
            return []
        return [int(path.name) for path in directory.iterdir() if path.name.isdecimal()]


def written(paths: Iterable[Path]) -> Counter[Place]:
    """Rows of Parquet files."""
    found: Counter[Place] = Counter()
    for path in paths:
        # As a file: of a path with a = in it a data set makes a column.
        columns = pq.ParquetFile(path).read().to_pydict()
        found.update(zip(columns["partition"], columns["offset"], columns["value"], strict=True))
    return found


def arm(directory: Path, strike: str, after: int) -> None:
    """The next task that has received more than `after` Arrow batches stops."""
    put(directory / "armed", f"{strike} {after}")


def strike(cluster: LocalCluster, topic: str, victim: str, worker: int, partition: int) -> tuple[str, bool]:
    """Kills it: the name of a process that is to be started again, or "", and whether the worker held a
    connection to it."""
    if victim == "executor":
        executor = _executor_of(worker)
        os.kill(executor, signal.SIGKILL)
        wait_for(partial(_is_gone, executor), "the executor is gone", WAIT_S)
        return "", True
    # The driver was told of no other gateway.
    name = "gateway-1" if victim == "gateway" else f"node-{_leader(cluster.bootstrap, topic, partition)}"
    pid = cluster.state.processes_named([name])[0].pid
    assert pid is not None
    connected = _are_connected(worker, pid)
    cluster.kill(name)
    return name, connected


def check(rows: Counter[Place], everything: Counter[Place]) -> None:
    """Each record once, and nothing else."""
    doubled = [place for place, count in rows.items() if count > 1]
    assert not doubled, f"{len(doubled)} records are there twice, the first is {min(doubled)[:2]}"
    lost = everything - rows
    assert not lost, f"{lost.total()} records are lost, the first is {min(lost)[:2]}"
    others = rows - everything
    assert not others, f"{others.total()} rows are not of these records, the first is {min(others)[:2]}"


def check_batch(rows: Counter[Place], everything: Counter[Place], records_min: int) -> None:
    """The same of a batch read while the topic was written: its records below its ends, which are `records_min` or
    more and join to its start without a gap."""
    ends: Counter[int] = Counter()
    for partition, offset, _ in rows:
        ends[partition] = max(ends[partition], offset + 1)
    check(rows, Counter({place: 1 for place in everything if place[1] < ends[place[0]]}))
    assert rows.total() >= records_min, f"{rows.total()} of {records_min} records or more"


def _executor_of(worker: int) -> int:
    """The JVM above a Python worker."""
    pid = worker
    while pid > 1:
        if _EXECUTOR in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    raise AssertionError(f"no executor is above process {worker}")


def _executors(application: bytes) -> list[int]:
    """Live executors of an application."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if _EXECUTOR in words and application in words:
            found.append(int(path.parent.name))
    return found


def _leader(bootstrap: str, topic: str, partition: int) -> int:
    def known() -> list[int]:
        leader = describe(bootstrap, topic)[partition].leader
        return [leader] if leader >= 0 else []

    return wait_for(known, f"the leader of partition {partition}", WAIT_S)[0]


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def _are_connected(one: int, other: int) -> bool:
    """Whether two processes of this machine hold the two ends of a TCP connection."""
    ends = _connections(other)
    return any((remote, local) in ends for local, remote in _connections(one))


def _connections(pid: int) -> set[tuple[int, int]]:
    """Local and remote port of established connections."""
    inodes = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            kind, _, rest = str(path.readlink()).partition(":")
        except FileNotFoundError:
            continue
        if kind == "socket":
            inodes.add(rest.strip("[]"))
    found = set()
    for table in ("tcp", "tcp6"):
        path = Path(f"/proc/{pid}/net/{table}")
        for line in path.read_text().splitlines()[1:] if path.exists() else []:
            fields = line.split()
            local, remote = (int(end.rpartition(":")[2], 16) for end in fields[1:3])
            if fields[3] == "01" and fields[9] in inodes:  # ESTABLISHED
                found.add((local, remote))
    return found
