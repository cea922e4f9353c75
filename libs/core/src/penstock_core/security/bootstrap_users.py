"""Users that a new cluster begins with: the file that `penstock user bootstrap` writes and controllers read.

Salted and hashed where the password was typed: the file lets nobody sign in, but whoever has it can guess offline.
Kafka's counterpart is `kafka-storage format --add-scram` (KIP-900), which has the salted password, as good as the
password itself.
"""

from __future__ import annotations

import binascii
import json
from base64 import b64decode, b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from penstock_core.errors import PenstockError
from penstock_core.security.scram import MECHANISM_OF, ScramCredential, check_alteration

FORMAT: Final = 1
USERS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class BootstrapUser:
    """A user with one credential; with two mechanisms it stands there twice."""

    user: str
    credential: ScramCredential


def to_text(users: Iterable[BootstrapUser]) -> str:
    """The file's text."""
    rows = [
        {
            "user": each.user,
            "mechanism": each.credential.mechanism.mechanism_name,
            "iterations": each.credential.iterations,
            "salt": b64encode(each.credential.salt).decode(),
            "stored_key": b64encode(each.credential.stored_key).decode(),
            "server_key": b64encode(each.credential.server_key).decode(),
        }
        for each in users
    ]
    return json.dumps({"format": FORMAT, "users": rows}, indent=2) + "\n"


def from_text(text: str) -> tuple[BootstrapUser, ...]:
    """Read the file's text. Raises ValueError, in words that fit behind the file's name."""
    try:
        told = json.loads(text)
        form, rows = told["format"], told["users"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError("is no file of `penstock user bootstrap`; make it anew") from None
    if form != FORMAT:
        raise ValueError(f"has format {form!r}, this build knows {FORMAT}; make it anew with this build")
    if not isinstance(rows, list) or not 0 < len(rows) <= USERS_MAX:
        raise ValueError(f"has to have 1 to {USERS_MAX} users")
    users = tuple(_user(number, row) for number, row in enumerate(rows, 1))
    if len({(each.user, each.credential.mechanism) for each in users}) != len(users):
        raise ValueError("has a user twice with one mechanism; take one away")
    return users


def _user(number: int, row: Any) -> BootstrapUser:
    try:
        user, mechanism = str(row["user"]), MECHANISM_OF[row["mechanism"]]
        iterations = int(row["iterations"])
        salt, stored, server = (_bytes(row[key]) for key in ("salt", "stored_key", "server_key"))
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"is damaged at user {number}; make it anew") from None
    try:
        check_alteration(user, mechanism, iterations)
    except PenstockError as error:
        raise ValueError(f"cannot be used: user {number}: {error.message}") from None
    if not user.isprintable() or not salt or {len(stored), len(server)} != {mechanism.key_bytes}:
        raise ValueError(f"is damaged at user {number}; make it anew")
    return BootstrapUser(user, ScramCredential(mechanism, salt, stored, server, iterations))


def _bytes(text: object) -> bytes:
    if not isinstance(text, str):
        raise ValueError(text)
    try:
        return b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(text) from error
