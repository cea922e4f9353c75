"""Which logs this node should hold: what to create, open, delete and set aside, as a plain state machine.

It hears of metadata and of what the disk has done, and answers with instructions; a shell
(`manager`) carries them out, which takes time, and tells what came of each. Metadata move on
meanwhile: whatever was begun is ended first, then compared with what they say by then.

    what is heard                 with                              instructions
    a state that names this node  a partition                       TakeRole
                                  its log, found on the disk        OpenLog
                                  its log being created             (none: `on_created` looks again)
                                  its name taken by another log     AwaitName, until `on_free` names it
                                  nothing                           CreateLog, of a name whose log of
                                                                    another topic is set aside first
    a state that does not         a partition                       DeleteLog
    the topic is gone             a partition                       DeleteLog
    created                       still wanted                      OpenLog
                                  wanted no more                    DiscardLog
    not created, deleted,         somebody waits for the name       (the shell looks at those again)
    discarded: the name is free
    what is on the disk           logs nobody has claimed           SetAside
    metadata that were restored   a partition that they don't give  ParkLog: it is as if it was found on the
    know less than this node      to this node                      disk from then on

A name is a directory (topic, partition), and one log's at a time: from before it is created until its
directory is gone. A topic that is made anew under the name of one whose directory is just being made
waits; otherwise the discarding of the first would take away the directory of the second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from penstock_core.errors import InvariantBroken
from penstock_core.ids import TopicId, TopicPartition

Name = tuple[str, int]
"""Topic name and partition: a directory."""


@dataclass(frozen=True, slots=True)
class TakeRole:
    """The partition is here: adopt the state."""

    key: TopicPartition


@dataclass(frozen=True, slots=True)
class OpenLog:
    """Make a partition of a log that is open: one that was found on the disk or that was created."""

    key: TopicPartition
    name: Name


@dataclass(frozen=True, slots=True)
class CreateLog:
    """Make a directory and a log. `stray`: set the log that was found under that name aside first."""

    key: TopicPartition
    name: Name
    stray: bool


@dataclass(frozen=True, slots=True)
class AwaitName:
    """A log is to be created once the directory of another one is out of the way."""

    key: TopicPartition


@dataclass(frozen=True, slots=True)
class DiscardLog:
    """Delete a log that was created and that nobody wants any more."""

    key: TopicPartition
    name: Name


@dataclass(frozen=True, slots=True)
class DeleteLog:
    """End the partition's role and delete its log."""

    key: TopicPartition
    name: Name


@dataclass(frozen=True, slots=True)
class ParkLog:
    """End the partition's role and keep its log: the metadata may be those of a time before it."""

    key: TopicPartition
    name: Name


@dataclass(frozen=True, slots=True)
class SetAside:
    """Keep a log that nobody knows, under another name."""

    name: Name


Instruction = TakeRole | OpenLog | CreateLog | AwaitName | DiscardLog | DeleteLog | SetAside


class Placement:
    """One per node. `held`: partitions of this node, `found`: logs on its disk without a role."""

    def __init__(self) -> None:
        self.held: dict[TopicPartition, Name] = {}
        self.found: dict[Name, TopicId] = {}
        self.changing: dict[Name, TopicPartition] = {}
        """Directories that are being made or deleted, and whose."""
        self._creating: dict[TopicPartition, Name] = {}
        self._waiting: dict[Name, dict[TopicPartition, None]] = {}

    def on_found(self, name: Name, topic_id: TopicId) -> None:
        """A log was on the disk at the start."""
        self.found[name] = topic_id

    def on_state(self, key: TopicPartition, name: Name, *, is_mine: bool) -> Instruction | None:
        """The metadata say something of a partition; `is_mine`: this node is one of its replicas."""
        if not is_mine:
            return self._delete(key)
        if key in self.held:
            return TakeRole(key)
        if self.found.get(name) == key.topic_id:
            del self.found[name]
            self.held[key] = name
            return OpenLog(key, name)
        if key in self._creating:
            return None
        if name in self.changing:
            self._waiting.setdefault(name, {})[key] = None
            return AwaitName(key)
        self._creating[key] = name
        self.changing[name] = key
        return CreateLog(key, name, stray=self.found.pop(name, None) is not None)

    def on_gone(self, key: TopicPartition) -> DeleteLog | None:
        """The metadata know no such partition any more."""
        return self._delete(key)

    def on_created(self, key: TopicPartition, *, is_mine: bool) -> OpenLog | DiscardLog:
        """A log was created. `is_mine`: the metadata of now still want it here."""
        name = self._creating.pop(key)
        if not is_mine:
            return DiscardLog(key, name)
        del self.changing[name]
        self.held[key] = name
        return OpenLog(key, name)

    def on_free(self, name: Name) -> list[TopicPartition]:
        """No log was created, or a deleted or discarded one is gone: whom to look at again."""
        self._creating.pop(self.changing.pop(name), None)
        return list(self._waiting.pop(name, ()))

    def strays(self, is_kept: Callable[[TopicPartition], bool] = lambda _: False) -> list[SetAside]:
        """Logs on the disk that the metadata know nothing of, once these are known to be current.

        `is_kept`: stays where it is, without a role.
        """
        names = [n for n, topic_id in self.found.items() if not is_kept(TopicPartition(topic_id, n[1]))]
        for name in names:
            del self.found[name]
        return [SetAside(name) for name in names]

    def park(self, key: TopicPartition) -> ParkLog | None:
        """The metadata were restored, and do not give this partition to this node."""
        name = self.held.pop(key, None)
        if name is None:
            return None
        self.changing[name] = key
        return ParkLog(key, name)

    def on_parked(self, key: TopicPartition, name: Name) -> list[TopicPartition]:
        """A log without a role is under its name again: whom to look at again."""
        waiting = self.on_free(name)
        self.found[name] = key.topic_id
        return waiting

    def _delete(self, key: TopicPartition) -> DeleteLog | None:
        name = self.held.pop(key, None)
        if name is None:
            return None
        self.changing[name] = key
        return DeleteLog(key, name)

    def validate(self, partitions: Iterable[TopicPartition]) -> None:
        """Raises InvariantBroken: what is held are the partitions; a directory's name is one log's."""
        if self.held.keys() != set(partitions):
            raise InvariantBroken(f"placement holds {sorted(self.held)}, the node {sorted(partitions)}")
        names = [*self.held.values(), *self.found, *self.changing]
        if len(set(names)) != len(names):
            raise InvariantBroken(f"two logs under one name: {sorted(names)}")
        if any(self.changing.get(name) != key for key, name in self._creating.items()):
            raise InvariantBroken(f"created under names that are not theirs: {self._creating}")
