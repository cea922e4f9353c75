"""How full a filesystem is: as `df` says, whatever part of it is kept for root."""

from __future__ import annotations

import os

import pytest

from penstock_storage_node.log.fs import FileSystem


def test_what_is_kept_for_root_is_no_part_of_a_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its size alone, a disk of 200 GB of which 120 are kept and 20 taken would be 70 % full; `df` says 25 %."""
    blocks, free, available = 200 * 10**6, 180 * 10**6, 60 * 10**6
    found = os.statvfs_result((1000, 1000, blocks, free, available, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: found)
    assert FileSystem().room("/") == (80 * 10**9, 60 * 10**9)
