"""Inputs that once failed, by target: what each did, and the input. New ones come here with the mend."""

from __future__ import annotations

from typing import Final

from fuzz.kafka_targets import chosen
from fuzz.record_targets import batches, bombs
from penstock_core.metadata import backup
from penstock_kafka.wire.apis import ApiKey


def _hex(text: str) -> bytes:
    return bytes.fromhex(text)


def _with_high_bit() -> bytes:
    batch = bytearray(next(batches()))
    batch[21], batch[42] = 0x80, batch[42] ^ 1
    return b"\x01" + batch


_HIGH_BIT: Final = _with_high_bit()

REGRESSIONS: Final[list[tuple[str, str, bytes]]] = [
    (
        "metadata.backup",
        "a head of nothing but brackets was a RecursionError",
        b"\x01" + backup._START.pack(backup.MAGIC, backup.FORMAT_VERSION, 60_000) + b"[" * 60_000,
    ),
    (
        "metadata.records",
        "of two topics with one name, the first to be removed left the other without it",
        _hex(
            "12140a120a10636363636363636363636363636363631207120508012a0161120822060a0267771004121732150a1000"
            "0102030405060708090a0b0c0d0e0f120174121d421b0a10000102030405060708090a0b0c0d0e0f1a02010222010128"
            "01121232100a05746f7069631201741a016b220176120f4a0d0a05746f7069631201741a016b12075a050a0166100112"
            "05520308e80712166214080112106464646464646464646464646464646412143a120a10000102030405060708090a0b"
            "0c0d0e0f12041a02080112062a040a026777"
        ),
    ),
    (
        "metadata.records",
        "a quota that is not a number made an image differ from itself",
        _hex(
            "12140a120a1063630d0e0f1a020102220101280112124a100a05746f7069631201741a016b220176120f4a0d0a05746f"
            "7069631201741a016b12075a050a0166100112228a011f2a00221270726f64756365725f627974656e72617465290000"
            "0708ffffffff090a0b0c0d0e0f12041a02080112062a040a026777"
        ),
    ),
    ("kafka.error_response", "null topics ended in a TypeError", _hex("ffffffffffffffffff01005f")),
    (
        "kafka.error_response",
        "null partitions did",
        _hex(
            "001a00000003030000000200066e616d652d330000000200000003000000030000000000000003000000030000000300"
            "0000000000000300066e616d652d33ffffffffffffffffff0100030000000000000003000000030000000300000000"
            "00000003"
        ),
    ),
    (
        "node.forward_request",
        "an Open that protobuf cannot read was a DecodeError",
        _hex("800000000000120a08021801120475657374"),
    ),
    ("node.forward_request", "a chunk that is a number was a slice from there", _hex("120210051202080a")),
    (
        "node.replica_data",
        "an Error that is none was a DecodeError",
        _hex("0a12080430013800220a084a7f0666656e6365800064"),
    ),
    ("node.replica_data", "a Diverging that is none was", _hex("0a04080a1a020310")),
    ("node.replica_data", "an OutOfRange that is none was", _hex("0a0c0803300138002a04080580001009")),
    ("node.replica_data", "a Move that is none was", _hex("0a0a08053001380042020c01")),
    (
        "gateway.fetch_range",
        "an Error that is none was a DecodeError",
        _hex("0a097f0612056d6f76656428ffffffffffffffff"),
    ),
    (
        "words.setting",
        "a number with a control character behind it was a ValueError",
        _hex("03636f6e73756d65722e6865617274626561742e696e74657276616c2e6d733d34353030301d"),
    ),
    ("controller.journal", "an operation cut off in a sound block was a struct.error", _hex("0101010000")),
    (
        "controller.journal",
        "a command longer than its block was taken short",
        _hex("0101010000000000000001000000000000000a0000006f6e65"),
    ),
    (
        "controller.snapshot",
        "a head cut off in a sound chunk was a struct.error",
        _hex("013c00feffffff7fff0f00"),
    ),
    (
        "controller.snapshot",
        "commands longer than the head were taken short",
        b"\x01\x30\x00" + bytes(44) + b"\x05\x00\x00\x00",
    ),
    (
        "controller.snapshot",
        "records that protobuf cannot read were a DecodeError",
        b"\x01\x30\x00" + bytes(48) + b"\x02\x00\x0a\x7f",
    ),
    *(
        ("spark.decode", "unpacked zeros were a record of no bytes each: 11 s", b"\x00" + bomb)
        for bomb in bombs()
    ),
    ("gateway.fetch_range", "an offset of 70 bits stayed one", b"\x18" + b"\xff" * 9 + b"\x7f"),
    ("controller.peers", "JSON of another shape was a TypeError", b'"joined"'),
    ("controller.peers", "a number for a directory was", b'{"joined": true, "directories": {"1": 5}}'),
    ("controller.peers", "JSON nested too deeply was a RecursionError", b"[" * 100_000),
    ("groups.regex", "what reads nothing was repeated a billion times", b"(){1000000000}"),
    ("groups.regex", "the same, with memory for each time", b"(){0,1000000000}"),
    ("groups.regex", "flags that exclude each other were a ValueError", b"(?a)(?u)x"),
    (
        "groups.regex",
        "a repeated set was built and asked anew for each state",
        "(?:[{}a]?){{0,600}}".format("".join(chr(0x100 + n) for n in range(800))).encode(),
    ),
    ("words.failpoints", "5,000 digits were a ValueError", b"controller.apply.before=pause:" + b"9" * 5000),
    ("words.failpoints", "so they were after @", b"controller.apply.before=kill@" + b"9" * 5000),
    ("words.setting", "and for a node", b"\x01leader.replication.throttled.rate=" + b"9" * 5000),
    ("words.setting", "and for a group", b"\x03consumer.session.timeout.ms=" + b"9" * 5000),
    ("words.resource", "and as a node's name", b"\x01" + b"9" * 5000),
    (
        "words.role_settings",
        "JSON nested too deeply was a RecursionError",
        b"--listeners\x00" + b"[" * 100_000,
    ),
    (
        "words.spark_options",
        "so it was in Spark's options",
        b"\x00gateway=h:1\x00subscribe=t\x00startingOffsets=" + b"[" * 100_000,
    ),
    (
        "gateway.relayed",
        "a Heartbeat that broke off behind its group's id raised in a timer of the gateway",
        chosen(ApiKey.HEARTBEAT, 4, b"\x02g"),
    ),
    (
        "records.produced",
        "the highest bit of attributes with a wrong max timestamp was an OverflowError",
        _HIGH_BIT,
    ),
    ("records.produced", "so it was in a topic with LogAppendTime", bytes((0x41,)) + _HIGH_BIT[1:]),
    ("words.address", "brackets in brackets were a host that cannot be written", b"[[]]:8"),
    (
        "groups.replay",
        "a regular expression in the log that cannot be read kept the shard from being loaded",
        _hex(
            "08001f000500016300016d000000057261636b026302680302610262050000290081632c000000000007fe080022006d"
            "00000200010203040506070001000affff000800016300016d"
        ),
    ),
    (
        "sasl.claims",
        "an exp beyond all floats was an OverflowError",
        b'{"alg":"RS256"}\n{"exp":' + b"9" * 400 + b"}",
    ),
]
