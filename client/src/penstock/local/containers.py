"""What the compose file's service `secrets` makes before the others start: `python3 -m penstock.local.containers`.

    /secrets/ca                the CA and all that it made; no other container sees it
    /secrets/controller-N      certificate and key of that controller, and the first users
    /secrets/storage-nodes     a directory node-N for each slot
    /secrets/gateways          what all gateways share, their listeners' certificate too
    /secrets/clients           for people: CA, client files, the admin's certificate; a directory of the host

Run again it makes what is missing and renews what is old; running roles take that by themselves. What it cannot make it
says in a line and ends with 1, and compose starts nothing.

It runs as root without a network: what it hands out belongs to who shall read it, roles by their user, people's files
to the owner of their directory. Client files that are there stay, for an admin may have another password by now, unless
they are another CA's: then they are a stack's of before.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import CommandError
from penstock.local.first_admin import AdminFile, issue_due, make_admin, open_authority, set_bootstrap
from penstock.local.plan import ADMIN, FIRST_USERS_FILE, SECURE_HOST

if TYPE_CHECKING:
    from penstock.certificate_making import Leaf
    from penstock.certificates import CertificateAuthority

DOMAIN: Final = "compose.penstock"
ROLE_USER: Final = 10001
"""User and group of the roles' images."""
CONTROLLERS: Final = (1, 2, 3)
EDGE_NAME: Final = "penstock"
"""By which containers reach the edge."""
IN_CONTAINERS: Final = "/run/penstock"
"""Where containers of clients are expected to have the clients' directory."""
_BEGIN: Final = "-----BEGIN CERTIFICATE-----"


@dataclass(frozen=True)
class Owner:
    """Whose a file is."""

    user: int
    group: int


@dataclass(frozen=True)
class Asked:
    """What the compose file asks for. `root` has the directories."""

    root: Path
    host_address: str = "localhost:9092"
    """HOST:PORT of the Kafka listener for this machine's clients."""
    host_directory: str = ""
    """The clients' directory on the host, if it was given as an absolute path."""
    node_certificates: int = 32
    """How many slots get one."""
    role_owner: Owner = Owner(ROLE_USER, ROLE_USER)

    @classmethod
    def of(cls, environment: Mapping[str, str], root: Path) -> Asked:
        """From the variables of the service. Raises CommandError."""
        address = environment.get("PENSTOCK_ADVERTISED_TO_HOST") or cls.host_address
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise CommandError(f"PENSTOCK_ADVERTISED_TO_HOST={address} is no host:port; use localhost:9092")
        count = environment.get("PENSTOCK_NODE_CERTIFICATES") or str(cls.node_certificates)
        if not (count.isascii() and count.isdigit() and 1 <= int(count) <= 1000):
            raise CommandError(f"PENSTOCK_NODE_CERTIFICATES={count} is out of range; use 1 to 1000")
        place = environment.get("PENSTOCK_SECRETS") or ""
        return cls(root, address, place if place.startswith("/") else "", int(count))


