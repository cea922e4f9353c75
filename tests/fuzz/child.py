"""Targets under atheris, each in a fork of one process: `runner` talks to it by lines of JSON.

To import everything with instrumentation takes seconds, so it is done once. A line on stdin names a target,
the number of executions, a seed and a directory; the answer is the fork's exit code. libFuzzer ends a process
itself, so a fork's figures are in the directory's `report.json` as they come, and what libFuzzer says in `log`.
The target `all` is every target in one: the first byte of an input chooses; `planted` has a fault.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import resource
import sys
import traceback
import warnings
from pathlib import Path
from typing import Final

import atheris

from fuzz.target import PACKAGES, Target

ADDRESS_SPACE_BYTES: Final = 6 << 30
RSS_MIB_MAX: Final = 1_200
HANG_S: Final = 900
"""Wall time of one input before libFuzzer ends it: generous, for on a busy machine a process waits. CPU is
bounded far more tightly, by `Target.check`."""
_SAMPLES: Final = 50
CRASHED: Final = "crash-input"

with atheris.instrument_imports(include=list(PACKAGES), enable_loader_override=False):
    from fuzz.targets import TARGETS
    from penstock_kafka.wire import codec

    codec.preload()


def all_in_one() -> Target:
    """Every target as one."""
    targets = list(TARGETS.values())

    def run(data: bytes) -> None:
        if data:
            targets[data[0] % len(targets)].check(data[1:])

    def seeds() -> list[bytes]:
        return [bytes((n,)) + seed for n, target in enumerate(targets) for seed in target.seeds[:6]]

    most = max(target.peak_bytes_max for target in targets)
    return Target("all", run, (), seeds, input_bytes_max=2048, peak_bytes_max=most)


def planted() -> Target:
    """A parser with a fault, which must be found: so a run that finds nothing has looked."""

    def run(data: bytes) -> None:
        if data[:1] == b"n":
            raise TypeError("the planted fault")

    return Target("planted", run, (), lambda: [b"yes"], input_bytes_max=16)


class Watch:
    """Counts executions, and notes memory as they go by."""

    def __init__(self, executions: int, report: Path) -> None:
        self._executions = executions
        self._report = report
        self._every = max(1, executions // _SAMPLES)
        self.count = 0
        self.accepted = 0
        self._samples: list[tuple[int, int, int]] = []

    def note(self, accepted: bool) -> None:
        self.count += 1
        self.accepted += accepted
        if self.count % self._every == 0 or self.count == self._executions:
            gc.collect()
            self._samples.append((self.count, _rss_bytes(), sys.getallocatedblocks()))
            self.write()

    def write(self) -> None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        figures = {
            "executions": self.count,
            "accepted": self.accepted,
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "samples": self._samples,
        }
        self._report.write_text(json.dumps(figures))


def _rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def fuzz(name: str, executions: int, seed: int, home: Path) -> None:
    """Fuzz one target. Does not return."""
    target = {"all": all_in_one, "planted": planted}.get(name, lambda: TARGETS[name])()
    corpus, words = home / "corpus", home / "dictionary"
    corpus.mkdir(parents=True, exist_ok=True)
    for data in target.seeds:
        (corpus / hashlib.blake2b(data, digest_size=16).hexdigest()).write_bytes(
            data[: target.input_bytes_max]
        )
        # What is made at first use is neither the input's memory nor its time.
        target.accepts(data)
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in target.words))
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    warnings.simplefilter("error")
    watch = Watch(executions, home / "report.json")
    gc.freeze()

    def one(data: bytes) -> None:
        try:
            accepted = target.check(data)
        except BaseException:
            (home / CRASHED).write_bytes(data)
            raise
        watch.note(accepted)

    arguments = [
        *("fuzz", str(corpus), f"-runs={executions}", f"-seed={seed % (1 << 32) or 1}"),
        *(f"-max_len={target.input_bytes_max}", f"-timeout={HANG_S}", f"-rss_limit_mb={RSS_MIB_MAX}"),
        *("-print_final_stats=1", f"-artifact_prefix={home}/", "-detect_leaks=0"),
        *([f"-dict={words}"] if target.words else []),
    ]
    atheris.Setup(arguments, one)
    atheris.Fuzz()


def _in_fork(name: str, executions: int, seed: int, home: Path) -> int:
    """Exit code of a fork that fuzzes; negative for a signal."""
    home.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    if (pid := os.fork()) == 0:
        code = 1
        try:
            log = os.open(home / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(log, 1)
            os.dup2(log, 2)
            fuzz(name, executions, seed, home)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _warm() -> None:
    """Make all seeds, and load kio's classes of every version: once, for all forks."""
    for name, target in TARGETS.items():
        for data in target.seeds:
            if name.startswith("kafka."):
                target.accepts(data)


def main() -> None:
    """Serve the runner."""
    _warm()
    for line in sys.stdin:
        wanted = json.loads(line)
        code = _in_fork(wanted["target"], wanted["executions"], wanted["seed"], Path(wanted["home"]))
        print(json.dumps({"code": code}), flush=True)


def _escaped(word: bytes) -> str:
    return "".join(chr(b) if 32 <= b < 127 and b not in (34, 92) else f"\\x{b:02x}" for b in word)


if __name__ == "__main__":
    main()
