"""The cluster's certificates: one CA, and a certificate for each process.

    DIR/ca.pem          the CA's certificate; several while one CA follows another
    DIR/ca-key.pem      its private key: whoever has it can be anybody in the cluster
    DIR/cluster.json    trust domain, and what was issued last to whom (to issue it again)
    DIR/<role>-<name>/  cert.pem, key.pem, ca.pem: what one process gets, and no more

Keys are 0600, in directories that are 0700; a CA's key that others can read is refused.

Needs the package cryptography (the extra `penstock[cert]`).
"""

from __future__ import annotations

import datetime
import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from penstock.certificate_making import Leaf, check, check_domain, new_authority, sign
from penstock.errors import CommandError

__all__ = [
    "CertificateAuthority",
    "Leaf",
    "check_private",
    "describe",
    "is_signed_by",
    "load_certificate",
    "names_of",
]


class CertificateAuthority:
    """A CA's directory."""

    def __init__(self, directory: Path) -> None:
        """Open one that `create` made. Raises CommandError."""
        self.directory = directory
        self._file = directory / "cluster.json"
        if not self._file.exists():
            raise CommandError(
                f"{directory} is no directory of a CA; make one with `penstock cert init {directory}`"
            )
        try:
            told = json.loads(self._file.read_text())
            self.domain = str(told["domain"])
            self._issued: dict[str, dict[str, Any]] = dict(told["issued"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CommandError(f"{self._file} cannot be read ({error}); restore it from a copy") from None

    @classmethod
    def create(cls, directory: Path, domain: str) -> CertificateAuthority:
        """Make a CA in a new or empty directory. Raises CommandError."""
        check_domain(domain)
        if (directory / "ca-key.pem").exists() or (directory / "cluster.json").exists():
            raise CommandError(
                f"{directory} has a CA already; use it, `penstock cert rotate {directory}` replaces it, "
                "or choose another directory"
            )
        _private_directory(directory)
        key, cert = new_authority(domain)
        _write(directory / "ca-key.pem", _pem_of_key(key), secret=True)
        _write(directory / "ca.pem", _pem(cert))
        _write(directory / "cluster.json", _json({"domain": domain, "issued": {}}))
        return cls(directory)

    # -- what there is ------------------------------------------------------------

    def authorities(self) -> list[x509.Certificate]:
        """The CAs that are trusted now, the one that signs first."""
        path = self.directory / "ca.pem"
        try:
            return x509.load_pem_x509_certificates(path.read_bytes())
        except (OSError, ValueError) as error:
            raise CommandError(f"{path}: {_why(error)}; restore it from a copy") from None

    def issued(self) -> list[Leaf]:
        """What was issued last to each process."""
        return [
            Leaf(each["role"], each["name"], tuple(each["sans"]), each["days"])
            for _, each in sorted(self._issued.items())
        ]

    def paths(self, leaf: Leaf) -> dict[str, Path]:
        """The files of a certificate, by the names of a role's `[tls]` table."""
        directory = self.directory / leaf.directory
        return {what: directory / f"{what}.pem" for what in ("cert", "key", "ca")}

    # -- changes --------------------------------------------------------------------

    def issue(self, leaf: Leaf) -> dict[str, Path]:
        """Write a new key and certificate; those of before are replaced. Raises CommandError."""
        self.issue_all([leaf])
        return self.paths(leaf)

    def issue_all(self, leaves: Sequence[Leaf]) -> None:
        """The same for several."""
        for leaf in leaves:
            check(leaf)
        if leaves:
            key, authority = self._signing()
            for leaf in leaves:
                self._issue(leaf, key, authority)
            self._save()

    def _issue(self, leaf: Leaf, key: ec.EllipticCurvePrivateKey, authority: x509.Certificate) -> None:
        own = ec.generate_private_key(ec.SECP256R1())
        cert = sign(leaf, self.domain, own.public_key(), key, authority)
        paths = self.paths(leaf)
        _private_directory(paths["cert"].parent)
        # The certificate last: who watches the files takes them when they belong together.
        _write(paths["ca"], (self.directory / "ca.pem").read_bytes())
        _write(paths["key"], _pem_of_key(own), secret=True)
        _write(paths["cert"], _pem(cert))
        self._issued[leaf.directory] = {
            "role": leaf.role,
            "name": leaf.name,
            "sans": list(leaf.sans),
            "days": leaf.days,
        }

    def add_authority(self) -> x509.Certificate:
        """First step of a rotation: a new CA that signs from now on, beside the old ones, which stay trusted.

        Certificates of processes that are there get the new `ca.pem`, and are not replaced.
        """
        trusted = self.authorities()
        self._signing()
        key, cert = new_authority(self.domain)
        # Known before it signs: a break in between leaves a CA that signs nothing.
        self._trust([trusted[0], cert, *trusted[1:]])
        _write(self.directory / "ca-key.pem", _pem_of_key(key), secret=True)
        self._trust([cert, *trusted])
        return cert

    def remove_authorities(self) -> list[x509.Certificate]:
        """Last step of a rotation: trust only the CA that signs. Raises CommandError while others' are in use."""
        trusted = self.authorities()
        _, signing = self._signing()
        for leaf in self.issued():
            path = self.paths(leaf)["cert"]
            if not path.exists() or not is_signed_by(load_certificate(path), signing):
                raise CommandError(
                    f"{leaf.directory} is not known to be signed by the new CA; first "
                    f"`penstock cert renew {self.directory} --all`, and give every process its new files"
                )
        self._trust([signing])
        return [cert for cert in trusted if cert != signing]

    def _trust(self, authorities: Sequence[x509.Certificate]) -> None:
        text = b"".join(_pem(cert) for cert in authorities)
        _write(self.directory / "ca.pem", text)
        for leaf in self.issued():
            path = self.paths(leaf)["ca"]
            if path.parent.exists():
                _write(path, text)

    def _signing(self) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
        path = self.directory / "ca-key.pem"
        check_private(path)
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            raise CommandError(f"{path}: {_why(error)}; restore it from a copy") from None
        for cert in self.authorities():
            if isinstance(key, ec.EllipticCurvePrivateKey) and cert.public_key() == key.public_key():
                if cert.not_valid_after_utc < datetime.datetime.now(datetime.UTC):
                    raise CommandError(
                        f"the CA in {self.directory} ran out at {cert.not_valid_after_utc:%Y-%m-%d}; "
                        f"`penstock cert rotate {self.directory} --add` makes a new one"
                    )
                return key, cert
        raise CommandError(
            f"{path} is the key of no CA in {self.directory / 'ca.pem'}; restore them from a copy"
        )

    def _save(self) -> None:
        _write(self._file, _json({"domain": self.domain, "issued": self._issued}))


# -- reading ------------------------------------------------------------------------


def load_certificate(path: Path) -> x509.Certificate:
    """The first certificate of a file. Raises CommandError."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CommandError(f"{path}: {_why(error)}; give a certificate in PEM") from None


def is_signed_by(cert: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether that CA signed it."""
    try:
        cert.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def describe(path: Path, cert: x509.Certificate, authorities: Sequence[x509.Certificate]) -> dict[str, Any]:
    """What people want to know of a certificate; times are UTC."""
    now = datetime.datetime.now(datetime.UTC)
    left = cert.not_valid_after_utc - now
    return {
        "file": str(path),
        "subject": cert.subject.rfc4514_string(),
        "names": names_of(cert),
        "serial": f"{cert.serial_number:x}",
        "not_before": cert.not_valid_before_utc.isoformat(),
        "not_after": cert.not_valid_after_utc.isoformat(),
        "days_left": left.days,
        "state": _state(cert, now, authorities),
        "sha256": cert.fingerprint(hashes.SHA256()).hex(),
    }


def names_of(cert: x509.Certificate) -> list[str]:
    """Subject alternative names as OpenSSL writes them."""
    try:
        names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    kinds: dict[type, str] = {
        x509.UniformResourceIdentifier: "URI",
        x509.DNSName: "DNS",
        x509.IPAddress: "IP",
    }
    return [f"{kinds.get(type(name), 'other')}:{name.value}" for name in names]


def _state(cert: x509.Certificate, now: datetime.datetime, authorities: Sequence[x509.Certificate]) -> str:
    if now > cert.not_valid_after_utc:
        return "expired"
    if now < cert.not_valid_before_utc:
        return "not yet valid"
    if authorities and not any(is_signed_by(cert, authority) for authority in authorities):
        return "of another CA"
    whole = cert.not_valid_after_utc - cert.not_valid_before_utc
    return "renew soon" if cert.not_valid_after_utc - now < whole / 3 else "good"


def check_private(path: Path) -> None:
    """Raise CommandError when others may read a key or go into its directory."""
    try:
        modes = {path: path.stat().st_mode, path.parent: path.parent.stat().st_mode}
    except OSError as error:
        raise CommandError(f"{error.filename}: {_why(error)}; restore it from a copy") from None
    for each, mode in modes.items():
        if stat.S_IMODE(mode) & (stat.S_IRWXG | stat.S_IRWXO):
            right = "600" if each == path else "700"
            raise CommandError(
                f"{each} is open to others (mode {stat.S_IMODE(mode):04o}); chmod {right} it, and think of the key "
                "as known to whoever could read it"
            )


# -- files ---------------------------------------------------------------------------


def _private_directory(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if stat.S_IMODE(directory.stat().st_mode) & (stat.S_IRWXG | stat.S_IRWXO):
            if any(directory.iterdir()):
                raise CommandError(
                    f"{directory} is open to others; chmod 700 it, or choose another directory"
                )
            directory.chmod(0o700)
    except OSError as error:
        raise CommandError(f"{directory}: {_why(error)}; choose a directory that can be written") from None


def _write(path: Path, data: bytes, *, secret: bool = False) -> None:
    """Replace a file in one step; whoever reads it sees the old one or the new one."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(
            os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644), "wb"
        ) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise CommandError(f"{path}: {_why(error)}; choose a directory that can be written") from None


def _pem(cert: x509.Certificate) -> bytes:
    return cert.public_bytes(serialization.Encoding.PEM)


def _pem_of_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()


def _why(error: BaseException) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "not readable as PEM"
