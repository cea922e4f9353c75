"""The runner of `make ops-test`: whose each test is, what the table says, what is left of a run that is cut short."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from ops.lines import LINES, TESTS, Line, NoSuchLineError, chosen, files_of, line_of, targets
from ops.recorder import LINES_VARIABLE, RECORD_VARIABLE
from ops.results import Outcome, Result, as_json, is_ok, table
from ops.runs import (
    Interrupted,
    Runs,
    Sizes,
    planted_names,
    read_chaos,
    read_planted,
    read_simulation,
    read_speed,
)
from support.waiting import wait_for


def name_of(test: str) -> str | None:
    line = line_of(test)
    return line.name if line else None


def test_every_pattern_fits_a_test_of_its_own() -> None:
    """A pattern that fits nothing, or nothing that is not another's, shows nothing."""
    for line in LINES:
        assert line.patterns or line.others, line.name
        for pattern in line.patterns:
            assert files_of(pattern), f"{line.name}: {pattern} fits no file"
            tests = [
                f"{path.relative_to(TESTS)}::{test}"
                for file in files_of(pattern)
                for path in ([TESTS / file] if file.endswith(".py") else (TESTS / file).rglob("test_*.py"))
                for test in re.findall(r"def (test_\w+)", path.read_text())
            ]
            assert any(line_of(test, LINES) is line for test in tests), f"{line.name}: {pattern} fits no test"


def test_the_longest_pattern_has_the_test() -> None:
    assert name_of("tests/cluster/test_operations.py::test_a_node_is_removed") == "drain"
    assert name_of("tests/cluster/test_operations.py::test_the_replication_factor_is_raised[3]") == "factor"
    assert name_of("unit/controller/state/operations/test_planner.py::test_x") == "planner"
    assert name_of("unit/controller/state/operations/test_gates.py::test_x") == "engine"
    assert name_of("tests/observability/test_rules.py::test_x") == "alerts"
    assert name_of("tests/cluster/test_groups.py::test_x") is None


def test_a_file_in_a_named_folder_is_not_run_twice() -> None:
    found = targets(LINES)
    assert "observability" in found
    assert "observability/test_rules.py" not in found
    assert targets(chosen(["alerts"])) == ["observability/test_alerts_fire.py", "observability/test_rules.py"]


def test_words_choose_lines() -> None:
    assert [line.name for line in chosen(["disk", "survivor"])] == ["replace", "disk", "disaster"]
    assert chosen([]) == list(LINES)
    with pytest.raises(NoSuchLineError, match=r"'nonsense'.*--list"):
        chosen(["disk", "nonsense"])


A, B = Line("one", "the first thing holds", ("a",)), Line("two", "the second thing holds", ("b",))


def test_the_table_counts_and_says_why() -> None:
    good = Result(
        A,
        [
            Outcome("a::x", "passed", seconds=1.4),
            Outcome("seeds", "passed", seconds=2.0, count=2_000),
            Outcome("a::y", "skipped", "no docker", 0.1),
            Outcome("a::z", "skipped", "no docker", 0.1),
        ],
        begun=True,
        ended=True,
    )
    bad = Result(B, [Outcome("b::x", "failed", "assert 1 == 2", 3.0)], begun=True, ended=True)
    assert table([good, bad]).splitlines() == [
        "line  what holds              tests  passed  failed  skipped  seconds",
        "-----------------------------------------------------------------------------",
        "one   the first thing holds   2,003   2,001       0        2        4",
        "two   the second thing holds      1       0       1        0        3  failed",
        "-----------------------------------------------------------------------------",
        "all                           2,004   2,001       1        2        7",
        "one: skipped 2: no docker",
        "two: FAILED b::x: assert 1 == 2",
    ]
    assert is_ok([good])
    assert not is_ok([good, bad])
    told = as_json([good, bad], complete=True)
    assert (told["complete"], told["ok"]) == (True, False)
    assert [line["state"] for line in told["lines"]] == ["passed", "failed"]
    assert told["lines"][1]["outcomes"] == [
        {"test": "b::x", "outcome": "failed", "why": "assert 1 == 2", "seconds": 3.0}
    ]


