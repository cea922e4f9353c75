"""Certificates of our own processes in gRPC's form.

gRPC has a TLS of its own (BoringSSL) and takes PEM, not contexts. Servers look at every handshake whether the
files have changed; channels keep what they were made with, so `ChannelPool` makes new ones.

BoringSSL gives tickets, which cannot be turned off from here, and whoever resumes a session by one is not asked for his
certificate again, for two days, or a week if he does it again and again. So whoever lets calls in asks
`is_resumed_after_end`. gRPC's own channels resume nothing in Python. (A new configuration for each handshake would void
all tickets; but gRPC 1.85 swaps it without a lock, and handshakes at the same time ended the process: "Check failed:
prior > 0".)

Whoever dials says the name of the role (`storage-node.<trust domain>`) in the place of a host name, and the
certificate of the other side has to carry it: nobody but a storage node is taken for one, wherever it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import grpc

from penstock_core.security.identity import PeerIdentity
from penstock_core.security.serial_number import der_of_pem
from penstock_core.security.subject import BadSubject, end_s
from penstock_runtime.security.listener_tls import ListenerTlsFiles
from penstock_runtime.security.role_tls import RoleContexts
from penstock_runtime.security.tls_files import TlsFiles

TARGET_NAME_OPTION = "grpc.ssl_target_name_override"
RESUMED_AFTER_END = "its certificate has ended, and its session was resumed; renew it"


def is_resumed_after_end(properties: Mapping[str, Any], now_s: float) -> bool:
    """Of a call, by its `auth_context`: whether the caller's certificate has ended, and nobody has looked."""
    if list(properties.get("ssl_session_reused", ())) != [b"true"]:
        return False
    shown = list(properties.get("x509_pem_cert", ()))
    return bool(shown) and _end_s(shown[0]) < now_s


@lru_cache(maxsize=1024)
def _end_s(certificate: bytes) -> float:
    try:
        return end_s(der_of_pem(certificate))
    except BadSubject:
        return 0.0


def host_name(role: str, of: PeerIdentity) -> str:
    """The DNS name in certificates of `role`, in the trust domain of `of`."""
    return f"{role}.{of.trust_domain}"


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Whoever connects shows a certificate of the CA. New files are used from the next handshake on."""
    given = files.current

    def newer() -> grpc.ServerCertificateConfiguration | None:
        # Called by a thread of gRPC for each handshake; None keeps what there is.
        nonlocal given
        current = files.current
        if current is given:
            return None
        given = current
        return _configuration(current)

    # grpc's stubs know nothing of the None that its documentation tells of.
    fetch: Any = newer
    return grpc.dynamic_ssl_server_credentials(_configuration(given), fetch, True)


def door_credentials(files: ListenerTlsFiles) -> grpc.ServerCredentials:
    """For clients: they see our certificate, and show one if `client_auth` is required. `files` have their PEM."""
    given = files.current
    required = files.tls.client_auth == "required"

    def configuration() -> grpc.ServerCertificateConfiguration:
        pem = given.pem
        assert pem is not None
        return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], pem.ca if required else None)

    def newer() -> grpc.ServerCertificateConfiguration | None:
        nonlocal given
        if files.current is given:
            return None
        given = files.current
        return configuration()

    fetch: Any = newer
    return grpc.dynamic_ssl_server_credentials(configuration(), fetch, required)


def channel_credentials(contexts: RoleContexts) -> grpc.ChannelCredentials:
    """What a channel shows and asks for."""
    pem = contexts.pem
    return grpc.ssl_channel_credentials(pem.ca, pem.key, pem.cert)


def _configuration(contexts: RoleContexts) -> grpc.ServerCertificateConfiguration:
    pem = contexts.pem
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], pem.ca)
