"""The processes that the proofs run in: pytest for each file or folder, simulation, planted bugs, chaos, a measurement.

Each tells its outcomes as soon as they are known, so that whoever is interrupted has them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any, Final

from ops.lines import CHAOS, PLANTED, SIMULATION, SPEED, SWITCHES, TESTS, Line, line_of, targets
from ops.recorder import LINES_VARIABLE, RECORD_VARIABLE
from ops.results import Outcome, Result

ROOT: Final = TESTS.parent
STOP_TIMEOUT_S: Final = 120.0
"""For a process that was interrupted to stop its clusters."""
STOP_SIMULATION_TIMEOUT_S: Final = 10.0
"""For one that has none."""
LOOK_INTERVAL_S: Final = 0.05
"""How soon a process under way hears that the run is interrupted."""
RATE_MB_PER_S: Final = 50
COPIES: Final = 4
"""Of the topic that is drained, on the disk at most: three replicas, and those that are made of it."""
ETA_WITHIN: Final = 0.2
BYTES_MAX: Final = 1.05
RATE_MIN: Final = 0.9
P99_TIMES_MAX: Final = 2.0
P99_MORE_MS: Final = 10.0
NO_TESTS_RAN: Final = 5
"""pytest's exit code where every test of a file is another line's."""


@dataclass(frozen=True)
class Sizes:
    """How much of what has a size."""

    seeds: int = 2_000
    first: int = 1
    chaos_seconds: float = 20.0
    chaos_seed: int | None = None
    drain_megabytes: int = 5_000


class Interrupted:
    """Whether Ctrl-C or TERM came.

    It is looked for between two steps. An exception in the middle of one would leave a process behind that has just
    been started, or lose what it told.
    """

    def __init__(self) -> None:
        self.times = 0

    def listen(self) -> None:
        """From now on. Also to an INT that was ignored, as in a script's background job: processes would inherit that,
        and no word from here would end them."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.times += 1


