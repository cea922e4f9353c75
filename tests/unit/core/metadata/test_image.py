"""The metadata image: apply, snapshot, sharing, and histories that part."""

import os
import random
from dataclasses import FrozenInstanceError

import pytest

from penstock_core.errors import InvariantBroken
from penstock_core.ids import LeaderEpoch, NodeId, TopicId, TopicPartition
from penstock_core.metadata import ImageBuilder, MetadataImage
from penstock_core.security.quota_entities import QuotaEntity
from penstock_proto.v1 import common_pb2, metadata_pb2

Record = metadata_pb2.MetadataRecord
A = TopicId(b"a" * 16)
B = TopicId(b"b" * 16)
RUNNING = metadata_pb2.OPERATION_STATE_RUNNING


def cluster(value: bytes = b"c" * 16) -> Record:
    return Record(cluster=metadata_pb2.ClusterRecord(cluster_id=value))


def node(node_id: int, epoch: int = 1, **values: object) -> Record:
    return Record(
        node=metadata_pb2.NodeRecord(
            node_id=node_id,
            node_epoch=epoch,
            directory_id=bytes([node_id]) * 16,
            process=common_pb2.ProcessInfo(version="0.1.0", feature_level=1, boot_id=b"b" * 16),
            rack="a",
            grpc=common_pb2.Endpoint(host="localhost", port=5000 + node_id, security="PLAINTEXT"),
            http=common_pb2.Endpoint(host="::1", port=8000 + node_id, security="PLAINTEXT"),
            listeners=[common_pb2.Endpoint(listener="DIRECT", host="h", port=9, security="PLAINTEXT")],
            apis=[common_pb2.ApiRange(api_key=0, min_version=3, max_version=9)],
            **values,  # type: ignore[arg-type]
        )
    )


def gateway(name: str, epoch: int = 1) -> Record:
    return Record(gateway=metadata_pb2.GatewayRecord(gateway_id=name, gateway_epoch=epoch))


def topic(topic_id: bytes, name: str) -> Record:
    return Record(topic=metadata_pb2.TopicRecord(topic_id=topic_id, name=name))


def topic_removed(topic_id: bytes) -> Record:
    return Record(topic_removed=metadata_pb2.TopicRemovedRecord(topic_id=topic_id))


def partition(topic_id: bytes, index: int, leader: int = 1, epoch: int = 0) -> Record:
    return Record(
        partition=metadata_pb2.PartitionRecord(
            topic_id=topic_id,
            partition=index,
            replicas=[1, 2, 3],
            isr=[1, 2],
            elr=[3],
            leader=leader,
            leader_epoch=epoch,
            partition_epoch=epoch,
            last_known_leader=-1,
        )
    )


def config(name: str, key: str, value: str | None) -> Record:
    return Record(
        config=metadata_pb2.ConfigRecord(resource_type="topic", resource_name=name, key=key, value=value)
    )


def feature(name: str, level: int) -> Record:
    return Record(feature=metadata_pb2.FeatureRecord(name=name, level=level))


def producer_ids(value: int) -> Record:
    return Record(producer_ids=metadata_pb2.ProducerIdsRecord(next_producer_id=value))


def controller(controller_id: int) -> Record:
    return Record(
        controller=metadata_pb2.ControllerRecord(controller_id=controller_id, directory_id=b"d" * 16)
    )


def security() -> list[Record]:
    """Users, rights, quotas and secrets, one or two of each."""
    pb = metadata_pb2
    return [
        Record(
            user_credential=pb.UserCredentialRecord(
                user="alice",
                mechanism=2,
                salt=b"s",
                stored_key=b"k" * 64,
                server_key=b"v" * 64,
                iterations=4096,
                version=1,
            )
        ),
        acl("alice"),
        acl("bob"),
        Record(quota=pb.QuotaRecord(user="alice", key="producer_byte_rate", value=1024)),
        Record(quota=pb.QuotaRecord(user="", client_id="c", key="consumer_byte_rate", value=0.5)),
        Record(cluster_secret=pb.ClusterSecretRecord(name="scram-salt", value=b"x" * 32)),
        Record(
            refused_certificate=pb.RefusedCertificateRecord(serial="0a", reason="lost", not_after_ms=9_000)
        ),
    ]


def operations() -> list[Record]:
    """Part of a metadata of level 3: two operations, one of which has ended, and what nodes are told."""
    pb = metadata_pb2
    return [
        Record(operation=pb.OperationRecord(operation_id=1, kind="rebalance", state=pb.OPERATION_STATE_DONE)),
        operation(5),
        operation_move(5, 0),
        operation_move(5, 1, skipped="the topic was deleted"),
        Record(node_policy=pb.NodePolicyRecord(node_id=2, cordoned=True, draining=True, operation_id=5)),
        Record(
            retired_directory=pb.RetiredDirectoryRecord(directory_id=b"r" * 16, node_id=9, operation_id=1)
        ),
        Record(
            retired_directory=pb.RetiredDirectoryRecord(
                directory_id=b"s" * 16, node_id=2, replaced_by=b"t" * 16, replaced_ms=1_700_000_000_000
            )
        ),
    ]


