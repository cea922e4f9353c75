"""One socket to a node's Kafka listener: TLS, sign-in, questions and their answers, one after the other.

An answer is received into a buffer that the connection keeps: whoever got it must be done with it before the next. That
the next question is asked before makes the kernel's own buffer the place where its answer waits. The buffer grows with
what has come, not with what a frame says of itself.

Connections are kept per process, node and account between tasks (`taken`, `kept`), and not beyond a sign-in's lifetime.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import ssl
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from penstock_core.limits import BATCH_BYTES_MAX
from penstock_core.process.credentials import check_private, read_token
from penstock_core.process.native_account import Account, account_of
from penstock_core.security.client_file import ClientFile, ClientFileError
from penstock_core.security.sasl import OAUTHBEARER, PLAIN, SaslFailure
from penstock_core.security.scram import MECHANISM_OF
from penstock_core.security.scram_client import ScramClient
from pyspark_penstock.direct import frames
from pyspark_penstock.direct.frames import MalformedFrame

FRAME_BYTES_MAX: Final = BATCH_BYTES_MAX + (1 << 20)
"""The largest batch, and what an answer has around it."""
BUFFER_BYTES: Final = (4 << 20) + (64 << 10)
"""To begin with: what is asked for at a time, and some more. Pages that nothing was received into cost nothing."""
_KEPT_BUFFER_BYTES: Final = 8 << 20
"""A buffer that is larger goes when its reader is done."""
_RENEW_AT: Final = 0.6
"""Of a sign-in's lifetime."""
_NONCE_BYTES: Final = 24
_KEPT_MAX: Final = 16

_kept: dict[tuple[int, str, int, str], Connection] = {}


class Connection:
    """Open and signed in, or not there at all. Not thread-safe."""

    def __init__(self, host: str, port: int, account: Account | None, timeout_s: float) -> None:
        """`timeout_s` is for all that it takes. Raises OSError (ssl.SSLError too), SaslFailure, ClientFileError,
        MalformedFrame."""
        self.host, self.port = host, port
        self.account = account
        self._buffer = bytearray(BUFFER_BYTES)
        self._number = 0
        self.is_owing = False
        """An answer has not come yet."""
        self._renew_s: float | None = None
        deadline_s = time.monotonic() + timeout_s
        self._socket = _dial(host, port, deadline_s)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _notice_when_it_dies(self._socket)
            if account is not None and account.file.tls:
                self._socket = _tls(account.file).wrap_socket(self._socket, server_hostname=host)
            if account is not None and account.file.sasl:
                self._sign_in(account.file, deadline_s)
        except BaseException:
            self.close()
            raise

    @property
    def is_due(self) -> bool:
        """Its sign-in ends soon: another connection is to take its place."""
        return self._renew_s is not None and time.monotonic() >= self._renew_s

    def next_number(self) -> int:
        """For the next request."""
        self._number = (self._number + 1) & 0x7FFFFFFF
        return self._number

    def ask(self, request: bytes, timeout_s: float) -> None:
        """Raises OSError."""
        self._socket.settimeout(timeout_s)
        self.is_owing = True
        self._socket.sendall(request)

    def has_news(self, timeout_s: float) -> bool:
        """Whether something comes within that time. Raises OSError."""
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        poll = select.poll()  # any file number, unlike select
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def answer(self, timeout_s: float) -> memoryview:
        """The next frame, in the buffer. `timeout_s` of silence ends it. Raises OSError, MalformedFrame."""
        self._socket.settimeout(timeout_s)
        self._receive(0, 4)
        (size,) = struct.unpack_from(">i", self._buffer)
        if not 4 <= size <= FRAME_BYTES_MAX:
            raise MalformedFrame(f"a frame of {size} bytes")
        have = 0
        while have < size:
            if have == len(self._buffer):
                # Never in place: somebody may still hold a view.
                larger = bytearray(min(size, 2 * have))
                larger[:have] = self._buffer
                self._buffer = larger
            upto = min(size, len(self._buffer))
            self._receive(have, upto)
            have = upto
        self.is_owing = False
        return memoryview(self._buffer)[:size]

    def _receive(self, at: int, end: int) -> None:
        with memoryview(self._buffer) as view:
            while at < end:
                got = self._socket.recv_into(view[at:end])
                if not got:
                    raise ConnectionResetError("the node closed the connection")
                at += got

    def close(self) -> None:
        """For good."""
        with suppress(OSError):
            self._socket.close()

    def shrink(self) -> None:
        """Let go of what one very large batch has taken."""
        if len(self._buffer) > _KEPT_BUFFER_BYTES:
            self._buffer = bytearray(BUFFER_BYTES)

    # -- sign-in ----------------------------------------------------------------------------

    def _sign_in(self, file: ClientFile, deadline_s: float) -> None:
        mechanism, name, password = file.mechanism or "", file.username or "", file.password or ""
        number = self.next_number()
        error, known = frames.read_handshake(
            self._exchange(frames.handshake_request(number, mechanism), deadline_s), number
        )
        if error:
            raise SaslFailure(f"the node takes no {mechanism}; it knows {', '.join(known) or 'nothing'}")
        if mechanism == PLAIN:
            last = self._say(f"\0{name}\0{password}".encode(), deadline_s)
        elif mechanism == OAUTHBEARER:
            assert file.token_file is not None
            token = read_token(Path(file.token_file))
            last = self._say(b"n,,\x01auth=Bearer " + token.encode() + b"\x01\x01", deadline_s)
            if last.data:
                raise SaslFailure("the node refused the token")
        else:
            client = ScramClient(MECHANISM_OF[mechanism], name, password, secrets.token_urlsafe(_NONCE_BYTES))
            last = self._say(client.first(), deadline_s)
            last = self._say(client.final(last.data), deadline_s)
            client.finish(last.data)
        if last.lifetime_ms > 0:
            self._renew_s = time.monotonic() + last.lifetime_ms / 1000 * _RENEW_AT

    def _say(self, message: bytes, deadline_s: float) -> frames.SignInAnswer:
        number = self.next_number()
        frame = self._exchange(frames.authenticate_request(number, message), deadline_s)
        answer = frames.read_authenticate(frame, number)
        if answer.error:
            raise SaslFailure(answer.message or f"Kafka error {answer.error}")
        return answer

    def _exchange(self, request: bytes, deadline_s: float) -> memoryview:
        self.ask(request, _left(deadline_s))
        return self.answer(_left(deadline_s))


