"""What stands in a certificate, and how it is signed. Pure but for the clock and the randomness of keys.

A certificate names its process twice: `URI:spiffe://<domain>/<role>/<name>` is read by servers, and
`DNS:<role>.<domain>` by callers (source: SPIFFE ID and X509-SVID). Keys are P-256.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from penstock.errors import CommandError, ExitCode

ROLES = ("controller", "storage-node", "gateway", "admin")
CA_DAYS = 3650
LEAF_DAYS = 90
LEAF_DAYS_MAX = 825
"""What TLS libraries of some clients accept at most in a certificate with names of hosts."""
_CLOCKS_DIFFER = datetime.timedelta(minutes=5)
"""Certificates begin so long ago: other machines' clocks may be behind."""
_DOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")
_NAME = re.compile(r"\*|[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HOST = re.compile(
    r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*"
)
_DIRECTORY_OF_ANY = "any"


@dataclass(frozen=True)
class Leaf:
    """What is asked for."""

    role: str
    name: str
    sans: tuple[str, ...] = ()
    days: int = LEAF_DAYS

    @property
    def directory(self) -> str:
        """The directory's name."""
        return f"{self.role}-{_DIRECTORY_OF_ANY if self.name == '*' else self.name}"


def check_domain(domain: str) -> None:
    """Raise CommandError for what may not be a trust domain."""
    if not _DOMAIN.fullmatch(domain) or len(domain) > 200:
        raise CommandError(
            f"--domain {domain} is no domain name; use small letters, digits, dots and dashes", ExitCode.USAGE
        )


def check(leaf: Leaf) -> None:
    """Raise CommandError when it may not be issued."""
    if leaf.role not in ROLES:
        raise CommandError(f"--role {leaf.role} is unknown; use one of {', '.join(ROLES)}", ExitCode.USAGE)
    if not _NAME.fullmatch(leaf.name):
        raise CommandError(
            f"--name {leaf.name} is no name; use letters, digits, dots and dashes, or * for scaled processes",
            ExitCode.USAGE,
        )
    if leaf.role == "controller" and not (leaf.name.isascii() and leaf.name.isdigit()):
        raise CommandError(f"--name {leaf.name}: a controller's name is its id; use --name 1", ExitCode.USAGE)
    if leaf.role == "storage-node" and not re.fullmatch(r"\*|(node-)?[1-9][0-9]*", leaf.name):
        raise CommandError(
            f"--name {leaf.name}: a storage node's name is node-ID, or * for scaled nodes; use --name node-7",
            ExitCode.USAGE,
        )
    if not 1 <= leaf.days <= LEAF_DAYS_MAX:
        raise CommandError(f"--days {leaf.days} is out of range; use 1 to {LEAF_DAYS_MAX}", ExitCode.USAGE)
    for san in leaf.sans:
        _alternative_name(san)


def _alternative_name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        pass
    if len(text) > 253 or not _HOST.fullmatch(text):
        raise CommandError(
            f"--san {text} is no host name and no address; use kafka.example.com or 10.1.2.3", ExitCode.USAGE
        )
    return x509.DNSName(text)


def new_authority(domain: str) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """A key, and the CA of it."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    serial = x509.random_serial_number()
    # The serial tells one CA from the next in the names that people see.
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, domain),
            x509.NameAttribute(NameOID.COMMON_NAME, f"Penstock CA {serial:x}"[:24]),
        ]
    )
    builder = _builder(subject, subject, key.public_key(), serial, now, CA_DAYS)
    usage = _usage(digital_signature=False, key_cert_sign=True)
    cert = (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return key, cert


def sign(
    leaf: Leaf,
    domain: str,
    public: ec.EllipticCurvePublicKey,
    key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate,
) -> x509.Certificate:
    """A certificate of this process by that CA."""
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, domain),
            x509.NameAttribute(NameOID.COMMON_NAME, f"{leaf.role} {leaf.name}"[:64]),
        ]
    )
    now = datetime.datetime.now(datetime.UTC)
    names: list[x509.GeneralName] = [
        x509.UniformResourceIdentifier(f"spiffe://{domain}/{leaf.role}/{leaf.name}"),
        x509.DNSName(f"{leaf.role}.{domain}"),
        *(_alternative_name(san) for san in dict.fromkeys(leaf.sans)),
    ]
    builder = _builder(subject, authority.subject, public, x509.random_serial_number(), now, leaf.days)
    return (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True, key_cert_sign=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            critical=False,
        )
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    serial: int,
    now: datetime.datetime,
    days: int,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(serial)
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _usage(*, digital_signature: bool, key_cert_sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=key_cert_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
