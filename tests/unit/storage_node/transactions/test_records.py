"""The records of `__transaction_state`, byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_kafka.wire.groups import group_partition, transaction_partition
from penstock_kafka.wire.primitives import Malformed
from penstock_storage_node.transactions.effects import TopicPartitionName
from penstock_storage_node.transactions.records import (
    NO_PARTITIONS,
    Status,
    TransactionValue,
    _read_any,
    put_key,
    put_value,
    read_key,
    read_value,
)

PARTITIONS = frozenset({TopicPartitionName("b", 7), TopicPartitionName("a", 1), TopicPartitionName("a", 0)})
ONGOING = TransactionValue(Status.ONGOING, 4_000, 3, 60_000, 0x0102, PARTITIONS, 0x0101, 4_000, -1, 2)

# By hand, from TransactionLogKey.json and TransactionLogValue.json.
HEAD = "0000000000000fa000030000ea60"
TIMES = "00000000000001020000000000000101"
V0_PARTITIONS = "000000020001610000000200000000000000010001620000000100000007"
V1_PARTITIONS = "030261030000000000000001000262020000000700"
VECTORS = {
    "ongoing, version 0": (0, ONGOING, "0000" + HEAD + "01" + V0_PARTITIONS + TIMES),
    "ongoing, version 1": (
        1,
        ONGOING,
        "0001" + HEAD + "01" + V1_PARTITIONS + TIMES + "0200080000000000000fa002020002",
    ),
    "empty, version 0": (
        0,
        TransactionValue(Status.EMPTY, 4_000, 3, 60_000, 0x0102),
        "0000" + HEAD + "00ffffffff0000000000000102ffffffffffffffff",
    ),
    "empty, version 1, nothing tagged": (
        1,
        TransactionValue(Status.EMPTY, 4_000, 3, 60_000, 0x0102),
        "0001" + HEAD + "00000000000000000102ffffffffffffffff00",
    ),
    "complete, an empty array": (
        1,
        TransactionValue(Status.COMPLETE_ABORT, 4_000, 3, 60_000, 0x0102, NO_PARTITIONS, 0x0101),
        "0001" + HEAD + "0501" + TIMES + "00",
    ),
    "all that is tagged": (
        1,
        TransactionValue(
            Status.PREPARE_COMMIT, 4_000, 3, 60_000, 0x0102, NO_PARTITIONS, 0x0101, 1, 2, 2, 4, 5
        ),
        "0001" + HEAD + "02"
        "01" + TIMES + "05"
        "00"
        "08"
        "0000000000000001"
        "01"
        "08"
        "0000000000000002"
        "02"
        "02"
        "0002"
        "03"
        "02"
        "0004"
        "e807"
        "02"
        "0005",
    ),
}


@pytest.mark.parametrize("name", VECTORS)
def test_values_are_kafkas(name: str) -> None:
    version, value, text = VECTORS[name]
    data = bytes.fromhex(text)
    assert put_value(value, version).hex() == data.hex()
    untagged = value._replace(previous_id=-1, client_version=0) if version == 0 else value
    assert read_value(data) == untagged


def test_keys_are_kafkas() -> None:
    assert put_key("tä").hex() == "0000000374c3a4"
    assert read_key(put_key("tä")) == "tä"
    assert read_key(b"\x00\x01\x00\x01x") is None
    assert read_key(put_key("t") + b"later") == "t"
    for damaged in (b"", b"\x00\x00\x00", put_key("t")[:-1], b"\x00\x00\x00\x01\xff"):
        with pytest.raises(Malformed):
            read_key(damaged)


def at_rest(*head: Any, **tail: Any) -> TransactionValue:
    """What `TransactionValue` is called with; no field that is not named is drawn."""
    return TransactionValue(*head, **tail)


AT_REST = st.builds(
    at_rest,
    st.sampled_from([Status.EMPTY, Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT, Status.PREPARE_ABORT]),
    st.integers(0, 2**63 - 1),
    st.integers(0, 32_767),
    st.integers(0, 2**31 - 1),
    st.integers(-1, 2**63 - 1),
    start_ms=st.integers(-1, 2**63 - 1),
    previous_id=st.integers(-1, 2**63 - 1),
    next_id=st.just(-1) | st.integers(0, 2**63 - 1),
    client_version=st.sampled_from([0, 2]),
    last_epoch=st.integers(-1, 32_767),
    init_version=st.integers(0, 2),
)


def as_read(read: Callable[[bytes], object], data: bytes) -> object:
    try:
        return read(data)
    except Malformed:
        return "malformed"


@given(AT_REST, st.sampled_from([0, 1]), st.data())
def test_what_is_read_the_short_way_is_read_the_same_the_long_way(
    value: TransactionValue, version: int, drawn: st.DataObject
) -> None:
    data = bytearray(put_value(value, version))
    assert read_value(bytes(data)) == _read_any(bytes(data))
    for _ in range(drawn.draw(st.integers(1, 3))):
        data[drawn.draw(st.integers(0, len(data) - 1))] = drawn.draw(
            st.sampled_from([0, 1, 2, 8, 0x7F, 0x80, 0xE8])
        )
    cut = bytes(data[: drawn.draw(st.integers(0, len(data)))])
    for damaged in (bytes(data), cut, bytes(data) + b"\0"):
        assert as_read(read_value, damaged) == as_read(_read_any, damaged)


def test_fields_of_later_versions_are_passed_over() -> None:
    plain = put_value(TransactionValue(Status.EMPTY, 1, 0, 1, 1), 1)
    assert read_value(plain[:-1] + bytes.fromhex("0187ad4b03010203")) == read_value(plain)


@pytest.mark.parametrize("name", VECTORS)
def test_no_record_that_ends_early_is_believed(name: str) -> None:
    data = bytes.fromhex(VECTORS[name][2])
    for length in range(len(data)):
        with pytest.raises(Malformed):
            read_value(data[:length])


@pytest.mark.parametrize(
    "text",
    [
        "0002" + HEAD + "00000000000000000102ffffffffffffffff00",
        "0001" + HEAD + "0601" + TIMES + "00",
        "0001" + HEAD + "0901" + TIMES + "00",
        "0001ffffffffffffffff00030000ea600000" + TIMES + "00",
        "00010000000000000fa0ffff0000ea600000" + TIMES + "00",
        "0001" + HEAD + "01ffffffff0f" + TIMES + "00",
        "0000" + HEAD + "017fffffff" + TIMES,
        "",
    ],
)
def test_what_no_coordinator_writes_is_refused(text: str) -> None:
    with pytest.raises(Malformed):
        read_value(bytes.fromhex(text))


def test_ids_and_groups_are_spread_by_one_hash() -> None:
    for name in ("t", "polygenelubricants", "a-long-transactional-id"):
        assert transaction_partition(name, 50) == group_partition(name, 50)


def test_states_are_called_as_by_kafka() -> None:
    assert [status.label for status in Status] == [
        *("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead")
    ]
