"""A backup is whole or refused, and what is restored of it outranks whatever happened since."""

from __future__ import annotations

import json
import random
import struct
import zlib

import pytest

from penstock_core.ids import NO_NODE
from penstock_core.limits import FEATURE_LEVEL
from penstock_core.metadata import MetadataImage
from penstock_core.metadata.backup import MAGIC, SECRET_KINDS, Backup, BackupHead, BadBackup, decode, encode
from penstock_core.metadata.levels import (
    METADATA_LEVEL,
    TRANSACTION_VERSION,
    TRANSACTION_VERSION_MAX,
    level_of,
)
from penstock_core.metadata.restore import (
    AGE_MS_MAX,
    EPOCHS_UP,
    PRODUCER_IDS_UP,
    TERMS_UP,
    VERSIONS_UP,
    empty,
    restore,
)
from penstock_proto.v1 import metadata_pb2 as pb
from unit.core.metadata.test_image import cluster, full, node, operation, partition, topic

TERM = 7
NOW_MS = 1_800_000_000_000
MADE_MS = 1_700_000_000_000


def head(image: MetadataImage, **changes: object) -> BackupHead:
    values = {
        "cluster_id": image.cluster_id.hex(),
        "metadata_version": image.version,
        "metadata_level": level_of(image),
        "raft_term": TERM,
        "time_ms": MADE_MS,
        "secrets": True,
    }
    return BackupHead(**{**values, **changes})  # type: ignore[arg-type]


def whole(image: MetadataImage, **changes: object) -> bytes:
    return b"".join(encode(image, head(image, **changes)))


def kinds(image: MetadataImage) -> set[str | None]:
    return {record.WhichOneof("record") for record in image.to_records()}


def test_what_is_written_is_read_back() -> None:
    image = full()
    found = decode(whole(image), "b")
    assert found.image == image
    assert found.head == head(image)


def test_secrets_are_left_out_unless_they_are_asked_for() -> None:
    image = full()
    assert kinds(image) >= SECRET_KINDS, "there are some"
    found = decode(whole(image, secrets=False), "b").image
    assert not kinds(found) & SECRET_KINDS
    assert kinds(found) | SECRET_KINDS == kinds(image)


def test_a_large_image_comes_in_small_parts() -> None:
    records = [cluster(), topic(b"t" * 16, "t"), *(partition(b"t" * 16, n) for n in range(5_000))]
    image = MetadataImage.from_records(records, 5)
    parts = list(encode(image, head(image)))
    assert max(map(len, parts)) < 8_000
    assert decode(b"".join(parts), "b").image == image


def test_no_prefix_and_no_flipped_bit_passes() -> None:
    data = whole(full())
    for end in range(len(data)):
        with pytest.raises(BadBackup, match="b: "):
            decode(data[:end], "b")
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(500):
        at, bit = rng.randrange(len(data)), 1 << rng.randrange(8)
        with pytest.raises(BadBackup, match="b: "):
            decode(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :], "b")


def sealed(text: bytes, records: bytes = b"", count: int = 0, version: int = 1) -> bytes:
    """A file of this head and these records, with an end that matches."""
    data = struct.pack("<8sII", MAGIC, version, len(text)) + text + records + struct.pack("<IQ", 0, count)
    return data + struct.pack("<I", zlib.crc32(data))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no file of `penstock cluster export`"),
        (b"PENSTSNP" + bytes(100), "no file of `penstock cluster export`"),
        (sealed(b"{}", version=2), "has format 2, this version reads 1"),
        (sealed(b"{}"), "head is damaged"),
        (sealed(b"[1"), "head is damaged"),
        (struct.pack("<8sII", MAGIC, 1, 2**31) + bytes(100), "cut short"),
    ],
)
def test_foreign_and_newer_files_are_refused_in_a_line(data: bytes, words: str) -> None:
    with pytest.raises(BadBackup, match=words) as refused:
        decode(data, "some/file")
    assert str(refused.value).startswith("some/file: ") and "\n" not in str(refused.value)


def test_a_newer_clusters_file_is_refused() -> None:
    image = full()
    with pytest.raises(BadBackup, match=f"metadata.level {FEATURE_LEVEL + 1}, this version knows"):
        decode(whole(image, metadata_level=FEATURE_LEVEL + 1), "b")
    text = json.dumps({key: getattr(head(image), key) for key in BackupHead.__slots__}).encode()
    unknown = b"\xfa\x3f\x01x"  # field 1023: a kind of record that nobody knows yet
    with pytest.raises(BadBackup, match="records of a newer version"):
        decode(sealed(text, struct.pack("<I", len(unknown)) + unknown, 1), "b")
    with pytest.raises(BadBackup, match="what nobody writes"):
        decode(sealed(text, struct.pack("<I", 3) + b"\xff\xff\xff", 1), "b")