def operation(operation_id: int, state: metadata_pb2.OperationState.ValueType = RUNNING) -> Record:
    return Record(
        operation=metadata_pb2.OperationRecord(
            operation_id=operation_id,
            kind="node-drain",
            state=state,
            parameters=metadata_pb2.OperationParameters(node_ids=[2]),
        )
    )


def operation_move(operation_id: int, index: int, skipped: str = "") -> Record:
    return Record(
        operation_move=metadata_pb2.OperationMoveRecord(
            operation_id=operation_id,
            topic_id=A,
            partition=index,
            replicas=[1, 3],
            replicas_before=[1, 2],
            bytes=100,
            skipped=skipped,
        )
    )


def acl(user: str) -> Record:
    return Record(
        acl=metadata_pb2.AclRecord(
            resource_type=2,
            pattern_type=3,
            resource_name="t",
            principal=f"User:{user}",
            host="*",
            operation=3,
            permission=3,
        )
    )


def full() -> MetadataImage:
    return MetadataImage().apply(
        [
            cluster(),
            node(1),
            node(2, fenced=True, disk_full=True),
            gateway("gateway-1"),
            topic(A, "a"),
            partition(A, 0),
            partition(A, 1, leader=2),
            topic(B, "b"),
            partition(B, 0),
            config("a", "retention.ms", "5"),
            config("a", "segment.bytes", "2048"),
            Record(feature=metadata_pb2.FeatureRecord(name="metadata.level", level=3, version=1)),
            Record(level_mark=metadata_pb2.LevelMarkRecord()),
            producer_ids(1000),
            controller(1),
            *security(),
            *operations(),
        ],
        1,
    )


def test_lookups() -> None:
    image = full()
    assert image.version == 1
    found = image.topic("a")
    assert found is not None
    assert found.topic_id == A
    assert sorted(found.partitions) == [0, 1]
    one = image.partition(A, 1)
    assert one is not None
    assert (one.leader, one.replicas, one.isr, one.elr, one.key) == (2, (1, 2, 3), (1, 2), (3,), (A, 1))
    assert image.partition(A, 9) is None
    assert image.partition(TopicId(b"z" * 16), 0) is None
    assert image.topic("z") is None
    assert image.config("topic", "a") == {"retention.ms": "5", "segment.bytes": "2048"}
    assert image.config("topic", "b") == {}
    assert image.nodes[NodeId(1)].active
    assert not image.nodes[NodeId(2)].active
    assert (image.nodes[NodeId(1)].disk_full, image.nodes[NodeId(2)].disk_full) == (False, True)
    assert image.nodes[NodeId(1)].apis == {0: (3, 9)}
    assert image.nodes[NodeId(1)].http.address == "[::1]:8001"
    assert image.nodes[NodeId(1)].grpc.address == "localhost:5001"


def test_a_snapshot_has_every_kind_of_record_but_removals() -> None:
    kinds = {field.name for field in Record.DESCRIPTOR.oneofs_by_name["record"].fields}
    kept = {kind for kind in kinds if not kind.endswith("_removed")}
    assert {record.WhichOneof("record") for record in full().to_records()} == kept, (
        "put the new one into full()"
    )
    assert [kind for kind in kinds if not hasattr(ImageBuilder, f"_replay_{kind}")] == []


def test_an_ended_operation_has_no_moves_and_is_kept_until_it_is_forgotten() -> None:
    image = full()
    key = TopicPartition(A, 0)
    assert image.operations.moves[5][key].replicas_before == (1, 2)
    assert image.operations.moves[5][TopicPartition(A, 1)].skipped == "the topic was deleted"
    done = image.apply([operation(5, metadata_pb2.OPERATION_STATE_DONE)], 2)
    assert 5 not in done.operations.moves
    assert list(done.operations.operations) == [1, 5]
    with pytest.raises(InvariantBroken, match="operation 5, which is not under way"):
        done.apply([operation_move(5, 0)], 3)
    removed = Record(operation_removed=metadata_pb2.OperationRemovedRecord(operation_id=1))
    gone = done.apply([removed], 3)
    assert list(gone.operations.operations) == [5]
    with pytest.raises(InvariantBroken, match="operation 1 is not there"):
        gone.apply([removed], 4)
    assert key in image.operations.moves[5], "the old image is as it was"


