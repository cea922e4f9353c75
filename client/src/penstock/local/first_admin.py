"""What a secure cluster begins with: certificates of one CA, and an admin with a random password.

For `up --secure` (`secure`) and for containers (`containers`). What is there stays: a second run makes nothing anew but
certificates that are missing, old, or without a name that is asked for. The password is nowhere but in client files,
which are 0600, and is never printed.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import CommandError
from penstock.local.plan import ADMIN, FIRST_USERS_FILE
from penstock.local.store import write_private

if TYPE_CHECKING:
    from penstock.certificate_making import Leaf
    from penstock.certificates import CertificateAuthority

ITERATIONS: Final = 4_096
RENEW_AFTER_S: Final = 30 * 86_400.0
"""Certificates live 90 days."""

_PASSWORD_BYTES: Final = 24
_MECHANISM: Final = "SCRAM-SHA-512"
_BOOTSTRAP: Final = "bootstrap.servers="


@dataclass(frozen=True)
class AdminFile:
    """A client file of the admin's that is to be written."""

    path: Path
    bootstrap: str
    """HOST:PORT,... as its clients dial."""
    ca: str
    """Path of the CA's certificate, as its clients find it."""
    whom: str
    """Whom it is for, for people."""
    is_java: bool = False
    """In Java's names, which librdkafka refuses; else in librdkafka's, which `penstock` reads too."""
    further: Mapping[str, str] = field(default_factory=dict)

    def text(self, password: str) -> str:
        """The whole file."""
        values = {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": _MECHANISM,
        }
        if self.is_java:
            values |= {
                "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
                f'username="{ADMIN}" password="{password}";',
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": self.ca,
            }
        else:
            values |= {"sasl.username": ADMIN, "sasl.password": password, "ssl.ca.location": self.ca}
        lines = [f"{key}={value}" for key, value in {**values, **self.further}.items()]
        return "\n".join([f"# The cluster's admin, for {self.whom}.", *lines]) + "\n"


def open_authority(directory: Path, domain: str) -> CertificateAuthority:
    """The CA in a directory of `penstock cert`, made if there is none. Raises CommandError."""
    try:
        from penstock.certificates import CertificateAuthority
    except ImportError as error:
        raise CommandError(f"--secure needs {error.name}: pip install 'penstock[local]'") from None
    known = (directory / "cluster.json").exists()
    return CertificateAuthority(directory) if known else CertificateAuthority.create(directory, domain)


def issue_due(authority: CertificateAuthority, leaves: Sequence[Leaf]) -> None:
    """Issue what is missing, old or named otherwise than before. Raises CommandError."""
    issued = {leaf.directory: leaf for leaf in authority.issued()}
    authority.issue_all(
        [
            leaf
            for leaf in leaves
            if issued.get(leaf.directory) != leaf or _is_old(authority.paths(leaf)["cert"])
        ]
    )


def _is_old(cert: Path) -> bool:
    try:
        return time.time() - cert.stat().st_mtime > RENEW_AFTER_S
    except OSError:
        return True


def make_admin(directory: Path, files: Sequence[AdminFile]) -> None:
    """The admin for the controllers, salted, in `directory`, and these client files; if they are there, their
    addresses alone are changed."""
    if files[-1].path.exists():
        for file in files:
            set_bootstrap(file.path, file.bootstrap)
        return
    from penstock_core.security.bootstrap_users import BootstrapUser, to_text
    from penstock_core.security.scram import ScramMechanism, credential, salt_text

    password = secrets.token_urlsafe(_PASSWORD_BYTES)
    users = []
    for mechanism in ScramMechanism:
        salt = salt_text(secrets.randbits(130))
        salted = mechanism.salted_password(password.encode(), salt, ITERATIONS)
        users.append(BootstrapUser(ADMIN, credential(mechanism, salt, salted, ITERATIONS)))
    write_private(directory / FIRST_USERS_FILE, to_text(users))
    # Where the last one is, all of them are.
    for file in files:
        write_private(file.path, file.text(password))


def set_bootstrap(file: Path, bootstrap: str) -> None:
    """Name the addresses that there are now; everything else stays."""
    try:
        text = file.read_text()
    except OSError:
        return
    lines = [_BOOTSTRAP + bootstrap if line.startswith(_BOOTSTRAP) else line for line in text.splitlines()]
    new = "\n".join(lines) + "\n"
    if new != text:
        write_private(file, new)
