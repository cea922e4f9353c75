"""bench.connector: what is kept of `make bench-spark`, which rows follow from it, and what is left to do."""

from __future__ import annotations

import cProfile
import json
import pstats
import time
from pathlib import Path
from typing import Any

import pytest
from bench.connector.documents import Document, Memory, Run, from_json, load, save
from bench.connector.goals import GOALS, JVM, KIB, MICRO_BATCH, SMALL
from bench.connector.jobs import TASKS
from bench.connector.plan import memory_left, rounds_left, sizes_needed, tasks_left
from bench.connector.profiles import profile_of
from bench.connector.tables import page

COUNT_KIB = next(task for task in TASKS if task.name == "count 1 KiB")
WRITE = next(task for task in TASKS if task.name.startswith("write"))


def document(**changes: Any) -> Document:
    return Document("1a2b3c4", "2026-11-30", {"cores": "2"}, {"Kafka": "4.3.1"}, **changes)


def one_round(number: int, **values_s: float) -> list[Run]:
    return [Run("count", KIB, mode, number, 1_000_000, value, value / 2) for mode, value in values_s.items()]


def test_rows_are_medians_of_rounds_and_are_judged_by_their_goals() -> None:
    runs = [
        run
        for number, direct_s in enumerate((2.0, 1.0, 4.0), 1)
        for run in one_round(number, kafka=3.0, gateway=3.0, direct=direct_s)
    ]
    gateway, direct = document(runs=runs).rows()
    assert (gateway.mode, gateway.kafka, gateway.penstock, gateway.ratio) == (
        "gateway",
        333333.3,
        333333.3,
        1.0,
    )
    assert (gateway.goal, gateway.missed) == (">= 1, CPU <= 1.2", "CPU 1.5 > 1.2")
    assert (direct.ratio, direct.penstock_cpu_s, direct.cpu_ratio, direct.rounds) == (1.5, 1.0, 0.67, 3)
    assert direct.missed == "CPU 1 > 0.85"


def test_micro_batches_and_the_jvm_are_to_be_small() -> None:
    runs = [
        Run(MICRO_BATCH, SMALL, mode, 1, 1, ms, 0.0) for mode, ms in (("kafka", 200.0), ("gateway", 250.0))
    ]
    memory = [Memory("kafka", 1000.0, (0.0, 0.0)), Memory("penstock", 900.0, (170.0, 171.5))]
    batches, jvm = document(runs=runs, memory=memory).rows()
    assert (batches.kafka, batches.penstock, batches.ratio, batches.missed) == (
        200.0,
        250.0,
        1.25,
        "1.25 > 1.2",
    )
    assert (jvm.job, jvm.kafka, jvm.penstock, jvm.ratio, jvm.missed) == (JVM, 1000.0, 900.0, 0.9, "")
    assert document(memory=memory[:1]).rows() == []
    assert document(memory=memory).to_json()["worker_mb"] == [170.0, 171.5]


def test_what_is_there_is_not_measured_again(tmp_path: Path) -> None:
    held = document(runs=one_round(2, kafka=3.0, gateway=3.0, direct=2.0))
    file = tmp_path / "spark.json"
    save(held, file)
    assert load(file) == held
    assert rounds_left(COUNT_KIB, 3, load(file)) == [1, 3]
    # Of a round that lacks a contender all are measured again.
    assert rounds_left(COUNT_KIB, 3, document(runs=held.runs[:2])) == [1, 2, 3]
    assert [(task.name, left) for task, left in tasks_left("count 1 KiB", 2, held)] == [("count 1 KiB", [1])]
    assert not tasks_left("count 1 KiB", 1, document(runs=one_round(1, kafka=1.0, gateway=1.0, direct=1.0)))
    assert sizes_needed([COUNT_KIB, WRITE], []) == {KIB}
    assert sizes_needed([WRITE], []) == set()
    reads = document(memory=[Memory("penstock", 900.0, (170.0,) * 50)])
    assert memory_left("", 50, reads) == ["kafka"]
    assert memory_left("memory", 51, reads) == ["kafka", "penstock"]
    assert memory_left("count", 50, reads) == []
    assert held.fits(document(size="quick")) == "its size is full, and this bench's quick"


def test_every_goal_has_a_row_that_is_measured() -> None:
    measured = {(job, task.size, one.mode) for task in TASKS for one in task.contenders for job in one.jobs}
    assert {key for key in GOALS if key[0] != JVM} <= measured
    for task in TASKS:
        connectors = [one for one in task.contenders if one.mode == "kafka"]
        assert len(connectors) == 1, "each round has one run of the connector"
        assert {job for one in task.contenders for job in one.jobs} == set(connectors[0].jobs)


@pytest.mark.parametrize("text", ["{", "[]", '{"form": 2}', '{"form": 1, "commit": ""}'])
def test_what_is_no_document_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(ValueError, match=r"other\.json"):
        load(tmp_path / "other.json")


def test_a_profile_says_where_time_goes_and_a_page_shows_it() -> None:
    profiler = cProfile.Profile()
    profiler.runcall(time.sleep, 0.01)
    profile = profile_of("count", KIB, "gateway", [pstats.Stats(profiler), pstats.Stats(profiler)])
    assert (profile.top[0].function, profile.top[0].calls) == ("time.sleep", 2)
    assert profile.top[0].own_s >= 0.02
    held = document(runs=one_round(1, kafka=3.0, gateway=3.0, direct=2.0), profiles=[profile])
    assert from_json(json.loads(json.dumps(held.to_json()))) == held
    text = page(held)
    assert "| count | 1 KiB | direct | 333,333 | 500,000 | records/s | 1.50 | 1.50 | 1.00 | " in text
    assert "| `time.sleep` | 0.0" in text
