"""What the machine tells: CPU times of everybody and of ours, calibrations, facts for the document, missing things."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import resource
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

import psutil
from bench.runner.noise import Noise, Reading, noise
from bench.runner.page_cache import PageCache

ROOT: Final = Path(__file__).resolve().parents[2]
CALIBRATION_ROUNDS: Final = 40
_CALIBRATION_BYTES: Final = 1024 * 1024
REST_CORES_MAX: Final = 0.25
REST_LOOKED_AT_S: Final = 0.25
REST_AWAITED_S: Final = 10.0
"""A system is at rest when it uses no more of a core than that while it is looked at; an idle cluster of Kafka uses
0.14. One that is not at rest after the last of these is calibrated beside all the same."""
FREE_BYTES_MIN: Final = 8_000_000_000
"""Three replicas of half a gigabyte for each of five contenders, and what Kafka prepares."""


class Missing(Exception):
    """Something that a bench needs is not there; the text is one line with the hint."""


@dataclass(frozen=True)
class Used:
    """CPU seconds and resident bytes of processes by role."""

    cpu_s: dict[str, float]
    rss_bytes: dict[str, list[int]]


def used(processes: Iterable[tuple[str, psutil.Process]]) -> Used:
    """Of living processes and of what they have started; the dead count with what their parents know of them."""
    cpu_s: dict[str, float] = {}
    rss_bytes: dict[str, list[int]] = {}
    for role, process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    cpu_s[role] = cpu_s.get(role, 0.0) + _cpu_s(one)
                    rss_bytes.setdefault(role, []).append(one.memory_info().rss)
    return Used(cpu_s, rss_bytes)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


SAMPLE_S: Final = 0.25


@contextlib.contextmanager
def counting(
    processes: list[tuple[str, psutil.Process]],
) -> Iterator[list[tuple[int, dict[str, float]]]]:
    """CPU seconds by role of these processes alone, again and again until the block ends, with CLOCK_MONOTONIC's time:
    what a run took is found without what came before its clock ran."""
    samples: list[tuple[int, dict[str, float]]] = []
    over = threading.Event()

    def count() -> None:
        sums: dict[str, float] = {}
        for role, process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                sums[role] = sums.get(role, 0.0) + _cpu_s(process)
        samples.append((time.monotonic_ns(), sums))

    def go_on() -> None:
        while not over.wait(SAMPLE_S):
            count()

    count()
    thread = threading.Thread(target=go_on, name="CPU by role")
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()
        count()


def reading(systems_s: float) -> Reading:
    """Now. `systems_s`: CPU seconds of the system under test. This process and the clients that it has waited for are
    ours too."""
    own = os.times()
    ours_s = own.user + own.system + own.children_user + own.children_system + systems_s
    times = psutil.cpu_times()
    # Guests' time is in user already.
    busy_s = times.user + times.nice + times.system + times.irq + times.softirq
    total_s = busy_s + times.idle + times.iowait + times.steal
    return Reading(total_s, busy_s, times.steal, ours_s)


def waiting() -> float:
    """How much longer a loop of fixed work took than the CPU time that it got, as a share of that."""
    block = b"x" * _CALIBRATION_BYTES
    begin, begin_cpu = time.perf_counter(), time.thread_time()
    for _ in range(CALIBRATION_ROUNDS):
        hashlib.sha256(block)
    cpu_s = time.thread_time() - begin_cpu
    return max(0.0, (time.perf_counter() - begin) / cpu_s - 1) if cpu_s > 0 else 0.0


def await_rest(
    cpu_s: Callable[[], float],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Until the system under test has come to rest: what is left to do after a run (followers, flushes, compilers of
    Java) would keep a calibration waiting as somebody else's work does. `cpu_s`: what it has used so far. False when it
    does not within REST_AWAITED_S."""
    until_s = clock() + REST_AWAITED_S
    begin_s, before_s = clock(), cpu_s()
    while clock() < until_s:
        sleep(REST_LOOKED_AT_S)
        now_s, after_s = clock(), cpu_s()
        if after_s - before_s <= REST_CORES_MAX * (now_s - begin_s):
            return True
        begin_s, before_s = now_s, after_s
    return False


