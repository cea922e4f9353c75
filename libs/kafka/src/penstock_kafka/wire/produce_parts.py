"""A Produce request in parts, cut while it comes: each part is a request of some of its partitions.

Pure. A Produce promises nothing of two partitions together, so a broker may handle the first ones while the last
ones are still on their way, and need not hold all of them. Each part has the version, header, transactional id, acks
and timeout of the whole; the records stay as they are. Their responses make that of the whole (`join_responses`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from penstock_kafka.wire.apis import FLEXIBLE_SINCE, ApiKey, is_supported
from penstock_kafka.wire.frames import RequestHeader, parse_request_header
from penstock_kafka.wire.primitives import DATA_ITEMS_MAX, Buffer, Malformed, Reader, put_count
from penstock_kafka.wire.produce import ProduceResult, decode_produce_response, encode_produce_response

_TOPIC_IDS_SINCE: Final = 13
_ACKS_TIMEOUT: Final = struct.Struct(">hi")
_TOPIC_BYTES_MIN: Final = 3
_PARTITION_BYTES_MIN: Final = 5


class _NotYet(Malformed):
    """What is wanted is still to come."""


class _Coming(Reader):
    """A reader whose last bytes are not there yet: what no frame of that length can hold is malformed at once."""

    __slots__ = ("_have",)

    def __init__(self, data: Buffer, flexible: bool, items_max: int, beyond: int) -> None:
        super().__init__(data, 0, flexible, items_max)
        self._have = self.end
        self.end += beyond

    def take(self, count: int) -> int:
        start = super().take(count)
        if self.pos > self._have:
            raise _NotYet("still to come")
        return start


_Section = tuple[bytes, list[memoryview]]
"""A topic's key as it came, and some of its partitions, each as it came."""


class ProduceParts:
    """Cuts one request; the caller keeps the bytes that were not taken yet."""

    def __init__(self, length: int) -> None:
        """`length` is the frame's, without its own four bytes."""
        self._left = length
        self._head = b""
        """Up to the topics."""
        self._header: RequestHeader | None = None
        self._items_left = DATA_ITEMS_MAX
        self._topics_left = 0
        self._topic: bytes | None = None
        """Key of the topic that is not over."""
        self._partitions_left = 0

    @property
    def header(self) -> RequestHeader | None:
        """Of the request; None until it has come."""
        return self._header

    @property
    def is_over(self) -> bool:
        """The last part was cut."""
        return not self._left

    def cut(self, data: Buffer) -> tuple[bytearray | None, int]:
        """A request of the partitions that are whole in `data`, and how many bytes of `data` are done with.

        `data` is all that came and was not taken, at first with the header at least. None: no partition is whole, more
        has to come. With the last byte of the frame there is always a part, though it may have no partition. Raises
        Malformed.
        """
        view = memoryview(data)
        beyond = self._left - len(view)
        done = self._read_head(view, beyond)
        if self._header is None:
            return None, 0
        sections: list[_Section] = []
        reader = _Coming(view[done:], self._header.flexible, self._items_left, beyond)
        tail = b""
        try:
            while self._topics_left or self._topic is not None:
                self._step(reader, sections)
                self._items_left = reader.items_left
                done += reader.pos
                reader = _Coming(view[done:], reader.flexible, self._items_left, beyond)
            reader.skip_tags()
        except _NotYet:
            if not any(partitions for _, partitions in sections):
                # Topics that have begun are taken, which is no part yet.
                self._left -= done
                return None, done
            tail = b"\x00" if self._header.flexible else b""
        else:
            tail = bytes(reader.view[: reader.pos])
            done += reader.pos
            if done != self._left:
                raise Malformed(f"{self._left - done} bytes after a Produce request")
        self._left -= done
        return self._request(sections, tail), done

    def _read_head(self, view: memoryview, beyond: int) -> int:
        """All before the topics, once it is there; its size, 0 when it was read before."""
        if self._header is not None:
            return 0
        header = parse_request_header(view)
        version = header.api_version
        if header.api_key != ApiKey.PRODUCE or not is_supported(ApiKey.PRODUCE, version):
            raise Malformed(
                f"version {version} of api key {header.api_key} is no Produce request with records apart"
            )
        reader = _Coming(view, version >= FLEXIBLE_SINCE[ApiKey.PRODUCE], self._items_left, beyond)
        reader.pos = header.body_offset
        try:
            reader.nullable_string()
            reader.unpack(_ACKS_TIMEOUT)
            size = reader.pos
            self._topics_left = reader.array(_TOPIC_BYTES_MIN)
        except _NotYet:
            return 0
        self._head = bytes(view[:size])
        self._items_left = reader.items_left
        self._header = header
        return reader.pos

    def _step(self, reader: _Coming, sections: list[_Section]) -> None:
        """One topic's beginning, one partition, or one topic's end; nothing has happened when it raises `_NotYet`."""
        if self._topic is None:
            if self._header is not None and self._header.api_version >= _TOPIC_IDS_SINCE:
                reader.uuid()
            else:
                reader.string()
            key = bytes(reader.view[: reader.pos])
            self._partitions_left = reader.array(_PARTITION_BYTES_MIN)
            self._topic = key
            self._topics_left -= 1
            sections.append((key, []))
        elif self._partitions_left:
            reader.int32()
            reader.nullable_bytes()
            reader.skip_tags()
            if not sections:
                sections.append((self._topic, []))
            sections[-1][1].append(reader.view[: reader.pos])
            self._partitions_left -= 1
        else:
            reader.skip_tags()
            self._topic = None

    def _request(self, sections: Sequence[_Section], tail: bytes) -> bytearray:
        assert self._header is not None
        flexible = self._header.flexible
        tags = b"\x00" if flexible else b""
        out: list[Buffer] = [self._head, put_count(len(sections), flexible)]
        for key, partitions in sections:
            out.append(key)
            out.append(put_count(len(partitions), flexible))
            out.extend(partitions)
            out.append(tags)
        out.append(tail)
        return bytearray().join(out)


def join_responses(header: RequestHeader, responses: Sequence[Buffer]) -> bytes:
    """The response to a request from those to its parts, in their order; the longest throttle time is that of all."""
    results: list[ProduceResult] = []
    throttle_ms = 0
    for response in responses:
        decoded = decode_produce_response(response, header.api_version)
        results += decoded.results
        throttle_ms = max(throttle_ms, decoded.throttle_ms)
    return encode_produce_response(header, results, throttle_ms)
