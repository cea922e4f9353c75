"""What `penstock cluster export` writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.backup import _write


def test_two_exports_to_one_file_do_not_meet(tmp_path: Path) -> None:
    file = tmp_path / "backup"

    def other_comes_between() -> Iterator[bytes]:
        yield b"first, "
        _write(file, [b"second"])
        assert file.read_bytes() == b"second"
        yield b"whole"

    _write(file, other_comes_between())
    assert file.read_bytes() == b"first, whole"
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_what_was_there_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "backup"
    file.write_bytes(b"old")

    def cut_off() -> Iterator[bytes]:
        yield b"new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _write(file, cut_off())
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]
