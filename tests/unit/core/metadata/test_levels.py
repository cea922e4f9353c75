"""Feature levels: nothing is written that a process of the cluster could not read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.limits import FEATURE_LEVEL
from penstock_core.metadata import MetadataImage
from penstock_core.metadata.image import NewerLevel
from penstock_core.metadata.levels import (
    FIELD_LEVELS,
    KIND_LEVELS,
    NAME_LEVELS,
    level_of,
    require_level,
    require_records,
    too_old,
)
from penstock_proto.v1 import controller_pb2, metadata_pb2
from unit.core.metadata.test_image import acl, feature, topic

FIELDS_OF_LEVEL_1 = {
    "ClusterRecord": 1,
    "NodeRecord": 14,
    "NodeRemovedRecord": 1,
    "GatewayRecord": 6,
    "GatewayRemovedRecord": 1,
    "TopicRecord": 2,
    "TopicRemovedRecord": 1,
    "PartitionRecord": 12,
    "ConfigRecord": 4,
    "ProducerIdsRecord": 1,
    "FeatureRecord": 2,
    "ControllerRecord": 2,
}
"""Highest field number that each record had when levels came; it cannot change any more."""


def at_level(level: int) -> MetadataImage:
    return MetadataImage().apply([feature("metadata.level", level)], 1)


def test_every_kind_of_record_has_a_level_that_this_build_understands() -> None:
    kinds = metadata_pb2.MetadataRecord.DESCRIPTOR.oneofs_by_name["record"].fields
    assert {kind.name for kind in kinds} == set(KIND_LEVELS), "give the new kind its level in KIND_LEVELS"
    assert set(range(1, FEATURE_LEVEL + 1)) == {*KIND_LEVELS.values(), *NAME_LEVELS.values()}


def test_a_field_that_came_after_its_record_has_a_level() -> None:
    kinds = metadata_pb2.MetadataRecord.DESCRIPTOR.oneofs_by_name["record"].fields
    messages = [kind.message_type for kind in kinds if KIND_LEVELS[kind.name] == 1]
    later = {
        f"{message.name}.{field.name}"
        for message in messages
        if message is not None
        for field in message.fields
        if field.number > FIELDS_OF_LEVEL_1[message.name]
    }
    assert later == set(FIELD_LEVELS), "give the new field its level in FIELD_LEVELS"


MESSAGES_OF_LEVEL_1 = {
    "MetadataCommand": {"base_version", "records", "controller_id", "time_ms", "command_id", "part", "more"},
    "MetadataDelta": {"version", "records", "part", "more"},
    "MetadataSnapshotChunk": {"version", "records", "first", "last"},
    "WatchMetadataResponse": {"snapshot", "delta", "keepalive"},
    "WatchKeepalive": {"version", "leader_contact_age_ms", "controller_term"},
}
"""What stands around records: in the Raft log, in snapshots and on metadata streams."""
HARMLESS_SINCE = {"MetadataCommand.causes"}
"""Fields that came later, and that an older build may leave unread and write without: they change no state."""
ENUMS = {"OperationState": (3, 7), "OperationStepState": (3, 4)}
"""Enums of records: the level that they came with, and how many values they had then."""


def test_what_stands_around_records_changes_only_where_older_builds_may_not_read_it() -> None:
    found = {}
    for name in MESSAGES_OF_LEVEL_1:
        module = controller_pb2 if name.startswith("Watch") else metadata_pb2
        found[name] = {field.name for field in module.DESCRIPTOR.message_types_by_name[name].fields}
    later = {f"{name}.{f}" for name, fields in found.items() for f in fields - MESSAGES_OF_LEVEL_1[name]}
    assert later == HARMLESS_SINCE, (
        "older builds drop the new field or end at it: give it a level, or say why not"
    )


def messages_below(message: Any, seen: set[str]) -> Iterator[Any]:
    """A message and all that its fields are made of."""
    if message.full_name in seen:
        return
    seen.add(message.full_name)
    yield message
    for field in message.fields:
        if field.message_type is not None:
            yield from messages_below(field.message_type, seen)


def test_an_enum_of_records_came_with_its_level() -> None:
    """Code of an older build cannot know a value that came later, though it reads it without an error."""
    kinds = metadata_pb2.MetadataRecord.DESCRIPTOR.oneofs_by_name["record"].fields
    found: dict[str, int] = {}
    for kind in kinds:
        for message in messages_below(kind.message_type, set()):
            for field in message.fields:
                if field.enum_type is not None:
                    name, level = field.enum_type.name, KIND_LEVELS[kind.name]
                    found[name] = min(level, found.get(name, level))
    enums = metadata_pb2.DESCRIPTOR.enum_types_by_name
    counted = {name: (level, len(enums[name].values)) for name, level in found.items()}
    assert counted == ENUMS, "give the enum its level; a value that is added needs one of its own"


def test_a_field_above_the_level_is_refused_with_the_mend() -> None:
    record = metadata_pb2.ConfigRecord(resource_type="topic", resource_name="t", key="k", value="v")
    require_records(at_level(2), [metadata_pb2.MetadataRecord(config=record)])
    record.set_by = "User:alice"
    require_records(at_level(3), [metadata_pb2.MetadataRecord(config=record)])
    with pytest.raises(PenstockError, match=r"config with set_by need metadata.level 3, the cluster has 2"):
        require_records(at_level(2), [metadata_pb2.MetadataRecord(config=record)])


def test_a_level_that_this_build_does_not_understand_stops_it() -> None:
    """Whatever its records look like, they may mean more."""
    with pytest.raises(NewerLevel, match=f"understands metadata.level {FEATURE_LEVEL}, the cluster has"):
        at_level(FEATURE_LEVEL + 1)


def test_a_feature_above_the_level_is_refused_unless_the_level_comes_with_it() -> None:
    record = feature("transaction.version", 2)
    with pytest.raises(PenstockError, match=r"transaction.version need metadata.level 4, the cluster has 3"):
        require_records(at_level(3), [record])
    require_records(at_level(3), [feature("metadata.level", 4), record])


def test_a_cluster_whose_log_names_no_level_has_the_first() -> None:
    assert level_of(MetadataImage()) == 1
    assert level_of(at_level(2)) == 2


def test_a_record_above_the_level_is_refused_with_the_mend() -> None:
    require_records(at_level(1), [topic(b"a" * 16, "a")])
    require_records(at_level(2), [acl("alice")])
    with pytest.raises(
        PenstockError, match=r"acl need metadata.level 2, the cluster has 1.*cluster upgrade"
    ) as e:
        require_records(at_level(1), [topic(b"a" * 16, "a"), acl("alice")])
    assert e.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_a_record_that_raises_the_level_counts_for_those_behind_it() -> None:
    require_records(at_level(1), [feature("metadata.level", 2), acl("alice")])
    with pytest.raises(PenstockError, match=r"acl need metadata.level 2"):
        require_records(at_level(1), [acl("alice"), feature("metadata.level", 2)])


def test_what_needs_a_level_says_so() -> None:
    require_level(at_level(2), 2, "users")
    with pytest.raises(PenstockError, match=r"users need metadata.level 2, the cluster has 1"):
        require_level(at_level(1), 2, "users")


def test_a_process_below_the_level_is_told_what_to_install() -> None:
    assert too_old(at_level(1), 0) is None
    assert too_old(at_level(2), 2) is None
    error = too_old(at_level(2), 0)
    assert error is not None
    assert "understands metadata.level 1, the cluster has 2; install a newer build" in error.message
