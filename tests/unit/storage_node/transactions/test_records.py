"""Records of `__transaction_state`: Kafka's bytes, there and back."""

from __future__ import annotations

import random

import pytest

from penstock_kafka.wire.primitives import Malformed
from penstock_storage_node.transactions.records import (
    State,
    TransactionValue,
    put_key,
    put_value,
    read_key,
    read_value,
)

OPEN = TransactionValue(
    producer_id=0x0102,
    producer_epoch=3,
    timeout_ms=60_000,
    state=State.ONGOING,
    partitions=frozenset({("b", 1), ("a", 7), ("a", 2)}),
    update_ms=0x0A,
    start_ms=0x0B,
)


def test_a_key() -> None:
    assert put_key("shop") == bytes.fromhex("0000 0004") + b"shop"
    assert read_key(put_key("shop")) == "shop"
    assert read_key(b"\x00\x01\x00\x00") is None
    with pytest.raises(Malformed):
        read_key(b"\x00\x00\x00\x09x")


def test_the_flexible_form() -> None:
    assert put_value(OPEN) == bytes.fromhex(
        "0001 0000000000000102 0003 0000ea60 01"
        "03 0261 03 00000002 00000007 00 0262 02 00000001 00"
        "000000000000000a 000000000000000b 00"
    )
    tagged = OPEN._replace(previous_producer_id=1, next_producer_id=2, client_version=2, last_epoch=5)
    assert put_value(tagged).endswith(
        bytes.fromhex("04 00 08 0000000000000001 01 08 0000000000000002 02 02 0002 e807 02 0005")
    )
    assert read_value(put_value(tagged)) == tagged


def test_the_plain_form_keeps_no_tags() -> None:
    assert put_value(OPEN, flexible=False) == bytes.fromhex(
        "0000 0000000000000102 0003 0000ea60 01"
        "00000002 000161 00000002 00000002 00000007 000162 00000001 00000001"
        "000000000000000a 000000000000000b"
    )
    tagged = OPEN._replace(client_version=2, last_epoch=5)
    assert read_value(put_value(tagged, flexible=False)) == OPEN


def test_empty_has_no_list_and_complete_an_empty_one() -> None:
    empty = TransactionValue(1, 0, 1)
    done = empty._replace(state=State.COMPLETE_COMMIT)
    for flexible, none, zero in ((True, "00", "01"), (False, "ffffffff", "00000000")):
        assert put_value(empty, flexible=flexible)[17:].startswith(bytes.fromhex(none))
        assert put_value(done, flexible=flexible)[17:].startswith(bytes.fromhex(zero))
        assert read_value(put_value(empty, flexible=flexible)) == empty
        assert read_value(put_value(done, flexible=flexible)) == done


def test_unknown_tags_are_stepped_over() -> None:
    data = bytearray(put_value(TransactionValue(1, 0, 1)))
    assert data[-1] == 0
    data[-1:] = bytes.fromhex("02 03 02 0009 e907 01 ff")  # Kafka's next epoch, and one of tomorrow
    assert read_value(bytes(data)) == TransactionValue(1, 0, 1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\x02" + b"\0" * 40,
        put_value(OPEN)[:-1],
        put_value(OPEN).replace(bytes.fromhex("0000ea60 01"), bytes.fromhex("0000ea60 06")),
        put_value(OPEN)[:-1] + bytes.fromhex("01 00 02 0001"),
    ],
    ids=["nothing", "version", "cut", "state", "tag"],
)
def test_what_is_no_value_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        read_value(data)


def test_there_and_back_at_random() -> None:
    rng = random.Random(20261125)
    for _ in range(500):
        state = rng.choice(list(State))
        value = TransactionValue(
            rng.randrange(1 << 40),
            rng.randrange(-1, 32_768),
            rng.randrange(1 << 31),
            state,
            frozenset((f"t{rng.randrange(5)}", rng.randrange(50)) for _ in range(rng.randrange(20)))
            if state in (State.ONGOING, State.PREPARE_ABORT, State.PREPARE_COMMIT)
            else frozenset(),
            rng.randrange(1 << 42),
            rng.choice([-1, rng.randrange(1 << 42)]),
            rng.choice([-1, rng.randrange(1 << 40)]),
            rng.choice([-1, rng.randrange(1 << 40)]),
            rng.choice([0, 2]),
            rng.randrange(-1, 32_768),
        )
        assert read_value(put_value(value)) == value
