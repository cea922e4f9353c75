"""What `make bench SECURE=1` gives both systems: certificates, and one user that signs in by SCRAM-SHA-512.

Both serve SASL_SSL to clients, speak TLS with certificates on both sides between their own processes, and ask their
ACLs about every request of a super user. Keys are P-256 on both sides.
"""

from __future__ import annotations

import secrets
from base64 import b64encode
from pathlib import Path

import trustme
from bench.peer import SecureDoor
from cryptography.hazmat.primitives import serialization

_BROKER = "broker"


def make_door(folder: Path) -> SecureDoor:
    """Certificates and a password for a secure Kafka, in `folder`."""
    folder.mkdir(parents=True)
    authority = trustme.CA()
    ca_pem, server_pem = folder / "ca.pem", folder / "server.pem"
    authority.cert_pem.write_to_path(str(ca_pem))
    issued = authority.issue_cert("localhost", "127.0.0.1", common_name=_BROKER)
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    # Java reads PKCS #8 alone.
    pkcs8 = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    server_pem.touch(0o600)
    server_pem.write_bytes(pkcs8 + b"".join(each.bytes() for each in issued.cert_chain_pems))
    return SecureDoor(
        server_pem,
        ca_pem,
        _BROKER,
        "bench",
        secrets.token_hex(16),
        b64encode(secrets.token_bytes(24)).decode(),
    )
