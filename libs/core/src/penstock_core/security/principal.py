"""Who asks: principals, and how they are written."""

from __future__ import annotations

from typing import Final, NamedTuple

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


ANONYMOUS: Final = Principal(USER_TYPE, "ANONYMOUS")
"""Whoever comes through a listener on which nobody authenticates."""

EVERYBODY: Final = Principal(USER_TYPE, "*")
"""`User:*`, which in an ACL stands for every principal of every type (Kafka: StandardAuthorizerData)."""


def user(name: str) -> Principal:
    """The principal of a user."""
    return Principal(USER_TYPE, name)


def parse_principal(text: str) -> Principal:
    """The principal that `text` writes: the type ends at the first colon (Kafka: SecurityUtils).

    Raises ValueError that says what is wrong with it.
    """
    kind, colon, name = text.partition(":")
    if not colon:
        raise ValueError(f"principal {text!r} has no colon: write it as type:name, for instance User:{text}")
    return Principal(kind, name)