def test_what_was_said_of_a_node_goes_with_it_or_with_an_empty_record() -> None:
    image = full()
    assert image.operations.is_cordoned(NodeId(2))
    assert not image.operations.is_cordoned(NodeId(1))
    taken_back = Record(node_policy=metadata_pb2.NodePolicyRecord(node_id=2))
    removed = Record(node_removed=metadata_pb2.NodeRemovedRecord(node_id=2))
    for record in (taken_back, removed):
        assert image.apply([record], 2).operations.policies == {}
    assert image.operations.is_cordoned(NodeId(2))


def test_a_directory_that_was_replaced_is_remembered_until_it_is_forgotten() -> None:
    image = full()
    assert set(image.operations.retired) == {b"r" * 16, b"s" * 16}
    gone = metadata_pb2.RetiredDirectoryRecord(directory_id=b"s" * 16, forgotten=True)
    for _ in range(2):
        image = image.apply([Record(retired_directory=gone)], image.version + 1)
        assert set(image.operations.retired) == {b"r" * 16}, "nor is the record itself kept"


def test_what_a_newer_build_added_to_a_directory_is_kept_by_one_that_does_not_know_it() -> None:
    """So its fields need no level: whoever passes over them loses nothing."""
    newer = metadata_pb2.RetiredDirectoryRecord(directory_id=b"s" * 16, node_id=2).SerializeToString()
    record = metadata_pb2.RetiredDirectoryRecord.FromString(newer + b"\xf8\x06\x2a")  # field 111: 42
    image = MetadataImage().apply([Record(retired_directory=record)], 1)
    (kept,) = image.to_records()
    assert kept.retired_directory.SerializeToString() == newer + b"\xf8\x06\x2a"


def test_snapshot_round_trip() -> None:
    image = full()
    again = MetadataImage.from_records(image.to_records(), image.version)
    assert again == image
    parsed = [Record.FromString(record.SerializeToString()) for record in image.to_records()]
    assert MetadataImage.from_records(parsed, 1) == image
    assert MetadataImage.from_records([], 0) == MetadataImage()


def test_apply_leaves_the_old_image_and_shares_the_rest() -> None:
    old = full()
    before = list(old.to_records())
    new = old.apply(
        [partition(A, 0, leader=2, epoch=1), config("a", "retention.ms", None), config("b", "x", "y")], 2
    )
    assert list(old.to_records()) == before
    moved, kept = new.partition(A, 0), old.partition(A, 0)
    assert moved is not None
    assert kept is not None
    assert (moved.leader, moved.leader_epoch) == (2, LeaderEpoch(1))
    assert kept.leader == 1
    assert new.topics[B] is old.topics[B]
    assert new.nodes is old.nodes
    assert new.gateways is old.gateways
    assert new.topic_ids is old.topic_ids
    assert new.partition(A, 1) is old.partition(A, 1)
    assert new.config("topic", "a") == {"segment.bytes": "2048"}
    assert old.config("topic", "a")["retention.ms"] == "5"


def test_what_security_records_remove_is_gone_and_nothing_else() -> None:
    pb = metadata_pb2
    old = full()
    new = old.apply(
        [
            Record(acl_removed=pb.AclRemovedRecord(acl=acl("alice").acl)),
            Record(user_credential_removed=pb.UserCredentialRemovedRecord(user="alice", mechanism=2)),
            Record(quota=pb.QuotaRecord(user="alice", key="producer_byte_rate")),
            Record(cluster_secret=pb.ClusterSecretRecord(name="scram-salt")),
            Record(refused_certificate=pb.RefusedCertificateRecord(serial="0a", removed=True)),
        ],
        2,
    )
    assert [row.principal for row in new.security.acls] == ["User:bob"]
    assert not new.security.credentials
    assert list(new.security.quotas) == [QuotaEntity(user="", client_id="c")]
    assert not new.security.secrets
    assert not new.security.refused_certificates
    assert new.topics is old.topics
    assert len(old.security.acls) == 2


def test_a_change_of_a_topic_leaves_the_security_part_as_it_is() -> None:
    old = full()
    assert old.apply([partition(A, 0, leader=2, epoch=1)], 2).security is old.security


def test_secrets_do_not_stand_in_what_is_printed() -> None:
    shown = repr(full().security)
    assert "alice" in shown
    assert "kkkk" not in shown
    assert "xxxx" not in shown


def test_an_image_is_frozen() -> None:
    image = full()
    with pytest.raises(FrozenInstanceError):
        image.version = 5  # type: ignore[misc]
    with pytest.raises(TypeError):
        image.nodes[NodeId(1)].listeners["X"] = None  # type: ignore[index]


@pytest.mark.parametrize("version", [0, 1, 3, 100])
def test_a_version_gap_breaks_the_invariant(version: int) -> None:
    with pytest.raises(InvariantBroken, match="does not follow"):
        full().apply([], version)


