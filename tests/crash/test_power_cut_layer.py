"""The power-cut layer itself: what was synced stays, what was not may go, and nothing escapes it."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from crash.disk_model import SECTOR_BYTES, Directory, File, change, cut, walk
from crash.power_cut import PowerCut

needs_compiler = pytest.mark.skipif(
    shutil.which("gcc") is None and shutil.which("cc") is None, reason="power cuts need gcc"
)

CHILD = """
import ctypes, os, shutil, sys, threading
from pathlib import Path
data = Path(sys.argv[1])
data.mkdir()
def put(name, content, sync=True):
    fd = os.open(data / name, os.O_RDWR | os.O_CREAT)
    os.pwritev(fd, [content[:3], content[3:]], 0)
    if sync:
        os.fdatasync(fd)
    os.close(fd)
def sync_directory(path=data):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)
put("name-not-synced", b"whole")
put("whole", b"whole")
put("empty", b"content not synced", sync=False)
put("replaced", b"old")
put("tail", b"synced")
put("shorter", b"0123456789")
put("gone", b"x")
put("moved", b"here")
(data / "folder").mkdir()
sync_directory()
fd = os.open(data / "tail", os.O_RDWR)
os.pwrite(fd, b" and more", 6)
os.close(fd)
fd = os.open(data / "shorter", os.O_RDWR)
os.ftruncate(fd, 4)
os.fsync(fd)
os.ftruncate(fd, 2)
os.close(fd)
put("replaced.tmp", b"new")
(data / "replaced.tmp").replace(data / "replaced")
(data / "gone").unlink()
(data / "moved").rename(data / "folder/moved")
put("folder/inside", b"inside")
(data / "name-not-synced").rename(data / "other-name")
with open(data / "stream", "w") as stream:
    stream.write("buffered")
if "syncfs" in sys.argv:
    fd = os.open(data, os.O_RDONLY)
    assert ctypes.CDLL(None).syncfs(fd) == 0
    os.close(fd)
put("late", b"late", sync=False)
os.kill(os.getpid(), 9)
"""


def run(tmp_path: Path, fate: str, *words: str) -> tuple[PowerCut, dict[str, bytes | None]]:
    """What is left of the child's directory."""
    place = tmp_path / "cluster" / "node-1" / "data"
    place.parent.mkdir(parents=True)
    with PowerCut(tmp_path / "cluster", tmp_path / "scratch") as power:
        done = subprocess.run([sys.executable, "-c", CHILD, str(place), *words], timeout=240)
        assert done.returncode == -9
        power.absorb()
        assert power.differences() == []
        power.cut(random.Random(1), fate)
        assert power.differences() == []
    left = {str(p.relative_to(place)): None if p.is_dir() else p.read_bytes() for p in place.rglob("*")}
    return power, left


@needs_compiler
def test_only_what_was_synced_survives(tmp_path: Path) -> None:
    _, left = run(tmp_path, "none")
    assert left == {
        "name-not-synced": b"whole",
        "whole": b"whole",
        "empty": b"",
        "replaced": b"old",
        "tail": b"synced",
        "shorter": b"0123",
        "gone": b"x",
        "moved": b"here",
        "folder": None,
    }


@needs_compiler
def test_syncfs_makes_all_of_it_durable(tmp_path: Path) -> None:
    _, left = run(tmp_path, "none", "syncfs")
    assert left == {
        "other-name": b"whole",
        "whole": b"whole",
        "empty": b"content not synced",
        "replaced": b"new",
        "tail": b"synced and more",
        "shorter": b"01",
        "folder": None,
        "folder/moved": b"here",
        "folder/inside": b"inside",
        "stream": b"buffered",
    }


@needs_compiler
def test_a_mere_kill_loses_nothing(tmp_path: Path) -> None:
    _, left = run(tmp_path, "all")
    assert left["late"] == b"late"
    assert left["stream"] == b"buffered"
    assert "gone" not in left


@needs_compiler
def test_environment_is_put_back(tmp_path: Path) -> None:
    with PowerCut(tmp_path, tmp_path / "scratch"):
        assert os.environ["LD_PRELOAD"].endswith("power_cut.so")
    assert "LD_PRELOAD" not in os.environ


@pytest.mark.parametrize("seed", range(200))
def test_fates_are_those_that_a_disk_has(seed: int) -> None:
    """Each sector of a file holds what was synced, something written since, or zeros; a rename has one end."""
    dice = random.Random(seed)
    top, other, file = Directory(), Directory(), File(bytearray(b"s" * 1000))
    change(1, (top, "file", file))
    change(2, (top, "other", other))
    top.settle(2)
    for time in range(3, 3 + dice.randint(0, 6)):
        if dice.random() < 0.2:
            file.pending.append((time, dice.randrange(1000), None))
        else:
            file.pending.append((time, dice.randrange(1500), b"%d" % time * dice.randrange(1, 1200)))
    change(10, (top, "file", None), (other, "moved", file))
    written = b"".join(data for _, _, data in file.pending if data)
    cut(top, dice)
    places = [path for path, node in walk(top) if node is file]
    assert places in (["file"], ["other/moved"])
    allowed = set(written) | {0, ord("s")}
    for start in range(0, len(file.synced), SECTOR_BYTES):
        assert set(file.synced[start : start + SECTOR_BYTES]) <= allowed
    assert file.pending == []
    assert top.pending == other.pending == []