class CpuCounter:
    """CPU seconds that processes and what they have started used so far. The dead, of whom nothing is left to read,
    count with what was last read of them."""

    def __init__(self, processes: list[tuple[str, psutil.Process]]) -> None:
        self._processes = processes
        self._known_s: dict[int, float] = {}

    def cpu_s(self) -> float:
        """Of all together, now."""
        for role, process in self._processes:
            counted = used([(role, process)]).cpu_s
            if counted:
                self._known_s[process.pid] = counted[role]
        return sum(self._known_s.values())


class Watch:
    """Looks at the machine before and after a run."""

    def __init__(self) -> None:
        self.noise: Noise | None = None

    @contextlib.contextmanager
    def over(self, processes: list[tuple[str, psutil.Process]]) -> Iterator[CpuCounter]:
        """Sets `noise` when the run has ended. Waits for the system's rest before and after, so count inside what a
        run takes. Who ends one of these processes reads the counter just before: its CPU would be taken for that of
        others."""
        counter = CpuCounter(processes)
        await_rest(counter.cpu_s)
        first = waiting()
        before = reading(counter.cpu_s())
        yield counter
        after = reading(counter.cpu_s())
        await_rest(counter.cpu_s)
        self.noise = noise(before, after, (first, waiting()))


def settle(cache: PageCache | None) -> None:
    """What earlier runs wrote shall not be written back during the next one; memory that they left free is filled."""
    subprocess.run(["sync"], check=True)
    if cache is not None:
        cache.fill()


def drop_from_cache(folder: Path) -> None:
    """Files of `folder` are on disk alone afterwards; they were synced before. Needs no rights but to read them."""
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file():
                handle = os.open(path, os.O_RDONLY)
                try:
                    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(handle)


def need(*, kafka: bool, compiler: bool, module: str = "", java_client: bool = False) -> None:
    """Raise Missing for the first program that is not there."""
    wanted = [("gcc", "the client of these runs is compiled: install gcc")] if compiler else []
    if kafka:
        wanted.append(("java", "Apache Kafka needs Java 17 or newer: install openjdk-17-jre-headless"))
    if java_client:
        wanted.append(("javac", "the Java client of these rows is compiled: install openjdk-17-jdk-headless"))
    if module == "bench.groups":
        wanted.append(("kcat", "the row groups sends by kcat: install kcat"))
    for program, hint in wanted:
        if shutil.which(program) is None:
            raise Missing(
                f"{program} is missing; {hint}, or choose rows without it (ONLY=, --systems penstock)"
            )


def need_space(folder: Path, least_bytes: int = FREE_BYTES_MIN) -> None:
    """Raise Missing when the disk below `folder` is too full for a run."""
    free = shutil.disk_usage(folder).free
    if free < least_bytes:
        raise Missing(
            f"{folder} has {free / 1e9:.1f} GB free and a visit takes up to {least_bytes / 1e9:.0f}: make room, or "
            "give --scratch a folder on another disk"
        )


def need_files(count: int) -> None:
    """Let this process, and those that it starts, have so many open files. Raises Missing where they may not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        raise Missing(f"a process may have {hard} open files here, and the row wants {count}: ulimit -n")
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def facts() -> dict[str, str]:
    """Of this machine, for the document: nothing that names it."""
    cores = psutil.cpu_count() or 1
    return {
        "cores": str(cores),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "Linux": platform.release().partition("-")[0],
        "Python": platform.python_version(),
        "load before": f"{os.getloadavg()[0]:.1f}",
    }


def versions(kafka: str) -> dict[str, str]:
    return {"Kafka": kafka, "confluent-kafka": version("confluent-kafka")}


def commit() -> str:
    """HEAD, with -dirty when something is not committed; "unknown" outside of a clone."""
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
