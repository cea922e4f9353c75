"""An authorizer that denies what a test says."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock_core.security.acl import OPERATIONS_OF
from penstock_frontend.authorizer import AllowAll, Identity, Operation, ResourceType

Denial = tuple[Operation, ResourceType, str]


class Denying(AllowAll):
    """Allows everything but what `denies` says; remembers what it told of."""

    is_enabled = True

    def __init__(self, denies: Callable[[Operation, ResourceType, str], bool]) -> None:
        self._denies = denies
        self.told: list[Denial] = []

    def authorize(self, who: Identity, operation: Operation, kind: ResourceType, name: str) -> bool:
        if self._denies(operation, kind, name):
            self.denied(who, operation, kind, name)
            return False
        return True

    def allows(self, who: Identity, operation: Operation, kind: ResourceType, name: str) -> bool:
        return not self._denies(operation, kind, name)

    def denied(self, who: Identity, operation: Operation, kind: ResourceType, name: str) -> None:
        self.told.append((operation, kind, name))

    def authorize_by_resource_type(self, who: Identity, operation: Operation, kind: ResourceType) -> bool:
        return not self._denies(operation, kind, "*")

    def authorized_operations(self, who: Identity, kind: ResourceType, name: str) -> int:
        return sum(
            1 << operation
            for operation in Operation
            if OPERATIONS_OF[kind] >> operation & 1 and not self._denies(operation, kind, name)
        )

    def permitted(
        self, who: Identity, operation: Operation, kind: ResourceType, names: Iterable[str]
    ) -> list[str]:
        return [name for name in names if not self._denies(operation, kind, name)]
