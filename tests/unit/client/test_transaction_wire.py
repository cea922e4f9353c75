"""Questions about transactions, to a coordinator that has just begun to coordinate."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from penstock.cli import transaction_wire as tw
from penstock.cli import wire
from penstock.errors import CommandError

CLUSTER = tw.Cluster("127.0.0.1:1", {1: "127.0.0.1:1"}, {})


def answer(code: int, *names: str) -> bytes:
    """Of ListTransactions 2."""
    rows = b"".join(
        wire.compact(name) + struct.pack(">q", 7) + wire.compact("Ongoing") + b"\x00" for name in names
    )
    return struct.pack(">ih", 0, code) + wire.count_of(0) + wire.count_of(len(names)) + rows + b"\x00"


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Iterator[bytes]]:
    """What the coordinator says, one after another; time passes in between and nobody waits."""
    now_s = 0.0

    def pause(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    monkeypatch.setattr(tw, "time", SimpleNamespace(monotonic=lambda: now_s, sleep=pause))

    def say(*given: bytes) -> Iterator[bytes]:
        left = iter(given)
        monkeypatch.setattr(wire, "ask", lambda *_, **__: next(left))
        return left

    return say


def test_ids_that_are_being_read_are_waited_for(answers: Callable[..., Iterator[bytes]]) -> None:
    """As Kafka's admin client does (ListTransactionsHandler)."""
    left = answers(answer(14), answer(14), answer(0, "a", "b"))
    found, unknown = tw.list_transactions(CLUSTER)
    assert ([each.transactional_id for each in found], unknown, list(left)) == (["a", "b"], [], [])


def test_nobody_waits_for_ever(answers: Callable[..., Iterator[bytes]]) -> None:
    answers(*[answer(14)] * 10_000)
    with pytest.raises(CommandError, match="ask again"):
        tw.list_transactions(CLUSTER)


def test_other_errors_are_told_at_once(answers: Callable[..., Iterator[bytes]]) -> None:
    answers(answer(31))
    with pytest.raises(CommandError, match="no right to the cluster"):
        tw.list_transactions(CLUSTER)