class Runs:
    """Runs the lines one after another into `results`."""

    def __init__(
        self, lines: Sequence[Line], sizes: Sizes, directory: Path, out: IO[str], interrupted: Interrupted
    ) -> None:
        self.results = [Result(line) for line in lines]
        self._interrupted = interrupted
        self._sizes, self._directory, self._out = sizes, directory, out
        self._by_name = {result.line.name: result for result in self.results}
        self._read = 0

    def run(self) -> bool:
        """All of them; False when that was interrupted. The process under way has ended by then."""
        todo = targets(result.line for result in self.results)
        for result in self.results:
            result.begun = True
            for other in result.line.others:
                self._other(other, result)
                if self._interrupted.times:
                    return False
            # A file may be in a folder that another line named, and is run with it then.
            mine = targets([result.line])
            for target in [each for each in todo if any(_overlap(each, own) for own in mine)]:
                self._pytest(target)
                if self._interrupted.times:
                    return False
                todo.remove(target)
            result.ended = True
        return True

    # --- pytest ---------------------------------------------------------------------------------

    def _pytest(self, target: str) -> None:
        record = self._directory / "outcomes.jsonl"
        record.touch()
        environment = SWITCHES | {
            RECORD_VARIABLE: str(record),
            LINES_VARIABLE: ",".join(self._by_name),
        }
        words = [sys.executable, "-m", "pytest", "-v", "-p", "ops.recorder", f"tests/{target}"]
        # kafka-python frees sockets of dials that failed when the interpreter ends, where no test's mark holds.
        words += ["-W", "ignore:unclosed <socket.socket:ResourceWarning"]
        before = len(record.read_text().splitlines())
        begun_s = time.monotonic()
        code = self._process(words, environment, STOP_TIMEOUT_S)
        # Whoever was killed may have written half of its last line.
        lines = [
            line for line in record.read_text().splitlines(keepends=True)[before:] if line.endswith("\n")
        ]
        told = [json.loads(line) for line in lines]
        for each in told:
            self._add(Outcome(**each))
        if self._interrupted.times:
            return
        if code not in (0, NO_TESTS_RAN) and not any(each["outcome"] == "failed" for each in told):
            seconds = time.monotonic() - begun_s
            self._add(Outcome(f"{target}::process", "failed", f"pytest ended with {code}", seconds), target)

    def _add(self, outcome: Outcome, target: str = "") -> None:
        line = line_of(outcome.test, [result.line for result in self.results])
        if line is None:
            line = next(r.line for r in self.results if not target or target in targets([r.line]))
        self._by_name[line.name].begun = True
        self._by_name[line.name].outcomes.append(outcome)

    # --- others ---------------------------------------------------------------------------------

    def _other(self, kind: str, result: Result) -> None:
        file = self._directory / f"{kind}.json"
        begun_s = time.monotonic()
        if kind == SPEED and (lacks := lacks_room(self._sizes.drain_megabytes)):
            result.outcomes.append(Outcome("drain", "skipped", lacks))
            return
        words = {
            SIMULATION: self._simulation,
            PLANTED: self._planted,
            CHAOS: self._chaos,
            SPEED: self._speed,
        }[kind](file)
        if not words:
            return
        is_chaos = kind == CHAOS
        with (self._directory / f"{kind}.txt").open("w+") as copy:
            stop_s = STOP_TIMEOUT_S if kind in (CHAOS, SPEED) else STOP_SIMULATION_TIMEOUT_S
            code = self._process(words, {"PYTHONHASHSEED": "0"}, stop_s, copy if is_chaos else None)
            copy.seek(0)
            if is_chaos:
                file.write_text(copy.read())
        told: Any = {}
        with suppress(OSError, ValueError):
            told = json.loads(file.read_text())
        outcomes = READERS[kind](told, time.monotonic() - begun_s)
        result.outcomes += outcomes
        if code and not self._interrupted.times and not any(each.outcome == "failed" for each in outcomes):
            result.outcomes.append(Outcome(kind, "failed", f"it ended with {code}"))

    def _simulation(self, file: Path) -> list[str]:
        sizes = self._sizes
        words = ["--seeds", str(sizes.seeds), "--first", str(sizes.first), "--json", str(file)]
        return [sys.executable, "-m", "simulation", *words]

    def _planted(self, file: Path) -> list[str]:
        names = " ".join(planted_names())
        return [sys.executable, "-m", "simulation", "--planted", names, "--json", str(file)]

    def _chaos(self, _file: Path) -> list[str]:
        names = scenario_names()
        if not names:
            return []
        seed = [] if self._sizes.chaos_seed is None else ["--seed", str(self._sizes.chaos_seed)]
        seconds = ["--seconds", str(self._sizes.chaos_seconds)]
        return [sys.executable, "-m", "chaos", "--json", *seconds, *seed, "--scenario", *names]

    def _speed(self, file: Path) -> list[str]:
        words = ["--megabytes", str(self._sizes.drain_megabytes), "--throttle", f"{RATE_MB_PER_S}MB/s"]
        return [sys.executable, "-m", "bench.drain", *words, "--json", str(file)]

    def _process(
        self, words: Sequence[str], environment: Mapping[str, str], stop_s: float, out: IO[str] | None = None
    ) -> int:
        """Its exit code; when the run is interrupted it has `stop_s` to end."""
        self._out.write(f"$ {' '.join(words[1:])}\n")
        self._out.flush()
        search = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
        # A session of its own: who is interrupted is told once, and by us, not by the terminal too.
        process = subprocess.Popen(
            words,
            cwd=ROOT,
            env=os.environ | environment | {"PYTHONPATH": search},
            stdout=out or self._out,
            start_new_session=True,
        )
        told_s = 0.0
        while not _has_ended(process):
            if self._interrupted.times and not told_s:
                told_s = time.monotonic()
                process.send_signal(signal.SIGINT)
            if self._interrupted.times > 1 or (told_s and time.monotonic() > told_s + stop_s):
                break
            time.sleep(LOOK_INTERVAL_S)
        if self._interrupted.times:
            # Not reaped yet, it keeps its number: what is in its session is what it left.
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Without reaping it."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _overlap(one: str, other: str) -> bool:
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def planted_names() -> list[str]:
    """Bugs that are planted into operations."""
    from simulation.planted_operations import ROWS

    return [row[0] for row in ROWS]


