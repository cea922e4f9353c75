"""Workers give back what they have freed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pyspark_penstock import memory

FRAGMENTED = """
import pyarrow  # is there where rows are read, and is large itself

from pyspark_penstock.memory import give_back, resident_bytes

before = resident_bytes()
blocks = [bytes([1]) * 65_000 for _ in range(4000)]
blocks[:-1] = []  # the last one holds the end of the heap, so that nothing goes back by itself
held = resident_bytes()
give_back({kept})
print(held - before > 200_000_000, resident_bytes() - before < 40_000_000)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
@pytest.mark.parametrize(("kept", "is_back"), [(100 << 20, "True"), (10 << 30, "False")])
def test_what_was_freed_goes_back_above_the_bound(kept: int, is_back: str) -> None:
    code = FRAGMENTED.format(kept=kept)
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert ran.stdout.split() == ["True", is_back]


def test_it_is_given_back_behind_the_last_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(memory, "give_back", lambda: calls.append("given"))
    batches = memory.giving_back(iter([1, 2]))
    assert [next(batches), next(batches)] == [1, 2]
    assert calls == []
    assert list(batches) == []
    assert calls == ["given"]
    broken = memory.giving_back(iter([1, 2]))
    next(broken)
    broken.close()  # type: ignore[attr-defined]
    assert calls == ["given"] * 2
