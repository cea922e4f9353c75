"""What `up --secure` makes: a CA, a certificate for each process, the admin and its client files, all in DIR/secure.

    DIR/secure/ca.pem, ca-key.pem   the CA; `penstock cert` knows the directory
    DIR/secure/<role>-<name>/       what one process gets
    DIR/secure/first-users.json     the admin, salted: for the controllers that found the cluster
    DIR/secure/admin.properties     for clients: librdkafka's names, which `penstock` reads too
    DIR/secure/admin-java.properties  the same in Java's names, which librdkafka refuses

What is made, and what stays, is `first_admin`'s.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.local.first_admin import AdminFile, issue_due, make_admin, open_authority
from penstock.local.plan import (
    ADMIN,
    GATEWAY,
    SECURE_DIRECTORY,
    SECURE_HOST,
    ClusterState,
    Member,
    certificate_name,
)

if TYPE_CHECKING:
    from penstock.certificate_making import Leaf

DOMAIN: Final = "local.penstock"
NAMES: Final = (SECURE_HOST, "127.0.0.1", "::1")


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
    directory = directory_of(cluster)
    authority = open_authority(directory, DOMAIN)
    from penstock.certificate_making import Leaf

    issue_due(authority, [*map(_leaf, state.members), Leaf("admin", ADMIN)])
    bootstrap = ",".join(f"{SECURE_HOST}:{m.ports['kafka']}" for m in state.of_role(GATEWAY))
    ca = str(directory / "ca.pem")
    java = AdminFile(
        java_file(cluster), bootstrap, ca, "Java's clients and tools (--command-config)", is_java=True
    )
    # Listeners are at 127.0.0.1 alone.
    further = {"broker.address.family": "v4"}
    ours = AdminFile(
        admin_file(cluster),
        bootstrap,
        ca,
        "librdkafka (kcat -F) and `penstock --client-config`",
        further=further,
    )
    make_admin(directory, [java, ours])


def _leaf(member: Member) -> Leaf:
    from penstock.certificate_making import Leaf

    return Leaf(member.role, certificate_name(member), NAMES)
