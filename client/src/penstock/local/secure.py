"""What `up --secure` makes: a CA, a certificate for each process, the admin and its client files, all in DIR/secure.

    DIR/secure/ca.pem, ca-key.pem   the CA; `penstock cert` knows the directory
    DIR/secure/<role>-<name>/       what one process gets
    DIR/secure/first-users.json     the admin, salted: for the controllers that found the cluster
    DIR/secure/admin.properties     for clients: librdkafka's names, which `penstock` reads too
    DIR/secure/admin-java.properties  the same in Java's names, which librdkafka refuses

Rules: the password is nowhere but in the two client files, which are 0600, and is never printed. What is there is
kept: a second `up` makes nothing anew but certificates that are missing or old.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import CommandError
from penstock.local.plan import (
    ADMIN,
    FIRST_USERS_FILE,
    GATEWAY,
    SECURE_DIRECTORY,
    SECURE_HOST,
    ClusterState,
    Member,
    certificate_name,
)
from penstock.local.store import write_private

if TYPE_CHECKING:
    from penstock.certificate_making import Leaf

DOMAIN: Final = "local.penstock"
NAMES: Final = (SECURE_HOST, "127.0.0.1", "::1")
ITERATIONS: Final = 4_096
RENEW_AFTER_S: Final = 30 * 86_400.0
"""Certificates live 90 days."""

_PASSWORD_BYTES: Final = 24
_MECHANISM: Final = "SCRAM-SHA-512"


def directory_of(cluster: Path) -> Path:
    """Where it all is."""
    return cluster / SECURE_DIRECTORY


def admin_file(cluster: Path) -> Path:
    """The admin's client file."""
    return directory_of(cluster) / f"{ADMIN}.properties"


def java_file(cluster: Path) -> Path:
    """The same for Java's clients."""
    return directory_of(cluster) / f"{ADMIN}-java.properties"


def admin_certificate(cluster: Path) -> Path:
    """Directory with the admin's certificate, for `penstock controller`."""
    return directory_of(cluster) / f"admin-{ADMIN}"


def prepare(cluster: Path, state: ClusterState) -> None:
    """Make what is missing. Raises CommandError."""
    try:
        from penstock.certificate_making import Leaf
        from penstock.certificates import CertificateAuthority
    except ImportError as error:
        raise CommandError(f"--secure needs {error.name}: pip install 'penstock[local]'") from None
    directory = directory_of(cluster)
    known = (directory / "cluster.json").exists()
    authority = CertificateAuthority(directory) if known else CertificateAuthority.create(directory, DOMAIN)
    leaves = [*map(_leaf, state.members), Leaf("admin", ADMIN)]
    authority.issue_all([leaf for leaf in leaves if _is_due(authority.paths(leaf)["cert"])])
    bootstrap = ",".join(f"{SECURE_HOST}:{m.ports['kafka']}" for m in state.of_role(GATEWAY))
    if admin_file(cluster).exists():
        for file in (admin_file(cluster), java_file(cluster)):
            _set_bootstrap(file, bootstrap)
    else:
        _make_admin(cluster, bootstrap)


def _leaf(member: Member) -> Leaf:
    from penstock.certificate_making import Leaf

    return Leaf(member.role, certificate_name(member), NAMES)


def _is_due(cert: Path) -> bool:
    try:
        return time.time() - cert.stat().st_mtime > RENEW_AFTER_S
    except OSError:
        return True


def _make_admin(cluster: Path, bootstrap: str) -> None:
    from penstock_core.security.bootstrap_users import BootstrapUser, to_text
    from penstock_core.security.scram import ScramMechanism, credential, salt_text

    password = secrets.token_urlsafe(_PASSWORD_BYTES)
    users = []
    for mechanism in ScramMechanism:
        salt = salt_text(secrets.randbits(130))
        salted = mechanism.salted_password(password.encode(), salt, ITERATIONS)
        users.append(BootstrapUser(ADMIN, credential(mechanism, salt, salted, ITERATIONS)))
    ca = directory_of(cluster) / "ca.pem"
    common = {"bootstrap.servers": bootstrap, "security.protocol": "SASL_SSL", "sasl.mechanism": _MECHANISM}
    librdkafka = {
        **common,
        "sasl.username": ADMIN,
        "sasl.password": password,
        "ssl.ca.location": str(ca),
        # Listeners are at 127.0.0.1 alone.
        "broker.address.family": "v4",
    }
    java = {
        **common,
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{ADMIN}" password="{password}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(ca),
    }
    write_private(directory_of(cluster) / FIRST_USERS_FILE, to_text(users))
    write_private(java_file(cluster), _properties(java, "Java's clients and tools (--command-config)"))
    # The last one: where it is, all of them are.
    write_private(
        admin_file(cluster), _properties(librdkafka, "librdkafka (kcat -F) and `penstock --client-config`")
    )


def _properties(values: Mapping[str, str], whom: str) -> str:
    lines = [f"{key}={value}" for key, value in values.items()]
    return "\n".join([f"# The local cluster's admin, for {whom}.", *lines]) + "\n"


def _set_bootstrap(file: Path, bootstrap: str) -> None:
    """Name the gateways that there are now; everything else stays."""
    key = "bootstrap.servers="
    try:
        text = file.read_text()
    except OSError:
        return
    lines = [key + bootstrap if line.startswith(key) else line for line in text.splitlines()]
    new = "\n".join(lines) + "\n"
    if new != text:
        write_private(file, new)
