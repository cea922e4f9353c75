"""What answers at an address: a Kafka broker, something else, or nothing. Plain sockets, one question.

Theory: librdkafka tries for ever, and gRPC and Kafka's protocol tell little when they meet a port of
another kind. One ApiVersions request tells them apart, because each server gives itself away by its
first bytes: a Kafka broker repeats the correlation id (so does every version since 0.10), a gRPC server
sends its SETTINGS frame (RFC 9113, 3.4), an HTTP server refuses in clear text, a TLS one with an alert.
"""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from penstock.connector import PLAINTEXT, Connector, NoTls, Refused
from penstock.errors import CommandError, ExitCode

CONNECT_TIMEOUT_S: Final = 3.0
ANSWER_TIMEOUT_S: Final = 10.0
TIMEOUT_VARIABLE: Final = "PENSTOCK_TIMEOUT_S"
"""Environment variable that takes the place of both timeouts."""

_API_VERSIONS: Final = 18
_CORRELATION_ID: Final = 0x50454E53
_CLIENT_ID: Final = b"penstock-cli"
_HEAD_BYTES: Final = 9
"""As much of an answer as it takes: a Kafka length and correlation id, or an HTTP/2 frame header."""
_ANSWER_BYTES_MAX: Final = 1 << 20
_SETTINGS: Final = b"\x04\x00\x00\x00\x00\x00"
"""Kind, flags and stream of the frame that an HTTP/2 server says first (RFC 9113, 3.4)."""
_HTTP2_ANSWER_S: Final = 2.0
_HTTP2_HELLO: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + _SETTINGS


class Speaks(StrEnum):
    """What a port speaks; the value says it to people."""

    KAFKA = "a Kafka port"
    GRPC = "a gRPC port"
    HTTP = "an HTTP port"
    TLS = "a TLS port"
    OTHER = "no Kafka port"
    NOTHING = "closed at once"
    """Raft's port does that, but also a balancer with nobody behind it."""


@dataclass(frozen=True)
class Problem:
    """Why no broker can be talked to there. `speaks` is None where nobody was reached, or nobody answered."""

    address: str
    reason: str
    speaks: Speaks | None = None
    is_refusal: bool = False
    """A broker is there and does not take the user."""

    @property
    def is_another_port(self) -> bool:
        """A server is there, for another protocol: the address is wrong, not the cluster down."""
        return self.speaks not in (None, Speaks.NOTHING)

    def __str__(self) -> str:
        return f"{self.address}: {self.reason}"


def timeouts_s() -> tuple[float, float]:
    """For a connection and for the first answer, in s. Raises a usage error on a bad PENSTOCK_TIMEOUT_S."""
    text = os.environ.get(TIMEOUT_VARIABLE)
    if not text:
        return CONNECT_TIMEOUT_S, ANSWER_TIMEOUT_S
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise CommandError(f"{TIMEOUT_VARIABLE}={text!r}: give seconds, such as 5", ExitCode.USAGE)
    return value, value


def split_address(address: str, option: str = "--bootstrap") -> tuple[str, int]:
    """Host and port of HOST:PORT. Raises a usage error that names `option`."""
    host, separator, port = address.rpartition(":")
    bad_host = not host or any(c in "@/ " for c in host)
    if not separator or bad_host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise CommandError(f"{option} {address!r}: write it as HOST:PORT", ExitCode.USAGE)
    return host.strip("[]"), int(port)


def addresses_of(words: str, option: str) -> list[str]:
    """The addresses of HOST:PORT[,...], each well formed, at least one."""
    found = [word.strip() for word in words.split(",") if word.strip()]
    if not found:
        raise CommandError(f"{option} is empty: give HOST:PORT", ExitCode.USAGE)
    for address in found:
        split_address(address, option)
    return found


