"""Every message that isn't written by hand, through kio; nobody else imports kio.

kio's classes are one module per (API, version), loaded when first used: most of a
process's life is Produce, Fetch and Metadata, which do not come here. The first use
takes about 30 ms and 5 MB; `preload` moves it to the start.

Requests go through `sanitize` first. Any failure of decoding leaves as Malformed
(INVALID_REQUEST).

Callers see kio's frozen dataclasses ("entities"): durations are
`timedelta`, moments `datetime` (`NO_MOMENT` for none), topic ids `uuid.UUID` or None, arrays tuples. `build` makes
one and leaves out fields that the request's version does not have.
"""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from types import ModuleType
from typing import Any, Final, get_args
from uuid import UUID

from penstock_core.errors import ErrorCode, InvariantBroken
from penstock_core.ids import NO_TOPIC_ID, TopicId
from penstock_kafka.wire.apis import SPECS, ApiSpec, answered
from penstock_kafka.wire.frames import RequestHeader, response_header
from penstock_kafka.wire.primitives import Buffer, Malformed, check_decoded_size, put_count
from penstock_kafka.wire.sanitize import NO_MOMENT_MS, sanitize, sanitize_steps, where_array_is

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
NO_MOMENT: Final = _EPOCH - timedelta(milliseconds=1)
"""-1 in a field of a moment: none."""
_READ_AS_NONE: Final = _EPOCH + timedelta(milliseconds=NO_MOMENT_MS)


@contextmanager
def _without_hypothesis() -> Iterator[None]:
    """Keep kio from loading hypothesis.

    It registers test strategies whenever hypothesis can be imported, which costs
    100 ms and 10 MB wherever development tools are installed.
    """
    if "hypothesis" in sys.modules:
        yield
        return
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["hypothesis"]


@lru_cache(maxsize=1)
def _kio() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """kio's makers of readers and writers."""
    with _without_hypothesis():
        serial = importlib.import_module("kio.serial")
    return serial.entity_reader, serial.entity_writer


def preload() -> None:
    """Load kio itself now, so that no client's request waits for it."""
    _kio()


def require_schemas() -> None:
    """See that kio has every version of every API that is answered.

    Only kio's index is read, no schema is loaded. Raises InvariantBroken that names the API and
    the versions that kio lacks.
    """
    index = importlib.import_module("kio.schema.index")
    for spec in answered():
        name = index.api_key_map.get(int(spec.key))
        if name != _kio_name(spec):
            raise InvariantBroken(f"{spec.name}: kio's name of api key {int(spec.key)} is {name}")
        known = index.schema_name_map[name]
        lacking = [version for version in spec.readable if version not in known]
        if lacking:
            raise InvariantBroken(f"{spec.name}: kio has no schema of the versions {lacking}")


def _kio_name(spec: ApiSpec) -> str:
    return spec.key.name.lower()


def _spec(api_key: int) -> ApiSpec:
    spec = SPECS.get(api_key)
    if spec is None or spec.versions is None:
        raise Malformed(f"api key {api_key} is not known")
    return spec


@cache
def _module(api_key: int, version: int, kind: str) -> ModuleType:
    _kio()
    try:
        return importlib.import_module(f"kio.schema.{_kio_name(_spec(api_key))}.v{version}.{kind}")
    except ImportError:
        raise Malformed(f"api key {api_key} version {version} is not known") from None


@cache
def request_type(api_key: int, version: int) -> Any:
    """kio's class of the request of that version; raises Malformed for an unknown one."""
    return getattr(_module(api_key, version, "request"), f"{_spec(api_key).name}Request")


@cache
def response_type(api_key: int, version: int) -> Any:
    """kio's class of the response of that version; raises Malformed for an unknown one."""
    return getattr(_module(api_key, version, "response"), f"{_spec(api_key).name}Response")


@cache
def entity_type(api_key: int, version: int, name: str, *, request: bool = False) -> Any:
    """kio's class of a structure inside a message, e.g. "ListOffsetsTopicResponse"."""
    return getattr(_module(api_key, version, "request" if request else "response"), name)


@cache
def _converters(schema: Any) -> dict[str, Callable[[Any], Any] | None]:
    """How `build` takes each field of a class."""
    return {f.name: _CONVERTERS.get(f.metadata.get("kafka_type", "")) for f in fields(schema)}


def build(schema: Any, **values: Any) -> Any:
    """An instance of `schema` from those of `values` that it has.

    One call serves every version: fields of other versions are left out. Error codes
    may be given as ints, durations as ms, topic ids as 16 bytes; `throttle_time` is 0
    when it isn't given.
    """
    converters = _converters(schema)
    if "throttle_time" in converters:
        values.setdefault("throttle_time", 0)
    taken: dict[str, Any] = {}
    for name, value in values.items():
        if name in converters:
            convert = converters[name]
            taken[name] = value if convert is None else convert(value)
    return schema(**taken)


def field_names(schema: Any) -> tuple[str, ...]:
    """What `schema` has."""
    return tuple(field.name for field in fields(schema))


@cache
def error_code(code: int) -> Any:
    """kio's own enum value for a Kafka error code; UNKNOWN_SERVER_ERROR for one it lacks."""
    _kio()
    errors = importlib.import_module("kio.schema.errors").ErrorCode
    try:
        return errors(int(code))
    except ValueError:
        return errors(int(ErrorCode.UNKNOWN_SERVER_ERROR))


def _duration(value: timedelta | int) -> timedelta:
    return value if isinstance(value, timedelta) else timedelta(milliseconds=value)