def test_a_line_of_which_nothing_ran_has_failed() -> None:
    empty = Result(A, begun=True, ended=True)
    assert not is_ok([empty])
    assert "one: nothing was run" in table([empty])


def test_what_was_cut_short_is_told() -> None:
    begun, not_begun = Result(A, [Outcome("a::x", "passed")], begun=True), Result(B)
    lines = table([begun, not_begun]).splitlines()
    assert lines[2].endswith("cut short")
    assert lines[3].endswith("not run")
    assert not is_ok([begun])
    assert [line["state"] for line in as_json([begun, not_begun], complete=False)["lines"]] == [
        "cut-short",
        "not-run",
    ]


def test_what_the_other_runners_say_is_read() -> None:
    assert read_simulation({"seeds": 10, "failed": [{"seed": 7, "invariant": "I2"}]}, 5.0) == [
        Outcome("seeds", "passed", seconds=5.0, count=9),
        Outcome("seed 7", "failed", "I2"),
    ]
    assert read_planted({"planted": [["b", "what", 3, "I1", 3, 1.5], ["c", "what", 300, "", 0, 9.0]]}, 0) == [
        Outcome("b", "passed", "", 1.5),
        Outcome("c", "failed", "not in 300 seeds", 9.0),
    ]
    told = [
        {"scenario": "x", "status": "ok", "notes": ["by the way"]},
        {"scenario": "y", "status": "skipped", "notes": ["needs root"]},
        {"scenario": "z", "status": "void", "notes": []},
    ]
    assert read_chaos({"results": told}, 60.0) == [
        Outcome("x", "passed", "", 60.0),
        Outcome("y", "skipped", "needs root"),
        Outcome("z", "failed", "void"),
    ]
    assert len(planted_names()) >= 8


DRAINED = {
    "state": "done",
    "planned_bytes": 3_781_000_000,
    "copied_bytes": 3_798_000_000,
    "eta_s": 31.3,
    "took_s": 31.1,
    "busiest_bytes_per_s": 47_300_000.0,
    "p99_before_ms": 28.9,
    "p99_meanwhile_ms": 38.0,
    "failed": 0,
}


def test_a_measured_drain_is_judged_by_what_was_promised() -> None:
    told = read_speed(DRAINED, 100.0)
    assert [each.outcome for each in told] == ["passed"] * 6
    assert sum(each.seconds for each in told) == 100.0
    bad = {
        "state": ("failed", "done", "it is failed"),
        "failed": (3, "failed deliveries", "3"),
        "eta_s": (20.0, "time", "20.0 s planned, 31.1 s real"),
        "copied_bytes": (4_000_000_000, "bytes", "1.058 of the plan's"),
        "busiest_bytes_per_s": (53_000_000.0, "rate", "1.060 of what was given"),
    }
    for key, (value, test, why) in bad.items():
        found = [each for each in read_speed(DRAINED | {key: value}, 0) if each.outcome == "failed"]
        assert [(each.test, each.why) for each in found] == [(test, why)]
    assert read_speed(DRAINED | {"eta_s": None}, 0)[2].outcome == "failed", "no time was told"
    # Whoever sets a rate gets it: that producers feel it is told, and fails nothing.
    slow = read_speed(DRAINED | {"p99_meanwhile_ms": 190.6}, 0)[-1]
    assert (slow.outcome, slow.why) == ("skipped", "not reached: 28.9 ms before, 190.6 meanwhile")
    assert read_speed({}, 1.0) == [], "it ended before it measured anything"


