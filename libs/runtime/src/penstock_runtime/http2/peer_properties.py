"""What a client's certificate says, under the names by which gRPC tells handlers of it (`auth_context`)."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence

Properties = Mapping[str, Sequence[bytes]]
_PLAINTEXT: Properties = {}


def properties_of(tls: ssl.SSLObject | None) -> Properties:
    """Of a connection that is made; nothing without TLS.

    `peer_spiffe_id` is there as gRPC has it: when the certificate has one URI, and that is a spiffe:// name.
    """
    if tls is None:
        return _PLAINTEXT
    found: dict[str, Sequence[bytes]] = {
        "transport_security_type": (b"ssl",),
        "ssl_session_reused": (b"true" if tls.session_reused else b"false",),
    }
    certificate = tls.getpeercert(binary_form=True)
    if certificate is None:
        return found
    found["x509_pem_cert"] = (ssl.DER_cert_to_PEM_cert(certificate).encode(),)
    names: Sequence[tuple[str, str]] = (tls.getpeercert() or {}).get("subjectAltName", ())  # type: ignore[assignment]
    uris = [value for kind, value in names if kind == "URI"]
    if len(uris) == 1 and uris[0].startswith("spiffe://"):
        found["peer_spiffe_id"] = (uris[0].encode(),)
    return found
