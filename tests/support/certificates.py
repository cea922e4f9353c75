"""Certificates for tests: a CA of trustme, and certificates of our own processes signed by it.

trustme makes names of hosts only; ours carry a URI, so they are signed here with the CA's key.
"""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock_runtime.security.role_tls import RoleTls
from penstock_runtime.security.tls_files import TlsFiles

DOMAIN = "penstock.test"
_HOUR = datetime.timedelta(hours=1)


class ClusterCa:
    """A cluster's CA."""

    def __init__(self) -> None:
        self._ca = trustme.CA()
        pem = self._ca.private_key_pem.bytes()
        key = serialization.load_pem_private_key(pem, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._key = key
        self._cert = x509.load_pem_x509_certificate(self._ca.cert_pem.bytes())

    @property
    def pem(self) -> bytes:
        """Its certificate."""
        return self._ca.cert_pem.bytes()

    def issue(
        self,
        directory: Path,
        role: str,
        name: str,
        *,
        domain: str = DOMAIN,
        uris: list[str] | None = None,
        good_for: datetime.timedelta = 24 * _HOUR,
        password: bytes | None = None,
    ) -> dict[str, str]:
        """Write cert.pem, key.pem and ca.pem; each takes its name at once, as a careful tool does it.

        Returns the role's `[tls]` table.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        names = uris if uris is not None else [f"spiffe://{domain}/{role}/{name}"]
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{role} {name}")]))
            .issuer_name(self._cert.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(now, now + good_for) - _HOUR)
            .not_valid_after(now + good_for)
            .add_extension(
                x509.SubjectAlternativeName(
                    [*map(x509.UniformResourceIdentifier, names), x509.DNSName(f"{role}.{domain}")]
                ),
                critical=False,
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )
        cert = builder.sign(self._key, hashes.SHA256())
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            encryption = serialization.BestAvailableEncryption(password)
        private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        directory.mkdir(parents=True, exist_ok=True)
        files = {"cert": cert.public_bytes(serialization.Encoding.PEM), "key": private, "ca": self.pem}
        return {what: str(_write(directory / f"{what}.pem", data)) for what, data in files.items()}

    def files(self, directory: Path, role: str, name: str, **how: Any) -> TlsFiles:
        """As `issue`, loaded."""
        return TlsFiles(RoleTls.model_validate(self.issue(directory, role, name, **how)), role)


def _write(path: Path, data: bytes) -> Path:
    new = path.with_suffix(".new")
    new.touch(0o600)
    new.write_bytes(data)
    os.replace(new, path)  # noqa: PTH105
    return path


def as_flag(table: dict[str, str]) -> str:
    """A `[tls]` table for a command line."""
    return json.dumps(table)
