"""What clients are shown of a node's settings."""

from __future__ import annotations

from pathlib import Path

from penstock_core.config.catalog import NODE_STATIC
from penstock_runtime.settings import load_settings
from penstock_storage_node.settings import StorageNodeSettings


def test_a_default_is_the_same_in_the_catalog_and_in_the_process(tmp_path: Path) -> None:
    """It is not told with the registration then: who asks gets the catalog's."""
    settings = load_settings(StorageNodeSettings, ["--data-dir", str(tmp_path)], "storage-node")
    assert settings.shown_to_clients("/data") == {"log.dirs": "/data"}


def test_what_is_not_the_default_is_shown_by_kafkas_name(tmp_path: Path) -> None:
    flags = ["--data-dir", str(tmp_path), "--group-max-size", "7", "--auto-create-topics"]
    settings = load_settings(StorageNodeSettings, flags, "storage-node")
    shown = settings.shown_to_clients("/data")
    assert shown == {"log.dirs": "/data", "group.max.size": "7", "auto.create.topics.enable": "true"}
    assert shown.keys() <= NODE_STATIC.keys()
