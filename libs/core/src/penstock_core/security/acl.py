"""ACLs: entries, what they may say, and filters over them.

Sources: Apache Kafka 4.3, org.apache.kafka.common.acl and .resource (codes, filters), AclControlManager and
AclApis (what is refused), KIP-290 (prefixed patterns).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple, TypeVar

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.security.principal import Principal, parse_principal

WILDCARD: Final = "*"
"""As the name of a literal pattern: every resource of the type. As a host: every host."""
CLUSTER_NAME: Final = "kafka-cluster"
"""Name of the one resource of type CLUSTER."""


class ResourceType(IntEnum):
    """What is asked for; the values are Kafka's codes (org.apache.kafka.common.resource.ResourceType)."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How an entry names resources (org.apache.kafka.common.resource.PatternType)."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """What is to be done with it (org.apache.kafka.common.acl.AclOperation)."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """What an entry does (org.apache.kafka.common.acl.AclPermissionType)."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


_Enum = TypeVar("_Enum", bound=IntEnum)


def from_code(kind: type[_Enum], code: int) -> _Enum:
    """The member with that code, or UNKNOWN: a newer client may know more than this build."""
    try:
        return kind(code)
    except ValueError:
        return kind(0)


class AclBinding(NamedTuple):
    """One entry: who may, or may not, do what with which resources, from where."""

    resource_type: ResourceType
    pattern_type: PatternType
    name: str
    principal: Principal
    host: str
    """An address as the connection shows it, or `*`."""
    operation: AclOperation
    permission: Permission

    def __str__(self) -> str:
        return (
            f"{self.permission.name} {self.principal} from {self.host} {self.operation.name} on "
            f"{self.resource_type.name}:{self.pattern_type.name}:{self.name}"
        )


def read_binding(
    resource_type: int,
    pattern_type: int,
    name: str,
    principal: str,
    host: str,
    operation: int,
    permission: int,
) -> AclBinding:
    """The entry that a CreateAcls request asks for.

    Raises INVALID_REQUEST that names the entry. Where Kafka checks the same its words come first; it does not
    look at hosts, and neither do we: an entry for a name never matches.
    """
    types = from_code(ResourceType, resource_type), from_code(PatternType, pattern_type)
    what = from_code(AclOperation, operation), from_code(Permission, permission)
    entry = f"{what[1].name} {principal} from {host} {what[0].name} on {types[0].name}:{types[1].name}:{name}"

    def refuse(why: str) -> PenstockError:
        return PenstockError(ErrorCode.INVALID_REQUEST, f"{why}: {entry!r}")

    if types[0] <= ResourceType.ANY:
        raise refuse(f"Invalid resourceType {types[0].name}")
    if types[1] not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise refuse(f"Invalid patternType {types[1].name}")
    if what[0] <= AclOperation.ANY:
        raise refuse(f"Invalid operation {what[0].name}")
    if what[1] <= Permission.ANY:
        raise refuse(f"Invalid permissionType {what[1].name}")
    if not name:
        raise refuse("Resource name should not be empty")
    if types[0] == ResourceType.CLUSTER and name != CLUSTER_NAME:
        raise refuse(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not host:
        raise refuse("Host should not be empty, write * for every host")
    try:
        who = parse_principal(principal)
    except ValueError:
        raise refuse(
            f"Could not parse principal from `{principal}` (no colon is present separating the principal type "
            "from the principal name)"
        ) from None
    return AclBinding(types[0], types[1], name, who, host, what[0], what[1])


class AclFilter(NamedTuple):
    """What DescribeAcls and DeleteAcls ask for (Kafka: ResourcePatternFilter, AccessControlEntryFilter).

    None matches everything. With MATCH the name is that of a resource, and every entry that would apply to it
    matches: literal, `*` and prefixed.
    """

    resource_type: ResourceType = ResourceType.ANY
    pattern_type: PatternType = PatternType.ANY
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: Permission = Permission.ANY

    def matches(self, entry: AclBinding) -> bool:
        """Whether the entry is one of those asked for."""
        kind, pattern, name, principal, host, operation, permission = entry
        return self.matches_codes(kind, pattern, name, str(principal), host, operation, permission)

    def matches_codes(
        self,
        resource_type: int,
        pattern_type: int,
        name: str,
        principal: str,
        host: str,
        operation: int,
        permission: int,
    ) -> bool:
        """The same for an entry in Kafka's codes and spelling, as the metadata hold it: nothing is read first."""
        return (
            self.resource_type in (ResourceType.ANY, resource_type)
            and self._matches_pattern(pattern_type, name)
            and (self.principal is None or self.principal == principal)
            and (self.host is None or self.host == host)
            and self.operation in (AclOperation.ANY, operation)
            and self.permission in (Permission.ANY, permission)
        )

    def _matches_pattern(self, pattern_type: int, name: str) -> bool:
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, pattern_type):
            return False
        if self.name is None:
            return True
        if self.pattern_type != PatternType.MATCH:
            return self.name == name
        if pattern_type == PatternType.PREFIXED:
            return self.name.startswith(name)
        return name in (self.name, WILDCARD)


def read_filter(
    resource_type: int,
    pattern_type: int,
    name: str | None,
    principal: str | None,
    host: str | None,
    operation: int,
    permission: int,
) -> AclFilter:
    """The filter that a request asks with. Raises INVALID_REQUEST for codes that nobody knows."""
    read = AclFilter(
        from_code(ResourceType, resource_type),
        from_code(PatternType, pattern_type),
        name,
        principal,
        host,
        from_code(AclOperation, operation),
        from_code(Permission, permission),
    )
    if not read.resource_type or not read.pattern_type:
        raise PenstockError(
            ErrorCode.INVALID_REQUEST, f"Unknown patternFilter: type {resource_type}, pattern {pattern_type}"
        )
    if not read.operation or not read.permission:
        raise PenstockError(
            ErrorCode.INVALID_REQUEST,
            f"Unknown entryFilter: operation {operation}, permission {permission}",
        )
    return read


def bit(operation: AclOperation) -> int:
    """The operation in a set of operations: bit = code, as in `*_authorized_operations`."""
    return 1 << operation


def _bits(*operations: AclOperation) -> int:
    return sum(map(bit, operations))


OPERATIONS_OF: Final = {
    ResourceType.TOPIC: _bits(
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: _bits(
        AclOperation.READ,
        AclOperation.DELETE,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: _bits(
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    ),
}
"""Operations that answers tell a client about, as bits (Kafka: AclEntry.supportedOperations)."""
