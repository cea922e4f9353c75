"""ACL entries: what is refused, and what a filter asks for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.security.acl import (
    OPERATIONS_OF,
    AclBinding,
    AclFilter,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
    from_code,
    read_binding,
    read_filter,
)
from penstock_core.security.principal import user

GOOD = (2, 3, "orders", "User:alice", "*", 3, 3)


def test_an_entry_is_read() -> None:
    entry = read_binding(*GOOD)
    assert entry == AclBinding(
        ResourceType.TOPIC,
        PatternType.LITERAL,
        "orders",
        user("alice"),
        "*",
        AclOperation.READ,
        Permission.ALLOW,
    )
    assert str(entry) == "ALLOW User:alice from * READ on TOPIC:LITERAL:orders"


@pytest.mark.parametrize(
    ("at", "value", "why"),
    [
        (0, 0, "Invalid resourceType UNKNOWN"),
        (0, 1, "Invalid resourceType ANY"),
        (0, 99, "Invalid resourceType UNKNOWN"),
        (0, -1, "Invalid resourceType UNKNOWN"),
        (1, 0, "Invalid patternType UNKNOWN"),
        (1, 1, "Invalid patternType ANY"),
        (1, 2, "Invalid patternType MATCH"),
        (2, "", "Resource name should not be empty"),
        (3, "alice", "Could not parse principal from `alice`"),
        (3, "", "Could not parse principal from ``"),
        (4, "", "Host should not be empty"),
        (5, 0, "Invalid operation UNKNOWN"),
        (5, 1, "Invalid operation ANY"),
        (5, 77, "Invalid operation UNKNOWN"),
        (6, 0, "Invalid permissionType UNKNOWN"),
        (6, 1, "Invalid permissionType ANY"),
    ],
)
def test_a_bad_entry_is_named(at: int, value: int | str, why: str) -> None:
    words: list[int | str] = list(GOOD)
    words[at] = value
    with pytest.raises(PenstockError) as caught:
        read_binding(*words)  # type: ignore[arg-type]  # one word after the other is wrong
    assert caught.value.code == ErrorCode.INVALID_REQUEST
    assert caught.value.message.startswith(why)
    if at not in (2, 3):
        assert "orders" in caught.value.message


def test_the_cluster_has_one_name() -> None:
    read_binding(4, 3, "kafka-cluster", "User:alice", "*", 8, 3)
    with pytest.raises(PenstockError, match="The only valid name for the CLUSTER resource is kafka-cluster"):
        read_binding(4, 3, "penstock", "User:alice", "*", 8, 3)


def _pattern(kind: PatternType, name: str) -> AclBinding:
    return read_binding(2, kind, name, "User:alice", "10.0.0.1", 3, 2)


@pytest.mark.parametrize(
    ("filter_type", "name", "literal", "prefixed", "wildcard"),
    [
        # as ResourcePatternFilterTest: literal foo, prefixed fo, literal *
        (PatternType.ANY, None, True, True, True),
        (PatternType.LITERAL, None, True, False, True),
        (PatternType.PREFIXED, None, False, True, False),
        (PatternType.MATCH, None, True, True, True),
        (PatternType.ANY, "foo", True, False, False),
        (PatternType.ANY, "fo", False, True, False),
        (PatternType.ANY, "*", False, False, True),
        (PatternType.LITERAL, "foo", True, False, False),
        (PatternType.LITERAL, "*", False, False, True),
        (PatternType.PREFIXED, "foo", False, False, False),
        (PatternType.MATCH, "foo", True, True, True),
        (PatternType.MATCH, "fob", False, True, True),
        (PatternType.MATCH, "f", False, False, True),
    ],
)
def test_which_patterns_a_filter_asks_for(
    filter_type: PatternType, name: str | None, literal: bool, prefixed: bool, wildcard: bool
) -> None:
    wanted = AclFilter(ResourceType.TOPIC, filter_type, name)
    assert wanted.matches(_pattern(PatternType.LITERAL, "foo")) == literal
    assert wanted.matches(_pattern(PatternType.PREFIXED, "fo")) == prefixed
    assert wanted.matches(_pattern(PatternType.LITERAL, "*")) == wildcard
    assert not wanted._replace(resource_type=ResourceType.GROUP).matches(_pattern(PatternType.LITERAL, "*"))


@pytest.mark.parametrize(
    ("wanted", "matches"),
    [
        (AclFilter(), True),
        (AclFilter(principal="User:alice"), True),
        (AclFilter(principal="User:*"), False),
        (AclFilter(principal=""), False),
        (AclFilter(host="10.0.0.1"), True),
        (AclFilter(host="*"), False),
        (AclFilter(operation=AclOperation.READ), True),
        (AclFilter(operation=AclOperation.ALL), False),
        (AclFilter(permission=Permission.DENY), True),
        (AclFilter(permission=Permission.ALLOW), False),
    ],
)
def test_which_entries_a_filter_asks_for(wanted: AclFilter, matches: bool) -> None:
    assert wanted.matches(_pattern(PatternType.LITERAL, "foo")) == matches


@given(*[st.integers(-1, 16)] * 4)
def test_a_filter_of_unknown_codes_is_refused(
    kind: int, pattern: int, operation: int, permission: int
) -> None:
    known = (
        from_code(ResourceType, kind)
        and from_code(PatternType, pattern)
        and from_code(AclOperation, operation)
        and from_code(Permission, permission)
    )
    if known:
        assert read_filter(kind, pattern, None, None, None, operation, permission).operation == operation
    else:
        with pytest.raises(PenstockError, match="Unknown") as caught:
            read_filter(kind, pattern, None, None, None, operation, permission)
        assert caught.value.code == ErrorCode.INVALID_REQUEST


def test_authorized_operations_are_kafkas() -> None:
    def codes(kind: ResourceType) -> list[int]:
        return [code for code in range(31) if OPERATIONS_OF[kind] >> code & 1]

    assert codes(ResourceType.TOPIC) == [3, 4, 5, 6, 7, 8, 10, 11]
    assert codes(ResourceType.GROUP) == [3, 6, 8, 10, 11]
    assert codes(ResourceType.CLUSTER) == [5, 7, 8, 9, 10, 11, 12]
