"""Snapshots: whole or refused, never overwritten by an older one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pysyncobj.config import SERIALIZER_STATE

from penstock_controller.quorum import snapshot_format as fmt
from penstock_controller.quorum.files import DamagedFile
from penstock_controller.quorum.journal_format import Entry
from penstock_controller.quorum.snapshot import SnapshotStore
from penstock_controller.quorum.snapshot_format import Snapshot
from penstock_core.limits import FEATURE_LEVEL
from penstock_core.metadata import MetadataImage
from penstock_proto.v1 import metadata_pb2 as pb
from support.waiting import wait_for

NO_OP = b"\1"
COMMAND = b"\0" + pb.MetadataCommand(base_version=76).SerializeToString()


def image(topics: int = 250) -> MetadataImage:
    records = [pb.MetadataRecord(cluster=pb.ClusterRecord(cluster_id=b"c" * 16))]
    for n in range(topics):
        topic_id = n.to_bytes(16, "big")
        records.append(pb.MetadataRecord(topic=pb.TopicRecord(topic_id=topic_id, name=f"t{n}")))
        partition = pb.PartitionRecord(topic_id=topic_id, replicas=[1, 2], isr=[1], leader=1)
        records.append(pb.MetadataRecord(partition=partition))
    return MetadataImage.from_records(records, 77)


def snapshot(last: int = 10) -> Snapshot:
    return Snapshot((NO_OP, last - 1, 3), (COMMAND, last, 4), image())


@pytest.mark.parametrize(
    ("previous", "last"),
    [
        ((NO_OP, 9, 3), (b"", 10, 4)),
        ((b"\0\xff", 9, 3), (COMMAND, 10, 4)),
        ((NO_OP, 8, 3), (COMMAND, 10, 4)),
        ((NO_OP, 9, 5), (COMMAND, 10, 4)),
        ((NO_OP, 2**62 - 1, 3), (COMMAND, 2**62, 4)),
    ],
)
def test_entries_that_no_log_holds_are_refused(previous: Entry, last: Entry) -> None:
    """They would stand in our log from then on, and end each run."""
    data = b"".join(fmt.encode(Snapshot(previous, last, image(1))))
    with pytest.raises(DamagedFile, match="its last entries are none"):
        fmt.decode(data, "snapshot")


def store(directory: Path, held: MetadataImage | None = None) -> SnapshotStore:
    def fail(error: BaseException) -> None:
        raise AssertionError(error)

    return SnapshotStore(directory, lambda: held or image(), fail)


def test_round_trip() -> None:
    data = b"".join(fmt.encode(snapshot()))
    back = fmt.decode(data, "snapshot")
    assert back == snapshot()


def test_a_snapshot_of_a_level_that_this_build_does_not_understand_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    newer = FEATURE_LEVEL + 1
    record = pb.MetadataRecord(feature=pb.FeatureRecord(name="metadata.level", level=newer))
    with monkeypatch.context() as newer_build:
        newer_build.setattr("penstock_core.metadata.image.FEATURE_LEVEL", newer)
        held = MetadataImage().apply([record], 1)
    data = b"".join(fmt.encode(Snapshot(snapshot().previous, snapshot().last, held)))
    with pytest.raises(
        DamagedFile, match=f"snap: this build .* the cluster has {newer}; install a newer build"
    ):
        fmt.decode(data, "snap")


def test_every_cut_and_every_flip_is_refused() -> None:
    data = b"".join(fmt.encode(snapshot()))
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    for length in {0, 1, 12, len(data) - 4, *(rng.randrange(len(data) - 4) for _ in range(200))}:
        with pytest.raises(DamagedFile):
            fmt.decode(data[:length], "snapshot")
        with pytest.raises(DamagedFile):
            fmt.decode(data[:length] + bytes(len(data) - length), "snapshot")
    for _ in range(500):
        flipped = bytearray(data)
        flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        with pytest.raises(DamagedFile):
            fmt.decode(bytes(flipped), "snapshot")
    with pytest.raises(DamagedFile):
        fmt.decode(data + b"x", "snapshot")


def write(target: SnapshotStore, last: int) -> int:
    target.serialize((None, (COMMAND, last, 4), (NO_OP, last - 1, 4), None), last - 1)

    def ended() -> list[int]:
        state, _ = target.checkSerializing()
        return [] if state == SERIALIZER_STATE.SERIALIZING else [int(state)]

    return wait_for(ended, "the snapshot is written")[0]


def test_written_in_the_background_and_loaded(tmp_path: Path) -> None:
    target = store(tmp_path)
    assert target.load() is None
    assert write(target, 20) == SERIALIZER_STATE.SUCCESS
    assert target.checkSerializing()[0] == SERIALIZER_STATE.NOT_SERIALIZING
    loaded = store(tmp_path).load()
    assert loaded is not None
    assert loaded.last == (COMMAND, 20, 4)
    assert loaded.image == image()
    # Nothing new since: nothing is written, nothing fails.
    assert write(target, 20) == SERIALIZER_STATE.NOT_SERIALIZING


def test_damaged_file_refuses_to_load(tmp_path: Path) -> None:
    target = store(tmp_path)
    write(target, 20)
    data = bytearray(target.path.read_bytes())
    data[len(data) // 2] ^= 4
    target.path.write_bytes(data)
    with pytest.raises(DamagedFile, match="raft-snapshot"):
        store(tmp_path).load()


def transfer(source: SnapshotStore, target: SnapshotStore, spoil: bool = False) -> Snapshot | None:
    while True:
        source.begin_turn()
        chunk = source.getTransmissionData("peer")
        assert chunk is not None
        # One chunk a turn.
        assert source.getTransmissionData("peer") is None
        data, first, last = chunk
        if spoil and data:
            data = data[:-1] + bytes([data[-1] ^ 1])
        target.receive((data, first, last))
        if last:

            def checked() -> list[Snapshot | None]:
                taken = target.take_received()
                return [] if target.checking else [taken]

            assert target.checking
            return wait_for(checked, "the check")[0]


def test_transfer_between_controllers(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    source, target = store(tmp_path / "a"), store(tmp_path / "b")
    write(source, 20)
    assert transfer(source, target, spoil=True) is None
    assert not target.path.exists()
    taken = transfer(source, target)
    assert taken is not None
    assert taken.last_index == 20
    assert store(tmp_path / "b").load() == taken
    # An own, older one that is finished later does not take the name.
    assert write(target, 15) == SERIALIZER_STATE.NOT_SERIALIZING
    assert store(tmp_path / "b").load() == taken


def test_a_snapshot_is_for_its_owner_alone_however_it_came(tmp_path: Path) -> None:
    """It holds what users prove themselves by, and the keys of tokens."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    source, target = store(tmp_path / "a"), store(tmp_path / "b")
    write(source, 20)
    data, first, last = source.getTransmissionData("peer") or (b"", False, False)
    target.receive((data, first, last))
    assert [each.stat().st_mode & 0o777 for each in (tmp_path / "b").iterdir()] == [0o600]
    source.cancelTransmisstion("peer")
    assert transfer(source, target) is not None
    assert target.path.stat().st_mode & 0o777 == 0o600
    # One that an earlier build took from a leader.
    target.path.chmod(0o644)
    assert store(tmp_path / "b").load() is not None
    assert target.path.stat().st_mode & 0o777 == 0o600


