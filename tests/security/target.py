"""What is attacked: addresses of a running cluster, and sockets that come from an address of one's own."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from security.role_ports import CLIENTS, NO_CERTIFICATE, PLAINTEXT

if TYPE_CHECKING:
    from security.role_ports import RolePorts

NARROW_TOPIC = "honest"
WIDE_TOPIC = "wide"
WIDE_PARTITIONS = 60
ATTACKER = "127.0.0.66"
"""Loopback has a whole network of addresses: the attacker's is not the honest clients'."""
TLS = "TLS"
ROLE_PORTS = "role ports"
"""What an attack needs of a cluster (`NEEDS` of its module): TLS at listeners, or certificates between roles."""
STRANGER: Final = "a stranger"
NO_RIGHTS: Final = "a user without rights"
CERTIFIED: Final = "a client's certificate"
"""As whom an attack is made (`BY` of its module, where that is not anybody)."""
BALANCER = "127.0.0.77"
"""From where the gateway's listener for balancers takes a PROXY header."""
MEMBERS_SMALL = 50
"""`group_members_per_principal_max` of a cluster that is attacked in the short form."""
SERVER_NAME = "localhost"
"""In every certificate of a local cluster."""


@dataclass(frozen=True)
class Outcome:
    """What came of an attack."""

    refused: bool
    """The cluster did not do what was asked, or was done with it at a bounded cost."""
    said: str
    """What the attacker saw, in a few words."""


@dataclass(frozen=True)
class Entry:
    """How far somebody comes in by a Kafka port."""

    ca: str = ""
    """The listeners' CA: TLS is spoken. "": plain TCP."""
    user: str = ""
    """Who signs in; "": nobody does."""
    password: str = field(default="", repr=False)
    cert: str = ""
    """The certificate that is shown, with its key in `key`; "": none is."""
    key: str = ""
    alpn: tuple[str, ...] = ()

    def connect(self, address: str, source: str = "", timeout_s: float = 60.0) -> socket.socket:
        """A connection to `host:port`, from a loopback address of one's own. Raises OSError when it is not let in."""
        host, _, port = address.rpartition(":")
        raw = socket.create_connection((host, int(port)), timeout_s, source_address=(source, 0))
        return self.come_in(raw)

    def come_in(self, raw: socket.socket) -> socket.socket:
        """The same by a connection that is there. Raises OSError, with the connection closed."""
        if not self.ca:
            return raw
        connection = raw
        try:
            connection = self._context().wrap_socket(raw, server_hostname=SERVER_NAME)
            if self.user:
                self._sign_in(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca)
        if self.cert:
            context.load_cert_chain(self.cert, self.key)
        if self.alpn:
            context.set_alpn_protocols(list(self.alpn))
        return context

    def _sign_in(self, connection: socket.socket) -> None:
        token = f"\0{self.user}\0{self.password}".encode()
        for api_key, body in ((17, b"\x00\x05PLAIN"), (36, struct.pack(">i", len(token)) + token)):
            connection.sendall(frame(api_key, 1, body, flexible=False))
            response = answer(connection)
            if response is None or response[4:6] != b"\x00\x00":
                raise ConnectionError(f"{self.user} is not let in")


@dataclass(frozen=True)
class Target:
    """Where a cluster can be reached, as `host:port`, and as whom."""

    gateway: str
    nodes: tuple[str, ...]
    """Direct listeners."""
    http: str
    small: bool = False
    """Ask for the short form."""
    entry: Entry = field(default_factory=Entry)
    """The attacker's."""
    roles: RolePorts | None = None
    """The ports between roles, where they have TLS."""
    doors: Mapping[str, str] = field(default_factory=dict)
    """Every port that is no Kafka listener, by its process and use ("controller raft"), and that for balancers."""
    certified: tuple[str, ...] = ()
    """Listeners where a client's certificate is the user, the gateway's first; () where there are none."""

    @property
    def ways(self) -> tuple[str, ...]:
        """How the attacker comes to a port between roles."""
        return (CLIENTS,) if self.entry.cert else (PLAINTEXT, NO_CERTIFICATE)

    def by_certificate(self) -> Target:
        """The same for somebody who has a client's certificate, by the cluster's own CA: it is shown at every port."""
        assert self.roles is not None
        entry = Entry(self.entry.ca, cert=str(self.roles.cert), key=str(self.roles.key))
        return replace(self, gateway=self.certified[0], nodes=self.certified[1:], entry=entry)

    def connect(self, source: str = ATTACKER, address: str = "", timeout_s: float = 60.0) -> socket.socket:
        """A connection to the gateway, or to `address`, as far as the attacker comes.

        Another port than a listener of ours gets plain TCP.
        """
        entry = self.entry if (address or self.gateway) in (self.gateway, *self.nodes) else Entry()
        return entry.connect(address or self.gateway, source, timeout_s)


def frame(api_key: int, version: int, body: bytes, *, flexible: bool, correlation_id: int = 1) -> bytes:
    """A request with its length."""
    head = struct.pack(">hhih", api_key, version, correlation_id, 3) + b"bad" + (b"\x00" if flexible else b"")
    return struct.pack(">i", len(head) + len(body)) + head + body


def answer(connection: socket.socket) -> bytes | None:
    """One response without its length, None when the other side closes instead."""
    try:
        head = _exactly(connection, 4)
        return None if head is None else _exactly(connection, struct.unpack(">i", head)[0])
    except ConnectionError:
        return None


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    parts: list[bytes] = []
    while size:
        part = connection.recv(min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def client_hello() -> bytes:
    """As any client begins TLS."""
    context = ssl.create_default_context()
    said, heard = ssl.MemoryBIO(), ssl.MemoryBIO()
    connection = context.wrap_bio(heard, said, server_hostname=SERVER_NAME)
    with contextlib.suppress(ssl.SSLWantReadError):
        connection.do_handshake()
    return said.read()


def dial(address: str, source: str) -> socket.socket:
    """Begin to dial `host:port` from a loopback address of one's own, and do not wait: see `has_come`."""
    host, _, port = address.rpartition(":")
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    connection.setblocking(False)
    connection.bind((source, 0))
    connection.connect_ex((host, int(port)))
    return connection


def has_come(connection: socket.socket) -> bool:
    """Whether the other side's kernel has answered a `dial`."""
    try:
        connection.getpeername()
    except OSError:
        return False
    return True


def accepted_at(address: str) -> set[tuple[str, int]]:
    """Whose connections a process at `host:port` holds, by this machine's own table.

    Where the kernel had no room for one more it drops the last packet of a handshake: the dialler takes it for a
    connection, and nobody else knows of it.
    """
    host, _, port = address.rpartition(":")
    found = set()
    with open("/proc/net/tcp") as rows:
        for row in list(rows)[1:]:
            _, own, other, _, _, _, _, _, _, inode, *_ = row.split()
            if _named(own) == (host, int(port)) and inode != "0":
                found.add(_named(other))
    return found


def _named(address: str) -> tuple[str, int]:
    host, _, port = address.partition(":")
    return socket.inet_ntoa(bytes.fromhex(host)[::-1]), int(port, 16)


def is_open(connection: socket.socket) -> bool:
    """Whether the other side still holds the connection; what it said is let go."""
    connection.setblocking(False)
    try:
        while connection.recv(65_536):
            pass
        return False
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    except OSError:
        return False
