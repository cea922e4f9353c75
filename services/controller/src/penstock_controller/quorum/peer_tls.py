"""TLS inside a connection between two controllers: bytes in, bytes out, no socket.

The poller sees the socket and not what OpenSSL holds, so everything that was received is decrypted at once, and what is
sent is encrypted at once: only ciphertext waits. TLS 1.3, both sides show a certificate; the contexts check the
chain, `peer_fault` the name.
"""

from __future__ import annotations

import ssl
from typing import Protocol

from penstock_core.security.identity import BadIdentity, PeerIdentity, identity_of
from penstock_core.security.serial_number import serial_of
from penstock_core.security.subject import BadSubject

_READ_BYTES = 256 * 1024
_UNSAID_BYTES_MAX = 4096
_HANDSHAKE = 0x16


class PeerContexts(Protocol):
    """Contexts of one state of the certificate's files."""

    @property
    def server(self) -> ssl.SSLContext:
        """For connections that come in."""
        ...

    @property
    def client(self) -> ssl.SSLContext:
        """For connections that go out."""
        ...

    @property
    def identity(self) -> PeerIdentity:
        """Whose certificate it is: ours."""
        ...


class PeerTls(Protocol):
    """Where a quorum gets its contexts."""

    @property
    def current(self) -> PeerContexts:
        """The newest ones; asked for each new connection, on the tick thread."""
        ...

    @property
    def takes_plaintext(self) -> bool:
        """Whether peers may come without TLS, for the time of a transition."""
        ...

    @property
    def dials_tls(self) -> bool:
        """Whether peers are dialled by TLS."""
        ...

    def refusal(self, serial: str) -> str:
        """Why a certificate with that serial number is let in no more; "" when it is. From the tick thread."""
        ...


def begins_tls(first: bytes) -> bool:
    """Whether these first bytes of a connection are a TLS handshake; else they are a hello in plain.

    A record begins with 0x16, 3, 1 or 3. A hello begins with its length, least byte first, and is far below 64 KiB.
    """
    return first[0] == _HANDSHAKE and (len(first) < 3 or first[2] != 0)


class TlsFault(Exception):
    """The connection is over; the text says why, for people."""


class TlsEnd(Exception):
    """The other side said that it ends."""


class TlsStream:
    """One side of one connection."""

    def __init__(self, context: ssl.SSLContext, *, is_server: bool) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=is_server)
        self._is_server = is_server
        self._unsaid = bytearray()
        self._peer_serial: str | None = None
        self.is_established = False
        """Whether the handshake is done; on the side that dialled the other one may still refuse."""

    def start(self) -> None:
        """Say the first word, on the side that dialled."""
        self._shake_hands()

    def send(self, data: bytes) -> None:
        """Encrypt; before the handshake is done it waits, a hello at most. Raises TlsFault."""
        if not self.is_established:
            self._unsaid += data
            if len(self._unsaid) > _UNSAID_BYTES_MAX:
                raise TlsFault("more than a hello before the handshake")
            return
        try:
            self._encrypt(data)
        except ssl.SSLError as error:
            raise TlsFault(_words(error, is_server=self._is_server)) from None

    def receive(self, data: bytes) -> bytes:
        """Take what the socket gave; what it says in plain. Raises TlsFault and TlsEnd.

        What is to be sent then (`take`) is an answer, or the alert that says why it is over.
        """
        self._incoming.write(data)
        parts = []
        try:
            if not self.is_established and not self._shake_hands():
                return b""
            while part := self._object.read(_READ_BYTES):
                parts.append(part)
        except ssl.SSLWantReadError:
            return b"".join(parts)
        except ssl.SSLZeroReturnError:
            raise TlsEnd from None
        except ssl.SSLError as error:
            raise TlsFault(_words(error, is_server=self._is_server)) from None
        raise TlsEnd

    def take(self) -> bytes:
        """Ciphertext that waits to be sent."""
        return self._outgoing.read()

    def peer_fault(self, own: PeerIdentity, controller_id: int) -> str:
        """Why the other side's certificate is not that controller's; "" when it is."""
        try:
            found = identity_of(self._object.getpeercert())
        except BadIdentity as error:
            return str(error)
        if found != (own.trust_domain, own.role, str(controller_id)):
            return (
                f"the certificate is that of {found}, not of controller {controller_id} of {own.trust_domain}"
            )
        return ""

    @property
    def peer_serial(self) -> str:
        """The serial number of the other side's certificate; "" before the handshake is done."""
        if self._peer_serial is None and self.is_established:
            try:
                self._peer_serial = serial_of(self._object.getpeercert(binary_form=True) or b"")
            except BadSubject:
                self._peer_serial = ""
        return self._peer_serial or ""

    def _shake_hands(self) -> bool:
        """Go on as far as it goes; True when it is done. Raises SSLError."""
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.is_established = True
        if self._unsaid:
            self._encrypt(bytes(self._unsaid))
            self._unsaid.clear()
        return True

    def _encrypt(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._object.write(view) :]


def _words(error: ssl.SSLError, *, is_server: bool) -> str:
    """What became of the connection, with what to look at."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused ({error.verify_message}); look at its tls.cert and at tls.ca here"
    reason = error.reason or "unknown error"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it shows no certificate; give it one by [tls]"
    if "ALERT" in reason:
        alert = reason.lower().replace("_", " ").rpartition("alert ")[2]
        return f"it refuses this controller's certificate ({alert}); look at tls.cert here and at its tls.ca"
    if is_server and reason in (
        "WRONG_VERSION_NUMBER",
        "HTTP_REQUEST",
        "HTTPS_PROXY_REQUEST",
        "RECORD_LAYER_FAILURE",
    ):
        return "it speaks no TLS; give it a certificate by [tls]"
    if reason in ("UNSUPPORTED_PROTOCOL", "VERSION_TOO_LOW", "NO_SHARED_CIPHER"):
        return "it speaks no TLS 1.3"
    return f"it speaks TLS wrongly, or not at all ({reason.lower().replace('_', ' ')})"
