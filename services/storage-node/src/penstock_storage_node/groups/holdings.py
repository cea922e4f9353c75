"""What groups hold of a node, and whose it is: nobody's groups take the room of others'.

Pure. Counted are members (and member ids that were given out), the bytes that members said of themselves and
were assigned, and groups, all while they are there: each shard counts its own, and is counted no more when it is
closed. Whose a member is says the request by which it came last: the principal that signed in, else the client's
address (of IPv6 the /64, which has four times as many members and groups). Those that were read from the log are
nobody's until they are heard of; they count for the node alone.

Kafka has no such bounds but `group.max.size`; who meets one is answered GROUP_MAX_SIZE_REACHED, which every
client knows, and a member that says too much of itself INVALID_REQUEST.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Final

from penstock_core.security.login_limits import network, shares_of
from penstock_core.security.principal import ANONYMOUS, Identity, Principal
from penstock_storage_node.settings import GroupSettings

PRINCIPAL_SHARE: Final = 4
"""One principal has at most 1/4 of the node's memory for groups."""

Owner = Principal | str
"""Whose something is: a principal, an address where nobody signs in, "" where nobody knows."""
NOBODYS: Final = ""


def owner_of(who: Identity) -> Owner:
    """Whose a member is that `who` brings."""
    return network(who.host) if who.principal == ANONYMOUS else who.principal


def _shares(owner: Owner) -> int:
    """Of an owner that is a /64 of IPv6: four."""
    return shares_of(owner) if isinstance(owner, str) else 1


def protocols_bytes(protocols: Iterable[tuple[str, bytes]]) -> int:
    """What a member's protocols take."""
    return sum(len(name) + len(data) for name, data in protocols)


class Holdings:
    """Those of one shard."""

    def __init__(self, groups: Collection[str] = ()) -> None:
        """`groups`: the shard's own, by name."""
        self.groups = groups
        self.members: Counter[Owner] = Counter()
        self.bytes: Counter[Owner] = Counter()
        self.all_bytes = 0
        self._maker: dict[str, Owner] = {}
        self.made: Counter[Owner] = Counter()

    def take(self, owner: Owner, size: int) -> None:
        """A member more."""
        self.members[owner] += 1
        self.resize(owner, size)

    def give(self, owner: Owner, size: int) -> None:
        """One that was taken is gone."""
        self.members[owner] -= 1
        self.resize(owner, -size)

    def resize(self, owner: Owner, growth: int) -> None:
        """One has grown, or shrunk."""
        self.bytes[owner] += growth
        self.all_bytes += growth
        if not self.members[owner] and not self.bytes[owner]:
            del self.members[owner], self.bytes[owner]

    def make(self, group_id: str, owner: Owner) -> None:
        """A new group is there."""
        if owner != NOBODYS and group_id not in self._maker:
            self._maker[group_id] = owner
            self.made[owner] += 1

    def forget(self, group_id: str) -> None:
        """A group is gone."""
        owner = self._maker.pop(group_id, None)
        if owner is not None:
            self.made[owner] -= 1
            if not self.made[owner]:
                del self.made[owner]


class NodeHoldings:
    """Those of all shards of a node, and what is refused."""

    def __init__(
        self, settings: GroupSettings, on_refused: Callable[[Owner, str], None] = lambda *_: None
    ) -> None:
        """`on_refused` is told whom, and by which setting."""
        self._settings = settings
        self._on_refused = on_refused
        self._shards: list[Holdings] = []
        self.refused: Counter[str] = Counter()
        """By setting."""

    def open(self, groups: Collection[str]) -> Holdings:
        """A shard begins to count."""
        made = Holdings(groups)
        self._shards.append(made)
        return made

    def close(self, holdings: Holdings) -> None:
        """Its groups are another node's."""
        if holdings in self._shards:
            self._shards.remove(holdings)

    @property
    def member_count(self) -> int:
        """Members, and member ids that were given out."""
        return sum(each.members.total() for each in self._shards)

    @property
    def held_bytes(self) -> int:
        """What members said of themselves and were assigned."""
        return sum(each.all_bytes for each in self._shards)

    def has_room(self, owner: Owner, members: int, growth: int, group_bytes: int) -> bool:
        """Whether `owner` may have so many members and bytes more, in a group that would hold `group_bytes` then."""
        settings = self._settings
        refusal = ""
        if growth > 0 and group_bytes > settings.group_bytes_max:
            refusal = "group_max_bytes"
        elif growth > 0 and self.held_bytes + growth > settings.memory_bytes_max:
            refusal = "group_memory_max_bytes"
        elif owner != NOBODYS:
            held = sum(each.members[owner] for each in self._shards)
            held_bytes = sum(each.bytes[owner] for each in self._shards)
            if members and held + members > settings.members_per_principal_max * _shares(owner):
                refusal = "group_members_per_principal_max"
            elif growth > 0 and held_bytes + growth > settings.memory_bytes_max // PRINCIPAL_SHARE:
                refusal = "group_memory_max_bytes"
        return self._admits(owner, refusal)

    def may_make(self, owner: Owner) -> bool:
        """Whether `owner` may make another group."""
        settings = self._settings
        refusal = ""
        if sum(len(each.groups) for each in self._shards) >= settings.groups_max:
            refusal = "groups_max"
        elif sum(each.made[owner] for each in self._shards) >= settings.groups_per_principal_max * _shares(
            owner
        ):
            refusal = "groups_per_principal_max"
        return self._admits(owner, refusal)

    def takes(self, owner: Owner, size: int) -> bool:
        """Whether a member of that size is taken at all."""
        return self._admits(owner, "group_member_max_bytes" if size > self._settings.member_bytes_max else "")

    def _admits(self, owner: Owner, refusal: str) -> bool:
        if refusal:
            self.refused[refusal] += 1
            self._on_refused(owner, refusal)
        return not refusal