def scenario_names() -> list[str]:
    """Chaos with operations under way: of the module that is named after them."""
    import chaos.scenarios  # noqa: F401 - registers them
    from chaos.scenario import SCENARIOS

    return [s.name for s in SCENARIOS.values() if s.inject.__module__.endswith(".operations")]


def read_simulation(told: Mapping[str, Any], seconds: float) -> list[Outcome]:
    """Seeds that held are one outcome, those that failed one each."""
    failed = told.get("failed", [])
    held = told.get("seeds", 0) - len(failed)
    outcomes = [Outcome("seeds", "passed", seconds=round(seconds, 2), count=held)] if held else []
    return outcomes + [Outcome(f"seed {f['seed']}", "failed", str(f.get("invariant", ""))) for f in failed]


def read_planted(told: Mapping[str, Any], _seconds: float) -> list[Outcome]:
    """A bug that stays hidden is a failure."""
    return [
        Outcome(
            name, "passed" if invariant else "failed", "" if invariant else f"not in {seeds} seeds", took_s
        )
        for name, _what, seeds, invariant, _seed, took_s in told.get("planted", [])
    ]


def read_chaos(told: Mapping[str, Any], seconds: float) -> list[Outcome]:
    """The time is that of all, at the first."""
    outcomes: list[Outcome] = []
    for each in told.get("results", []):
        status = {"ok": "passed", "skipped": "skipped"}.get(each["status"], "failed")
        why = "" if status == "passed" else "; ".join([*each["notes"]] or [each["status"]])
        took_s = 0.0 if outcomes else round(seconds, 2)
        outcomes.append(Outcome(each["scenario"], status, why, took_s))
    return outcomes


def lacks_room(megabytes: int) -> str:
    """Why a topic of that size cannot be drained here; empty where it can."""
    needed = COPIES * megabytes
    free = shutil.disk_usage(tempfile.gettempdir()).free // 1_000_000
    return f"needs {needed:,} MB of disk for temporary files, {free:,} are free" if free < needed else ""


def read_speed(told: Mapping[str, Any], seconds: float) -> list[Outcome]:
    """What was promised of a drain at a fixed rate, each with its figures; the time is that of all, at the first.

    Producers' p99 is told, and fails nothing: who sets a rate gets it, whatever the machine has left for them.
    """
    if not told:
        return []
    eta, took = told["eta_s"] or 0.0, told["took_s"]
    bytes_ratio = told["copied_bytes"] / max(1, told["planned_bytes"])
    rate_ratio = told["busiest_bytes_per_s"] / (RATE_MB_PER_S * 1_000_000)
    before, meanwhile = told["p99_before_ms"], told["p99_meanwhile_ms"]
    held = meanwhile <= max(P99_TIMES_MAX * before, before + P99_MORE_MS)
    judged = (
        ("done", told["state"] == "done", f"it is {told['state']}"),
        ("failed deliveries", not told["failed"], f"{told['failed']}"),
        ("time", abs(eta - took) <= ETA_WITHIN * took, f"{eta:.1f} s planned, {took:.1f} s real"),
        ("bytes", bytes_ratio <= BYTES_MAX, f"{bytes_ratio:.3f} of the plan's"),
        ("rate", RATE_MIN <= rate_ratio <= 1, f"{rate_ratio:.3f} of what was given"),
    )
    outcomes = [Outcome(name, "passed" if ok else "failed", "" if ok else why) for name, ok, why in judged]
    p99 = Outcome("p99 of acks", "passed" if held else "skipped")
    if not held:
        p99 = Outcome(
            "p99 of acks", "skipped", f"not reached: {before:.1f} ms before, {meanwhile:.1f} meanwhile"
        )
    first = outcomes[0]
    return [Outcome(first.test, first.outcome, first.why, round(seconds, 2)), *outcomes[1:], p99]


READERS: Final[Mapping[str, Callable[[Mapping[str, Any], float], list[Outcome]]]] = {
    SIMULATION: read_simulation,
    PLANTED: read_planted,
    CHAOS: read_chaos,
    SPEED: read_speed,
}