def _moment(value: datetime | int) -> datetime:
    """Of ms since 1970; below 0 it is none, and none is later than what Python knows."""
    if isinstance(value, datetime):
        return value
    return _EPOCH + timedelta(milliseconds=max(-1, min(value, NO_MOMENT_MS - 1)))


def _uuid(value: UUID | bytes | None) -> UUID | None:
    """kio has None for the id of zeros."""
    if value is None or isinstance(value, UUID):
        return value
    return None if value == NO_TOPIC_ID else UUID(bytes=value)


def topic_id(value: UUID | None) -> TopicId | None:
    """A topic id as kio gives it, in our form; None for the id of zeros."""
    return None if value is None else TopicId(value.bytes)


_CONVERTERS: Final[dict[str, Callable[[Any], Any]]] = {
    "error_code": error_code,
    "timedelta_i32": _duration,
    "timedelta_i64": _duration,
    "datetime_i64": _moment,
    "uuid": _uuid,
}


def decode_request(header: RequestHeader, frame: Buffer) -> Any:
    """kio's entity of a request's body; raises Malformed (INVALID_REQUEST)."""
    if header.decoded is not None:
        return header.decoded
    check_decoded_size(frame)
    schema = request_type(header.api_key, header.api_version)
    return _decode(schema, sanitize(schema, frame, header.body_offset, header.items_max))


def decode_request_steps(header: RequestHeader, frame: Buffer) -> Generator[None, None, None]:
    """As `decode_request`, which has it ready afterwards, with a step for each item of the body's own arrays."""
    check_decoded_size(frame)
    schema = request_type(header.api_key, header.api_version)
    pieces = yield from sanitize_steps(schema, frame, header.body_offset, header.items_max)
    arrays: dict[str, tuple[Any, ...]] = {}
    for name, (item_type, messages) in pieces.items.items():
        made = []
        for message in messages:
            made.append(_decode(item_type, message))
            yield
        arrays[name] = tuple(made)
    header.decoded = replace(_decode(schema, pieces.shell), **arrays)


def _decode(schema: Any, body: bytes) -> Any:
    entity_reader, _ = _kio()
    try:
        entity, _ = entity_reader(schema)(body, 0)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        # A panic of kio's parser is no Exception; a bad value is a bad request all the same.
        raise Malformed(f"{schema.__name__}: {type(error).__name__} {error}") from None
    return _with_no_moments(entity) if _has_moments(schema) else entity


@cache
def _has_moments(schema: Any) -> bool:
    """Whether there is a moment anywhere in messages of a class."""
    return any(
        f.metadata.get("kafka_type") == "datetime_i64" or any(map(_has_moments, _structures(f.type)))
        for f in fields(schema)
    )


def _structures(kind: Any) -> Iterator[Any]:
    if is_dataclass(kind):
        yield kind
    for arg in get_args(kind):
        yield from _structures(arg)


def _with_no_moments(entity: Any) -> Any:
    """A message with `NO_MOMENT` where `sanitize` has put what kio reads in its place."""
    changed: dict[str, Any] = {}
    for each in fields(entity):
        value = getattr(entity, each.name)
        if value == _READ_AS_NONE:
            changed[each.name] = NO_MOMENT
        elif any(map(_has_moments, _structures(each.type))):
            one = _with_no_moments
            changed[each.name] = tuple(map(one, value)) if isinstance(value, tuple) else value and one(value)
    return replace(entity, **changed) if changed else entity


def decode_response(api_key: int, version: int, frame: Buffer) -> tuple[int, Any]:
    """Correlation id and entity of a response (no length prefix); raises Malformed."""
    head = len(response_header(api_key, version, 0))
    schema = response_type(api_key, version)
    if len(frame) < head:
        raise Malformed(f"response of {len(frame)} bytes")
    return int.from_bytes(frame[:4], "big", signed=True), _decode(schema, sanitize(schema, frame, head))


def encode_body(entity: Any) -> bytes:
    """A message's body."""
    _, entity_writer = _kio()
    with io.BytesIO() as buffer:
        entity_writer(type(entity))(buffer, entity)
        return buffer.getvalue()


def encode_response(header: RequestHeader, entity: Any) -> bytes:
    """The response to `header`, without length prefix."""
    return response_header(header.api_key, header.api_version, header.correlation_id) + encode_body(entity)


def encode_response_steps(
    header: RequestHeader, entity: Any, name: str, each: Iterable[Any]
) -> Generator[None, None, bytes]:
    """The response of `entity`, whose array `name` is empty, with the structures of `each` in it; a step for
    each, which is encoded as it comes."""
    return b"".join((yield from encode_pieces_steps(header, entity, name, map(encode_body, each))))


def encode_pieces_steps(
    header: RequestHeader, entity: Any, name: str, each: Iterable[bytes]
) -> Generator[None, None, list[bytes]]:
    """The same in pieces, of structures that are encoded: one that comes again takes no memory again."""
    shell = encode_body(entity)
    out = [b""]
    for one in each:
        out.append(one)
        yield
    schema = type(entity)
    at = where_array_is(schema, shell, name)
    count = put_count(len(out) - 1, schema.__flexible__)
    head = response_header(header.api_key, header.api_version, header.correlation_id)
    out[0] = b"".join([head, shell[:at], count])
    out.append(shell[at + len(put_count(0, schema.__flexible__)) :])
    return out


def respond(header: RequestHeader, **values: Any) -> bytes:
    """The response to a request, with these fields."""
    return encode_response(header, build(response_type(header.api_key, header.api_version), **values))


def item(header: RequestHeader, kind: str, /, **values: Any) -> Any:
    """A structure inside that response, by kio's name of it."""
    return build(entity_type(header.api_key, header.api_version, kind), **values)
