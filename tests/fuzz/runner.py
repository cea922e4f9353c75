"""Has the child fuzz targets, and makes figures of what libFuzzer and the child say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from fuzz.target import MIB

_TESTS: Final = Path(__file__).resolve().parents[1]

GROWTH_BYTES_MAX: Final = 48 * MIB
"""What a process may grow from the first tenth of a run to its last: libFuzzer keeps its corpus in memory."""
BLOCKS_GROWTH_MAX: Final = 60_000
"""The same in Python's own allocations: caches fill, corpora do not count."""
_LEAST_EXECUTIONS: Final = 20_000
"""Below it a process is still warming up."""
_BLIND_EXECUTIONS: Final = 1_000
_STATUS: Final = re.compile(r"#\d+\s+(INITED|DONE)\s+cov: (\d+) ft: (\d+) corp: (\d+)/")


@dataclass
class Outcome:
    """One target's run."""

    target: str
    executions: int = 0
    accepted: int = 0
    cpu_s: float = 0.0
    edges: int = 0
    features: int = 0
    corpus_before: int = 0
    corpus_after: int = 0
    peak_rss_bytes: int = 0
    grown_bytes: int = 0
    grown_blocks: int = 0
    failure: str = ""
    log: str = field(default="", repr=False)

    def line(self) -> str:
        """For people, as it comes."""
        return (
            f"{self.target:26} {self.executions:>9,} executions  {self.rate:>7,.0f} per CPU second  "
            f"edges {self.edges:>4}  corpus {self.corpus_before} -> {self.corpus_after}  "
            f"peak {self.peak_rss_bytes // MIB} MiB  grown {self.grown_bytes / MIB:+.1f} MiB"
            + (f"\n  FAILED: {self.failure}" if self.failure else "")
        )

    @property
    def rate(self) -> float:
        """Executions in a second of CPU: on a busy machine the wall clock says nothing."""
        return self.executions / self.cpu_s if self.cpu_s else 0.0

    def add(self, other: Outcome) -> None:
        """Take in another run of the same target, which began with this one's corpus."""
        self.executions += other.executions
        self.accepted += other.accepted
        self.cpu_s += other.cpu_s
        self.edges = max(self.edges, other.edges)
        self.features = max(self.features, other.features)
        self.corpus_after = other.corpus_after
        self.peak_rss_bytes = max(self.peak_rss_bytes, other.peak_rss_bytes)
        self.grown_bytes = max(self.grown_bytes, other.grown_bytes)
        self.grown_blocks = max(self.grown_blocks, other.grown_blocks)
        self.failure = self.failure or other.failure

    def figures(self) -> dict[str, Any]:
        """For machines."""
        values = asdict(self)
        del values["log"]
        return values | {"executions_per_cpu_s": round(self.rate, 1)}


class Fuzzer:
    """The child process. A context manager: leaving it ends the child."""

    def __init__(self, directory: Path) -> None:
        """Corpora, logs and inputs that failed are kept in `directory`, by target."""
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._log = (directory / "import.log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fuzz.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            # What a target writes stays there too: libFuzzer ends forks without a chance to tidy up.
            env={**os.environ, "PYTHONPATH": str(_TESTS), "TMPDIR": str(directory)},
        )

    def __enter__(self) -> Fuzzer:
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            self._process.terminate()
        # End of input ends it; a fork that still runs is waited for.
        self._process.communicate()
        self._log.close()

    def fuzz(self, name: str, executions: int, seed: int) -> Outcome:
        """Fuzz one target to the end of its executions, or of its luck."""
        home = self._directory / name
        report = home / "report.json"
        report.unlink(missing_ok=True)
        for left in home.glob("*-*"):
            left.unlink()
        wanted = {"target": name, "executions": executions, "seed": seed, "home": str(home)}
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(wanted), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        outcome = Outcome(name)
        if not answer:
            outcome.failure = f"the fuzzer did not start: see {self._directory / 'import.log'}"
            return outcome
        outcome.log = (home / "log").read_text(errors="replace")
        read_log(outcome)
        if report.exists():
            read_report(outcome, json.loads(report.read_text()), executions)
        if not outcome.edges and outcome.executions >= _BLIND_EXECUTIONS:
            outcome.failure = (
                f"blind: nothing of {name} is instrumented; are its packages in fuzz.target.PACKAGES?"
            )
        if code := json.loads(answer)["code"]:
            outcome.failure = describe(outcome.log, code, sorted(home.glob("*-*")))
        return outcome


def read_log(outcome: Outcome) -> None:
    """Coverage and corpus, by libFuzzer's own lines."""
    for kind, edges, features, corpus in _STATUS.findall(outcome.log):
        if kind == "INITED":
            outcome.corpus_before = int(corpus)
        outcome.edges, outcome.features, outcome.corpus_after = int(edges), int(features), int(corpus)
    peak = re.search(r"stat::peak_rss_mb:\s+(\d+)", outcome.log)
    outcome.peak_rss_bytes = int(peak.group(1)) * MIB if peak else 0


def read_report(outcome: Outcome, report: dict[str, Any], executions: int) -> None:
    """Executions, and whether memory grew."""
    outcome.executions, outcome.accepted = report["executions"], report["accepted"]
    outcome.cpu_s = report["cpu_s"]
    samples = report["samples"]
    first = [sample for sample in samples if sample[0] <= executions // 10]
    last = [sample for sample in samples if sample[0] > executions - executions // 10]
    if not first or not last:
        return
    # Peaks come and go with single inputs; what stays is in the least of each tenth.
    outcome.grown_bytes = min(sample[1] for sample in last) - min(sample[1] for sample in first)
    outcome.grown_blocks = min(sample[2] for sample in last) - min(sample[2] for sample in first)
    if executions >= _LEAST_EXECUTIONS and (
        outcome.grown_bytes > GROWTH_BYTES_MAX or outcome.grown_blocks > BLOCKS_GROWTH_MAX
    ):
        outcome.failure = (
            f"memory grew by {outcome.grown_bytes} bytes, {outcome.grown_blocks} of Python's blocks"
        )


def describe(log: str, code: int, inputs: Sequence[Path]) -> str:
    """Why a child ended badly: the last of what it said, and the input."""
    wanted = re.search(r"(=== Uncaught Python exception: ===.*?)(?:\n==|\Z)", log, re.DOTALL)
    what = wanted.group(1).strip() if wanted else "\n".join(log.splitlines()[-12:])
    shown = "".join(f"\n  {path}: {path.read_bytes()[:2048].hex()}" for path in inputs)
    return f"exit code {code}\n{what}{shown}"


def table(outcomes: Sequence[Outcome]) -> str:
    """All of them, as Markdown."""
    rows = [
        "| target | executions | accepted | per CPU second | edges | corpus | peak RSS | grown |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows += [
        f"| `{one.target}` | {one.executions:,} | {one.accepted:,} | {one.rate:,.0f} | {one.edges} | "
        f"{one.corpus_before} → {one.corpus_after} | {one.peak_rss_bytes // MIB} MiB | "
        f"{one.grown_bytes / MIB:+.1f} MiB |"
        for one in outcomes
    ]
    cpu_s = sum(one.cpu_s for one in outcomes)
    executions = sum(one.executions for one in outcomes)
    rate = executions / cpu_s if cpu_s else 0
    failed = [one.target for one in outcomes if one.failure]
    rows.append(
        f"| all | {executions:,} | {sum(o.accepted for o in outcomes):,} | {rate:,.0f} | | | | |\n\n"
        + (f"FAILED: {', '.join(failed)}" if failed else "no crash, no hang, no growth")
    )
    return "\n".join(rows)
