"""`throttle_time_ms` of a finished response, and the limit on what a Fetch may bring.

Answers are relayed as the bytes that a storage node sent; for how long a client is throttled is known only when
they leave. The field is a response's first, but for three APIs (`_ELSEWHERE`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final

from penstock_kafka.wire.apis import FLEXIBLE_SINCE, ApiKey, is_supported
from penstock_kafka.wire.frames import RequestHeader, parse_request_header
from penstock_kafka.wire.primitives import INT16, INT32, Buffer, Reader
from penstock_kafka.wire.produce import decode_produce_response

_CORRELATION_BYTES: Final = 4
_NEVER: Final = 1 << 15
THROTTLE_SINCE: Final[dict[int, int]] = {
    ApiKey.PRODUCE: 1,
    ApiKey.LIST_OFFSETS: 2,
    ApiKey.METADATA: 3,
    ApiKey.OFFSET_COMMIT: 3,
    ApiKey.OFFSET_FETCH: 3,
    ApiKey.FIND_COORDINATOR: 1,
    ApiKey.JOIN_GROUP: 2,
    ApiKey.HEARTBEAT: 1,
    ApiKey.LEAVE_GROUP: 1,
    ApiKey.SYNC_GROUP: 1,
    ApiKey.DESCRIBE_GROUPS: 1,
    ApiKey.LIST_GROUPS: 1,
    ApiKey.API_VERSIONS: 1,
    ApiKey.SASL_HANDSHAKE: _NEVER,
    ApiKey.SASL_AUTHENTICATE: _NEVER,
    ApiKey.DESCRIBE_QUORUM: _NEVER,
}
"""The first version whose response has the field, where that is not the first that there is."""


def _in_produce(response: Buffer, version: int) -> int:
    return decode_produce_response(response, version).throttle_offset


def _in_api_versions(response: Buffer, version: int) -> int:
    reader = Reader(response, _CORRELATION_BYTES + 2, version >= FLEXIBLE_SINCE[ApiKey.API_VERSIONS])
    for _ in range(reader.array(6)):
        reader.take(6)
        reader.skip_tags()
    return reader.pos


def _in_offset_delete(_response: Buffer, _version: int) -> int:
    return _CORRELATION_BYTES + 2


_ELSEWHERE: Final[dict[int, Callable[[Buffer, int], int]]] = {
    ApiKey.PRODUCE: _in_produce,
    ApiKey.API_VERSIONS: _in_api_versions,
    ApiKey.OFFSET_DELETE: _in_offset_delete,
}


def with_throttle_time(
    api_key: int, version: int, response: Sequence[Buffer] | bytes, throttle_ms: int
) -> Sequence[Buffer] | bytes:
    """The response (no length prefix) with `throttle_time_ms`, if that is more than it has already.

    As it is where its version has no such field: who asks so old is throttled without being told, as by Kafka.
    """
    if not is_supported(api_key, version) or version < THROTTLE_SINCE.get(api_key, 0):
        return response
    buffers: list[Buffer] = [response] if isinstance(response, bytes) else list(response)
    find = _ELSEWHERE.get(api_key)
    if find is not None:
        whole = b"".join(buffers)
        offset, buffers = find(whole, version), [whole]
    else:
        offset = _body_offset(api_key, version)
        while len(buffers) > 1 and len(buffers[0]) < offset + 4:
            buffers[:2] = [bytes(buffers[0]) + bytes(buffers[1])]
    first = buffers[0]
    if INT32.unpack_from(first, offset)[0] >= throttle_ms:
        return response
    head = bytes(first[:offset]) + INT32.pack(throttle_ms)
    rest = memoryview(first)[offset + 4 :]
    if len(rest) <= 4096:
        buffers[0] = head + rest
    else:
        buffers[:1] = [head, rest]
    return buffers


def leading_error(api_key: int, version: int, response: Sequence[Buffer]) -> int:
    """The code of a response (no length prefix) whose only one is behind `throttle_time_ms`; of none, 0."""
    offset = _body_offset(api_key, version) + (4 if version >= THROTTLE_SINCE.get(api_key, 0) else 0)
    head = b"".join(bytes(buffer[: offset + INT16.size]) for buffer in response[: offset + INT16.size])
    return int(INT16.unpack_from(head, offset)[0]) if len(head) >= offset + INT16.size else 0


def _body_offset(api_key: int, version: int) -> int:
    # The response header ends with the count of its tagged fields; nobody sends any.
    return _CORRELATION_BYTES + (version >= FLEXIBLE_SINCE[api_key])


_WAIT_BYTES: Final = 4
_FETCH_BOUNDS: Final = struct.Struct(">ii")
_REPLICA_ID_LAST: Final = 14


def limit_fetch(frame: bytearray, bytes_max: int) -> RequestHeader:
    """Have a Fetch request (no length prefix) ask for no more than that, nor wait for more. Raises Malformed.

    A node gives a first batch whatever its size (KIP-74).
    """
    header = parse_request_header(frame)
    offset = header.body_offset + _WAIT_BYTES
    if header.api_version <= _REPLICA_ID_LAST:
        offset += 4
    if offset + _FETCH_BOUNDS.size <= len(frame):  # what is too short is refused by whoever reads it
        min_bytes, max_bytes = _FETCH_BOUNDS.unpack_from(frame, offset)
        max_bytes = min(max_bytes, bytes_max)
        _FETCH_BOUNDS.pack_into(frame, offset, min(min_bytes, max_bytes), max_bytes)
    return header