def test_a_drain_that_this_disk_has_no_room_for_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ops.runs.shutil.disk_usage", lambda _: SimpleNamespace(free=19_999_000_000))
    results = []
    with (tmp_path / "log.txt").open("w") as out:
        runs = Runs(chosen(["speed"]), Sizes(), tmp_path, out, Interrupted())
        assert runs.run()
        results += runs.results
    skipped = [each for result in results for each in result.outcomes]
    assert [(each.outcome, each.why) for each in skipped] == [
        ("skipped", "needs 20,000 MB of disk for temporary files, 19,999 are free")
    ]


SOME_TESTS = """
import pytest

@pytest.fixture
def broken():
    yield
    raise RuntimeError("its end")

def test_good(): pass
def test_bad(): assert 1 == 2, "because"
def test_left(): pytest.skip("no docker")
def test_broken(broken): pass
"""


def test_the_recorder_tells_each_test_as_it_ends(tmp_path: Path) -> None:
    folder = tmp_path / "tests" / "upgrade"
    folder.mkdir(parents=True)
    (folder / "test_some.py").write_text(SOME_TESTS)
    (folder.parent / "test_of_nobody.py").write_text("def test_x(): pass")
    record = tmp_path / "record.jsonl"
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "ops.recorder", "--rootdir", str(tmp_path), "tests"],
        cwd=tmp_path,
        env=os.environ
        | {"PYTHONPATH": str(TESTS), RECORD_VARIABLE: str(record), LINES_VARIABLE: "upgrade,drain"},
        capture_output=True,
        check=False,
    )
    told = [json.loads(line) for line in record.read_text().splitlines()]
    assert [(t["test"].partition("::")[2], t["outcome"]) for t in told] == [
        ("test_good", "passed"),
        ("test_bad", "failed"),
        ("test_left", "skipped"),
        ("test_broken", "failed"),
    ]
    assert ["because" in told[1]["why"], told[2]["why"], told[3]["why"]] == [
        True,
        "no docker",
        "RuntimeError: its end",
    ]


@pytest.mark.parametrize("started", ["by a person", "as a script's background job, which ignores INT"])
def test_an_interrupted_run_prints_what_is_done(tmp_path: Path, started: str) -> None:
    """TERM in the middle of the simulation: the table is there, and the process under way has ended."""
    log = tmp_path / "log.txt"
    words = [sys.executable, "-m", "ops", "--only", "simulated disaster", "--seeds", "100000"]
    ignoring = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"] if "ignores" in started else []
    with log.open("w") as out:
        process = subprocess.Popen(
            [*ignoring, *words],
            env=os.environ | {"PYTHONPATH": str(TESTS)},
            stdout=out,
            stderr=out,
        )
        wait_for(lambda: "-m simulation" in log.read_text(), "the simulation runs", 60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 130
    text = log.read_text()
    assert re.search(r"^simulation .* cut short$", text, re.MULTILINE), text
    assert re.search(r"^disaster .* not run$", text, re.MULTILINE), text
    assert text.endswith("interrupted\n")


def test_who_is_interrupted_while_a_process_is_started_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moment at which an exception would lose it: it is there, and nobody has its number yet."""
    interrupted = Interrupted()
    begun: list[subprocess.Popen[bytes]] = []

    def start(words: list[str], **options: object) -> subprocess.Popen[bytes]:
        begun.append(real(words, **options))
        interrupted.times += 1
        return begun[-1]

    real: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen
    monkeypatch.setattr("ops.runs.subprocess.Popen", start)
    with (tmp_path / "log.txt").open("w") as out:
        runs = Runs(chosen(["simulated", "disaster"]), Sizes(seeds=100_000), tmp_path, out, interrupted)
        assert not runs.run()
    assert [process.poll() is not None for process in begun] == [True]
    assert [result.state for result in runs.results] == ["cut short", "not run"]


def test_unknown_words_are_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ops", "--only", "nonsense"],
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "'nonsense'" in done.stderr
