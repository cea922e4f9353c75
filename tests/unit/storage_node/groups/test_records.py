"""Records of `__consumer_offsets`: round trips, and bytes written out by hand from Kafka's schemas."""

from __future__ import annotations

import pytest

from penstock_core.ids import TopicId
from penstock_kafka.wire.groups import group_partition, java_hash
from penstock_kafka.wire.primitives import Malformed
from penstock_storage_node.groups import records as rec


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # Java's "...".hashCode()
        ("", 0),
        ("a", 97),
        ("console-consumer-12345", -1284318412),
        ("polygenelubricants", -(2**31)),
        ("\u00e9\U0001f600", 1972645),
    ],
)
def test_groups_hash_as_in_java(text: str, value: int) -> None:
    expected = 0
    units = text.encode("utf-16-be")
    for i in range(0, len(units), 2):
        expected = (expected * 31 + int.from_bytes(units[i : i + 2], "big")) % 2**32
    expected -= 2**32 if expected >= 2**31 else 0
    assert java_hash(text) == expected
    if text in ("", "a", "polygenelubricants"):
        assert java_hash(text) == value
    assert 0 <= group_partition(text, 50) < 50
    assert group_partition("polygenelubricants", 50) == 0


def test_offset_records_are_kafkas() -> None:
    key = rec.offset_key("g", "topic", 7)
    assert key == b"\0\1" + b"\0\1g" + b"\0\5topic" + b"\0\0\0\7"
    assert rec.read_key(key) == rec.Key(rec.OFFSET_COMMIT, "g", "topic", 7)
    value = rec.OffsetValue(258, 3, "m", 1)
    assert rec.put_offset(value) == (
        b"\0\3" + (258).to_bytes(8, "big") + b"\0\0\0\3" + b"\0\1m" + (1).to_bytes(8, "big")
    )
    assert rec.read_offset(rec.put_offset(value)) == value
    expiring = rec.OffsetValue(258, -1, "", 1, 99)
    assert rec.put_offset(expiring)[:2] == b"\0\1"
    assert rec.read_offset(rec.put_offset(expiring)) == expiring
    named = rec.OffsetValue(258, 3, "m", 1, topic_id=TopicId(bytes(range(16))))
    assert rec.put_offset(named) == (
        b"\0\4" + (258).to_bytes(8, "big") + b"\0\0\0\3" + b"\2m" + (1).to_bytes(8, "big")
    ) + b"\1\0\x10" + bytes(range(16))
    assert rec.read_offset(rec.put_offset(named)) == named
    assert rec.read_offset(rec.put_offset(named)[:-16] + bytes(16)) == named._replace(topic_id=None)
    # Versions 0 and 4, which others may have written; 4 with a tagged field.
    old = b"\0\0" + (5).to_bytes(8, "big") + b"\0\1x" + (6).to_bytes(8, "big")
    assert rec.read_offset(old) == rec.OffsetValue(5, -1, "x", 6)
    new = b"\0\4" + (5).to_bytes(8, "big") + b"\0\0\0\1" + b"\2x" + (6).to_bytes(8, "big") + b"\1\0\2ab"
    assert rec.read_offset(new) == rec.OffsetValue(5, 1, "x", 6)


def test_group_records_are_kafkas() -> None:
    assert rec.group_key("g") == b"\0\2\0\1g"
    member = rec.MemberValue("m", "i", "c", "/h", 60, 10, b"s", b"as")
    value = rec.GroupValue("consumer", 4, "range", "m", 77, (member,))
    assert rec.put_group(value) == (
        b"\0\3\0\x08consumer\0\0\0\4\0\5range\0\1m"
        + (77).to_bytes(8, "big")
        + b"\0\0\0\1\0\1m\0\1i\0\1c\0\2/h\0\0\0\x3c\0\0\0\x0a\0\0\0\1s\0\0\0\2as"
    )
    assert rec.read_group(rec.put_group(value)) == value
    empty = rec.GroupValue("", 1, None, None, -1, ())
    assert rec.read_group(rec.put_group(empty)) == empty
    # Version 0: no timestamps, no rebalance timeout (the session's counts), no instance.
    old = b"\0\0\0\x08consumer\0\0\0\4\0\5range\0\1m\0\0\0\1\0\1m\0\1c\0\2/h\0\0\0\x0a\0\0\0\1s\0\0\0\2as"
    assert rec.read_group(old) == rec.GroupValue(
        "consumer", 4, "range", "m", -1, (rec.MemberValue("m", None, "c", "/h", 10, 10, b"s", b"as"),)
    )


def test_consumer_group_records_are_read_as_written() -> None:
    topic = TopicId(bytes(range(16)))
    classic = (10, (("range", b"meta"), ("sticky", b"")))
    for member in (
        rec.ConsumerMemberValue("i", "r", "c", "/h", ("t", "u"), None, 1000, "uniform"),
        rec.ConsumerMemberValue(None, None, "", "", (), "t.*", -1, None, classic),
    ):
        assert rec.read_consumer_member(rec.put_consumer_member(member)) == member
    current = rec.CurrentValue(3, 2, 1, {topic: (0, 5)}, {topic: (1,)})
    assert rec.read_current(rec.put_current(current)) == current
    aware = current._replace(assigned_since={topic: (2, 3)}, revoking_since={topic: (1,)})
    assert rec.put_current(aware) == (
        b"\0\0" + b"\0\0\0\3" + b"\0\0\0\2" + b"\1"
        + b"\2" + topic + b"\3" + b"\0\0\0\0" + b"\0\0\0\5"
        + b"\1\0\x09" + b"\3" + b"\0\0\0\2" + b"\0\0\0\3"
        + b"\2" + topic + b"\2" + b"\0\0\0\1"
        + b"\1\0\5" + b"\2" + b"\0\0\0\1"
        + b"\0"
    )  # fmt: skip
    assert rec.read_current(rec.put_current(aware)) == aware
    # Epochs that are not as many as partitions say nothing.
    odd = rec.put_current(current._replace(assigned_since={topic: (2,)}))
    assert rec.read_current(odd) == current
    assert rec.read_target(rec.put_target({topic: (1, 2)})) == {topic: (1, 2)}
    assert rec.read_epoch(rec.put_epoch(9)) == 9
    key = rec.consumer_key(rec.CURRENT_MEMBER, "g", "m")
    assert key == b"\0\x08\0\1g\0\1m"
    assert rec.read_key(key) == rec.Key(rec.CURRENT_MEMBER, "g", member_id="m")
    assert rec.read_key(rec.consumer_key(rec.CONSUMER_GROUP, "g")) == rec.Key(rec.CONSUMER_GROUP, "g")


def test_other_kinds_are_left_alone_and_damage_is_said() -> None:
    assert rec.read_key(b"\0\x0b\0\1g") is None
    for data in (b"", b"\0", b"\0\1\0\5g", b"\0\2"):
        with pytest.raises(Malformed):
            rec.read_key(data)
    for data in (b"", b"\0\x09", b"\0\3\0", rec.put_group(rec.GroupValue("c", 1, None, None, 1, ()))[:-2]):
        with pytest.raises(Malformed):
            rec.read_group(data)
        with pytest.raises(Malformed):
            rec.read_offset(data)


def test_subscriptions_are_read() -> None:
    data = b"\0\3\0\0\0\2\0\1a\0\2bc\xff\xff\xff\xff\0\0\0\0\0\0\0\0"
    assert rec.subscribed_topics(data) == frozenset({"a", "bc"})
    assert rec.subscribed_topics(b"\0\0\0\0") is None
