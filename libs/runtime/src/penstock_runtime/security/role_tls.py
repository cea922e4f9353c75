"""The `[tls]` table of a role, and TLS contexts of its files.

Both sides of a connection between roles show a certificate of the cluster's CA. Names are looked at by whoever makes
the connection (`penstock_core.security.identity`): the contexts check chains only, never host names, since scaled
containers have no address in their certificate.
"""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from penstock_core.security.identity import BadIdentity, PeerIdentity, identity_of
from penstock_runtime.addresses import StartupError

HTTP2 = "h2"
"""As gRPC's clients and servers name what they speak (RFC 9113, 3.2): they take nobody who does not."""
_PASSWORD_BYTES_MAX = 4096
_HANDSHAKE_STEPS_MAX = 16


class RoleTls(BaseModel):
    """Files of a role's certificate; PEM, read again when they change."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cert: Path
    """The certificate, and those between it and the CA's behind it."""
    key: Path
    """Its private key; nobody else may read it."""
    key_password_file: Path | None = None
    """File with the key's password, where it has one; nobody else may read it."""
    ca: Path
    """The cluster's CA; several while one follows the other."""
    mode: Literal["allow", "prefer", "require"] = "require"
    """`require`: TLS and nothing else. The two others are steps of a rolling restart from a cluster without
    certificates (decision 0044): `allow` takes TLS and plaintext, and dials in plaintext; `prefer` takes both,
    and dials by TLS."""

    def paths(self) -> tuple[Path, ...]:
        """All the files."""
        more = () if self.key_password_file is None else (self.key_password_file,)
        return (self.cert, self.key, self.ca, *more)


class RoleContexts(NamedTuple):
    """What was loaded from one state of the files."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    identity: PeerIdentity
    """Whose certificate it is: ours."""
    cert: bytes
    """The certificate's file."""
    not_after_s: float
    """When it runs out, in s since 1970."""


def load_server_context(tls: RoleTls, *, least: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    """A context for connections that come in; the other side has to show a certificate. Raises StartupError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    # Nobody resumes a session: each connection shows a certificate that is good now.
    context.num_tickets = 0
    return _load(context, tls, least)


def load_client_context(tls: RoleTls, *, least: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    """A context for connections that go out. Raises StartupError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    return _load(context, tls, least)


def load_contexts(tls: RoleTls, role: str, *, least: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> RoleContexts:
    """Both contexts, tried on each other: certificate, key and chain load, belong together and are good now.

    Raises StartupError, with the file and the mend, also when the certificate is not that of `role`.
    """
    server, client = load_server_context(tls, least=least), load_client_context(tls, least=least)
    for context in (server, client):
        context.set_alpn_protocols([HTTP2])
    try:
        certificate = _shake_hands(server, client) or {}
        identity = identity_of(certificate)
    except ssl.SSLCertVerificationError as error:
        raise StartupError(
            f"tls.cert = {tls.cert}: {error.verify_message} (checked against tls.ca = {tls.ca}); "
            "issue it anew by that CA"
        ) from None
    except ssl.SSLError as error:
        raise StartupError(
            f"tls.cert = {tls.cert}: no connection can be made with it ({_reason(error)}); issue it anew"
        ) from None
    except BadIdentity as error:
        raise StartupError(
            f"tls.cert = {tls.cert}: {error}; issue one with URI:spiffe://DOMAIN/{role}/NAME"
        ) from None
    if identity.role != role:
        raise StartupError(f"tls.cert = {tls.cert} is that of a {identity.role}; give one of a {role}")
    not_after_s = ssl.cert_time_to_seconds(certificate["notAfter"])
    return RoleContexts(server, client, identity, _read_cert(tls), float(not_after_s))


def _load(context: ssl.SSLContext, tls: RoleTls, least: ssl.TLSVersion) -> ssl.SSLContext:
    context.minimum_version = least
    check_private(tls.key, "tls.key")
    password = None if tls.key_password_file is None else _password(tls.key_password_file)

    def give_password() -> bytes:
        # Asked only for an encrypted key: without an answer OpenSSL would ask the terminal.
        if password is None:
            raise StartupError(f"tls.key = {tls.key} has a password; give tls.key_password_file")
        return password

    for path, name in ((tls.cert, "tls.cert"), (tls.key, "tls.key"), (tls.ca, "tls.ca")):
        _check_readable(path, name)
    try:
        context.load_cert_chain(tls.cert, tls.key, give_password)
    except ssl.SSLError as error:
        raise StartupError(
            f"tls.cert = {tls.cert}, tls.key = {tls.key}: {_cert_fault(error, has_password=password is not None)}; "
            "give a certificate in PEM and its own key"
        ) from None
    except (OSError, ValueError) as error:  # one of them has gone since; the password is too long for OpenSSL
        raise StartupError(
            f"tls.cert = {tls.cert}, tls.key = {tls.key}: {error}; give a certificate in PEM and its own key"
        ) from None
    try:
        context.load_verify_locations(tls.ca)
    except ssl.SSLError as error:
        raise StartupError(
            f"tls.ca = {tls.ca}: no certificates in PEM ({_reason(error)}); give the CA's"
        ) from None
    except OSError as error:
        raise StartupError(f"tls.ca = {tls.ca}: {error.strerror}; give a file that can be read") from None
    return context


def _read_cert(tls: RoleTls) -> bytes:
    try:
        return tls.cert.read_bytes()
    except OSError as error:
        raise StartupError(f"tls.cert = {tls.cert}: {error.strerror}; give a file that can be read") from None


def check_private(path: Path, name: str) -> None:
    """Raise StartupError when others than the owner may read the file. `name` is that of the setting."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise StartupError(f"{name} = {path}: {error.strerror}; give a file that can be read") from None
    if stat.S_IMODE(mode) & (stat.S_IRWXG | stat.S_IRWXO):
        raise StartupError(
            f"{name} = {path} can be read by others (mode {stat.S_IMODE(mode):04o}); chmod 600 it"
        )


def _check_readable(path: Path, name: str) -> None:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        raise StartupError(f"{name} = {path}: {error.strerror}; give a file that can be read") from None


def _password(path: Path) -> bytes:
    check_private(path, "tls.key_password_file")
    try:
        return path.read_bytes()[:_PASSWORD_BYTES_MAX].rstrip(b"\r\n")
    except OSError as error:
        raise StartupError(
            f"tls.key_password_file = {path}: {error.strerror}; give a file that can be read"
        ) from None


def _cert_fault(error: ssl.SSLError, *, has_password: bool) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "they do not belong together"
    # OpenSSL does not say which of the two it could not read, nor that the password was wrong.
    return "they cannot be loaded" + (
        ", or the password in tls.key_password_file is wrong" if has_password else ""
    )


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or "not readable").replace("_", " ").lower()


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> Mapping[str, Any] | None:
    """A connection of the two in memory; the certificate that the client saw, ours. Raises SSLError."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(down, up)
    far = server.wrap_bio(up, down, server_side=True)
    for _ in range(_HANDSHAKE_STEPS_MAX):
        waiting = 0
        for side in (near, far):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                waiting += 1
        if not waiting:
            return near.getpeercert()
    raise ssl.SSLError("the handshake does not end")
