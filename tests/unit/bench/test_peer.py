"""bench.peer: what of it needs no Kafka."""

from __future__ import annotations

import uuid

import pytest
from bench import peer


def test_no_cluster_id_begins_like_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """One random id in 64 would, and `kafka-storage format -t` would not take it."""
    drawn = iter([uuid.UUID(int=0xF8 << 120), uuid.UUID(int=0xFB << 120), uuid.UUID(int=0xFC << 120)])
    monkeypatch.setattr(uuid, "uuid4", lambda: next(drawn))
    assert peer.random_cluster_id() == "_AAAAAAAAAAAAAAAAAAAAA"
