"""Requests about users, ACLs and quotas, by the connection of `wire`.

The lowest versions that a gateway answers: those about users are flexible, the others are not. What is refused
for one item of several is a line that names it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from penstock.cli.wire import Reader, ask, compact, count_of, text_of
from penstock.errors import CommandError

DESCRIBE_ACLS: Final = 29
CREATE_ACLS: Final = 30
DELETE_ACLS: Final = 31
DESCRIBE_QUOTAS: Final = 48
ALTER_QUOTAS: Final = 49
DESCRIBE_USERS: Final = 50
ALTER_USERS: Final = 51

_ACL_VERSION: Final = 1
_SECURITY_DISABLED: Final = 54
_RESOURCE_NOT_FOUND: Final = 91


@dataclass(frozen=True)
class Credential:
    """What is set for a user and a mechanism (Kafka's code)."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)


class Acl(NamedTuple):
    """One rule, in Kafka's codes."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


class AclFilter(NamedTuple):
    """Which rules are meant: 1 is any, None any name; pattern 2 is all that apply to a resource of the name."""

    resource_type: int = 1
    resource_name: str | None = None
    pattern_type: int = 1
    principal: str | None = None
    host: str | None = None
    operation: int = 1
    permission: int = 1


Entity = tuple[tuple[str, str | None], ...]
"""Whom a quota is for: kinds with names, None for the default of a kind."""


@dataclass(frozen=True)
class QuotaComponent:
    """One kind of entity that is asked for: 0 this name, 1 the default, 2 any."""

    kind: str
    match_type: int
    name: str | None = None


def describe_users(bootstrap: str, users: Sequence[str] = ()) -> dict[str, dict[int, int]]:
    """Iterations by user and mechanism, of all or of those named; who is not there is left out."""
    body = count_of(len(users)) if users else b"\x00"
    for user in users:
        body += compact(user) + b"\x00"
    reader = Reader(ask(bootstrap, DESCRIBE_USERS, body + b"\x00", flexible=True))
    code, message = reader.unpack(">ih")[1], reader.compact()
    _check(code, message)
    found: dict[str, dict[int, int]] = {}
    for _ in range(reader.count()):
        user = reader.compact() or ""
        (code,) = reader.unpack(">h")
        message = reader.compact()
        has = {}
        for _ in range(reader.count()):
            mechanism, iterations = reader.unpack(">bi")
            has[mechanism] = iterations
            reader.skip_tags()
        reader.skip_tags()
        if code != _RESOURCE_NOT_FOUND:
            _check(code, message)
            found[user] = has
    return found


def alter_users(
    bootstrap: str, sets: Sequence[Credential] = (), deletes: Sequence[tuple[str, int]] = ()
) -> dict[str, str]:
    """Set and delete credentials; what was refused, by user, with its reason."""
    body = count_of(len(deletes))
    for user, mechanism in deletes:
        body += compact(user) + struct.pack(">b", mechanism) + b"\x00"
    body += count_of(len(sets))
    for one in sets:
        body += compact(one.user) + struct.pack(">bi", one.mechanism, one.iterations)
        body += compact(one.salt) + compact(one.salted_password) + b"\x00"
    reader = Reader(ask(bootstrap, ALTER_USERS, body + b"\x00", flexible=True))
    reader.unpack(">i")
    refused = {}
    for _ in range(reader.count()):
        user = reader.compact() or ""
        (code,) = reader.unpack(">h")
        message = reader.compact()
        reader.skip_tags()
        if code:
            refused[user] = _reason(code, message)
    return refused


def describe_acls(bootstrap: str, wanted: AclFilter) -> list[Acl]:
    """The rules that are meant. Raises CommandError."""
    reader = Reader(ask(bootstrap, DESCRIBE_ACLS, _filter(wanted), version=_ACL_VERSION))
    code, message = reader.unpack(">ih")[1], reader.text()
    _check(code, message)
    found = []
    for _ in range(reader.unpack(">i")[0]):
        (kind,) = reader.unpack(">b")
        name = reader.text() or ""
        (pattern,) = reader.unpack(">b")
        for _ in range(reader.unpack(">i")[0]):
            principal, host = reader.text() or "", reader.text() or ""
            found.append(Acl(kind, name, pattern, principal, host, *reader.unpack(">bb")))
    return found


def create_acls(bootstrap: str, acls: Sequence[Acl]) -> list[str]:
    """Add rules; the reason of each that was refused, in their order, empty for what is there now."""
    body = struct.pack(">i", len(acls)) + b"".join(_filter(AclFilter(*acl)) for acl in acls)
    reader = Reader(ask(bootstrap, CREATE_ACLS, body, version=_ACL_VERSION))
    reader.unpack(">i")
    return [_outcome(reader) for _ in range(reader.unpack(">i")[0])]


def delete_acls(bootstrap: str, wanted: AclFilter) -> list[Acl]:
    """Delete the rules that are meant; which they were. Raises CommandError."""
    body = struct.pack(">i", 1) + _filter(wanted)
    reader = Reader(ask(bootstrap, DELETE_ACLS, body, version=_ACL_VERSION))
    reader.unpack(">ii")
    if reason := _outcome(reader):
        raise CommandError(reason)
    found = []
    for _ in range(reader.unpack(">i")[0]):
        if reason := _outcome(reader):
            raise CommandError(reason)
        (kind,) = reader.unpack(">b")
        name = reader.text() or ""
        (pattern,) = reader.unpack(">b")
        principal, host = reader.text() or "", reader.text() or ""
        found.append(Acl(kind, name, pattern, principal, host, *reader.unpack(">bb")))
    return found


def describe_quotas(
    bootstrap: str, components: Sequence[QuotaComponent] = (), *, strict: bool = False
) -> list[tuple[Entity, dict[str, float]]]:
    """Quotas of the entities that are meant; `strict`: of those with no other kind."""
    body = struct.pack(">i", len(components))
    for one in components:
        body += text_of(one.kind) + struct.pack(">b", one.match_type) + text_of(one.name)
    reader = Reader(ask(bootstrap, DESCRIBE_QUOTAS, body + struct.pack(">?", strict)))
    code, message = reader.unpack(">ih")[1], reader.text()
    _check(code, message)
    found = []
    for _ in range(reader.unpack(">i")[0]):
        entity = tuple((reader.text() or "", reader.text()) for _ in range(reader.unpack(">i")[0]))
        values = {reader.text() or "": reader.unpack(">d")[0] for _ in range(reader.unpack(">i")[0])}
        found.append((entity, values))
    return found


def alter_quotas(
    bootstrap: str, entity: Entity, values: Mapping[str, float | None], *, check: bool = False
) -> None:
    """Set quotas of one entity, all of them or none; None removes one. Raises CommandError.

    With `check` nothing is changed.
    """
    body = struct.pack(">ii", 1, len(entity)) + b"".join(text_of(k) + text_of(n) for k, n in entity)
    body += struct.pack(">i", len(values))
    for key, value in values.items():
        body += text_of(key) + struct.pack(">d?", 0.0 if value is None else value, value is None)
    reader = Reader(ask(bootstrap, ALTER_QUOTAS, body + struct.pack(">?", check)))
    reader.unpack(">ii")
    if reason := _outcome(reader):
        raise CommandError(reason)


def _filter(wanted: AclFilter) -> bytes:
    """A filter; a rule to be made has the same form."""
    return (
        struct.pack(">b", wanted.resource_type)
        + text_of(wanted.resource_name)
        + struct.pack(">b", wanted.pattern_type)
        + text_of(wanted.principal)
        + text_of(wanted.host)
        + struct.pack(">bb", wanted.operation, wanted.permission)
    )


def _outcome(reader: Reader) -> str:
    """Why an item was refused; empty when it was not."""
    (code,) = reader.unpack(">h")
    message = reader.text()
    return _reason(code, message) if code else ""


def _check(code: int, message: Any) -> None:
    if code:
        raise CommandError(_reason(code, message))


def _reason(code: int, message: str | None) -> str:
    if code == _SECURITY_DISABLED:
        return (
            "ACLs do not count in this cluster: start its gateways and storage nodes with `authorizer = acl`"
        )
    return message or f"the cluster refused with Kafka's error {code}"
