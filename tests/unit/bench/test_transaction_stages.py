"""bench.transaction_stages: what is made of looks at a cluster while a client measured."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from bench.runner.driver import ClientFailed, Told
from bench.stages import Snapshot, Thread
from bench.transaction_stages import LOADS, Load, Look, Run, flushes_of, made_of, main, show
from rich.console import Console

SECOND_NS = 1_000_000_000
METRICS = """\
# TYPE penstock_node_flush_seconds histogram
penstock_node_flush_seconds_bucket{kind="file",le="0.001"} 3
penstock_node_flush_seconds_bucket{kind="file",le="+Inf"} 4
penstock_node_flush_seconds_count{kind="file"} 4
penstock_node_flush_seconds_sum{kind="file"} 0.01
penstock_node_flush_seconds_bucket{kind="filesystem",le="+Inf"} 2
penstock_node_flush_seconds_count{kind="filesystem"} 2
penstock_node_flush_seconds_sum{kind="filesystem"} 0.02
# TYPE penstock_node_flush_bytes histogram
penstock_node_flush_bytes_count{kind="file"} 4
"""


def _told(transactions: int = 400) -> Told:
    return Told(
        transactions, 1024 * transactions, 4.0, 0.2, (), (), (5.0, 7.0, 8.0, 9.0), (6.0, 8.0, 9.0, 10.0), transactions,
        transactions, 10 * SECOND_NS, 14 * SECOND_NS,
    )  # fmt: skip


def _look(second: float, cpu_s: float, flushes: float) -> Look:
    threads = {("leader", 1, 1): Thread("loop", cpu_s, cpu_s / 2, round(1_000 * cpu_s))}
    size = round(1e6 * cpu_s)
    return Look(
        round(second * SECOND_NS),
        Snapshot(threads, {"leader": size}, 2 * size),
        {"leader": (flushes, flushes / 500)},
    )


def _run(looks: Sequence[Look], load: Load = LOADS[0]) -> Run:
    return made_of(load, "java", "fsync", _told(), looks)


def test_a_transaction_costs_what_was_used_while_the_client_measured() -> None:
    """Of four seconds two lie between looks, with half of the transactions."""
    run = _run(
        [_look(9.5, 0, 0), _look(11, 1, 100), _look(12, 1.5, 300), _look(13, 2, 500), _look(14.5, 90, 9_000)]
    )
    assert run.per_s == 100
    assert run.client_us == 500
    (cost,) = run.costs
    assert (cost.stage, cost.kind) == ("leader", "loop")
    assert (cost.cpu_us, cost.system_us, cost.sleeps) == pytest.approx((5_000, 2_500, 5))
    assert run.disk_bytes == {"leader": pytest.approx(5_000)}
    assert run.loopback_bytes == pytest.approx(10_000)
    assert run.flushes["leader"].count == pytest.approx(2)
    assert run.flushes["leader"].took_ms == pytest.approx(2)


def test_who_does_not_flush_is_not_told_of() -> None:
    assert _run([_look(11, 1, 7), _look(13, 2, 7)]).flushes == {}


def test_a_run_that_was_not_looked_at_twice_is_no_run() -> None:
    with pytest.raises(ClientFailed, match="one producer, back to back: too short to be looked at twice"):
        _run([_look(9, 0, 0), _look(11, 1, 1), _look(15, 2, 2)])


def test_flushes_of_both_kinds_are_added_up() -> None:
    number, seconds = flushes_of(METRICS)
    assert number == 6
    assert seconds == pytest.approx(0.03)


def test_it_is_shown() -> None:
    console = Console(width=110)
    with console.capture() as told:
        console.print(show(_run([_look(11, 1, 100), _look(13, 2, 500)])))
    text = " ".join(told.get().split())
    assert "one producer, back to back, java, fsync: 100.0 transactions/s" in text
    assert "leader │ loop │ 5000 │ 2500 │ 5.0" in text
    assert "commit p50 5.00 ms, p99 7.00; whole p50 6.00 ms, p99 8.00; servers 5000 us, client 500" in text
    assert "leader 2.00 flushes of 2.00 ms" in text


def test_a_time_that_cannot_be_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--seconds", "1"])
    assert "--seconds has to be from 3 to 120" in capsys.readouterr().err
