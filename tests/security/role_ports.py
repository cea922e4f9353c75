"""The ports between roles of a cluster with certificates, and the ways in which a stranger comes to them."""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PLAINTEXT: Final = "plaintext"
NO_CERTIFICATE: Final = "no certificate"
CLIENTS: Final = "a client's"
WAYS: Final = (PLAINTEXT, NO_CERTIFICATE, CLIENTS)
PATIENCE_S: Final = 10.0


@dataclass(frozen=True)
class RolePorts:
    """Where roles talk to each other, as `host:port`, and what a client of the cluster has in hand."""

    controller: str
    storage_node: str
    raft: str
    domain: str
    ca: Path
    cert: Path
    """Of the cluster's own CA, and of no role."""
    key: Path

    def channel(self, address: str, role: str, way: str) -> grpc.Channel:
        """A channel to a process, by one of WAYS."""
        if way == PLAINTEXT:
            return grpc.insecure_channel(address)
        chain = (self.key.read_bytes(), self.cert.read_bytes()) if way == CLIENTS else (None, None)
        credentials = grpc.ssl_channel_credentials(self.ca.read_bytes(), *chain)
        options = [("grpc.ssl_target_name_override", f"{role}.{self.domain}")]
        return grpc.secure_channel(address, credentials, options=options)

    @contextlib.contextmanager
    def raft_socket(self, way: str) -> Iterator[socket.socket]:
        """A connection to a controller's Raft port, by one of WAYS."""
        host, _, port = self.raft.rpartition(":")
        with socket.create_connection((host, int(port)), PATIENCE_S) as raw:
            if way == PLAINTEXT:
                yield raw
                return
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.load_verify_locations(self.ca)
            if way == CLIENTS:
                context.load_cert_chain(self.cert, self.key)
            with context.wrap_socket(raw) as connection:
                yield connection


def client_certificate(ca_directory: Path, into: Path) -> tuple[Path, Path]:
    """A certificate by the cluster's CA for a client, as a company would issue it; and its key."""
    authority = x509.load_pem_x509_certificate((ca_directory / "ca.pem").read_bytes())
    ca_key = serialization.load_pem_private_key((ca_directory / "ca-key.pem").read_bytes(), None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mallory")]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(ca_key, hashes.SHA256())
    )
    cert_file, key_file = into / "mallory.pem", into / "mallory-key.pem"
    cert_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return cert_file, key_file
