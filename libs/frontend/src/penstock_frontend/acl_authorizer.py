"""Rights by the cluster's ACLs, as the metadata have them.

The ACLs are compiled once and then follow the metadata: a change costs what it changes, and the map that the
image holds tells by its identity whether there was one. Each version of them is asked through a decider of its
own, so an answer that was kept never outlives the rule that made it.

Until the first metadata came nobody but a super user may do anything, whatever the settings say; when they are too
old (`distrust`) not even these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from penstock_core.metadata.image import MetadataImage
from penstock_core.metadata.security import AclRow
from penstock_core.security.acl import (
    AclBinding,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
    from_code,
)
from penstock_core.security.acl_decision import AclDecider
from penstock_core.security.acl_set import AclSet
from penstock_core.security.principal import Identity, Principal, parse_principal
from penstock_frontend.authorizer import OnDenied
from penstock_proto.v1 import metadata_pb2 as pb

_PATTERNS: Final = {int(p): p for p in (PatternType.LITERAL, PatternType.PREFIXED)}
_PERMISSIONS: Final = {int(p): p for p in (Permission.ALLOW, Permission.DENY)}
FEW_RECORDS: Final = 1_000
"""Up to so many records of a change are looked through for ACLs; more of them, and the maps are compared."""


def _nobody_listens(who: Identity, operation: AclOperation, kind: ResourceType, name: str) -> None:
    """Denials are told to nobody."""


class AclAuthorizer:
    """Decides by ACLs. Lives on the event loop."""

    is_enabled = True

    def __init__(
        self,
        super_users: Iterable[Principal] = (),
        allow_everyone: bool = False,
        on_denied: OnDenied = _nobody_listens,
        log: Any = None,
        on_allowed: OnDenied | None = None,
    ) -> None:
        """`allow_everyone`: what holds for resources that no ACL is about (`allow.everyone.if.no.acl.found`);
        `on_denied` is told of each denial, `on_allowed` of all else that is asked for; they must neither
        block nor raise."""
        self.on_denied = on_denied
        self._on_allowed = on_allowed
        if on_allowed is not None:
            self.allows = self._allows_and_tells  # type: ignore[method-assign]
        self._super_users = frozenset(super_users)
        self._allow_everyone = allow_everyone
        self._log = log
        self._rows: Mapping[AclRow, None] | None = None
        self._decider = AclDecider(AclSet(), self._super_users)
        self._kept: AclDecider | None = None

    @property
    def version(self) -> object:
        """Belongs to one version of the ACLs."""
        return self._decider

    def metadata_changed(
        self, old: MetadataImage, new: MetadataImage, records: Sequence[pb.MetadataRecord]
    ) -> None:
        """Follow the metadata: a callback of `MetadataClient.on_change`, before anybody who asks."""
        rows = new.security.acls
        if rows is self._rows:
            return
        after: AclSet | None = None
        if old.security.acls is self._rows and len(records) <= FEW_RECORDS:
            after = self._changed_by(records)
        if after is None or len(after) != len(rows):  # a snapshot, whose records do not say what is gone
            after = self._compared(rows)
        self._rows = rows
        decider = AclDecider(after, self._super_users, self._allow_everyone)
        if self._kept is None:
            self._decider = decider
        else:
            self._kept = decider

    def distrust(self) -> None:
        """The metadata are too old to go by: nobody may do anything, super users included."""
        if self._kept is None:
            self._kept, self._decider = self._decider, AclDecider(AclSet(), frozenset())

    def trust(self) -> None:
        """They are new again."""
        if self._kept is not None:
            self._decider, self._kept = self._kept, None

    @property
    def _acls(self) -> AclSet:
        return (self._kept or self._decider).acls

    def _changed_by(self, records: Sequence[pb.MetadataRecord]) -> AclSet | None:
        """The ACLs after the records; None when these hold one that cannot be read."""
        last: dict[AclRow, bool] = {}
        for record in records:
            kind = record.WhichOneof("record")
            if kind == "acl":
                last[AclRow.from_pb(record.acl)] = True
            elif kind == "acl_removed":
                last[AclRow.from_pb(record.acl_removed.acl)] = False
        added: list[AclBinding] = []
        removed: list[AclBinding] = []
        for row, present in last.items():
            entry = binding_of(row)
            if entry is None:
                return None
            (added if present else removed).append(entry)
        return self._acls.changed(added, removed)

    def _compared(self, rows: Mapping[AclRow, None]) -> AclSet:
        """The ACLs of the map, from those at hand where that is less work."""
        before = self._rows or {}
        added, removed = rows.keys() - before.keys(), before.keys() - rows.keys()
        if len(added) + len(removed) < len(rows):
            return self._acls.changed(self._read(added), self._read(removed))
        return AclSet(self._read(rows))

    def _read(self, rows: Iterable[AclRow]) -> list[AclBinding]:
        entries = []
        for row in rows:
            entry = binding_of(row)
            if entry is not None:
                entries.append(entry)
            elif self._log is not None:
                self._log.warning("an ACL that this build cannot read counts for nothing", acl=str(row))
        return entries

    # -- questions ------------------------------------------------------------------------

    def authorize(self, who: Identity, operation: AclOperation, kind: ResourceType, name: str) -> bool:
        """Whether `who` may; a denial is told to `on_denied`."""
        if self.allows(who, operation, kind, name):
            return True
        self.on_denied(who, operation, kind, name)
        return False

    def allows(self, who: Identity, operation: AclOperation, kind: ResourceType, name: str) -> bool:
        """Whether `who` may."""
        return self._decider.allows(who, operation, kind, name)

    def _allows_and_tells(
        self, who: Identity, operation: AclOperation, kind: ResourceType, name: str
    ) -> bool:
        allowed = self._decider.allows(who, operation, kind, name)
        if allowed and self._on_allowed is not None:
            self._on_allowed(who, operation, kind, name)
        return allowed

    def why(self, who: Identity, operation: AclOperation, kind: ResourceType, name: str) -> str:
        """Which rule decides that question."""
        found = self._decider.explain(who.principal, who.host, operation, kind, name)
        return found.reason.value if found.entry is None else str(found.entry)

    def denied(self, who: Identity, operation: AclOperation, kind: ResourceType, name: str) -> None:
        """Tell of a denial."""
        self.on_denied(who, operation, kind, name)

    def authorize_by_resource_type(self, who: Identity, operation: AclOperation, kind: ResourceType) -> bool:
        """Whether some ALLOW that no DENY dominates lets `who` do that with something."""
        return self._decider.authorize_by_resource_type(who.principal, who.host, operation, kind)

    def authorized_operations(self, who: Identity, kind: ResourceType, name: str) -> int:
        """As bits."""
        return self._decider.authorized_operations(who.principal, who.host, kind, name)

    def permitted(
        self, who: Identity, operation: AclOperation, kind: ResourceType, names: Iterable[str]
    ) -> list[str]:
        """Those of `names` with which `who` may do that."""
        return self._decider.permitted(who.principal, who.host, operation, kind, names)


def binding_of(row: AclRow) -> AclBinding | None:
    """The entry that a row of the metadata holds; None for one of a newer build, with words not known here."""
    pattern, permission = _PATTERNS.get(row.pattern_type), _PERMISSIONS.get(row.permission)
    if pattern is None or permission is None:
        return None
    try:
        principal = parse_principal(row.principal)
    except ValueError:
        return None
    return AclBinding(
        from_code(ResourceType, row.resource_type),
        pattern,
        row.resource_name,
        principal,
        row.host,
        from_code(AclOperation, row.operation),
        permission,
    )
