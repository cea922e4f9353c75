"""Which topics the regular expressions of a group's members stand for.

Where rights are looked at, an expression sees only what may be described: by the member whose heartbeat last had it
looked at, as in Kafka (GroupMetadataManager.maybeUpdateRegularExpressions). That happens when a member brings the
expression, when topics have changed, and when rights have, the latter at most every `RIGHTS_AGAIN_MS`. The answer is
kept with the group and not written: a new coordinator goes by what the group's target has until a member is heard.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

from penstock_storage_node.groups.consumer.group import ConsumerGroup, Resolved
from penstock_storage_node.groups.consumer.regex import BadRegex, TopicRegex
from penstock_storage_node.groups.store import Topics

KEPT_MAX: Final = 256
RIGHTS_AGAIN_MS: Final = 10_000
_NO_TOPIC = TopicRegex(r"[^\s\S]")


class RegexRights(NamedTuple):
    """What the sender of a heartbeat may describe."""

    permitted: Callable[[Iterable[str]], Collection[str]]
    """Those of the topics."""
    version: object
    """Another object whenever it may be others."""


class SubscribedRegexes:
    """Those of a shard's groups."""

    def __init__(self, topics: Topics, clock_ms: Callable[[], int]) -> None:
        self._topics = topics
        self._clock_ms = clock_ms
        self._compiled: dict[str, TopicRegex] = {}
        self.narrows = False
        """Whether rights are looked at here, as far as heartbeats have shown."""

    def check(self, pattern: str) -> TopicRegex:
        """The pattern, compiled. Raises BadRegex."""
        known = self._compiled.get(pattern)
        if known is None:
            if len(self._compiled) >= KEPT_MAX:
                self._compiled.clear()
            known = self._compiled[pattern] = TopicRegex(pattern)
        return known

    def _stored(self, pattern: str) -> TopicRegex:
        """As `check`, of a member that is there: a pattern in the log that cannot be read here (another
        build's, Kafka's) subscribes to nothing, and keeps no shard from being loaded."""
        try:
            return self.check(pattern)
        except BadRegex:
            return _NO_TOPIC

    def is_due(self, group: ConsumerGroup, pattern: str | None, rights: RegexRights | None) -> bool:
        """Whether the pattern has to be looked at by these rights."""
        if rights is None or not pattern:
            return False
        known = group.resolved.get(pattern)
        if known is None or known.seen is not self._topics.token():
            return True
        return known.rights is not rights.version and self._clock_ms() - known.at_ms >= RIGHTS_AGAIN_MS

    def resolve(self, group: ConsumerGroup, pattern: str, rights: RegexRights) -> bool:
        """Look at it; whether it stands for others than before."""
        compiled = self._stored(pattern)
        matching = [name for name in self._topics.names() if compiled.matches(name)]
        names = frozenset(rights.permitted(matching))
        before = group.resolved.get(pattern)
        there = {member.regex for member in group.members.values()}
        kept = {each: resolved for each, resolved in group.resolved.items() if each in there}
        kept[pattern] = Resolved(names, self._topics.token(), rights.version, self._clock_ms())
        group.resolved = kept
        return before is None or before.names != names

    def names(self, group: ConsumerGroup, pattern: str) -> Iterable[str]:
        """The topics that it stands for."""
        known = group.resolved.get(pattern)
        if known is not None:
            return sorted(known.names)
        compiled = self._stored(pattern)
        names = self._targeted(group) if self.narrows else self._topics.names()
        return [name for name in names if compiled.matches(name)]

    def select(self, group: ConsumerGroup, pattern: str, names: Iterable[str]) -> set[str]:
        """Those of `names` that it stands for."""
        if pattern in group.resolved or self.narrows:
            return set(self.names(group, pattern)).intersection(names)
        compiled = self._stored(pattern)
        return {name for name in names if compiled.matches(name)}

    def _targeted(self, group: ConsumerGroup) -> list[str]:
        ids = {topic_id for target in group.targets.values() for topic_id, _ in target}
        return sorted(name for name in map(self._topics.topic_name, ids) if name is not None)
