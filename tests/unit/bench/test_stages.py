"""bench.stages: whose threads they are, and what is made of two looks at them."""

from __future__ import annotations

import pytest
from bench.stages import Cost, Run, Snapshot, Thread, costs, kind_of, main, show, stage_of
from rich.console import Console


@pytest.mark.parametrize(
    ("name", "is_main", "kind"),
    [
        ("python", True, "loop"),
        ("python", False, "others"),
        ("event_engine", False, "gRPC"),
        ("grpc_global_tim", False, "gRPC"),
    ],
)
def test_kinds_of_threads(name: str, is_main: bool, kind: str) -> None:
    assert kind_of(name, is_main=is_main) == kind


@pytest.mark.parametrize(
    ("folder", "stage"),
    [
        ("node-2", "leader"),
        ("node-1", "followers"),
        ("node-12", "followers"),
        ("gateway-1", "gateway"),
        ("controller-3", "controllers"),
    ],
)
def test_stages_are_told_by_the_settings_file(folder: str, stage: str) -> None:
    command = ["python", "-P", "-m", "module", "--config", f"/d/{folder}/settings.toml"]
    assert stage_of(command, {"node-2": "leader"}) == stage


def test_costs_are_sums_over_the_threads_of_a_kind_and_over_the_records_bytes() -> None:
    before = Snapshot(
        {("leader", 1, 1): Thread("loop", 10, 4, 100), ("followers", 2, 2): Thread("loop", 1, 1, 0)}, {}, 0
    )
    after = Snapshot(
        {
            ("leader", 1, 1): Thread("loop", 12, 5, 1_100),
            ("leader", 1, 7): Thread("others", 0.5, 0.25, 10),
            ("leader", 1, 8): Thread("others", 0.5, 0.25, 10),
            ("followers", 2, 2): Thread("loop", 6, 3, 0),
        },
        {},
        0,
    )
    found = [
        (one.stage, one.kind, one.cpu_s_per_gb, one.system_s_per_gb, one.sleeps_per_mb)
        for one in costs(before, after, 2_000_000_000)
    ]
    assert found == [
        ("followers", "loop", 2.5, 1.0, 0.0),
        ("leader", "loop", 1.0, 0.5, 0.5),
        ("leader", "others", 0.5, 0.25, 0.01),
    ]


def test_at_a_rate_figures_are_told_by_the_record() -> None:
    cost = Cost("leader", "loop", cpu_s_per_gb=250, system_s_per_gb=50, sleeps_per_mb=1_000)
    run = Run("produce", "direct", "fsync", 2.0, 25, 15.0, {}, [cost], 2_000, 1_000, (1.5, 3.25, 4, 5))
    console = Console(width=110)
    with console.capture() as told:
        console.print(show(run))
    text = " ".join(told.get().split())
    assert "produce, direct, fsync: 1000 records/s" in text
    assert "leader │ loop │ 500 │ 100 │ 2.0" in text
    assert "ack p50 1.50 ms, p99 3.25 ms; all stages 500 us, client 50 us" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rates", "0"], "--rates have to be from 1 to 100000"),
        (["--record-bytes", "7"], "--record-bytes of at least 8 for --rates"),
    ],
)
def test_a_rate_that_cannot_be_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert said in capsys.readouterr().err
