"""A walk over a request before kio reads it, driven by kio's own schema classes.

kio has two faults that a peer could use. An array length that the message cannot hold
makes its parser reserve memory for it, and the process aborts; and an unknown tagged
field raises KeyError, where KIP-482 says to skip it. `sanitize` refuses the first and
leaves out the second: what it returns is safe to decode. A null array where the schema
knows none, which kio takes, is refused too.

The walk of a class is compiled once into closures. Not hot: it serves what isn't
written by hand.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import Field, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, TypeAlias, Union, get_args, get_origin

from penstock_kafka.wire.primitives import INT16, INT32, Buffer, Malformed, Reader, uvarint

_Op: TypeAlias = Callable[[Reader, bytearray], None]

_FIXED_BYTES: Final = {
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "uuid": 16,
}


def sanitize(schema: type, frame: Buffer, pos: int) -> bytes:
    """The message of class `schema` at `pos`, all lengths checked, without unknown tags.

    Bytes after it are dropped. Raises Malformed.
    """
    reader = Reader(frame, pos, bool(schema.__flexible__))  # type: ignore[attr-defined]
    out = bytearray()
    op, _ = _entity(schema)
    op(reader, out)
    return bytes(out)


@cache
def _entity(schema: type[Any]) -> tuple[_Op, int]:
    """How to walk one structure, and the least bytes that it takes."""
    ops: list[_Op] = []
    tagged: dict[int, _Op] = {}
    least = 0
    for field in fields(schema):
        op, size = _field(field, schema.__flexible__)
        tag = field.metadata.get("tag")
        if tag is None:
            ops.append(op)
            least += size
        else:
            tagged[int(tag)] = op
    if not schema.__flexible__:

        def walk_plain(reader: Reader, out: bytearray) -> None:
            for op in ops:
                op(reader, out)

        return walk_plain, least

    def walk(reader: Reader, out: bytearray) -> None:
        for op in ops:
            op(reader, out)
        _walk_tags(reader, out, tagged)

    return walk, least + 1


def _walk_tags(reader: Reader, out: bytearray, known: dict[int, _Op]) -> None:
    count = reader.uvarint()
    if not count:
        out.append(0)
        return
    kept: list[tuple[int, bytearray]] = []
    for _ in range(count):
        tag = reader.uvarint()
        size = reader.uvarint()
        start = reader.take(size)
        op = known.get(tag)
        if op is None:
            continue
        inner = Reader(reader.view[start : start + size], 0, reader.flexible)
        value = bytearray()
        op(inner, value)
        if inner.pos != size:
            raise Malformed(f"tagged field {tag} says {size} bytes and has {inner.pos}")
        if any(tag == other for other, _ in kept):
            raise Malformed(f"tagged field {tag} is there twice")
        kept.append((tag, value))
    out += uvarint(len(kept))
    for tag, value in kept:
        out += uvarint(tag) + uvarint(len(value)) + value


def _field(field: Field[Any], flexible: bool) -> tuple[_Op, int]:
    kind: object = field.type
    optional = False
    if get_origin(kind) in (Union, UnionType):
        kinds = [arg for arg in get_args(kind) if arg is not NoneType]
        optional = len(kinds) < len(get_args(kind))
        kind = kinds[0]
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        nested = [arg for arg in get_args(item) if arg is not NoneType]
        if get_origin(item) in (Union, UnionType):
            item = nested[0]
        op, size = _value(field, item, flexible, optional=False)
        return _array(op, size, field.name, optional=optional), 1 if flexible else 4
    # A tagged field is there or not; what is there is never null.
    return _value(field, kind, flexible, optional=optional and "tag" not in field.metadata)


def _value(field: Field[Any], kind: Any, flexible: bool, *, optional: bool) -> tuple[_Op, int]:
    if hasattr(kind, "__dataclass_fields__"):
        op, size = _entity(kind)
        return (_nullable(op), 1) if optional else (op, size)
    name = str(field.metadata["kafka_type"])
    fixed = _FIXED_BYTES.get(name)
    if fixed is not None:
        return _fixed(fixed), fixed
    if name == "string":
        return _sized(INT16), 1 if flexible else 2
    if name in ("bytes", "records"):
        return _sized(INT32), 1 if flexible else 4
    raise TypeError(f"schema type {name!r} of {field.name} is not known")


def _fixed(count: int) -> _Op:
    def op(reader: Reader, out: bytearray) -> None:
        start = reader.take(count)
        out += reader.view[start : start + count]

    return op


def _sized(plain: struct.Struct) -> _Op:
    def op(reader: Reader, out: bytearray) -> None:
        start = reader.pos
        length = reader.length(plain)
        if length > 0:
            reader.take(length)
        out += reader.view[start : reader.pos]

    return op


def _array(item: _Op, item_bytes_min: int, name: str, *, optional: bool) -> _Op:
    def op(reader: Reader, out: bytearray) -> None:
        start = reader.pos
        count = reader.nullable_array(max(1, item_bytes_min))
        if count is None and not optional:
            # kio would hand out None for it; Kafka ends the connection.
            raise Malformed(f"array {name} at {start} is null")
        out += reader.view[start : reader.pos]
        for _ in range(count or 0):
            item(reader, out)

    return op


def _nullable(entity: _Op) -> _Op:
    """A structure behind a marker byte, negative for null (KIP-893)."""

    def op(reader: Reader, out: bytearray) -> None:
        marker = reader.int8()
        out.append(marker & 0xFF)
        if marker >= 0:
            entity(reader, out)

    return op
