"""A little of `make fuzz`, the same at every run; and every input that once failed."""

from __future__ import annotations

import importlib.util
import random
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.plain import inputs
from fuzz.regressions import REGRESSIONS
from fuzz.runner import Outcome, read_log, read_report, table
from fuzz.target import MIB, PACKAGES, Target, TooMuch
from fuzz.targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]
SEED = 20_251_121
INPUTS_PER_SHARE = 12


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_what_is_near_them(name: str) -> None:
    """Of the seeds most are accepted: else what is near them would be refused at the first byte."""
    target = TARGETS[name]
    accepted = sum(target.check(data) for data in target.seeds)
    assert accepted * 2 > len(target.seeds)
    rng = random.Random(f"{SEED} {name}")
    count = INPUTS_PER_SHARE * target.share
    print(f"seed {SEED}, {count} inputs")
    for number, data in enumerate(inputs(target, rng, count)):
        try:
            target.check(data)
        except Exception as error:
            raise AssertionError(f"input {number} of seed {SEED}: {data.hex()}") from error


@pytest.mark.parametrize(("name", "what", "data"), REGRESSIONS, ids=[f"{r[0]}: {r[1]}" for r in REGRESSIONS])
def test_inputs_that_once_failed(name: str, what: str, data: bytes) -> None:
    TARGETS[name].check(data)


@pytest.mark.timeout(900)
@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None,
    reason="atheris is not installed: it has wheels for Linux on x86-64",
)
def test_coverage_guided(tmp_path: Path) -> None:
    """libFuzzer over all targets in one process, for a moment."""
    from fuzz.runner import Fuzzer

    with Fuzzer(tmp_path) as fuzzer:
        planted = fuzzer.fuzz("planted", 50_000, SEED)
        outcome = fuzzer.fuzz("all", 4_000, SEED)
    assert "the planted fault" in planted.failure
    assert "crash-input: 6e" in planted.failure
    print(f"seed {SEED}: {outcome.line()}")
    assert not outcome.failure, outcome.failure
    assert outcome.executions >= 4_000
    assert outcome.edges > 500


def test_coverage_sees_every_package() -> None:
    """One that is not named is fuzzed blindly: nothing says which input went a new way."""
    found = {folder.name for pattern in ("*/src/*", "*/*/src/*") for folder in ROOT.glob(pattern)}
    ours = {name for name in found if name.startswith(("penstock", "pyspark")) and name.isidentifier()}
    assert len(ours) > 8
    assert ours <= set(PACKAGES)


def test_words_choose_targets() -> None:
    command = [sys.executable, "-m", "fuzz", "--list", "--only", "records,proxy"]
    listed = subprocess.run(
        command, cwd=ROOT, env={"PYTHONPATH": "tests"}, capture_output=True, text=True, check=True
    )
    assert listed.stdout.split() == [
        name for name in TARGETS if name.startswith(("records", "proxy", "metadata.records"))
    ]


def test_what_counts_as_a_crash() -> None:
    def run(data: bytes) -> None:
        if data == b"refused":
            raise ValueError(data)
        if data == b"grows":
            # Above the most that this process ever had, but no more: the machine may have little left.
            most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            pages = int(Path("/proc/self/statm").read_text().split()[1]) if sys.platform == "linux" else 0
            kept.append(b"x" * (most - pages * resource.getpagesize() + 64 * MIB))
        if data == b"crashes":
            raise TypeError(data)

    kept: list[bytes] = []
    target = Target("planted", run, (ValueError,), lambda: [b"fine"])
    assert target.check(b"fine")
    assert not target.check(b"refused")
    with pytest.raises(TypeError):
        target.check(b"crashes")
    with pytest.raises(TooMuch, match="memory at once"):
        target.check(b"grows")


def test_figures_are_read_from_what_libfuzzer_says() -> None:
    outcome = Outcome("t")
    outcome.log = (
        "#12\tINITED cov: 60 ft: 80 corp: 9/1Kb exec/s: 0 rss: 90Mb\n"
        "#500\tDONE   cov: 67 ft: 99 corp: 24/2Kb lim: 77 exec/s: 100 rss: 94Mb\n"
        "stat::peak_rss_mb:              137\n"
    )
    read_log(outcome)
    assert (outcome.edges, outcome.corpus_before, outcome.corpus_after) == (67, 9, 24)
    steady = [[n * 1000, 100 * MIB, 500_000] for n in range(1, 51)]
    read_report(outcome, {"executions": 50_000, "accepted": 9, "cpu_s": 5.0, "samples": steady}, 50_000)
    assert not outcome.failure
    assert outcome.rate == 10_000
    growing = [[n * 1000, (100 + 2 * n) * MIB, 500_000] for n in range(1, 51)]
    read_report(outcome, {"executions": 50_000, "accepted": 9, "cpu_s": 5.0, "samples": growing}, 50_000)
    assert "memory grew" in outcome.failure
    assert "| `t` | 50,000 |" in table([outcome])
