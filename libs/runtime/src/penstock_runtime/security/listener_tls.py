"""TLS of a Kafka listener, or of another door: contexts of its files.

Each change of the files makes a new context, for connections that come then; a context in use is never changed
(with a key of another kind OpenSSL goes on with the old one). TLS 1.2 at least, for Kafka's older clients.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import Any, Final, NamedTuple

from penstock_runtime.addresses import StartupError
from penstock_runtime.door import ListenerTls
from penstock_runtime.security import role_tls
from penstock_runtime.security.role_tls import RoleTls
from penstock_runtime.security.tls_files import WatchedFiles

_VERIFY: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


_SESSIONS_MAX: Final = 1_000
"""About 1.5 KB each; OpenSSL keeps 20,480, and Python has no way to tell it to keep none."""


class ListenerContext(NamedTuple):
    """What was loaded from one state of the files."""

    context: ssl.SSLContext
    not_after_s: float
    """When the certificate ends, in s since 1970."""
    names: tuple[str, ...]
    """The hosts and addresses in it."""


class ListenerTlsFiles(WatchedFiles[ListenerContext]):
    """The newest context of a listener."""

    def __init__(self, listener: str, tls: ListenerTls, *, protocol: str = "") -> None:
        """Load it. `protocol`: what is said that is spoken (ALPN); "": nothing is. Raises StartupError."""
        self.cert = tls.cert
        self.tls = tls
        super().__init__(tls.paths(), lambda: load_listener_context(listener, tls, protocol))

    def context(self) -> ssl.SSLContext:
        """For the next connection."""
        return self.current.context

    def reload(self) -> bool:
        """Besides: a context that remembers many sessions of TLS 1.2, which take memory, makes room for a new one."""
        if super().reload():
            return True
        if not self.fault and self.current.context.session_stats()["number"] > _SESSIONS_MAX:
            # The files are being written: the next time, then.
            with contextlib.suppress(StartupError, OSError, ValueError):
                self.current = self._load()
        return False


def is_resumed_after_end(made_tls: ssl.SSLObject, now_s: float) -> bool:
    """Whether the client's certificate has ended, and nobody has looked: with TLS 1.2 a session may be resumed."""
    if not made_tls.session_reused:
        return False
    certificate = made_tls.getpeercert()
    return bool(certificate) and ssl.cert_time_to_seconds(str(certificate["notAfter"])) < now_s  # type: ignore[index]


def load_listener_context(listener: str, tls: ListenerTls, protocol: str = "") -> ListenerContext:
    """A context for clients' connections; certificate, key and chain load, belong together and are good now.

    Raises StartupError with the listener, the file and the mend.
    """
    try:
        loaded = _load(tls)
    except StartupError as error:
        # Doors beside the listeners have names in small letters.
        where = f"{listener}_door" if listener.islower() else f"listener {listener}"
        raise StartupError(f"{where}: {error}".replace("tls.ca ", "tls.client_ca ")) from None
    if protocol:
        loaded.context.set_alpn_protocols([protocol])
    return loaded


def _files(tls: ListenerTls) -> RoleTls:
    # A listener without client_ca trusts nobody; its own certificate is what there is to load in its place.
    return RoleTls(
        cert=tls.cert, key=tls.key, key_password_file=tls.key_password_file, ca=tls.client_ca or tls.cert
    )


def _load(tls: ListenerTls) -> ListenerContext:
    context = role_tls.load_server_context(_files(tls), least=ssl.TLSVersion.TLSv1_2)
    context.verify_mode = _VERIFY[tls.client_auth]
    # One handshake per connection. None resumes a session with TLS 1.3 (`num_tickets`); OpenSSL remembers those of
    # TLS 1.2 by their id all the same, so whoever lets clients in asks `is_resumed_after_end`.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    found = _own_certificate(tls, context)
    return ListenerContext(
        context,
        ssl.cert_time_to_seconds(found["notAfter"]),
        tuple(value for kind, value in found.get("subjectAltName", ()) if kind in ("DNS", "IP Address")),
    )


def _own_certificate(tls: ListenerTls, server: ssl.SSLContext) -> dict[str, Any]:
    """What clients see of the certificate: a connection in memory to one that trusts it. Raises StartupError."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(tls.cert)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(down, up)
    far = server.wrap_bio(up, down, server_side=True)
    try:
        for side in (near, far, near):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
        found = near.getpeercert()
    except ssl.SSLCertVerificationError as error:
        raise StartupError(f"tls.cert = {tls.cert}: {error.verify_message}; issue it anew") from None
    except (ssl.SSLError, ValueError) as error:
        raise StartupError(
            f"tls.cert = {tls.cert}: no connection can be made with it ({error}); issue it anew"
        ) from None
    if not found:
        raise StartupError(f"tls.cert = {tls.cert} cannot be read; issue it anew")
    return dict(found)