def kafka_connection(address: str, connector: Connector = PLAINTEXT) -> socket.socket | Problem:
    """A connection to the Kafka broker there, on which it has answered and taken the user, or why there is none."""
    connect_s, answer_s = timeouts_s()
    host, port = split_address(address)
    try:
        connection = connector.open(host, port, connect_s)
    except NoTls as error:
        return Problem(address, str(error))
    except OSError as error:
        return Problem(address, _why(error, connect_s))
    try:
        connection.settimeout(answer_s)
        speaks = _introduce(connection)
        if speaks is Speaks.KAFKA:
            connector.sign_in(connection)
            return connection
        problem = Problem(address, f"this is {speaks}", speaks)
    except Refused as error:
        problem = Problem(address, str(error), is_refusal=True)
    except TimeoutError:
        problem = Problem(address, f"takes connections but gives no answer within {answer_s:g} s")
    except OSError as error:
        speaks = Speaks.GRPC if _speaks_http2(address, connector) else Speaks.NOTHING
        reason = f"this is {speaks}" if speaks is Speaks.GRPC else _why_closed(error)
        problem = Problem(address, reason, speaks)
    except BaseException:
        connection.close()
        raise
    connection.close()
    return problem


def look_for_grpc(address: str) -> Problem:
    """What is at an address that should be a gRPC server's, seen from outside.

    Only where `speaks` is None or KAFKA is it certain that no gRPC server is there: a proxy in front of one
    may refuse the question in words of its own.
    """
    found = kafka_connection(address)
    if isinstance(found, Problem):
        return found
    found.close()
    return Problem(address, f"this is {Speaks.KAFKA}", Speaks.KAFKA)


def _introduce(connection: socket.socket) -> Speaks:
    """Ask a server for its API versions, and see by its answer what it is. Raises OSError."""
    request = struct.pack(">hhih", _API_VERSIONS, 0, _CORRELATION_ID, len(_CLIENT_ID)) + _CLIENT_ID
    connection.sendall(struct.pack(">i", len(request)) + request)
    head = _read(connection, _HEAD_BYTES)
    if head.startswith(b"HTTP/"):
        return Speaks.HTTP
    if head.startswith(b"\x15\x03"):
        return Speaks.TLS
    if len(head) < _HEAD_BYTES:
        raise ConnectionError("closed")
    if _is_settings(head):
        return Speaks.GRPC
    length, correlation_id = struct.unpack_from(">ii", head)
    if correlation_id != _CORRELATION_ID or not 4 < length <= _ANSWER_BYTES_MAX:
        return Speaks.OTHER
    if len(_read(connection, 4 + length - _HEAD_BYTES)) < 4 + length - _HEAD_BYTES:
        raise ConnectionError("closed")
    return Speaks.KAFKA


def _speaks_http2(address: str, connector: Connector) -> bool:
    """Whether a server that closed a connection without a word talks to who speaks HTTP/2."""
    connect_s, answer_s = timeouts_s()
    try:
        with connector.open(*split_address(address), connect_s) as connection:
            connection.settimeout(min(answer_s, _HTTP2_ANSWER_S))
            connection.sendall(_HTTP2_HELLO)
            return _is_settings(_read(connection, _HEAD_BYTES))
    except (NoTls, OSError):
        return False


def _is_settings(head: bytes) -> bool:
    return head[3:] == _SETTINGS


def _read(connection: socket.socket, count: int) -> bytes:
    """`count` bytes, or as many as come before the connection's end."""
    data = bytearray()
    while len(data) < count and (part := connection.recv(count - len(data))):
        data += part
    return bytes(data)


def _why_closed(error: OSError) -> str:
    reason = getattr(error, "reason", None)
    # With TLS 1.3 a client hears only now that its certificate is not taken.
    if isinstance(reason, str) and "CERTIFICATE" in reason:
        return f"it refuses this client's certificate, or that there is none ({reason.lower().replace('_', ' ')})"
    return "closes connections at once"


def _why(error: OSError, timeout_s: float) -> str:
    if isinstance(error, socket.gaierror):
        return "no such host"
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:g} s"
    return (error.strerror or str(error)).lower()
