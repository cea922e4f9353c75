"""Feature levels: nothing is written that a process of the cluster could not read."""

from __future__ import annotations

import pytest

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.limits import FEATURE_LEVEL
from penstock_core.metadata import MetadataImage
from penstock_core.metadata.levels import (
    FIELD_LEVELS,
    KIND_LEVELS,
    level_of,
    require_level,
    require_records,
    too_old,
)
from penstock_proto.v1 import metadata_pb2
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
    assert set(range(1, FEATURE_LEVEL + 1)) == set(KIND_LEVELS.values())


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