def test_everything_that_only_rises_is_raised() -> None:
    image = full()
    restored = restore(Backup(head(image), image), MADE_MS)
    new = restored.image
    assert restored.term == TERM + TERMS_UP
    assert new.version == new.restored_version == image.version + VERSIONS_UP
    assert new.next_producer_id == image.next_producer_id + PRODUCER_IDS_UP
    assert new.cluster_id == image.cluster_id
    assert new.configs == image.configs and new.features == image.features
    assert new.security == image.security
    assert not new.gateways and not new.controllers
    assert new.nodes.keys() == image.nodes.keys()
    assert all(n.fenced and not n.in_controlled_shutdown for n in new.nodes.values())
    assert all(new.nodes[n].node_epoch == image.nodes[n].node_epoch for n in new.nodes)
    assert new.topic_ids == image.topic_ids
    for topic_id, each in image.topics.items():
        for index, old in each.partitions.items():
            found = new.topics[topic_id].partitions[index]
            assert found.leader_epoch == old.leader_epoch + EPOCHS_UP
            assert found.partition_epoch == old.partition_epoch + EPOCHS_UP
            assert found.replicas == old.replicas
            assert found.unconfirmed and found.leader == NO_NODE
    assert MetadataImage.from_records(new.to_records(), new.version) == new, "and a snapshot keeps it"


def test_what_is_imported_later_outranks_an_earlier_import() -> None:
    """Be it the same backup, or an older one: a minute has passed, with fewer changes than that has ms."""
    image = full()
    old = MetadataImage.from_records(image.to_records(), image.version - 3)
    first = restore(Backup(head(image, time_ms=MADE_MS + 5_000), image), MADE_MS + 3_600_000)
    for backup in (Backup(head(image, time_ms=MADE_MS + 5_000), image), Backup(head(old), old)):
        later = restore(backup, MADE_MS + 3_660_000)
        assert later.image.version >= first.image.version + 60_000
        assert later.term >= first.term + 60
        assert later.image.next_producer_id >= first.image.next_producer_id + 60_000
        for topic_id, each in first.image.topics.items():
            for index, before in each.partitions.items():
                found = later.image.topics[topic_id].partitions[index]
                assert found.leader_epoch >= before.leader_epoch + 60
                assert found.partition_epoch >= before.partition_epoch + 60


@pytest.mark.parametrize(("now_ms", "up"), [(MADE_MS - 1, 0), (MADE_MS + 10**15, AGE_MS_MAX)])
def test_a_clock_that_is_far_off_uses_up_no_leader_epochs(now_ms: int, up: int) -> None:
    image = full()
    restored = restore(Backup(head(image), image), now_ms)
    assert restored.image.version == image.version + VERSIONS_UP + up
    assert restored.term == TERM + TERMS_UP + up // 1000


def test_operations_that_went_on_are_paused() -> None:
    done, going = operation(1, pb.OPERATION_STATE_DONE), operation(2, pb.OPERATION_STATE_RUNNING)
    image = MetadataImage.from_records([cluster(), node(1), done, going], 5)
    new = restore(Backup(head(image), image), MADE_MS).image
    states = {key: each.state for key, each in new.operations.operations.items()}
    assert states == {1: pb.OPERATION_STATE_DONE, 2: pb.OPERATION_STATE_PAUSED}
    assert new.operations.operations[2].paused_by_hand


def test_an_operation_that_was_being_cancelled_goes_on_being_cancelled() -> None:
    """Its cordons are lifted, so it may not go on; resumed, a node-remove would fill the node while it empties it."""
    going = operation(2, pb.OPERATION_STATE_CANCELLING)
    going.operation.executor.executor_id = "one of before"
    image = MetadataImage.from_records([cluster(), node(1), going], 5)
    found = restore(Backup(head(image), image), MADE_MS).image.operations.operations[2]
    assert (found.state, found.paused_by_hand, found.reason) == (pb.OPERATION_STATE_CANCELLING, False, "")
    assert not found.HasField("executor")


def test_producer_ids_that_nobody_wrote_down_are_not_given_out() -> None:
    image = MetadataImage.from_records([cluster()], 5)
    assert restore(Backup(head(image), image), MADE_MS).image.next_producer_id == PRODUCER_IDS_UP


def test_an_empty_one_knows_its_cluster_and_outranks_all() -> None:
    restored = empty(b"c" * 16, NOW_MS)
    image = restored.image
    assert image.cluster_id == b"c" * 16
    assert image.version == image.restored_version == NOW_MS
    assert image.features == {METADATA_LEVEL: FEATURE_LEVEL, TRANSACTION_VERSION: TRANSACTION_VERSION_MAX}
    assert not image.topics and not image.nodes
    assert image.next_producer_id == NOW_MS and 10**8 < restored.term < 2**31 - 1
    again = empty(b"c" * 16, NOW_MS + 60_000)
    assert again.image.version > image.version and again.term > restored.term, "and an earlier one like it"


def test_an_empty_one_outranks_an_earlier_one_of_seconds_ago_that_has_had_elections() -> None:
    """Nodes and gateways that heard of the earlier one's term would take the new controllers for deposed ones."""
    earlier = empty(b"c" * 16, NOW_MS)
    assert empty(b"c" * 16, NOW_MS + 5_000).term > earlier.term + 3