def test_a_snapshot_of_another_user_that_may_be_read_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store(tmp_path), 20)
    target = store(tmp_path)
    target.path.chmod(0o660)

    def refuses(path: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refuses)
    assert target.load() is not None


def test_transfer_that_lost_its_beginning_is_dropped(tmp_path: Path) -> None:
    target = store(tmp_path)
    target.receive((b"middle", False, False))
    target.receive((b"", False, True))
    assert not target.checking


def test_leftovers_are_removed(tmp_path: Path) -> None:
    for name in ("raft-snapshot.write.tmp", "raft-snapshot.install.tmp"):
        (tmp_path / name).write_bytes(b"half")
    store(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_peer_that_is_slow_gets_nothing_more(tmp_path: Path) -> None:
    source = store(tmp_path)
    write(source, 20)
    source.connect(may_begin=lambda: True, may_send=lambda peer: peer != "slow")
    source.begin_turn()
    assert source.getTransmissionData("slow") is None
    assert source.getTransmissionData("quick") is not None
    source.close()


def test_nothing_is_written_between_the_parts_of_a_command(tmp_path: Path) -> None:
    target = store(tmp_path)
    target.connect(may_begin=lambda: False, may_send=lambda _: True)
    assert write(target, 20) == SERIALIZER_STATE.NOT_SERIALIZING
    target.connect(may_begin=lambda: True, may_send=lambda _: True)
    assert write(target, 20) == SERIALIZER_STATE.SUCCESS


def test_nothing_to_send_when_there_is_no_snapshot(tmp_path: Path) -> None:
    assert store(tmp_path).getTransmissionData("peer") is None
