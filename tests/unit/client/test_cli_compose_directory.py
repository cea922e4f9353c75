"""Which storage node is in a container: the script that is run in it, here against this process."""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack
from pathlib import Path

from penstock.cli.via.compose import _WHOSE_DIRECTORY

FILES = 300


def test_it_finds_the_directory_among_many_open_files_and_starts_no_process_for_each(tmp_path: Path) -> None:
    directory = tmp_path / "slot -> 1"
    directory.mkdir()
    (directory / "meta.properties").write_text("version=1\nnode.id=7\n")
    tools = tmp_path / "tools"
    tools.mkdir()
    started = tmp_path / "started"
    for name in ("ls", "sed", "cat", "readlink"):
        (tools / name).write_text(f'#!/bin/sh\necho {name} >> "{started}"\nexec /bin/{name} "$@"\n')
        (tools / name).chmod(0o755)
    with ExitStack() as stack:
        stack.enter_context((directory / ".lock").open("w"))
        for number in range(FILES):
            stack.enter_context((tmp_path / f"{number}.log").open("w"))
        done = subprocess.run(
            ["/bin/sh", "-c", _WHOSE_DIRECTORY.replace("/proc/1/", f"/proc/{os.getpid()}/")],
            env={"PATH": str(tools)},
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout.splitlines()[1:] == ["node.id=7"], done.stderr
    assert sorted(started.read_text().split()) == ["cat", "ls", "sed"]