@pytest.mark.parametrize(
    "record",
    [
        Record(),
        partition(b"z" * 16, 0),
        topic_removed(b"z" * 16),
        cluster(b"d" * 16),
        producer_ids(999),
        topic(b"y" * 16, "a"),
        Record(acl_removed=metadata_pb2.AclRemovedRecord(acl=acl("nobody").acl)),
        Record(user_credential_removed=metadata_pb2.UserCredentialRemovedRecord(user="alice", mechanism=1)),
    ],
    ids=[
        "unknown kind",
        "partition of no topic",
        "removal of no topic",
        "another cluster",
        "ids going back",
        "a name that is taken",
        "removal of no ACL",
        "removal of no credential",
    ],
)
def test_records_that_cannot_follow(record: Record) -> None:
    image = full()
    with pytest.raises(InvariantBroken):
        image.apply([record], 2)
    assert image == full()


def test_removals_take_their_settings_along() -> None:
    image = full().apply(
        [
            topic_removed(A),
            Record(node_removed=metadata_pb2.NodeRemovedRecord(node_id=2)),
            Record(gateway_removed=metadata_pb2.GatewayRemovedRecord(gateway_id="gateway-1")),
        ],
        2,
    )
    assert image.topic("a") is None
    assert image.config("topic", "a") == {}
    assert list(image.nodes) == [1]
    assert not image.gateways
    # A topic made anew has another id and no memory.
    again = image.apply([topic(b"n" * 16, "a"), partition(b"n" * 16, 0)], 3)
    found = again.topic("a")
    assert found is not None
    assert found.topic_id == b"n" * 16


def test_a_topic_removed_and_made_anew_in_one_delta() -> None:
    image = full().apply([topic_removed(A), topic(b"n" * 16, "a"), partition(b"n" * 16, 0)], 2)
    found = image.topic("a")
    assert found is not None
    assert found.topic_id == b"n" * 16
    assert len(found.partitions) == 1
    assert image.config("topic", "a") == {}


def test_random_histories_round_trip() -> None:
    """Any history gives an image that its snapshot and its own replay give too."""
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"seed {seed}")
    rng = random.Random(seed)
    image = MetadataImage()
    history: list[list[Record]] = []
    for version in range(1, 200):
        names = list(image.topic_ids)
        records: list[Record] = []
        for _ in range(rng.randrange(4)):
            roll = rng.random()
            if roll < 0.3:
                fresh = rng.randbytes(16)
                name = f"t{version}-{len(records)}"
                records += [topic(fresh, name), partition(fresh, 0), partition(fresh, 1)]
            elif roll < 0.6 and names:
                known = image.topic_ids[rng.choice(names)]
                records.append(partition(known, rng.randrange(3), rng.randrange(1, 4), version))
            elif roll < 0.7 and names:
                gone = names.pop(rng.randrange(len(names)))
                records = [r for r in records if r.partition.topic_id != image.topic_ids[gone]]
                records.append(topic_removed(image.topic_ids[gone]))
            elif roll < 0.8:
                records.append(node(rng.randrange(1, 6), version, fenced=rng.random() < 0.5))
            else:
                records.append(config(rng.choice(["x", "y"]), "k", rng.choice([None, "1", "2"])))
        history.append(records)
        image = image.apply(records, version)
        assert MetadataImage.from_records(image.to_records(), version) == image
    replayed = MetadataImage()
    for version, records in enumerate(history, 1):
        replayed = replayed.apply(records, version)
    assert replayed == image


def set_config(key: str, value: str | None, author: tuple[str, int] | None = None, name: str = "a") -> Record:
    record = metadata_pb2.ConfigRecord(resource_type="topic", resource_name=name, key=key, value=value)
    if author is not None:
        record.set_by, record.set_ms = author
    return Record(config=record)


def test_who_set_a_setting_is_kept_as_long_as_the_setting() -> None:
    alice, bob = ("User:alice", 1_000), ("User:bob", 2_000)
    image = MetadataImage().apply(
        [topic(b"a" * 16, "a"), set_config("k", "1", alice), set_config("l", "1", bob), set_config("m", "1")],
        1,
    )
    assert image.config_author("topic", "a", "k") == alice
    assert image.config_author("topic", "a", "m") is None
    again = MetadataImage.from_records(image.to_records(), image.version)
    assert again.config_authors == image.config_authors
    # Set by somebody who leaves no name, unset, and gone with its topic.
    image = image.apply([set_config("k", "2"), set_config("l", None)], 2)
    assert image.config_authors == {}
    image = image.apply([set_config("k", "3", bob)], 3)
    removed = Record(topic_removed=metadata_pb2.TopicRemovedRecord(topic_id=b"a" * 16))
    assert image.apply([removed], 4).config_authors == {}
    assert image.config_author("topic", "a", "k") == bob