def main() -> int:
    """Make and hand out all of it."""
    os.umask(0o077)
    try:
        make(Asked.of(os.environ, Path("/secrets")))
    except CommandError as error:
        print(f"secrets: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"secrets: {error.filename}: {error.strerror}; check the volume", file=sys.stderr)
        return 1
    print("secrets: all there; client files are in the clients' directory (deploy/compose/secrets)")
    return 0


def make(asked: Asked) -> None:
    """Make what is missing, and hand it out. Raises CommandError, OSError."""
    home = asked.root / "ca"
    authority = open_authority(home, DOMAIN)
    leaves = _leaves(asked)
    issue_due(authority, [leaf for leaves_of in leaves.values() for leaf in leaves_of])
    clients = asked.root / "clients"
    files = _admin_files(asked, home)
    make_admin(home, files)
    for target, leaves_of in leaves.items():
        mine = target != "clients"
        owner = asked.role_owner if mine else _owner(clients)
        directory = _private(asked.root / target, owner)
        for leaf in leaves_of:
            own = directory if target != "storage-nodes" and mine else directory / leaf.name
            _hand_out_certificate(authority, leaf, _private(own, owner), owner)
        if target.startswith("controller-"):
            _put(directory / FIRST_USERS_FILE, (home / FIRST_USERS_FILE).read_bytes(), owner)
    _hand_out_to_people(home, clients, files)


def _leaves(asked: Asked) -> dict[str, list[Leaf]]:
    """What is issued, by the directory that it goes to."""
    from penstock.certificate_making import Leaf

    names = (SECURE_HOST, EDGE_NAME, "127.0.0.1", "::1", asked.host_address.rpartition(":")[0].strip("[]"))
    return {
        **{f"controller-{each}": [Leaf("controller", str(each))] for each in CONTROLLERS},
        "storage-nodes": [
            Leaf("storage-node", f"node-{each}") for each in range(1, asked.node_certificates + 1)
        ],
        # They are called by their containers' names, which nobody knows beforehand.
        "gateways": [Leaf("gateway", "*", tuple(dict.fromkeys(names)))],
        "clients": [Leaf("admin", ADMIN)],
    }


def _admin_files(asked: Asked, home: Path) -> list[AdminFile]:
    ca = f"{asked.host_directory.rstrip('/')}/ca.pem" if asked.host_directory else "ca.pem"
    inside = f"{EDGE_NAME}:9092"
    return [
        AdminFile(
            home / f"{ADMIN}-java.properties",
            asked.host_address,
            ca,
            "Java's clients and tools on this machine (--command-config)",
            is_java=True,
        ),
        AdminFile(
            home / f"{ADMIN}-container.properties",
            inside,
            f"{IN_CONTAINERS}/ca.pem",
            f"containers that have this directory at {IN_CONTAINERS}",
        ),
        AdminFile(
            home / f"{ADMIN}.properties",
            asked.host_address,
            ca,
            "librdkafka (kcat -F) and `penstock --client-config` on this machine",
        ),
    ]


def _hand_out_certificate(authority: CertificateAuthority, leaf: Leaf, to: Path, owner: Owner) -> None:
    paths = authority.paths(leaf)
    # The certificate last: who watches the files takes them when they belong together.
    for what in ("ca", "key", "cert"):
        _put(to / f"{what}.pem", paths[what].read_bytes(), owner)


def _hand_out_to_people(home: Path, clients: Path, files: list[AdminFile]) -> None:
    owner = _owner(clients)
    ca = (home / "ca.pem").read_bytes()
    stale = not _shares_a_certificate(clients / "ca.pem", ca)
    _put(clients / "ca.pem", ca, owner)
    for file in files:
        copy = clients / file.path.name
        if stale or not copy.exists():
            _put(copy, file.path.read_bytes(), owner)
        else:
            set_bootstrap(copy, file.bootstrap)
            os.chown(copy, owner.user, owner.group)


def _shares_a_certificate(file: Path, pem: bytes) -> bool:
    """Whether a CA in that file is one of these: through a rotation it is."""
    try:
        there = file.read_text()
    except (OSError, ValueError):
        return False
    known = {block.strip() for block in pem.decode().split(_BEGIN)[1:]}
    return any(block.strip() in known for block in there.split(_BEGIN)[1:])


def _owner(directory: Path) -> Owner:
    found = directory.stat()
    return Owner(found.st_uid, found.st_gid)


def _private(directory: Path, owner: Owner) -> Path:
    directory.mkdir(mode=0o700, exist_ok=True)
    os.chown(directory, owner.user, owner.group)
    directory.chmod(0o700)
    return directory


def _put(path: Path, data: bytes, owner: Owner) -> None:
    """Have that content there, for its owner alone; a file that has it stays as it is."""
    try:
        found = path.lstat()
        if (
            stat.S_ISREG(found.st_mode)
            and stat.S_IMODE(found.st_mode) == 0o600
            and (found.st_uid, found.st_gid) == (owner.user, owner.group)
            and path.read_bytes() == data
        ):
            return
    except FileNotFoundError:
        pass
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
        file.write(data)
        os.fchown(file.fileno(), owner.user, owner.group)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


if __name__ == "__main__":
    sys.exit(main())
