"""`penstock spark run` as a command, on a cluster of real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from penstock.local.cluster import LocalCluster
from support.spark import LATE_WORKER

TIMEOUT_S = 7200
_TRIES_MAX = 4
"""A job tries ten times where a Python process of Spark's comes up late; then its user starts it again."""


def command(cluster: LocalCluster, *words: str, master: str = "local[2]") -> list[str]:
    return command_at(cluster.gateway, *words, master=master)


def command_at(gateway: str, *words: str, master: str = "local[2]") -> list[str]:
    return [
        sys.executable, "-m", "penstock.cli.main", "spark", "run", *words, "--gateway", gateway,
        "--master", master, "--conf", "spark.driver.memory=1g", "--conf", "spark.sql.shuffle.partitions=2", "--json",
    ]  # fmt: skip


def done(words: list[str], code: int = 0, environment: dict[str, str] | None = None) -> Any:
    """What it says at its end: the document, or where it failed the lines on stderr."""
    for _ in range(_TRIES_MAX):
        result = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            env=os.environ | (environment or {}),
        )
        if LATE_WORKER not in result.stderr:
            break
    assert result.returncode == code, result.stdout + result.stderr
    return json.loads(result.stdout) if code in (0, 4) else result.stderr
