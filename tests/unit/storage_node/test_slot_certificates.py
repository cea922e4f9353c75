"""A node that claims a slot takes the certificate of that slot's node."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock_runtime.addresses import StartupError
from penstock_runtime.settings import load_settings
from penstock_storage_node.log import DirectoryPorts, LogDirectory
from penstock_storage_node.log.checkpoints import CLEAN_SHUTDOWN_FILE
from penstock_storage_node.log.fs import FileSystem
from penstock_storage_node.settings import StorageNodeSettings

TLS = '{"cert": "/tls/node-{node}/cert.pem", "key": "/tls/node-{node}/key.pem", "ca": "/tls/ca.pem"}'


def loaded(*flags: str) -> StorageNodeSettings:
    return load_settings(StorageNodeSettings, ["--tls", TLS, *flags], "storage-node")


def test_the_slots_node_is_in_the_paths(tmp_path: Path) -> None:
    settings = loaded("--slots-dir", str(tmp_path))
    assert settings.has_slot_certificates
    mine = settings.in_slot(7)
    assert mine.node_id == 7
    assert mine.tls is not None
    assert [str(path) for path in mine.tls.paths()] == [
        *("/tls/node-7/cert.pem", "/tls/node-7/key.pem", "/tls/ca.pem")
    ]
    assert not mine.has_slot_certificates


@pytest.mark.parametrize("flags", [(), ("--slots-dir", "/data", "--node-id", "3")])
def test_it_is_for_slots_alone(flags: tuple[str, ...]) -> None:
    with pytest.raises(StartupError, match=r"\{node\} in paths of tls is for slots_dir without node_id"):
        loaded(*flags)


@pytest.mark.parametrize(("node_id", "expected"), [(0, 2), (9, 9)])
def test_without_a_certificate_it_ends_and_leaves_the_slot_as_it_was(
    node_id: int, expected: int, tmp_path: Path
) -> None:
    """slot-1 is in use by its own, as slot-0 is by another process; a new one is node 2's, an old one says whose."""
    ports = DirectoryPorts(FileSystem(), lambda: 0)
    held = LogDirectory.claim_slot(ports, tmp_path)
    slot = LogDirectory.claim_slot(ports, tmp_path)
    assert (held.slot, slot.slot) == (0, 1)
    if node_id:
        slot.set_identity(cluster_id=bytes(16), node_id=node_id)
    slot.close(clean=True)
    command = [sys.executable, "-m", "penstock_storage_node", "--slots-dir", str(tmp_path), "--tls", TLS]
    done = subprocess.run(
        [*command, "--controllers", "127.0.0.1:1", "--http-bind", ""],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    held.close(clean=True)
    assert done.returncode != 0
    assert f"/tls/node-{expected}/key.pem" in done.stderr + done.stdout
    assert (tmp_path / "slot-1" / CLEAN_SHUTDOWN_FILE).exists()
