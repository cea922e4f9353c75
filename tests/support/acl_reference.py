"""The decision over ACLs as its rules are written, entry by entry: slow, and with nothing shared with the fast one."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from penstock_core.security.acl import (
    AclBinding,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
)
from penstock_core.security.principal import Principal

IMPLIES = {
    AclOperation.DESCRIBE: {
        AclOperation.DESCRIBE,
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.DELETE,
        AclOperation.ALTER,
    },
    AclOperation.DESCRIBE_CONFIGS: {AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS},
}

NAMES = ("a", "ab", "abc", "abd", "b", "*", "a*", "hardcode", "é")
HOSTS = ("10.0.0.1", "10.0.0.2", "::1")
PRINCIPALS = tuple(
    Principal(*words)
    for words in (("User", "a"), ("User", "b"), ("User", "*"), ("Group", "a"), ("Group", "*"))
)
TYPES = (ResourceType.TOPIC, ResourceType.GROUP)
ASKED = tuple(operation for operation in AclOperation if operation > AclOperation.ALL)


def on_resource(entry: AclBinding, kind: ResourceType, name: str) -> bool:
    if entry.resource_type != kind:
        return False
    if entry.pattern_type == PatternType.PREFIXED:
        return name.startswith(entry.name)
    return entry.name in (name, "*")


def about(entry: AclBinding, principal: Principal, host: str) -> bool:
    return str(entry.principal) in (str(principal), "User:*") and entry.host in (host, "*")


def says(entry: AclBinding, operation: AclOperation) -> bool:
    if entry.operation == AclOperation.ALL or entry.operation == operation:
        return True
    return entry.permission == Permission.ALLOW and entry.operation in IMPLIES.get(operation, ())


def authorize(
    entries: Iterable[AclBinding],
    supers: Iterable[Principal],
    allow_everyone: bool,
    question: tuple[Principal, str, AclOperation, ResourceType, str],
) -> bool:
    principal, host, operation, kind, name = question
    if principal in supers:
        return True
    there = [entry for entry in entries if on_resource(entry, kind, name)]
    ours = [entry for entry in there if about(entry, principal, host) and says(entry, operation)]
    if any(entry.permission == Permission.DENY for entry in ours):
        return False
    if any(entry.permission == Permission.ALLOW for entry in ours):
        return True
    return allow_everyone and not there


def authorize_by_resource_type(
    entries: Iterable[AclBinding],
    supers: Iterable[Principal],
    allow_everyone: bool,
    principal: Principal,
    host: str,
    operation: AclOperation,
    kind: ResourceType,
) -> bool:
    entries = list(entries)
    if authorize(entries, supers, allow_everyone, (principal, host, operation, kind, "hardcode")):
        return True
    ours = [
        entry
        for entry in entries
        if entry.resource_type == kind
        and about(entry, principal, host)
        and entry.operation in (operation, AclOperation.ALL)
    ]
    denies = [entry for entry in ours if entry.permission == Permission.DENY]
    allows = [entry for entry in ours if entry.permission == Permission.ALLOW]
    if any(entry.pattern_type == PatternType.LITERAL and entry.name == "*" for entry in denies):
        return False
    if any(entry.pattern_type == PatternType.LITERAL and entry.name == "*" for entry in allows):
        return True

    def dominated(allow: AclBinding) -> bool:
        return any(
            allow.name.startswith(deny.name)
            if deny.pattern_type == PatternType.PREFIXED
            else allow.pattern_type == PatternType.LITERAL and allow.name == deny.name
            for deny in denies
        )

    return any(not dominated(allow) for allow in allows)


OPERATIONS = (
    AclOperation.ALL,
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.DESCRIBE,
    AclOperation.ALTER_CONFIGS,
    AclOperation.DESCRIBE_CONFIGS,
)


def some_entry(rng: random.Random) -> AclBinding:
    return AclBinding(
        rng.choice(TYPES),
        rng.choice((PatternType.LITERAL, PatternType.PREFIXED)),
        rng.choice(NAMES),
        rng.choice(PRINCIPALS),
        rng.choice(("*", "*", *HOSTS)),
        rng.choice(OPERATIONS if rng.random() < 0.9 else ASKED),
        rng.choice((Permission.ALLOW, Permission.ALLOW, Permission.DENY)),
    )


def some_question(
    rng: random.Random, entries: Sequence[AclBinding]
) -> tuple[Principal, str, AclOperation, ResourceType, str]:
    """Anything, but mostly what one of the entries is about."""
    if not entries or rng.random() < 0.2:
        return (
            rng.choice(PRINCIPALS),
            rng.choice(HOSTS),
            rng.choice(ASKED),
            rng.choice(TYPES),
            rng.choice((*NAMES, "abcd", "zzz", "")),
        )
    one = rng.choice(entries)
    name = one.name + rng.choice(("", "", "c", "z"))
    return (
        one.principal if rng.random() < 0.7 else rng.choice(PRINCIPALS),
        one.host if one.host != "*" else rng.choice(HOSTS),
        rng.choice(OPERATIONS[1:] if rng.random() < 0.9 else ASKED),
        one.resource_type,
        name if rng.random() < 0.8 else rng.choice(NAMES),
    )
