"""Processes without a directory to serve from: a spare waits and ends when told to, a retired directory is refused."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock_runtime.addresses import StartupError
from penstock_runtime.settings import load_settings
from penstock_storage_node.log import DirectoryPorts, LogDirectory
from penstock_storage_node.log.fs import FileSystem
from penstock_storage_node.settings import StorageNodeSettings
from support.waiting import wait_for

WORDS = [sys.executable, "-m", "penstock_storage_node", "--controllers", "127.0.0.1:1", "--http-bind", ""]


def test_a_spare_has_no_directory_and_ends_when_it_is_told_to(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*WORDS, "--slots-dir", str(tmp_path / "slots"), "--spare"], stdout=output, stderr=output
        )
    try:
        wait_for(lambda: "spare: every" in log.read_text(), "it waits for a slot", 60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
    finally:
        process.kill()
        process.wait(60)
    assert not (tmp_path / "slots").exists(), "it makes no slot"


def test_spares_are_for_slots() -> None:
    with pytest.raises(StartupError, match="spare is for slots_dir"):
        load_settings(StorageNodeSettings, ["--spare"], "storage-node")


def test_a_retired_directory_is_refused_by_name_and_no_controller_is_asked(tmp_path: Path) -> None:
    directory = LogDirectory.open(DirectoryPorts(FileSystem(), lambda: 0), tmp_path / "data")
    directory.set_identity(cluster_id=bytes(16), node_id=7)
    directory.mark_retired(77)
    directory.close(clean=False)
    done = subprocess.run(
        [*WORDS, "--data-dir", str(tmp_path / "data")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 2, said
    assert f"{tmp_path / 'data'} (it was node 7's) was retired by operation 77" in said
    assert "empty it" in said
