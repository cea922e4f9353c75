"""What is generated and committed is what its source says today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("tool", ["generate_protos.py", "lock.py", "bill.py"])
def test_committed_files_are_current(tool: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / tool), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
