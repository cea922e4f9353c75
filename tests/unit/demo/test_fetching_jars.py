"""Kafka's jars come by Maven once, however many processes ask for them at the same moment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
MVN = """#!/bin/sh
for word; do case $word in -DoutputDirectory=*) folder=${word#*=};; esac; done
echo called >> "$folder/../calls"
echo > "$folder/kafka.jar"
"""
ASK = """
import sys
from bench.peer import fetch_jars
print("ready", flush=True)
sys.stdin.readline()
print([path.name for path in fetch_jars().glob("*.jar")])
"""


def test_processes_that_ask_at_once_fetch_once(tmp_path: Path) -> None:
    mvn = tmp_path / "bin" / "mvn"
    mvn.parent.mkdir()
    mvn.write_text(MVN)
    mvn.chmod(0o700)
    path = f"{mvn.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    asking = [
        subprocess.Popen(
            [sys.executable, "-c", ASK],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for one in asking:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    for one in asking:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    assert [one.communicate()[0] for one in asking] == ["['kafka.jar']\n"] * 4
    assert (tmp_path / "penstock-bench" / "calls").read_text() == "called\n"
