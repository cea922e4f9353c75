"""tools/results.py: what runners write as JSON becomes the tables of docs/results/, in their place."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import bench.connector.documents
import bench.runner.documents
import pytest

import chaos.run
import crash.matrix
import crash.rounds
from chaos.runner import as_json
from fuzz.runner import Outcome
from security.measure import Cost
from simulation.report import Totals
from simulation.world import Result as Seed
from unit.docs.repository import DOCS, ROOT

_HASH = re.compile(r"(?<![\w`#/.-])`?([0-9a-f]{7,12})`?(?![\w-])")
GONE = "since rebased"
"""What a page says in the same paragraph of a commit that no history has any more."""


def commits_named() -> list[tuple[str, str]]:
    """Every commit that a page of results names, with the page."""
    found: dict[tuple[str, str], None] = {}
    for page in sorted((DOCS / "results").glob("*.md")):
        for paragraph in page.read_text().split("\n\n"):
            if GONE in paragraph:
                continue
            for match in _HASH.finditer(paragraph):
                text = match[1]
                if not text.isdecimal() and not text.isalpha():
                    found[page.name, text] = None
    return list(found)


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(("git", "-C", str(ROOT), *arguments), capture_output=True, text=True, check=False)


@pytest.mark.skipif(
    shutil.which("git") is None or git("rev-parse", "--is-shallow-repository").stdout.strip() != "false",
    reason="a shallow clone, or no clone at all, has no history to look for commits in",
)
@pytest.mark.parametrize(("page", "commit"), commits_named())
def test_a_commit_that_results_are_of_is_in_the_history(page: str, commit: str) -> None:
    found = git("merge-base", "--is-ancestor", commit, "HEAD")
    assert found.returncode == 0, (
        f"docs/results/{page}: {commit} is no ancestor of HEAD: name one, or say {GONE!r}"
    )


def test_pages_of_results_name_commits() -> None:
    assert ("security.md", "217c0a0") in commits_named()


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("penstock_results_tool", ROOT / "tools" / "results.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tool = load_tool()


def seeds() -> Any:
    totals = Totals()
    totals.add(Seed(1, True, 0, 30_000, 61.0, counts={"truncations": 3}, injected={"node killed": 2}))
    totals.add(Seed(2, False, 0, 900, 12.0, "idempotence: twice", "idempotence"))
    return totals.as_json()


def chaos_run() -> Any:
    good = chaos.run.Result("halves", acks_before=6000, acked=28_601, gap_s=20.54, recovered_s=1.7)
    skipped = chaos.run.Result("leader-disk-full", status="skipped", notes=["no root"])
    return {"seed": 7, "results": as_json([good, skipped])}


def rounds() -> Any:
    report = crash.rounds.Report(
        "power-cut", 9, rounds=2, acked_records=24_182, back_in_s=[2.1, 2.4], dropped=[5, 6]
    )
    return report.to_json()


def failpoints() -> Any:
    result = crash.matrix.Result("log.append.before_write", "node-1", 104, 15_674, 0, 0, 0.71, 11.0, "ok")
    return {"seed": 3, "results": [asdict(result)]}


FIGURES = {
    "seeds": (seeds(), ["| seeds | 2 |", "| failed | 2 (idempotence: twice) |", "| node killed | 2 |"]),
    "planted": (
        {"planted": [["no-prevote", "nobody asks", 80, "it stays", 80, 1.0], ["x", "y", 300, "", 0, 9.0]]},
        ["| `no-prevote` | nobody asks | 80 | it stays |", "| `x` | y | **not in 300** |  |"],
    ),
    "chaos": (
        chaos_run(),
        ["| halves | 6000 | 28601 | 0 | 0 | 20.54 s | - | - | 1.70 s | ok |", "skipped: no root |"],
    ),
    "failover": (
        [{"fault": "leader killed", "gaps_s": [0.09, 0.28, 0.05]}],
        ["| leader killed | 3 | 0.09 s | 0.28 s |"],
    ),
    "failpoints": (
        failpoints(),
        ["| `log.append.before_write` | node-1 | 104 | 15674 | 0 | 0 | 0.7 | 11.0 | ok |"],
    ),
    "rounds": (rounds(), ["| `make power-cut`, seed 9 | 2 | 24,182 | 0 | 0 | 0 | 0 | 2.4 s / 2.4 s | 11 |"]),
    "fuzz": (
        {"seed": 4, "targets": [Outcome("kafka.request", executions=1000, accepted=10, cpu_s=0.5).figures()]},
        ["| `kafka.request` | 1,000 | 10 | 2,000 | 0 | 0 → 0 | 0 MiB | +0.0 MiB | ok |", "| all | 1,000 |"],
    ),
    "families": (
        {"seed": 5, "targets": [Outcome("sasl.plain", executions=1000, accepted=10, cpu_s=0.5).figures()]},
        ["| `sasl.plain` | 1,000 | 10 | 2,000 | 0 | 0 → 0 | 0 MiB | +0.0 MiB | ok |", "Seeds 5, one"],
    ),
    "bench": (
        bench.runner.documents.Document(
            "1a2b3c4",
            "2026-11-26",
            {"cores": "2"},
            {"Kafka": "4.3.1"},
            samples=[bench.runner.documents.Sample("failover", "penstock", 0, {"leader_killed_p50_s": 0.13})],
        ).to_json(),
        ["| longest wait of a client by gateway | leader killed p50, s | 0.13 |"],
    ),
    "transactions": (
        bench.runner.documents.Document(
            "1a2b3c4",
            "2026-11-26",
            {"cores": "2"},
            {"Kafka": "4.3.1"},
            suite="transactions",
            samples=[bench.runner.documents.Sample("copy-100ms", "fsync", 0, {"records_per_s": 2000.0})],
        ).to_json(),
        ["end to end at 1,000 records/s | records, 1/s | 2,000 |"],
    ),
    "security": (
        [
            asdict(Cost("idle_sockets", "many sockets", True, "shut", 12.4, 3.6, 0, 1.26, 180.0, 2)),
            asdict(
                Cost(
                    *("half_open", "hands", True, "shut", 9.0, 3.6, 0, 1.7, 180.0, 2),
                    lags_ms=(9.0, 8.0, 11.0),
                    p99_ratios=(2.1, 1.0, 1.7),
                )
            ),
        ],
        [
            "| idle sockets: many sockets | plain, a stranger | yes | shut | 12 | 4 | 0 | 1.3 | 180 | 2 |",
            "| half open: hands | plain, a stranger | yes | shut | 9, of 9, 8, 11 | 4 | 0 | 1.7, of 2.1, 1.0, 1.7 "
            "| 180 | 2 |",
        ],
    ),
    "spark": (
        bench.connector.documents.Document(
            *("1a2b3c4", "2026-11-21", {"cores": "2"}, {"Kafka": "4.3.1"}),
            runs=[
                bench.connector.documents.Run("count", "1 KiB", mode, 1, 1_000_000, took_s, took_s / 2)
                for mode, took_s in (("kafka", 3.0), ("gateway", 3.0), ("direct", 2.0))
            ],
        ).to_json(),
        ["| count | 1 KiB | direct | 333,333 | 500,000 | records/s | 1.50 | 1.50 | 1.00 | "],
    ),
}
"""What each runner writes, made by the runner's own classes, and rows that come of it."""


