"""A walk over a request before kio reads it, driven by kio's own schema classes.

kio has two faults that a peer could use. An array length that the message cannot hold
makes its parser reserve memory for it, and the process aborts; and an unknown tagged
field raises KeyError, where KIP-482 says to skip it. `sanitize` refuses the first and
leaves out the second: what it returns is safe to decode. A null array where the schema
knows none, which kio takes, is refused too.

The walk of a class is compiled once into closures. Not hot: it serves what isn't
written by hand.

A message of 2 MiB can hold half a million items, each of which becomes objects. They are
counted while they are walked (`items_max`), and `sanitize_steps` walks, and gives, the items
of a message's own arrays one by one, so that a long message is no long pause.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Generator
from dataclasses import Field, dataclass, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, TypeAlias, Union, get_args, get_origin

from penstock_kafka.wire.primitives import INT16, INT32, INT64, Buffer, Malformed, Reader, uvarint

NO_MOMENT_MS: Final = 253_402_300_799_000
"""What stands for a time before 1970, -1 for none, in what `sanitize` returns: kio refuses those. The last second that
Python knows."""

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
    "uuid": 16,
}


def sanitize(schema: type, frame: Buffer, pos: int, items_max: int = sys.maxsize) -> bytes:
    """The message of class `schema` at `pos`, all lengths checked, without unknown tags.

    Bytes after it are dropped. Raises Malformed, also when it has more than `items_max` items in all.
    """
    reader = Reader(frame, pos, bool(schema.__flexible__), items_max)  # type: ignore[attr-defined]
    out = bytearray()
    op, _ = _entity(schema)
    op(reader, out)
    return bytes(out)


@dataclass(frozen=True, slots=True)
class Pieces:
    """A message as `sanitize` gives it, but that its own arrays of structures are empty: their items are here,
    by field, as (class, one message for each item)."""

    shell: bytes
    items: dict[str, tuple[type, list[bytes]]]


def sanitize_steps(
    schema: type, frame: Buffer, pos: int, items_max: int = sys.maxsize
) -> Generator[None, None, Pieces]:
    """As `sanitize`, with a step for each item of the message's own arrays."""
    flexible = bool(schema.__flexible__)  # type: ignore[attr-defined]
    reader = Reader(frame, pos, flexible, items_max)
    out = bytearray()
    found: dict[str, tuple[type, list[bytes]]] = {}
    parts, tagged = _parts(schema)
    for part in parts:
        count = None if part.item is None else _count_of(part, reader)
        if part.item is None or part.item_type is None or not count:
            part.op(reader, out)
            continue
        reader.nullable_array(max(1, part.item_bytes_min))
        out += b"\x01" if flexible else bytes(4)
        taken: list[bytes] = []
        for _ in range(count):
            one = bytearray()
            part.item(reader, one)
            taken.append(bytes(one))
            yield
        found[part.name] = (part.item_type, taken)
    if flexible:
        _walk_tags(reader, out, tagged)
    return Pieces(bytes(out), found)


def where_array_is(schema: type, message: Buffer, name: str) -> int:
    """Where the array `name` of a message begins with its count. The message is ours, without tagged fields."""
    reader = Reader(message, 0, bool(schema.__flexible__))  # type: ignore[attr-defined]
    parts, _ = _parts(schema)
    for part in parts:
        if part.name == name:
            return reader.pos
        part.op(reader, bytearray())
    raise KeyError(name)


def _count_of(part: _Part, reader: Reader) -> int | None:
    """Items of the array at the reader, which stays where it is."""
    ahead = Reader(reader.view, reader.pos, reader.flexible)
    return ahead.nullable_array(max(1, part.item_bytes_min))


@dataclass(frozen=True, slots=True)
class _Part:
    """A field of a structure that is no tagged one; `item` walks one item of an array of structures."""

    name: str
    op: _Op
    least: int
    item: _Op | None = None
    item_type: Any = None
    item_bytes_min: int = 0


@cache
def _parts(schema: Any) -> tuple[list[_Part], dict[int, _Op]]:
    """A structure's fields in order, and the tagged ones."""
    parts: list[_Part] = []
    tagged: dict[int, _Op] = {}
    for field in fields(schema):
        op, size = _field(field, schema.__flexible__)
        tag = field.metadata.get("tag")
        if tag is not None:
            tagged[int(tag)] = op
            continue
        item_type = _structure_of(field)
        if item_type is None:
            parts.append(_Part(field.name, op, size))
        else:
            item, item_bytes_min = _entity(item_type)
            parts.append(_Part(field.name, op, size, item, item_type, item_bytes_min))
    return parts, tagged


def _structure_of(field: Field[Any]) -> Any:
    """The class of an array's items, None for what is no array of structures."""
    kind: object = field.type
    if get_origin(kind) in (Union, UnionType):
        kind = next(arg for arg in get_args(kind) if arg is not NoneType)
    if get_origin(kind) is not tuple:
        return None
    item = get_args(kind)[0]
    return item if isinstance(item, type) and hasattr(item, "__dataclass_fields__") else None


@cache
def _entity(schema: Any) -> tuple[_Op, int]:
    """How to walk one structure, and the least bytes that it takes."""
    parts, tagged = _parts(schema)
    ops = [part.op for part in parts]
    least = sum(part.least for part in parts)
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
    reader.count_items(count)
    kept: list[tuple[int, bytearray]] = []
    for _ in range(count):
        tag = reader.uvarint()
        size = reader.uvarint()
        start = reader.take(size)
        op = known.get(tag)
        if op is None:
            continue
        inner = Reader(reader.view[start : start + size], 0, reader.flexible, reader.items_left)
        value = bytearray()
        op(inner, value)
        reader.items_left = inner.items_left
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
    if name == "datetime_i64":
        return _moment, INT64.size
    raise TypeError(f"schema type {name!r} of {field.name} is not known")


def _fixed(count: int) -> _Op:
    def op(reader: Reader, out: bytearray) -> None:
        start = reader.take(count)
        out += reader.view[start : start + count]

    return op


def _moment(reader: Reader, out: bytearray) -> None:
    at_ms = reader.int64()
    out += INT64.pack(at_ms if at_ms >= 0 else NO_MOMENT_MS)


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