def _dial(host: str, port: int, deadline_s: float) -> socket.socket:
    found: OSError = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        tried = socket.socket(family, kind, protocol)
        try:
            tried.settimeout(_left(deadline_s))
            tried.connect(address)
        except OSError as error:
            tried.close()
            found = error
            continue
        return tried
    raise found


def _notice_when_it_dies(opened: socket.socket) -> None:
    """A machine that is gone says nothing: its silence is heard by TCP within 10 to 15 s."""
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 5),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 2),
        ("TCP_USER_TIMEOUT", 10_000),
    ):
        if hasattr(socket, name):
            opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _left(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("no answer in time")
    return left_s


def _tls(file: ClientFile) -> ssl.SSLContext:
    """As strict as the channels to gateways are. Raises ClientFileError."""
    try:
        context = ssl.create_default_context(cafile=file.ca_file)
        if file.certificate_file is not None and file.key_file is not None:
            check_private(Path(file.key_file))
            context.load_cert_chain(file.certificate_file, file.key_file, file.key_password or "")
    except OSError as error:
        raise ClientFileError(
            f"{file.path}: ssl.ca.location, ssl.certificate.location or ssl.key.location: {error.strerror or error}"
        ) from None
    return context


def account(credentials_file: str) -> Account | None:
    """This process's account for a client file; None for no file. Raises ClientFileError."""
    return account_of(credentials_file) if credentials_file else None


def taken(host: str, port: int, credentials_file: str) -> Connection | None:
    """A connection that another reader has left here, if it is still of use. Raises ClientFileError."""
    found = _kept.pop((os.getpid(), host, port, credentials_file), None)
    if found is None:
        return None
    if found.is_due or found.account is not account(credentials_file) or _has_something_to_say(found):
        found.close()
        return None
    return found


def kept(connection: Connection, credentials_file: str) -> None:
    """Leave a connection to the next reader."""
    key = (os.getpid(), connection.host, connection.port, credentials_file)
    if connection.is_owing or key in _kept or len(_kept) >= _KEPT_MAX:
        connection.close()
        return
    connection.shrink()
    _kept[key] = connection


def _has_something_to_say(connection: Connection) -> bool:
    """Nobody asked it: it is closed, or worse."""
    raw: Any = connection._socket
    raw.setblocking(False)
    try:
        raw.recv(1)
    except (BlockingIOError, ssl.SSLWantReadError):
        return False
    except OSError:
        return True
    return True
