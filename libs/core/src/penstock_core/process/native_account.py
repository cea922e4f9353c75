"""How a client of the native API says who it is, by its client file: TLS, and the metadata of each call.

Tokens are taken when the first call needs one and renewed before they end, also while a call goes on; the file is read
again when it changes. Nothing here knows gRPC: `authenticate` is the stub's method, and the caller makes the channel.
"""

from __future__ import annotations

import os
import queue
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock_core.process.credentials import check_private, load_client_file, read_token
from penstock_core.security.client_file import ClientFile, ClientFileError
from penstock_core.security.sasl import OAUTHBEARER, PLAIN, SaslFailure
from penstock_core.security.scram import MECHANISM_OF
from penstock_core.security.scram_client import ScramClient
from penstock_proto.v1 import gateway_pb2 as pb

Metadata = tuple[tuple[str, str], ...]
Authenticate = Callable[..., Any]
"""`GatewayStub.Authenticate`."""

SIGN_IN_TIMEOUT_S: Final = 60.0
"""Login limits may make others wait who come from the same address."""
RENEW_AT: Final = 0.6
"""Of a token's lifetime."""
_NONCE_BYTES: Final = 24
_PEM_BYTES_MAX: Final = 1 << 20


class Pems(NamedTuple):
    """For a TLS channel: the CAs to trust (None: the library's own), and our key and certificate if there are any."""

    ca: bytes | None
    key: bytes | None
    certificate: bytes | None


class Account:
    """That of one client file. May be used by several threads."""

    def __init__(self, file: ClientFile, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.file = file
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._token = ""
        self._renew_s = 0.0

    def pems(self) -> Pems | None:
        """None: the file asks for connections without TLS. Raises ClientFileError."""
        file = self.file
        if not file.tls:
            return None
        if file.key_file and file.key_password:
            raise ClientFileError(
                f"{file.path}: ssl.key.password: gRPC takes no key with a password; store ssl.key.location without one"
            )
        if file.key_file:
            check_private(Path(file.key_file))
        return Pems(_pem(file, file.ca_file), _pem(file, file.key_file), _pem(file, file.certificate_file))

    def metadata(self, authenticate: Authenticate) -> Metadata:
        """What a call has to carry; signs in first when it is time to. Raises ClientFileError, SaslFailure, and
        what `authenticate` raises."""
        file = self.file
        if not file.sasl:
            return ()
        if file.mechanism == OAUTHBEARER:
            assert file.token_file is not None
            return _bearer(read_token(Path(file.token_file)))
        with self._lock:
            if not self._token or self._clock_s() >= self._renew_s:
                asked_s = self._clock_s()
                last = self._sign_in(authenticate)
                self._token = last.token
                self._renew_s = asked_s + last.token_lifetime_ms / 1000 * RENEW_AT
            return _bearer(self._token)

    def refused(self, shown: Metadata) -> bool:
        """A call with that metadata was UNAUTHENTICATED: whether another try may fare better, with a new token."""
        if not shown or self.file.mechanism == OAUTHBEARER:
            return False
        with self._lock:
            if shown == _bearer(self._token):
                self._token = ""
            return True

    def _sign_in(self, authenticate: Authenticate) -> pb.AuthenticateResponse:
        file = self.file
        mechanism, name, password = file.mechanism or "", file.username or "", file.password or ""
        to_send: queue.SimpleQueue[pb.AuthenticateRequest | None] = queue.SimpleQueue()
        responses = authenticate(iter(to_send.get, None), timeout=SIGN_IN_TIMEOUT_S)

        def say(message: bytes) -> pb.AuthenticateResponse:
            to_send.put(pb.AuthenticateRequest(mechanism=mechanism, message=message))
            try:
                answer: pb.AuthenticateResponse = next(responses)
            except StopIteration:
                raise SaslFailure("the gateway ended the exchange early") from None
            return answer

        try:
            if mechanism == PLAIN:
                last = say(f"\0{name}\0{password}".encode())
            else:
                client = ScramClient(
                    MECHANISM_OF[mechanism], name, password, secrets.token_urlsafe(_NONCE_BYTES)
                )
                last = say(client.final(say(client.first()).message))
                client.finish(last.message)
        finally:
            to_send.put(None)
        if not last.token:
            raise SaslFailure("the gateway gave no token")
        return last


class _Known(NamedTuple):
    stamp: tuple[int, ...]
    account: Account


_known: dict[tuple[int, str], _Known] = {}
_known_lock = threading.Lock()


def account_of(path: str) -> Account:
    """This process's account for a client file, made anew when the file is another one. Raises ClientFileError."""
    try:
        seen = os.stat(path)  # noqa: PTH116 - looked at for every call
    except OSError as error:
        raise ClientFileError(
            f"{path}: {error.strerror or error}; give the path of a client file, on each machine"
        ) from None
    # Another mode is another file too: it may be open to others now.
    stamp = (seen.st_mtime_ns, seen.st_ctime_ns, seen.st_size, seen.st_ino)
    key = (os.getpid(), path)
    with _known_lock:
        known = _known.get(key)
        if known is None or known.stamp != stamp:
            known = _known[key] = _Known(stamp, Account(load_client_file(Path(path))))
        return known.account


def _bearer(token: str) -> Metadata:
    return (("authorization", f"Bearer {token}"),)


def _pem(file: ClientFile, path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        with open(path, "rb") as opened:
            return opened.read(_PEM_BYTES_MAX)
    except OSError as error:
        raise ClientFileError(f"{file.path}: {path}: {error.strerror or error}; give a file in PEM") from None


__all__ = ["Account", "Authenticate", "Metadata", "Pems", "account_of"]
