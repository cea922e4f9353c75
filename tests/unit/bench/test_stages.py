"""bench.stages: whose threads they are, and what is made of two looks at them."""

from __future__ import annotations

import pytest
from bench.stages import Snapshot, Thread, costs, kind_of, stage_of


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
    assert stage_of(command, "node-2") == stage


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
