"""Records of units: a sink's entry with a key of our own, and the mark of a stage."""

from __future__ import annotations

import pytest

from penstock_kafka.wire.primitives import Malformed
from penstock_storage_node.transactions.records import (
    Status,
    TransactionValue,
    put_value,
    read_key,
    read_value,
)
from penstock_storage_node.transactions.unit_records import (
    Rows,
    SinkEntry,
    Unit,
    merged,
    put_entry,
    put_mark,
    put_sink_key,
    read_entry,
    read_mark,
    read_sink_key,
)

ENTRY = SinkEntry("query", 5, 0x0102, True, (Rows("a", 0, 7), Rows("a", 3, 1), Rows("b", 1, 2)))


def test_a_sinks_key_is_of_a_version_that_kafkas_readers_do_not_know() -> None:
    key = put_sink_key("sink")
    assert key.hex() == "03e8" + "0004" + b"sink".hex()
    assert read_sink_key(key) == "sink"
    assert read_key(key) is None
    assert read_sink_key(bytes.fromhex("00000004") + b"sink") is None


def test_an_entry_byte_for_byte() -> None:
    rows = "0261" + "03" + "00000000" + "0000000000000007" + "00000003" + "0000000000000001" + "00"
    rows += "0262" + "02" + "00000001" + "0000000000000002" + "00"
    expected = (
        "0000" + "06" + b"query".hex() + "0000000000000005" + "0000000000000102" + "01" + "03" + rows + "00"
    )
    assert put_entry(ENTRY).hex() == expected
    assert read_entry(put_entry(ENTRY)) == ENTRY
    plain = SinkEntry("", 0, 1)
    assert read_entry(put_entry(plain)) == plain


def test_a_later_builds_tagged_fields_are_passed_over() -> None:
    data = put_entry(ENTRY)[:-1] + bytes.fromhex("01" + "05" + "02" + "abcd")
    assert read_entry(data) == ENTRY


def test_what_a_unit_was_made_of_is_a_tagged_field_that_older_builds_pass_over() -> None:
    made = ENTRY._replace(input=b"abc")
    assert put_entry(made).hex() == put_entry(ENTRY)[:-1].hex() + "01" + "00" + "03" + b"abc".hex()
    assert read_entry(put_entry(made)) == made
    later = (
        put_entry(ENTRY)[:-1] + bytes.fromhex("02" + "00" + "03") + b"abc" + bytes.fromhex("05" + "01" + "ff")
    )
    assert read_entry(later) == made


@pytest.mark.parametrize("entry", [ENTRY, ENTRY._replace(input=b"abc")])
def test_a_damaged_entry_is_malformed(entry: SinkEntry) -> None:
    for cut in range(len(put_entry(entry))):
        with pytest.raises(Malformed):
            read_entry(put_entry(entry)[:cut])


@pytest.mark.parametrize("data", [b"\x00\x01", put_entry(SinkEntry("q", -1, 0))])
def test_what_nobody_would_have_written_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        read_entry(data)
    with pytest.raises(Malformed):
        read_mark(put_mark(Unit("s", "q", -1)))


@pytest.mark.parametrize("status", [Status.EMPTY, Status.ONGOING, Status.PREPARE_COMMIT])
def test_a_stage_keeps_its_unit_beside_all_else(status: Status) -> None:
    unit = Unit("sink", "query", 1 << 40)
    value = TransactionValue(status, 5, 3, 60_000, 9, start_ms=8, previous_id=5, last_epoch=2, unit=unit)
    assert read_value(put_value(value, 1)) == value
    assert read_value(put_value(value._replace(unit=None), 1)).unit is None


def test_rows_are_one_for_each_partition() -> None:
    rows = [Rows("b", 0, 1), Rows("a", 1, 2), Rows("b", 0, 3)]
    assert merged(rows) == (Rows("a", 1, 2), Rows("b", 0, 4))
