"""Directories of controllers that do not run: all that one knows is read, and fresh ones are begun from."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock_controller.directory import DataDirectory
from penstock_controller.offline import OfflineError, make_directory, read_directory
from penstock_controller.quorum.commands import NO_OP, REGULAR
from penstock_controller.quorum.journal import DurableJournal
from penstock_core.metadata import MetadataImage
from penstock_core.metadata.restore import Restored, empty
from penstock_proto.v1 import metadata_pb2 as pb
from unit.core.metadata.test_image import cluster, config, full, topic

CLUSTER = b"c" * 16


def command(base: int, *records: pb.MetadataRecord) -> bytes:
    return bytes([REGULAR]) + pb.MetadataCommand(base_version=base, records=records).SerializeToString()


def test_what_is_made_is_what_is_found(tmp_path: Path) -> None:
    image = full()
    make_directory(tmp_path / "c", 2, Restored(image, 1_007))
    found = read_directory(tmp_path / "c")
    assert found.image == image
    assert (found.controller_id, found.term) == (2, 1_007)
    opened = DataDirectory(tmp_path / "c", 2)
    assert opened.cluster_id == image.cluster_id
    opened.close()
    with pytest.raises(OfflineError, match="exists already"):
        make_directory(tmp_path / "c", 2, Restored(image, 1_007))


def test_the_log_counts_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "c"
    make_directory(path, 1, Restored(MetadataImage.from_records([cluster()], 10), 4))
    journal = DurableJournal(path)
    journal.add(command(10, topic(b"t" * 16, "t")), 11, 4)
    journal.add(bytes([NO_OP]), 12, 5)
    journal.add(command(10, topic(b"u" * 16, "u")), 13, 5)  # of an older version: it changed nothing
    journal.add(command(11, config("t", "retention.ms", "5")), 14, 6)
    journal.setCurrentTerm(6, "2")
    journal.sync()
    journal._destroy()
    found = read_directory(path)
    assert (found.image.version, found.index, found.term) == (12, 14, 6)
    assert found.image.topic_ids.keys() == {"t"}
    assert found.image.config("topic", "t") == {"retention.ms": "5"}


def test_a_running_controllers_directory_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "c"
    make_directory(path, 1, empty(CLUSTER, 1_800_000_000_000))
    running = DataDirectory(path, 1)
    with pytest.raises(OfflineError, match="used by a running process"):
        read_directory(path)
    running.close()
    assert read_directory(path).image.cluster_id == CLUSTER


def test_what_is_no_controllers_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(OfflineError, match="no controller's data_dir"):
        read_directory(tmp_path)
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=3\n")
    with pytest.raises(OfflineError, match="not that of a controller"):
        read_directory(tmp_path)
    assert not (tmp_path / ".lock").exists()
    DataDirectory(tmp_path / "new", 1).close()
    with pytest.raises(OfflineError, match="knows no cluster"):
        read_directory(tmp_path / "new")
    make_directory(tmp_path / "c", 1, empty(CLUSTER, 1_800_000_000_000))
    snapshot = tmp_path / "c" / "raft-snapshot"
    snapshot.write_bytes(snapshot.read_bytes()[:-3])
    with pytest.raises(OfflineError, match="raft-snapshot"):
        read_directory(tmp_path / "c")
