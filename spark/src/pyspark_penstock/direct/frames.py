"""The few frames of Kafka's protocol that fetching takes: Fetch 13, SaslHandshake 1, SaslAuthenticate 1.

Fetch 13 names topics by id, so a topic that was made anew is never taken for the one that was planned for. An answer's
records are left where they lie. Whatever else comes is MalformedFrame: lengths are held against what is there before
anything is done with them.

Source: FetchRequest.json, FetchResponse.json, SaslHandshakeRequest.json, SaslAuthenticateRequest.json of Apache Kafka.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

FETCH: Final = 1
FETCH_VERSION: Final = 13
_SASL_HANDSHAKE: Final = 17
_SASL_AUTHENTICATE: Final = 36
_SASL_VERSION: Final = 1

_CLIENT_ID: Final = b"penstock-spark"
_NONE: Final = -1
_TOPIC_ID_BYTES: Final = 16


class MalformedFrame(ValueError):
    """Bytes that are no answer to what was asked."""


class FetchAnswer(NamedTuple):
    """What a Fetch of one partition gives; `records` is a view onto the frame."""

    throttle_ms: int
    """How long the node takes nothing from this connection: a quota is used up."""
    error: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]
    """Producer ids and first offsets of the aborted transactions in `records`."""
    nearer_node: int
    """In the rack that was told, instead of records; -1 for none."""
    records: memoryview


class SignInAnswer(NamedTuple):
    """One step of SASL."""

    error: int
    message: str
    data: bytes
    lifetime_ms: int
    """How long the node takes this sign-in for good; 0 for ever."""


def fetch_request(
    number: int,
    topic_id: bytes,
    partition: int,
    leader_epoch: int,
    offset: int,
    *,
    max_bytes: int,
    max_wait_ms: int,
    read_committed: bool,
    rack: str = "",
) -> bytes:
    """A frame that asks for one partition from `offset` on; `number` comes back with the answer."""
    near = rack.encode()
    return _framed(
        struct.pack(">hhih", FETCH, FETCH_VERSION, number, len(_CLIENT_ID)),
        _CLIENT_ID,
        b"\0",
        # Replica, wait, least and most bytes, isolation, no session.
        struct.pack(">iiiibii", _NONE, max_wait_ms, 1, max_bytes, int(read_committed), 0, _NONE),
        b"\2",
        topic_id,
        b"\2",
        # Partition, its epoch, offset, epoch of the last batch, log start (of followers), most bytes.
        struct.pack(">iiqiqi", partition, leader_epoch, offset, _NONE, _NONE, max_bytes),
        b"\0\0\1",
        _uvarint(len(near) + 1),
        near,
        b"\0",
    )


def handshake_request(number: int, mechanism: str) -> bytes:
    """A frame that asks to sign in by `mechanism`."""
    name = mechanism.encode()
    return _framed(_plain_header(_SASL_HANDSHAKE, number), struct.pack(">h", len(name)), name)


def authenticate_request(number: int, message: bytes) -> bytes:
    """A frame with one message of the mechanism."""
    return _framed(_plain_header(_SASL_AUTHENTICATE, number), struct.pack(">i", len(message)), message)


def _plain_header(api: int, number: int) -> bytes:
    return struct.pack(">hhih", api, _SASL_VERSION, number, len(_CLIENT_ID)) + _CLIENT_ID


def _framed(*parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">i", len(body)) + body


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_fetch(frame: memoryview, number: int, topic_id: bytes, partition: int) -> FetchAnswer:
    """The answer to that request. Raises MalformedFrame."""
    read = _Reading(frame)
    read.check_number(number)
    read.tags()
    throttle_ms, error, _session = read.fields(">ihi")
    topics = read.count()
    if error or not topics:
        if not error:
            raise MalformedFrame("an answer without the partition that was asked for")
        return FetchAnswer(throttle_ms, error, _NONE, _NONE, _NONE, (), _NONE, frame[:0])
    if topics != 1 or bytes(read.take(_TOPIC_ID_BYTES)) != topic_id or read.count() != 1:
        raise MalformedFrame("an answer about another topic than was asked for")
    told, error, high_watermark, stable, log_start = read.fields(">ihqqq")
    if told != partition:
        raise MalformedFrame(f"an answer about partition {told}, asked was {partition}")
    aborted = []
    for _ in range(read.count()):
        producer_id, first_offset = read.fields(">qq")
        read.tags()
        aborted.append((producer_id, first_offset))
    (nearer,) = read.fields(">i")
    records = read.take(read.count())
    read.tags()
    read.tags()
    read.tags()
    read.check_end()
    return FetchAnswer(throttle_ms, error, high_watermark, stable, log_start, tuple(aborted), nearer, records)


def read_handshake(frame: memoryview, number: int) -> tuple[int, tuple[str, ...]]:
    """Kafka's error code, and the mechanisms that there are. Raises MalformedFrame."""
    read = _Reading(frame)
    read.check_number(number)
    error, count = read.fields(">hi")
    names = []
    for _ in range(count):
        (length,) = read.fields(">h")
        names.append(bytes(read.take(length)).decode("utf-8", "replace"))
    read.check_end()
    return error, tuple(names)


def read_authenticate(frame: memoryview, number: int) -> SignInAnswer:
    """Raises MalformedFrame."""
    read = _Reading(frame)
    read.check_number(number)
    error, length = read.fields(">hh")
    message = bytes(read.take(max(length, 0))).decode("utf-8", "replace")
    (length,) = read.fields(">i")
    data = bytes(read.take(max(length, 0)))
    (lifetime_ms,) = read.fields(">q")
    read.check_end()
    return SignInAnswer(error, message, data, lifetime_ms)


class _Reading:
    """A place in a frame; every step is held against its end."""

    def __init__(self, frame: memoryview) -> None:
        self._frame = frame
        self._at = 0

    def check_number(self, number: int) -> None:
        (told,) = self.fields(">i")
        if told != number:
            raise MalformedFrame(f"the answer to request {told}, awaited was {number}")

    def check_end(self) -> None:
        if self._at != len(self._frame):
            raise MalformedFrame(f"{len(self._frame) - self._at} bytes behind the answer")

    def fields(self, form: str) -> tuple[int, ...]:
        try:
            found = struct.unpack_from(form, self._frame, self._at)
        except struct.error:
            raise MalformedFrame("the answer ends early") from None
        self._at += struct.calcsize(form)
        return found

    def take(self, size: int) -> memoryview:
        if not 0 <= size <= len(self._frame) - self._at:
            raise MalformedFrame(f"{size} bytes said, {len(self._frame) - self._at} are there")
        self._at += size
        return self._frame[self._at - size : self._at]

    def uvarint(self) -> int:
        value = shift = 0
        while shift < 35:
            if self._at >= len(self._frame):
                raise MalformedFrame("the answer ends early")
            byte = self._frame[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise MalformedFrame("a number of more than five bytes")

    def count(self) -> int:
        """Of an array or of bytes in the compact form: one more than there are; nothing (0) is none."""
        return max(self.uvarint() - 1, 0)

    def tags(self) -> None:
        """Tagged fields, none of which is needed."""
        for _ in range(self.uvarint()):
            self.uvarint()
            self.take(self.uvarint())