@pytest.mark.parametrize("name", sorted(tool.KINDS))
def test_what_a_runner_writes_becomes_a_table(name: str) -> None:
    held, rows = FIGURES[name]
    held = json.loads(json.dumps(held))
    text = tool.block(tool.KINDS[name], [held], commit="1a2b3c4", date="2026-11-21")
    assert text.startswith(f"`{tool.KINDS[name].commands[0]}`")
    assert text.partition("\n")[0].endswith("; 1a2b3c4, 2026-11-21.")
    for row in rows:
        assert row in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1, "every row has the columns of the head"


@pytest.mark.parametrize("name", sorted(tool.KINDS))
def test_each_kind_has_its_place_in_a_page(name: str) -> None:
    text = (DOCS / "results" / tool.KINDS[name].page).read_text()
    begin, end = tool.marks(name)
    assert text.count(begin) == text.count(end) == 1
    assert text.index(begin) < text.index(end)


def test_only_what_stands_between_the_marks_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begin, end = tool.marks("failover")
    page = tmp_path / "docs" / "results" / "chaos.md"
    page.parent.mkdir(parents=True)
    page.write_text(f"before\n\n{begin}\nold\n{end}\n\nafter\n")
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "RESULTS", page.parent)
    file = tmp_path / "failover.json"
    file.write_text(json.dumps(FIGURES["failover"][0]))
    arguments = ["failover", str(file), "--commit", "c0ffee0", "--date", "2026-11-22"]
    for _ in range(2):
        assert tool.main(arguments) == 0
    text = page.read_text()
    assert text.startswith(f"before\n\n{begin}\n\n`python -m bench.failover`; c0ffee0, 2026-11-22.\n")
    assert text.endswith(f"|\n\n{end}\n\nafter\n")
    assert "old" not in text
    assert capsys.readouterr().out == "written: docs/results/chaos.md\n" * 2


def test_a_bench_says_itself_of_which_commit_and_day_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, end = tool.marks("bench")
    (tmp_path / "docs" / "results").mkdir(parents=True)
    page = tmp_path / "docs" / "results" / "bench.md"
    page.write_text(f"{begin}{end}")
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "RESULTS", tmp_path / "docs" / "results")
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(FIGURES["bench"][0]))
    for arguments, told in (([], "1a2b3c4, 2026-11-26"), (["--date", "2026-11-30"], "1a2b3c4, 2026-11-30")):
        assert tool.main(["bench", str(file), *arguments]) == 0
        assert f"`make bench`; {told}." in page.read_text()


def test_what_cannot_be_read_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    for text in ("not json", "[]", '{"planted": 1}'):
        file.write_text(text)
        assert tool.main(["planted", str(file), "--commit", "c", "--date", "d"]) == 1
        error = capsys.readouterr().err
        assert error.startswith(str(file))
        assert error.count("\n") == 1
    with pytest.raises(ValueError, match="lacks"):
        tool.put("a page without marks", "planted", "x")
