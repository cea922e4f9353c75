"""How a call ends, and until when it may take, as headers have it (gRPC over HTTP/2)."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

import grpc

CONTENT_TYPE: Final = "application/grpc"
_MESSAGE_CHARACTERS: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_UNITS_S: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_UNITS_SENT: Final = (("n", 1e-9), ("u", 1e-6), ("m", 1e-3), ("S", 1.0), ("M", 60.0), ("H", 3600.0))
_DIGITS_MOST: Final = 8
_BY_NUMBER: Final = {str(code.value[0]): code for code in grpc.StatusCode}
_BY_HTTP: Final = {
    "400": grpc.StatusCode.INTERNAL,
    "401": grpc.StatusCode.UNAUTHENTICATED,
    "403": grpc.StatusCode.PERMISSION_DENIED,
    "404": grpc.StatusCode.UNIMPLEMENTED,
    "429": grpc.StatusCode.UNAVAILABLE,
    "502": grpc.StatusCode.UNAVAILABLE,
    "503": grpc.StatusCode.UNAVAILABLE,
    "504": grpc.StatusCode.UNAVAILABLE,
}


def trailers(code: grpc.StatusCode, details: str) -> list[tuple[str, str]]:
    """What ends a call."""
    found = [("grpc-status", str(code.value[0]))]
    if details:
        found.append(("grpc-message", quote(details, safe=_MESSAGE_CHARACTERS)))
    return found


def status_of(headers: dict[str, str]) -> tuple[grpc.StatusCode, str] | None:
    """How a call has ended by its trailers; None when they don't say."""
    number = headers.get("grpc-status")
    if number is None:
        return None
    return _BY_NUMBER.get(number, grpc.StatusCode.UNKNOWN), unquote(headers.get("grpc-message", ""))


def status_of_http(status: str) -> grpc.StatusCode:
    """What an answer that is none of gRPC comes to."""
    return _BY_HTTP.get(status, grpc.StatusCode.UNKNOWN)


def timeout_s(text: str) -> float | None:
    """How long a call may take; None when that is no such header."""
    digits, unit = text[:-1], text[-1:]
    if not digits.isascii() or not digits.isdigit() or len(digits) > _DIGITS_MOST or unit not in _UNITS_S:
        return None
    return int(digits) * _UNITS_S[unit]


def timeout_text(seconds: float) -> str:
    """The header of a timeout."""
    for unit, unit_s in _UNITS_SENT:
        count = max(int(seconds / unit_s), 0)
        if len(str(count)) <= _DIGITS_MOST:
            return f"{count}{unit}"
    return "99999999H"
