"""The shim does what the disk and clock scenarios rely on."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from chaos import shim
from chaos.shim import Shim

pytestmark = pytest.mark.skipif(bool(shim.missing()), reason=shim.missing() or "-")

CHILD = """
import ctypes, errno, os, sys, time
directory = sys.argv[1]
fd = os.open(directory, os.O_RDONLY)
libc = ctypes.CDLL(None, use_errno=True)
def flush():
    found = []
    for call in (os.fsync, os.fdatasync):
        try:
            call(fd)
            found.append(0)
        except OSError as error:
            found.append(error.errno)
    found.append(ctypes.get_errno() if libc.syncfs(fd) else 0)
    return found
for _ in sys.stdin:
    time.sleep(0.05)  # the control file is looked for every 20 ms
    begun = time.monotonic()
    print(*flush(), time.monotonic() - begun, time.time(), time.time_ns() / 1e9, flush=True)
"""


def test_flushes_fail_and_wait_and_the_wall_clock_jumps(tmp_path: Path) -> None:
    made = Shim(tmp_path)
    with made.loaded():
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    with child:
        assert child.stdin is not None
        assert child.stdout is not None

        def ask() -> list[float]:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write("\n")
            child.stdin.flush()
            return [float(word) for word in child.stdout.readline().split()]

        before = ask()
        assert before[:3] == [0, 0, 0]
        made.flush_errno(child.pid, errno.EIO)
        assert ask()[:3] == [errno.EIO] * 3
        assert made.flushes_hit(child.pid) == 3
        made.flush_errno(child.pid, 0)
        made.flush_delay_ms(child.pid, 100)
        slow = ask()
        assert slow[:3] == [0, 0, 0]
        assert slow[3] >= 0.3
        made.flush_delay_ms(child.pid, 0)
        day_s = 86_400
        made.wall_offset_ms(child.pid, day_s * 1_000)
        assert all(clock > before[4] + day_s for clock in ask()[4:])
        made.wall_offset_ms(child.pid, -day_s * 1_000)
        assert all(clock < before[4] for clock in ask()[4:])
        child.stdin.close()
