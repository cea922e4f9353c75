"""bench.runner.documents, tables, charts and store: what is kept, and what is made of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from bench.runner import store
from bench.runner.charts import charts
from bench.runner.documents import Document, Sample, from_json, summaries
from bench.runner.noise import Noise
from bench.runner.pictures import draw
from bench.runner.plan import Run
from bench.runner.rows import ROWS, Kind, choose
from bench.runner.tables import goal_line, number, page_block, readme_block, words

ROW = "produce-1k-1p"


def sample(contender: str, number: int, speed: float, void: str = "", row: str = ROW) -> Sample:
    figures = {"mb_per_s": speed, "servers_cpu_s_per_gb": 1000 / speed}
    return Sample(row, contender, number, figures, Noise(0.0, 0.02, 0.0), void)


def document(*samples: Sample, **changes: object) -> Document:
    made = Document("1a2b3c4", "2026-11-26", {"cores": "2"}, {"Kafka": "4.3.1"}, samples=list(samples))
    return replace(made, **changes)  # type: ignore[arg-type]


PAIRS = [sample("kafka", n, 50.0 + n) for n in range(5)] + [
    sample("replicated", n, 6 * (50.0 + n)) for n in range(5)
]


def test_a_document_is_read_as_it_was_written() -> None:
    held = document(*PAIRS, Sample("start-cluster", "kafka", 0, {"start_to_ack_s": 8.4}), secure=True)
    assert from_json(json.loads(json.dumps(held.to_json()))) == held


@pytest.mark.parametrize("held", [[], {}, {"form": 99}, {"form": 1}, {"form": 1, "samples": [{"row": "a"}]}])
def test_what_is_no_document_is_refused(held: object) -> None:
    with pytest.raises(ValueError, match="document of a bench"):
        from_json(held)


def test_void_runs_are_kept_and_do_not_count_and_are_done_again() -> None:
    held = document(sample("kafka", 0, 1.0, "others"), sample("kafka", 1, 50.0))
    assert held.done() == {Run(ROW, "kafka", 1)}
    (found,) = summaries(held)
    assert found.spreads["kafka", "mb_per_s"].median == 50.0
    assert found.void == 1
    assert replace(held, accepted_noise=True).done() == {Run(ROW, "kafka", 0), Run(ROW, "kafka", 1)}


def test_the_last_sample_of_a_run_counts() -> None:
    (found,) = summaries(document(sample("kafka", 0, 1.0), sample("kafka", 0, 2.0)))
    assert found.spreads["kafka", "mb_per_s"].low == 2.0


def test_ratios_and_goals_are_of_rounds_that_both_have() -> None:
    (found,) = summaries(document(*PAIRS, sample("replicated", 7, 1e9)))
    assert found.contenders == ("kafka", "replicated")
    assert found.ratios["replicated", "mb_per_s"].pairs == 5
    assert found.ratios["replicated", "mb_per_s"].median == pytest.approx(6)
    judged = {(one.goal.contender, one.goal.figure): one.verdict for one in found.goals}
    assert judged == {
        ("replicated", "mb_per_s"): "reached",
        ("replicated", "servers_cpu_s_per_gb"): "reached",
    }


def test_a_goal_against_nobody_is_for_the_figure_itself() -> None:
    held = document(Sample("idle", "penstock", 0, {"idle_cores": 0.02}))
    (found,) = summaries(held)
    (judged,) = found.goals
    assert goal_line(found.row, judged)[2:] == (
        *("idle, cores", "<= 0.03", "0.02", "one pair", "1", "reached (few pairs)"),
    )


def test_another_occasion_is_told_by_what_differs() -> None:
    assert document().fits(document()) == ""
    assert document().fits(document(size="quick")) == "its size is full, and this bench's quick"
    assert document().fits(document(commit="else")) == "its commit is 1a2b3c4, and this bench's else"


def test_pages_have_whole_tables() -> None:
    latency = [
        Sample(f"latency-{rate}", who, 0, {"ack_p50_ms": 1.0, "ack_p99_ms": 9.0})
        for rate in (100, 1000)
        for who in ("kafka", "fsync")
    ]
    held = document(*PAIRS, *latency, sample("kafka", 6, 1.0, "others"))
    for text in (page_block(held), readme_block(held)):
        assert "Kafka 4.3.1" in text
        assert "1 runs were void" in text
        blocks = [block for block in text.split("\n\n") if block.startswith("|")]
        assert blocks
        for block in blocks:
            assert len({line.count("|") for line in block.splitlines()}) == 1, block
    assert (
        "| RF 3, acks=all, 1 KiB, 1 partition | MB/s | 52.0 (50.0 to 54.0) | 312 (300 to 324), x 6.00 |"
        in page_block(held)
    )
    # Which of two a figure is of is told by its place, where the other has none too.
    assert "| RF 3, acks=all, 1 KiB, 1 partition: MB/s | 52.0 | 312 / - |  |" in readme_block(held)


def test_pages_say_when_noise_was_accepted() -> None:
    held = document(sample("kafka", 0, 50.0, "others"), accepted_noise=True)
    assert "1 of 1 runs were noisy, and count all the same" in page_block(held)


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.0123, "0.012"), (0.5, "0.50"), (12.34, "12.3"), (1234.5, "1,234")]
)
def test_numbers_have_three_digits_that_count(value: float, text: str) -> None:
    assert number(value) == text


def test_figures_in_words() -> None:
    assert words("servers_cpu_s_per_gb") == "servers, CPU s/GB"
    assert words("mb_per_s") == "MB/s"
    assert words("ack_p99_ms") == "ack p99, ms"


def test_curves_have_at_least_two_rates_in_order_and_bars_their_spread() -> None:
    latency = [Sample(f"latency-{rate}", "kafka", 0, {"ack_p99_ms": float(rate)}) for rate in (5000, 100)] + [
        Sample("latency-100", "fsync", 0, {"ack_p99_ms": 3.0})
    ]
    found = {chart.name: chart for chart in charts(document(*PAIRS, *latency))}
    assert set(found) == {"produce", "cpu-produce", "ack"}
    assert [point.x for point in found["ack"].series["kafka"]] == ["100", "5000"]
    assert set(found["ack"].series) == {"kafka"}
    (bar,) = found["produce"].series["kafka"]
    assert (bar.x, bar.low, bar.median, bar.high) == (ROW, 50.0, 52.0, 54.0)


def test_pictures_of_one_document_are_the_same_bytes(tmp_path: Path) -> None:
    held = document(*PAIRS, *(Sample(f"latency-{n}", "kafka", 0, {"ack_p50_ms": 2.0}) for n in (100, 1000)))
    made = draw(charts(held), tmp_path / "a", "x")
    again = draw(charts(held), tmp_path / "b", "x")
    assert [path.name for path in made] == ["x-produce.svg", "x-cpu-produce.svg", "x-ack-median.svg"]
    assert [path.read_bytes() for path in made] == [path.read_bytes() for path in again]


def test_documents_on_disk(tmp_path: Path) -> None:
    held = document(*PAIRS)
    file = tmp_path / "new" / store.file_name(held)
    assert file.name == "2026-11-26-1a2b3c4.json"
    store.save(held, file)
    store.save(held, file)
    assert store.load(file) == held
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    file.write_text("{")
    with pytest.raises(ValueError, match=file.name):
        store.load(file)
    names = {
        store.file_name(document(**change))
        for change in ({}, {"size": "quick"}, {"secure": True}, {"accepted_noise": True})
    }
    assert len(names) == 4


def test_rows_have_names_of_their_own_and_goals_of_their_contenders_and_figures() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        for goal in row.goals:
            assert row.contender(goal.contender) in row.contenders
            assert goal.figure in row.figures
            if goal.against:
                row.contender(goal.against)
        assert (row.kind is Kind.ELSEWHERE) == bool(row.module)


def test_rows_are_chosen_by_name() -> None:
    assert [row.name for row in choose("^latency-1", quick=False)] == ["latency-100", "latency-1000"]
    assert all(row.quick for row in choose("", quick=True))
    assert choose("", quick=False) == ROWS
    assert [row.name for row in choose("spark", quick=True)] == ["spark"]
    with pytest.raises(LookupError, match="ONLY=nothing"):
        choose("nothing", quick=False)
    with pytest.raises(ValueError, match=r"ONLY=\("):
        choose("(", quick=False)
