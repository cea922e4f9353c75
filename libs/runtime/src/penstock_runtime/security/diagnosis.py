"""Why a TLS connection with another role is not made.

Whoever calls hears in short what an attempt came to, and of a refusal by the other side only that the connection has
ended. So it is tried once more, and the reason is put in words that say what to look at.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from typing import Any

from penstock_core.addresses import parse_address
from penstock_core.security.identity import BadIdentity, PeerIdentity, identity_of
from penstock_runtime.addresses import StartupError
from penstock_runtime.http2 import frames
from penstock_runtime.security.role_tls import load_client_context
from penstock_runtime.security.tls_files import TlsFiles

TIMEOUT_S = 3.0
_REFUSED = (
    "it refuses this process's certificate; look whether tls.cert here has run out, and whether its tls.ca has the CA "
    "of it"
)


def find_fault(address: str, files: TlsFiles, role: str) -> str:
    """What is wrong with a TLS connection to `address`; "" when nothing is, or when nobody listens. Blocks."""
    where = parse_address(address)
    try:
        context = load_client_context(files.settings)
        context.set_alpn_protocols(["h2"])
        with socket.create_connection((where.host, where.port), TIMEOUT_S) as plain:
            return _try(plain, context, files.current.identity, role)
    except StartupError as error:
        return str(error)
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is refused ({error.verify_message}); look at its tls.cert and at tls.ca here"
    except ssl.SSLError as error:
        return _words(error)
    except (ConnectionResetError, BrokenPipeError):
        return _REFUSED
    except OSError:
        return ""


def find_stranger(certificate: Mapping[str, Any] | None, own: PeerIdentity, role: str) -> str:
    """Why a certificate is not that of a `role` of our cluster; "" when it is."""
    try:
        found = identity_of(certificate)
    except BadIdentity as error:
        return f"{error}; look at its tls.cert"
    if (found.trust_domain, found.role) != (own.trust_domain, role):
        return f"its certificate is that of {found}, not of a {role} of {own.trust_domain}"
    return ""


def _try(plain: socket.socket, context: ssl.SSLContext, own: PeerIdentity, role: str) -> str:
    try:
        sock = context.wrap_socket(plain)
    except TimeoutError:
        return "it does not answer in the TLS handshake; does it have a [tls] table?"
    with sock:
        fault = find_stranger(sock.getpeercert(), own, role)
        if fault:
            return fault
        # A server that takes our certificate says its HTTP/2 settings now; with TLS 1.3 a refusal comes here too.
        try:
            sock.sendall(frames.PREFACE + frames.settings({}))
            return "" if sock.recv(1) else _REFUSED
        except TimeoutError:
            return ""
        except ssl.SSLEOFError:
            return _REFUSED


def _words(error: ssl.SSLError) -> str:
    """What became of the connection, with what to look at."""
    reason = error.reason or "unknown error"
    if "ALERT" in reason:
        alert = reason.lower().replace("_", " ").rpartition("alert ")[2]
        return f"{_REFUSED} ({alert})"
    if reason in ("WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING", "RECORD_LAYER_FAILURE"):
        return "it speaks no TLS; give it a certificate by [tls]"
    return f"the TLS handshake fails ({reason.lower().replace('_', ' ')})"
