"""Who asks: principals, and how they are written."""

from __future__ import annotations

from typing import Final, NamedTuple

_MAPPED: Final = "::ffff:"
USER_TYPE: Final = "User"
"""The type of every principal that a listener makes (Kafka: KafkaPrincipal.USER_TYPE)."""


class Principal(NamedTuple):
    """Who a connection is, as Kafka writes it: `User:alice`.

    Carried as its two parts, never as text that somebody has to split again. A tuple, because every question
    for a right hashes it.
    """

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


class Identity(NamedTuple):
    """Who asks, and from which address: what rights are decided by, as one value.

    A tuple like its principal: answers are looked up by it.
    """

    principal: Principal
    host: str
    """The client's address as text, without port; "" when there is none."""

    def __str__(self) -> str:
        return f"{self.principal} from {self.host}" if self.host else str(self.principal)


ANONYMOUS: Final = Principal(USER_TYPE, "ANONYMOUS")
"""Whoever comes through a listener on which nobody authenticates."""

NOBODY: Final = Identity(ANONYMOUS, "")
"""Whoever has neither signed in nor an address."""

EVERYBODY: Final = Principal(USER_TYPE, "*")
"""`User:*`, which in an ACL stands for every principal of every type (Kafka: StandardAuthorizerData)."""


def user(name: str) -> Principal:
    """The principal of a user."""
    return Principal(USER_TYPE, name)


def client_identity(principal: Principal, host: str) -> Identity:
    """The identity of who connected from `host`.

    An IPv4 client at a socket for both families is shown as `::ffff:192.0.2.1`, and is the same client:
    ACLs name it as 192.0.2.1 (as Java does, which has such addresses as IPv4 ones).
    """
    if host[:7] == _MAPPED and "." in host:
        host = host[7:]
    return Identity(principal, host)


def parse_principal(text: str) -> Principal:
    """The principal that `text` writes: the type ends at the first colon (Kafka: SecurityUtils).

    Raises ValueError that says what is wrong with it.
    """
    kind, colon, name = text.partition(":")
    if not colon:
        raise ValueError(f"principal {text!r} has no colon: write it as type:name, for instance User:{text}")
    return Principal(kind, name)
