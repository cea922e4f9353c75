"""HTTP/2 frames (RFC 9113), as far as gRPC's wire form needs them. Pure."""

from __future__ import annotations

import struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA: Final = 0x0
HEADERS: Final = 0x1
PRIORITY: Final = 0x2
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20

NO_ERROR: Final = 0x0
PROTOCOL_ERROR: Final = 0x1
INTERNAL_ERROR: Final = 0x2
FLOW_CONTROL_ERROR: Final = 0x3
STREAM_CLOSED: Final = 0x5
FRAME_SIZE_ERROR: Final = 0x6
REFUSED_STREAM: Final = 0x7
CANCEL: Final = 0x8
COMPRESSION_ERROR: Final = 0x9
ENHANCE_YOUR_CALM: Final = 0xB

_NAMES: Final = (
    *(
        "NO_ERROR",
        "PROTOCOL_ERROR",
        "INTERNAL_ERROR",
        "FLOW_CONTROL_ERROR",
        "SETTINGS_TIMEOUT",
        "STREAM_CLOSED",
    ),
    *(
        "FRAME_SIZE_ERROR",
        "REFUSED_STREAM",
        "CANCEL",
        "COMPRESSION_ERROR",
        "CONNECT_ERROR",
        "ENHANCE_YOUR_CALM",
    ),
    *("INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED"),
)

SETTING_HEADER_TABLE_SIZE: Final = 0x1
SETTING_ENABLE_PUSH: Final = 0x2
SETTING_MAX_CONCURRENT_STREAMS: Final = 0x3
SETTING_INITIAL_WINDOW_SIZE: Final = 0x4
SETTING_MAX_FRAME_SIZE: Final = 0x5
SETTING_MAX_HEADER_LIST_SIZE: Final = 0x6

FRAME_HEADER_BYTES: Final = 9
MESSAGE_PREFIX_BYTES: Final = 5
"""gRPC's: whether it is compressed, and its length."""
FRAME_BYTES_DEFAULT: Final = 16_384
FRAME_BYTES_MOST: Final = (1 << 24) - 1
WINDOW_DEFAULT: Final = 65_535
WINDOW_MOST: Final = (1 << 31) - 1

_header = struct.Struct(">HBBBI")
_message = struct.Struct(">HBBBIBI")
_setting = struct.Struct(">HI")
_u32 = struct.Struct(">I")


class BrokenPeer(Exception):
    """The other side breaks the protocol, or asks too much: the connection ends."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def name_of(code: int) -> str:
    """An error code in words."""
    return _NAMES[code] if code < len(_NAMES) else str(code)


def frame_header(size: int, kind: int, flags: int, stream: int) -> bytes:
    """The nine bytes before a payload of `size` bytes."""
    return _header.pack(size >> 8, size & 0xFF, kind, flags, stream)


def message_header(size: int, flags: int, stream: int) -> bytes:
    """What stands before a message of `size` bytes that is one DATA frame by itself."""
    framed = size + MESSAGE_PREFIX_BYTES
    return _message.pack(framed >> 8, framed & 0xFF, DATA, flags, stream, 0, size)


def message_prefix(size: int) -> bytes:
    """gRPC's five bytes before a message that is not compressed."""
    return b"\0" + _u32.pack(size)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A whole frame."""
    return frame_header(len(payload), kind, flags, stream) + payload


def settings(values: dict[int, int]) -> bytes:
    """A SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(_setting.pack(*item) for item in values.items()))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """What a SETTINGS frame says, in its order."""
    if len(payload) % _setting.size:
        raise BrokenPeer(FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
    return list(_setting.iter_unpack(payload))


def window_update(stream: int, more: int) -> bytes:
    """A WINDOW_UPDATE frame; `stream` 0: of the connection."""
    return frame(WINDOW_UPDATE, 0, stream, _u32.pack(more))


def rst_stream(stream: int, code: int) -> bytes:
    """A RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream, _u32.pack(code))


def goaway(last_stream: int, code: int, text: bytes = b"") -> bytes:
    """A GOAWAY frame."""
    return frame(GOAWAY, 0, 0, _u32.pack(last_stream) + _u32.pack(code) + text)


def u32(payload: bytes, at: int = 0) -> int:
    """Four bytes as a number."""
    return int(_u32.unpack_from(payload, at)[0])
