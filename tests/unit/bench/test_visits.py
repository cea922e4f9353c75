"""bench.runner's doing parts, without a system: a visit's steps, other modules' figures, the client, hints."""

from __future__ import annotations

import json
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import pytest
from bench.peer import CACHE, KAFKA_VERSION
from bench.runner import __main__ as command
from bench.runner import driver, elsewhere, java, session
from bench.runner.documents import Sample
from bench.runner.driver import ClientFailed, Driver
from bench.runner.machine import Missing, Watch, need, need_files, need_space, waiting
from bench.runner.measures import Bench, Figures
from bench.runner.noise import Noise
from bench.runner.plan import TINY, Step, Visit
from bench.runner.rows import FSYNC, KAFKA, REPLICATED, ROWS, Kind, Layout, Row
from bench.runner.systems import Running, SystemFailed

ROW = Row("a", "a", Kind.PRODUCE, ("mb_per_s",), (KAFKA, REPLICATED, FSYNC))
NOISY = Noise(0.0, 0.5, 0.0)


class Stage:
    """A system that is none, and what was said and kept of a visit to it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Noise | Exception) -> None:
        self.answers = list(answers)
        self.said: list[str] = []
        self.kept: list[Sample] = []
        self.folders: list[Path] = []
        self.ended = 0
        monkeypatch.setattr(session, "SYSTEMS", {"penstock": self.open})
        monkeypatch.setattr(session, "MEASURES", {Kind.PRODUCE: self.measure})

    @contextmanager
    def open(self, folder: Path, _layout: Layout, _secure: bool) -> Iterator[Running]:
        self.folders.append(folder)
        try:
            yield Running("penstock", {}, MappingProxyType({}), list, folder, 0.0, lambda: None)
        finally:
            self.ended += 1

    def measure(self, bench: Bench, _step: Step) -> Figures:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        bench.watch.noise = answer
        return {"mb_per_s": 1.0}

    def visit(self, tmp_path: Path, *, accept_noise: bool = False) -> None:
        steps = (Step(ROW, REPLICATED), Step(ROW, FSYNC))
        session.make_visit(
            Visit(2, "penstock", Layout(), steps), tmp_path / "driver", tmp_path, TINY,
            secure=False, accept_noise=accept_noise, keep=self.kept.append, say=self.said.append,
        )  # fmt: skip


QUIET = Noise(0.0, 0.0, 0.0)


def test_each_step_is_kept_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, QUIET, QUIET)
    stage.visit(tmp_path)
    assert [(one.contender, one.round, one.void) for one in stage.kept] == [
        ("replicated", 2, ""),
        ("fsync", 2, ""),
    ]
    assert stage.ended == 1
    assert list(tmp_path.iterdir()) == []


def test_a_void_run_is_tried_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, NOISY, QUIET, NOISY, NOISY)
    stage.visit(tmp_path)
    assert [bool(one.void) for one in stage.kept] == [True, False, True, True]
    assert sum("once more" in line for line in stage.said) == 2


def test_where_noise_is_accepted_a_run_is_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, NOISY, QUIET)
    stage.visit(tmp_path, accept_noise=True)
    assert [bool(one.void) for one in stage.kept] == [True, False]


def test_a_client_that_fails_costs_its_run_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, ClientFailed("5 of 9 records within 60 s"), QUIET)
    stage.visit(tmp_path)
    assert [one.contender for one in stage.kept] == ["fsync"]
    assert stage.said[0] == "round 3: a, replicated: failed: 5 of 9 records within 60 s"


def test_a_system_that_fails_ends_the_visit_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(monkeypatch, SystemFailed("penstock: it is gone"))
    stage.visit(tmp_path)
    assert stage.said == ["round 3: penstock gave up: penstock: it is gone"]
    assert (stage.kept, stage.ended, list(tmp_path.iterdir())) == ([], 1, [])


def test_an_interrupted_visit_leaves_nothing_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, QUIET)
    monkeypatch.setattr(session, "MEASURES", {Kind.PRODUCE: _interrupted(stage)})
    with pytest.raises(KeyboardInterrupt):
        stage.visit(tmp_path)
    assert ([one.contender for one in stage.kept], stage.ended, list(tmp_path.iterdir())) == (
        ["replicated"],
        1,
        [],
    )


def _interrupted(stage: Stage) -> Callable[[Bench, Step], Figures]:
    def measure(bench: Bench, step: Step) -> Figures:
        if stage.kept:
            raise KeyboardInterrupt
        return stage.measure(bench, step)

    return measure


# -- other modules' figures ------------------------------------------------------------------------

HELD = {
    "failover": [{"fault": "leader-killed", "gaps_s": [0.1], "p50_s": 0.1, "max_s": 0.3}],
    "groups": {
        "cost": [
            {"system": "kafka", "way": "direct", "kind": "commit", "rounds_ms": [0.2, 0.3]},
            {"system": "penstock", "way": "proxy", "kind": "commit", "rounds_ms": [0.1, 0.1]},
            {"system": "penstock", "way": "direct", "kind": "commit", "rounds_ms": [9.0, 9.0]},
        ]
    },
    "spark": {"rows": [{"job": "count", "size": "1 KiB", "mode": "direct", "kafka": 100, "penstock": 150}]},
    "transactional-ids": {"idle_mb": 7.1, "load_s": 0.9, "late_ms": 3, "loaded_s": 2.5, "ids": 100_000},
}
MADE = {
    "failover": [("penstock", 0, {"leader_killed_p50_s": 0.1, "leader_killed_max_s": 0.3})],
    "groups": [
        ("kafka", 0, {"commit_cpu_ms": 0.2}),
        ("kafka", 1, {"commit_cpu_ms": 0.3}),
        ("penstock", 0, {"commit_cpu_ms": 0.1}),
        ("penstock", 1, {"commit_cpu_ms": 0.1}),
    ],
    "spark": [("kafka", 0, {"count_1_kib_direct": 100.0}), ("penstock", 0, {"count_1_kib_direct": 150.0})],
    "transactional-ids": [
        (
            "penstock",
            0,
            {"idle_ids_rss_mb": 7.1, "load_s": 0.9, "loop_late_ms": 3.0, "killed_to_loaded_s": 2.5},
        )
    ],
}
MODULE_ROWS = {row.name: row for row in ROWS if row.module}


@pytest.mark.parametrize("name", sorted(MODULE_ROWS))
def test_what_other_modules_write_becomes_samples(name: str) -> None:
    row = MODULE_ROWS[name]
    found = elsewhere.samples_of(row, json.loads(json.dumps(HELD[name])))
    assert [(one.contender, one.round, one.figures) for one in found] == MADE[name]
    shown = {figure for one in found for figure in one.figures}
    assert shown <= set(row.figures), "a table shows it"
    assert all(row.contender(one.contender) for one in found)


# -- the client ------------------------------------------------------------------------------------

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc compiles the driver")


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(driver, "CACHE", tmp_path / "cache")
    return driver.build()


@needs_gcc
def test_the_client_is_compiled_once(built: Path) -> None:
    before = built.stat().st_mtime_ns
    assert driver.build() == built
    assert built.stat().st_mtime_ns == before
    assert list(built.parent.iterdir()) == [built]


@needs_gcc
@pytest.mark.parametrize(
    ("what", "settings", "arguments", "why"),
    [
        ("dance", {}, {}, "dance: produce, consume, or latency"),
        ("latency", {}, {"records": 10}, "latency: produce, consume, or latency with a rate_per_s"),
        ("endure", {}, {}, "endure: produce, consume"),
        ("transact", {}, {"timeout_s": 1}, "init: "),
        ("repeat", {}, {"timeout_s": 1, "producers": 3}, "init: "),
        ("produce", {}, {"colour": "red"}, "colour: no such argument"),
        ("produce", {"no.such": "1"}, {}, 'No such configuration property: "no.such"'),
        ("produce", {"consumer:no.such": "1"}, {"timeout_s": 0}, "0 of 1 records within 0 s"),
    ],
)
def test_a_client_that_cannot_says_why(
    built: Path, tmp_path: Path, what: str, settings: dict[str, str], arguments: dict[str, object], why: str
) -> None:
    client = Driver(built, tmp_path, {})
    with pytest.raises(ClientFailed) as failed:
        client.run(what, "127.0.0.1:1", settings, clients=2, **arguments)
    assert why in str(failed.value)


needs_jars = pytest.mark.skipif(
    shutil.which("javac") is None or not (CACHE / f"kafka-{KAFKA_VERSION}" / "complete").exists(),
    reason="the Java client is compiled by a JDK with Kafka's jars, which Maven brings for other tests and the benches",
)


@needs_jars
@pytest.mark.parametrize(
    ("what", "why"),
    [("dance", "dance: transact, commits"), ("transact", "transactional_id is wanted")],
)
def test_a_java_client_that_cannot_says_why(tmp_path: Path, what: str, why: str) -> None:
    client = Driver(tmp_path / "none", tmp_path, {}, java.build()).by("java")
    with pytest.raises(ClientFailed) as failed:
        client.run(what, "127.0.0.1:1", {})
    assert why in str(failed.value)


# -- hints -----------------------------------------------------------------------------------------


def test_a_missing_program_is_named_with_the_way_to_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Missing, match=r"gcc is missing; .*install gcc"):
        need(kafka=True, compiler=True)
    with pytest.raises(Missing, match=r"java is missing; .*--systems penstock"):
        need(kafka=True, compiler=False)
    need(kafka=False, compiler=False)


def test_too_few_open_files_are_told_and_enough_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: asked.append(wanted))
    need_files(500)
    need_files(2000)
    assert asked == [(2000, 4096)]
    with pytest.raises(Missing, match="may have 4096 open files here, and the row wants 5000"):
        need_files(5000)


def test_a_full_disk_is_seen_before_a_visit(tmp_path: Path) -> None:
    need_space(tmp_path, 0)
    with pytest.raises(Missing, match=r"make room, or give --scratch"):
        need_space(tmp_path, 10**18)


def test_a_calibration_is_a_share() -> None:
    assert waiting() >= 0
    watch = Watch()
    with watch.over([]):
        pass
    assert watch.noise is not None


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--only", "nothing-like-it"], "ONLY=nothing-like-it: no row"),
        (["--only", "("], "ONLY=("),
    ],
)
def test_what_cannot_be_is_one_line(
    arguments: list[str], why: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert command.main(arguments) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"bench: {why}")
    assert said.count("\n") == 1


def test_the_list_names_every_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert command.main(["--list"]) == 0
    said = capsys.readouterr().out
    assert all(row.name in said for row in ROWS)
