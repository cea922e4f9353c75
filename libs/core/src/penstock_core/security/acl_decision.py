"""Whether a principal may: the decision over ACLs, and which rule made it.

A super user may everything. Else a DENY that applies decides, then an ALLOW that applies, then, if no entry at all
applies to the resource, `allow.everyone.if.no.acl.found`; else no.
Source: Apache Kafka 4.3, StandardAuthorizerData; Authorizer.authorizeByResourceType (KIP-679). `*` is about names
that begin with a star too, as Kafka documents it and does not do it.

For each principal and address the answer about a resource is kept as one set of bits for all operations, so that
a question which was asked before is two lookups, well below a microsecond. The names come from clients:
long ones are not kept, and what is kept is bounded. The decider belongs to one AclSet; another version of
the ACLs is asked through another decider, which begins without answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock_core.security.acl import (
    OPERATIONS_OF,
    WILDCARD,
    AclBinding,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
    bit,
)
from penstock_core.security.acl_set import ALL_OPERATIONS, AclSet, Rights, Tables, rights_of
from penstock_core.security.principal import Identity, Principal

ANSWERS_MAX: Final = 20_000
"""Answers that a decider keeps in all: some 5 MB when every name is long."""
ANSWERS_OF_ONE_MAX: Final = 4_096
"""Of those, for one principal, address and type: a client that asks for ever new names displaces its own."""
ASKERS_MAX: Final = 4_096
"""Pairs of principal and address that are kept."""
NAME_LENGTH_MAX: Final = 255
"""Answers about longer names are not kept; no topic has one."""

_ANY_NAME: Final = "hardcode"
"""The name that Kafka asks for when it wants to know about a type: finds super users."""


class Reason(Enum):
    """Which rule decided."""

    SUPER_USER = "super user"
    ENTRY = "entry"
    NO_ENTRY_ON_RESOURCE = "no entry is about the resource, and allow.everyone.if.no.acl.found is true"
    NO_ENTRY_APPLIES = "no entry applies"


@dataclass(frozen=True, slots=True)
class Decision:
    """An answer with the rule that made it."""

    allowed: bool
    reason: Reason
    entry: AclBinding | None = None

    def __str__(self) -> str:
        rule = self.reason.value if self.entry is None else str(self.entry)
        return f"{'allowed' if self.allowed else 'denied'}: {rule}"


class AclDecider:
    """Answers questions about one version of the ACLs."""

    def __init__(
        self, acls: AclSet, super_users: Iterable[Principal] = (), allow_everyone: bool = False
    ) -> None:
        self.acls: Final = acls
        self.super_users: Final = frozenset(super_users)
        self.allow_everyone: Final = allow_everyone
        """What holds for resources that no entry is about (`allow.everyone.if.no.acl.found`)."""
        self.kept = 0
        self._askers: dict[tuple[Principal, str], _Asker] = {}

    def authorize(
        self,
        principal: Principal,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
    ) -> bool:
        """Whether the principal may do that from that address."""
        asker = self._askers.get((principal, host)) or self._new_asker(principal, host)
        return asker.answers[resource_type][name] >> operation & 1 == 1

    def allows(
        self, identity: Identity, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        """As `authorize`, for who keeps principal and address as one value."""
        asker = self._askers.get(identity) or self._new_asker(*identity)
        return asker.answers[resource_type][name] >> operation & 1 == 1

    def authorized_operations(
        self, principal: Principal, host: str, resource_type: ResourceType, name: str
    ) -> int:
        """What the principal may do with it, as the bits of `*_authorized_operations`."""
        return self._asker(principal, host).answers[resource_type][name] & OPERATIONS_OF[resource_type]

    def authorize_by_resource_type(
        self, principal: Principal, host: str, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        """Whether there may be a resource of the type with which the principal may do that.

        Kafka's rule: some ALLOW that no DENY dominates, without implied operations; a DENY of everything
        dominates all, one with a prefix what begins with it, a literal one the same literal.
        """
        asker = self._asker(principal, host)
        key = operation << 8 | resource_type
        known = asker.by_type.get(key)
        if known is None:
            known = asker.by_type[key] = bool(
                self.authorize(principal, host, operation, resource_type, _ANY_NAME)
                or _some_allowed(asker.tables, operation, resource_type)
            )
        return known

    def permitted(
        self,
        principal: Principal,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
        names: Iterable[str],
    ) -> list[str]:
        """Those of the names with which the principal may do that. Nothing is kept of it, for it may be all."""
        asker = self._asker(principal, host)
        if asker.allows_all(operation, resource_type):
            return list(names)
        answers = asker.answers[resource_type]
        return [name for name in names if answers.look(name) >> operation & 1]

    def explain(
        self,
        principal: Principal,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
    ) -> Decision:
        """The same answer as `authorize`, and the rule that made it: of several entries the most specific."""
        if principal in self.super_users:
            return Decision(True, Reason.SUPER_USER)
        applying = list(_applying(self.acls.tables(principal, host), resource_type, name))
        for permission in (Permission.DENY, Permission.ALLOW):
            for rights in applying:
                for entry in rights.entries:
                    if entry.permission == permission and _says(entry, operation):
                        return Decision(permission == Permission.ALLOW, Reason.ENTRY, entry)
        if self.allow_everyone and not self.acls.has_entries(resource_type, name):
            return Decision(True, Reason.NO_ENTRY_ON_RESOURCE)
        return Decision(False, Reason.NO_ENTRY_APPLIES)

    def forget_answers(self) -> None:
        """Let go of all answers, when they are too many."""
        for asker in self._askers.values():
            for answers in asker.answers:
                answers.clear()
        self.kept = 0

    def _asker(self, principal: Principal, host: str) -> _Asker:
        return self._askers.get((principal, host)) or self._new_asker(principal, host)

    def _new_asker(self, principal: Principal, host: str) -> _Asker:
        if len(self._askers) >= ASKERS_MAX:
            self.forget_answers()
            self._askers.clear()
        asker = self._askers[principal, host] = _Asker(self, principal, host)
        return asker


class _Asker:
    """A principal at an address."""

    __slots__ = ("answers", "by_type", "superior", "tables")

    def __init__(self, decider: AclDecider, principal: Principal, host: str) -> None:
        self.superior = principal in decider.super_users
        self.tables = () if self.superior else decider.acls.tables(principal, host)
        kind = _Everything if self.superior else _Answers
        self.answers = tuple(kind(decider, self.tables, type_) for type_ in ResourceType)
        """By the type's code."""
        self.by_type: dict[int, bool] = {}

    def allows_all(self, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Whether every name is allowed, by a wildcard and no DENY anywhere."""
        if self.superior:
            return True
        wanted, everywhere = bit(operation), False
        for tables in self.tables:
            if (table := tables.get(resource_type)) is not None:
                if any(rights.denied & wanted for rights in table.all()):
                    return False
                everywhere |= bool(table.literal.get(WILDCARD, Rights()).allowed & wanted)
        return everywhere


class _Answers(dict[str, int]):
    """What is allowed by name, as bits; finds what it does not know."""

    __slots__ = ("_decider", "_tables", "_type")

    def __init__(self, decider: AclDecider, tables: tuple[Tables, ...], resource_type: ResourceType) -> None:
        super().__init__()
        self._decider = decider
        self._tables = tables
        self._type = resource_type

    def __missing__(self, name: str) -> int:
        bits = self._find(name)
        if len(name) <= NAME_LENGTH_MAX:
            decider = self._decider
            if len(self) >= ANSWERS_OF_ONE_MAX:
                decider.kept -= len(self)
                self.clear()
            if decider.kept >= ANSWERS_MAX:
                decider.forget_answers()
            self[name] = bits
            decider.kept += 1
        return bits

    def look(self, name: str) -> int:
        """The answer, without keeping it."""
        bits = self.get(name)
        return self._find(name) if bits is None else bits

    def _find(self, name: str) -> int:
        allowed = denied = 0
        found = False
        for rights in _applying(self._tables, self._type, name):
            found = True
            allowed |= rights.allowed
            denied |= rights.denied
        if (
            not found
            and self._decider.allow_everyone
            and not self._decider.acls.has_entries(self._type, name)
        ):
            return ALL_OPERATIONS
        return allowed & ~denied


class _Everything(_Answers):
    """A super user's."""

    __slots__ = ()

    def __missing__(self, name: str) -> int:
        return ALL_OPERATIONS


def _applying(tables: tuple[Tables, ...], resource_type: ResourceType, name: str) -> Iterator[Rights]:
    for one in tables:
        if (table := one.get(resource_type)) is not None:
            yield from table.of(name)


def _says(entry: AclBinding, operation: AclOperation) -> bool:
    if entry.permission == Permission.DENY:
        return entry.operation in (operation, AclOperation.ALL)
    return bool(rights_of((entry,)).allowed & bit(operation))


def _some_allowed(tables: tuple[Tables, ...], operation: AclOperation, resource_type: ResourceType) -> bool:
    said: dict[tuple[Permission, PatternType], set[str]] = {
        (permission, pattern): set()
        for permission in (Permission.ALLOW, Permission.DENY)
        for pattern in (PatternType.LITERAL, PatternType.PREFIXED)
    }
    for one in tables:
        if (table := one.get(resource_type)) is None:
            continue
        for rights in table.all():
            for entry in rights.entries:
                if entry.operation in (operation, AclOperation.ALL):
                    said[entry.permission, entry.pattern_type].add(entry.name)
    denied_names = said[Permission.DENY, PatternType.LITERAL]
    denied_prefixes = said[Permission.DENY, PatternType.PREFIXED]
    if WILDCARD in denied_names:
        return False
    allowed_names = said[Permission.ALLOW, PatternType.LITERAL]
    if WILDCARD in allowed_names:
        return True
    lengths = {len(prefix) for prefix in denied_prefixes}

    def dominated(name: str) -> bool:
        return any(length <= len(name) and name[:length] in denied_prefixes for length in lengths)

    return any(not dominated(name) for name in allowed_names - denied_names) or any(
        not dominated(name) for name in said[Permission.ALLOW, PatternType.PREFIXED]
    )
