"""List of failpoints, calls in the code and table in the docs agree; unarmed, a call is next to nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from crash.failpoint_table import BEGIN, END, table
from penstock_core.failpoints import FAILPOINTS
from penstock_runtime.addresses import StartupError
from penstock_runtime.failpoints import parse

ROOT = Path(__file__).parents[2]
CALL = re.compile(r"(?<![\w.])hit\(\s*\"([a-z_.]+)\"")


def calls_in_code() -> Counter[str]:
    found: Counter[str] = Counter()
    for package in ("services", "libs"):
        for path in (ROOT / package).glob("*/src/**/*.py"):
            if path.name != "failpoints.py":
                found.update(CALL.findall(path.read_text()))
    return found


def test_every_failpoint_is_in_the_code_and_every_call_is_listed() -> None:
    assert set(calls_in_code()) == set(FAILPOINTS)


def test_there_are_as_many_as_promised() -> None:
    assert len(FAILPOINTS) >= 36


def test_table_in_the_docs_is_the_generated_one() -> None:
    text = (ROOT / "docs/testing/crash.md").read_text()
    assert text.partition(BEGIN)[2].partition(END)[0].strip() == table().strip(), (
        "run python -m crash.failpoint_table"
    )


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("log.append.before_writ=kill", "no failpoint"),
        ("log.append.before_write", "not name=action"),
        ("log.append.before_write=torn", "torn_write"),
        ("log.append.torn_write=kill", "torn_write"),
        ("produce.before_answer=eio", "no disk error"),
        ("produce.before_answer=pause", "milliseconds"),
        ("produce.before_answer=kill:5", "milliseconds"),
        ("produce.before_answer=pause:600001", "milliseconds"),
    ],
)
def test_bad_words_are_refused_by_name(text: str, word: str) -> None:
    with pytest.raises(StartupError, match=word):
        parse(text)


def test_the_nth_hit_only_or_every_one() -> None:
    armed = parse("log.append.before_write=kill@3; produce.before_answer=pause:5")
    assert [armed["log.append.before_write"].is_due() for _ in range(5)] == [False, False, True, False, False]
    assert [armed["produce.before_answer"].is_due() for _ in range(3)] == [True] * 3


FOLLOWER = """
import sys
from penstock_core.failpoints import hit
from penstock_runtime.failpoints import arm_from_environment
arm_from_environment(allowed=True)
for _ in sys.stdin:
    try:
        hit("log.append.before_write")
        print("passed", flush=True)
    except OSError as error:
        print(error.errno, flush=True)
"""


def test_a_file_arms_and_disarms_while_the_process_runs(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", FOLLOWER],
        cwd=tmp_path,
        env={"PENSTOCK_FAILPOINTS": "@faults"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert "ARMED" in child.stdout.readline()
    answers = []
    for text in (None, "log.append.before_write=enospc", "", "log.append.before_write=eio", "nonsense", None):
        file = tmp_path / "faults"
        if text is None:
            file.unlink(missing_ok=True)
        else:
            file.write_text(text)
        child.stdin.write("\n")
        child.stdin.flush()
        answers.append(child.stdout.readline().strip())
    _, errors = child.communicate()
    assert answers == ["passed", "28", "passed", "5", "passed", "passed"]
    assert "'nonsense' is not name=action" in errors
    assert child.returncode == 0


def test_a_run_that_does_not_say_so_is_not_armed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock_gateway", "--gateway-id", "g", "--controllers", "127.0.0.1:1"],
        env={"PENSTOCK_FAILPOINTS": "log.append.before_write=kill"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2, done
    (line,) = done.stderr.splitlines()
    assert "unset it, or give --allow-failpoints" in line


CHILD = """
import sys
from penstock_core.failpoints import hit, torn
from penstock_runtime.failpoints import arm_from_environment
arm_from_environment(allowed=True)
for number in range(5):
    if torn("log.append.torn_write"):
        print("half", number, flush=True)
        hit("log.append.torn_write")
    try:
        hit("log.append.before_write")
    except OSError as error:
        print(error.errno, number, flush=True)
"""


@pytest.mark.parametrize(
    ("text", "code", "out"),
    [
        ("log.append.before_write=kill@2", -9, ""),
        ("log.append.before_write=exit", 71, ""),
        ("log.append.before_write=eio@4", 0, "5 3\n"),
        ("log.append.before_write=enospc", 0, "".join(f"28 {n}\n" for n in range(5))),
        ("log.append.torn_write=torn@3", -9, "half 2\n"),
        ("log.append.before_write=pause:1", 0, ""),
        ("", 0, ""),
    ],
)
def test_actions_in_a_process(text: str, code: int, out: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        env={"PENSTOCK_FAILPOINTS": text},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done
    assert done.stdout.partition("\n")[2].endswith(out) if text else done.stdout == out  # after the warning
    assert ("failpoint log.append." in done.stderr) == bool(text)


def test_an_unarmed_call_costs_little() -> None:
    """As a ratio of the cheapest thing that a batch pays for anyway: its header's unpacking."""
    code = """
import timeit
from penstock_core.failpoints import hit
from penstock_kafka.records.batch import read_header
header = bytes(8) + (80).to_bytes(4, "big") + bytes(4) + b"\\x02" + bytes(60)
call = min(timeit.repeat(lambda: hit("log.append.before_write"), number=20_000, repeat=9))
read = min(timeit.repeat(lambda: read_header(header), number=20_000, repeat=9))
print(call / read)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    ratio = float(done.stdout)
    print(f"an unarmed failpoint costs {ratio:.3f} of reading one batch header")
    assert ratio < 1
