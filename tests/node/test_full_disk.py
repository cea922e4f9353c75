"""A real filesystem runs full, in every kind of file: nothing acknowledged is lost, and it goes on by itself."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
UNSHARE = ("unshare", "--mount", "--map-root-user")


def test_a_full_tmpfs(tmp_path: Path) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare")
    mount = f"mount -t tmpfs -o size=8m tmpfs {tmp_path}"
    allowed = subprocess.run(
        [*UNSHARE, "sh", "-c", mount], capture_output=True, text=True, timeout=60, check=False
    )
    if allowed.returncode != 0:
        pytest.skip(f"no mount in a namespace of one's own: {allowed.stderr.strip()}")
    script = f'{mount} && exec "{sys.executable}" -m node.full_disk {tmp_path}'
    done = subprocess.run(
        [*UNSHARE, "sh", "-c", script],
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, (done.stdout[-4000:], done.stderr[-4000:])
    assert "rounds 7" in done.stdout
