"""Headers of requests and responses.

A frame here never has its 4-byte length. Request header v1 is api key, version,
correlation id, client id; v2, of flexible versions, adds tagged fields (the client id
keeps its int16 length). Response header v0 is the correlation id; v1 adds tagged
fields, except for ApiVersions, whose client does not know yet what the broker speaks.
Source: Kafka's RequestHeader.json, ResponseHeader.json, ApiMessageTypeGenerator.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

from penstock_kafka.wire.apis import FLEXIBLE_SINCE, ApiKey
from penstock_kafka.wire.primitives import (
    INT32,
    REQUEST_ITEMS_MAX,
    Buffer,
    Malformed,
    Reader,
    put_string,
)

_FIXED: Final = struct.Struct(">hhih")
_PREFIX: Final = struct.Struct(">hhi")

CLIENT_ID_BYTES_MAX: Final = 1024
"""Longest client id that is taken: ids become labels and log fields."""

_HEADER_TAGS_MAX: Final = 100


@dataclass(slots=True)
class RequestHeader:
    """Header of a request; `body_offset` is where its body begins in the frame."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_offset: int
    items_max: int = REQUEST_ITEMS_MAX
    """Items that the body may have; Produce and Fetch have a bound of their own."""
    decoded: Any = None
    """The body, when it was decoded already (`codec.decode_request_steps`)."""

    @property
    def flexible(self) -> bool:
        """Whether body and headers of this version have tagged fields."""
        return self.api_version >= FLEXIBLE_SINCE[self.api_key]


def parse_request_header(frame: Buffer, items_max: int = REQUEST_ITEMS_MAX) -> RequestHeader:
    """The header of a request, whose body may have `items_max` items.

    Raises Malformed (INVALID_REQUEST) on garbage and on an api key that Kafka clients
    don't use. The version is not judged here: see `apis.is_supported`.
    """
    size = len(frame)
    if size < _FIXED.size:
        raise Malformed(f"request of {size} bytes has no header")
    api_key, api_version, correlation_id, id_bytes = _FIXED.unpack_from(frame)
    flexible_since = FLEXIBLE_SINCE.get(api_key)
    if flexible_since is None:
        raise Malformed(f"unknown api key {api_key}")
    # A client that asks for any version of ApiVersions is told those that there are.
    if api_version < 0 and api_key != ApiKey.API_VERSIONS:
        raise Malformed(f"version {api_version} of api key {api_key}")
    pos = _FIXED.size
    client_id: str | None = None
    if id_bytes >= 0:
        if id_bytes > CLIENT_ID_BYTES_MAX or id_bytes > size - pos:
            raise Malformed(f"client id of {id_bytes} bytes")
        # Kafka replaces what is no UTF-8 too: the id is only a label.
        client_id = str(frame[pos : pos + id_bytes], "utf-8", "replace")
        pos += id_bytes
    elif id_bytes != -1:
        raise Malformed(f"client id of {id_bytes} bytes")
    if api_version >= flexible_since:
        if pos < size and frame[pos] == 0:
            pos += 1
        else:
            reader = Reader(frame, pos, flexible=True, items_max=_HEADER_TAGS_MAX)
            reader.skip_tags()
            pos = reader.pos
    return RequestHeader(api_key, api_version, correlation_id, client_id, pos, items_max)


def request_header(api_key: int, api_version: int, correlation_id: int, client_id: str | None) -> bytes:
    """Header of a request that this process sends."""
    head = _PREFIX.pack(api_key, api_version, correlation_id) + put_string(client_id, flexible=False)
    return head + b"\x00" if api_version >= FLEXIBLE_SINCE[api_key] else head


def response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    """Header of the response to a request with these three."""
    head = INT32.pack(correlation_id)
    if api_key != ApiKey.API_VERSIONS and api_version >= FLEXIBLE_SINCE[api_key]:
        return head + b"\x00"
    return head


def skip_response_header(reader: Reader) -> int:
    """Read a response's header (of any API but ApiVersions); returns the correlation id."""
    correlation_id = reader.int32()
    reader.skip_tags()
    return correlation_id
