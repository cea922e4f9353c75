"""What must be true of consumer groups, and the truth that it is held against.

The truth of a group is what is committed in its partition of `__consumer_offsets`, record by record, in the
log's order: the coordinator's batches are noted as it appends them, and taken in when the high watermark
passes them. So every check says which record, or which answer to which member, broke it.

What is checked, of the log: see `GroupLog`. Of answers to members: see `GroupChecker`. When a coordinator has
read its partition: that it knows what the last record of each key says, and nothing else.

Who owns a partition. Of a *consumer* group (KIP-848) a member owns what the coordinator has told it, from that
answer until the member has let go of it (having been told to), is told that it is fenced or unknown, or leaves;
the coordinator takes it from the member's record (assigned and to be revoked) only after the member has let
go, or removes the member. So at any time, of two members that both think that they own a partition, at most one
is a member still that has it in its record. Of a *classic* group: of the members that were told their share of one
generation, no two have the same partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock_core.errors import ErrorCode
from penstock_core.ids import TopicId, TopicPartition
from penstock_storage_node.coordinator_host import Hosted
from penstock_storage_node.groups import records as rec
from penstock_storage_node.groups.classic.group import ClassicGroup
from penstock_storage_node.groups.consumer.group import (
    LEAVE_FOR_NOW,
    ConsumerGroup,
    Parts,
    since_of,
    to_parts,
)
from penstock_storage_node.groups.consumer.subscription import read_assignment
from penstock_storage_node.groups.host import OffsetsLog
from penstock_storage_node.groups.records import OffsetValue, Record
from penstock_storage_node.groups.shard import Shard
from simulation.group_wire import Place
from simulation.invariants import Entry
from simulation.txn_checks import CheckedOffsetsHost

if TYPE_CHECKING:
    from simulation.group_members import Member
    from simulation.world import World

TXN_PREFIX = "txn-"
"""Of the groups whose offsets transactions commit; `txn_checks` has them."""

_checker: GroupChecker | None = None


def install(checker: GroupChecker | None) -> None:
    """Whom the classes below tell, for one run."""
    global _checker
    _checker = checker


@dataclass(slots=True)
class Commit:
    """One offset that a member has sent. Its metadata carry the number."""

    number: int
    group_id: str
    place: Place
    offset: int
    member_id: str
    epoch: int
    """Generation or member epoch that it was sent under."""
    is_tainted: bool
    """The member began from an offset that a deposed coordinator told it."""
    at: int = -1
    """Its number among what is committed of its place; -1: not yet."""


class Current(NamedTuple):
    """What the log says of a member of a consumer group."""

    epoch: int
    assigned: Parts
    revoking: Parts
    since: dict[Any, int]
    """In which epoch each was assigned."""


@dataclass(slots=True)
class Offsets:
    """Committed offsets of one place of one group, in the log's order."""

    last: Commit | None = None
    count: int = 0
    acked_at: int = -1
    """The last one that a member knows to be committed."""
    removed_at: int = -1
    """The last removal: what a member hears of later is gone all the same."""


@dataclass(slots=True)
class GroupTruth:
    """One group, as its log says."""

    group_id: str
    kind: str = ""
    """classic, consumer, or "" when there is none."""
    lives: int = 0
    """How often it was removed."""
    generation: int = -1
    members: dict[str, rec.MemberValue] = field(default_factory=dict)
    """Of the stored generation of a classic group."""
    epoch: int = -1
    target_epoch: int = -1
    current: dict[str, Current] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    """Members of a consumer group."""
    told: dict[tuple[str, int], set[Parts]] = field(default_factory=dict)
    """What a member may have been told: by member and epoch, each assignment that was committed. Of all lives,
    for one that hung may read its answer late."""
    epoch_max: dict[str, int] = field(default_factory=dict)
    offsets: dict[Place, Offsets] = field(default_factory=dict)

    def place(self, place: Place) -> Offsets:
        """What is committed there."""
        return self.offsets.setdefault(place, Offsets())

    @property
    def is_empty(self) -> bool:
        """The log knows of no member."""
        return not (self.members if self.kind == "classic" else self.names)

    def has(self, member_id: str, part: Any) -> bool:
        """Whether a member of a consumer group has a partition, or has yet to give it up."""
        current = self.current.get(member_id)
        return current is not None and part in current.assigned | current.revoking

    def removed(self) -> None:
        """The group is no more; offsets may stay."""
        self.kind = ""
        self.lives += 1
        self.generation = self.epoch = self.target_epoch = -1
        self.members = {}
        self.current.clear()
        self.names.clear()
        self.epoch_max.clear()


class GroupLog:
    """The truth of one partition of `__consumer_offsets`.

    * An offset is committed by a member that the log has, in its epoch, or in an older one in which it had the
      partition that it has still (consumer), or in no older generation than the stored one (classic): no zombie's,
      no fenced static member's.
    * Offsets of a place never go back, but for two commits of the same member in the same epoch (of a consumer group:
      while it had the partition), which may overtake each other on two connections.
    * Offsets are removed only of groups without members.
    * Generations and epochs never fall, and one generation has one assignment.
    * No partition stands in the records of two members.
    * A partition leaves a member's record once that member's client has let go of it, or with the member.
    """

    def __init__(self, checker: GroupChecker) -> None:
        self._checker = checker
        self.values: dict[bytes, bytes] = {}
        """The last record of each key."""

    def take(self, records: Sequence[Record]) -> None:
        """A batch is committed."""
        checker = self._checker
        kinds = {key.kind for key, _ in _keyed(records)}
        touched: dict[str, GroupTruth] = {}
        for about, value in _keyed(records):
            group = checker.group(about.group_id)
            if about.kind == rec.OFFSET_COMMIT:
                self._offset(group, (about.topic, about.partition), value)
            elif about.kind == rec.GROUP_METADATA:
                self._generation(group, value, is_upgrade=rec.CONSUMER_GROUP in kinds)
            else:
                self._consumer(group, about, value)
                touched[group.group_id] = group
        for key, value in records:
            if value is None:
                self.values.pop(key, None)
            else:
                self.values[key] = value
        for group in touched.values():
            self._disjoint(group)

    def _fail(self, name: str, message: str) -> None:
        self._checker.fail(name, message)

    # --- offsets

    def _offset(self, group: GroupTruth, place: Place, value: bytes | None) -> None:
        known = group.place(place)
        who = f"{group.group_id} {place[0]}-{place[1]}"
        if value is None:
            if not group.is_empty:
                self._fail("offsets of live groups stay", f"{who}: removed, the group has members")
            self._checker.count("offsets expired")
            known.last, known.acked_at, known.removed_at = None, -1, known.count
            known.count += 1
            return
        read = rec.read_offset(value)
        commit = self._checker.commits.get(read.metadata)
        if commit is None or (commit.group_id, commit.place, commit.offset) != (
            group.group_id,
            place,
            read.offset,
        ):
            self._fail("only what was sent", f"{who}: {read} was never sent")
            return
        self._check_owner(group, commit, who)
        before = known.last
        if before is not None and commit.offset < before.offset:
            own = before.member_id == commit.member_id and (
                group.kind == "consumer" or before.epoch == commit.epoch
            )
            if not own and not commit.is_tainted:
                self._fail(
                    "committed offsets never go back",
                    f"{who}: {commit.offset} of {commit.member_id} in epoch {commit.epoch} after"
                    f" {before.offset} of {before.member_id} in epoch {before.epoch}",
                )
        commit.at = known.count
        known.count += 1
        known.last = commit

    def _check_owner(self, group: GroupTruth, commit: Commit, who: str) -> None:
        member_id, epoch = commit.member_id, commit.epoch
        if group.kind == "consumer":
            current = group.current.get(member_id)
            is_valid = current is not None and (current.epoch == epoch or self._is_overtaken(current, commit))
            found = f"the log has {current}"
        else:
            # A generation that is not stored yet is the coordinator's own knowledge.
            is_valid = epoch > group.generation or (
                epoch == group.generation and (member_id in group.members or not group.kind)
            )
            found = f"the log has generation {group.generation} of {sorted(group.members)}"
        if not is_valid:
            self._fail(
                "only members commit", f"{who}: offset {commit.offset} of {member_id} in {epoch}, {found}"
            )

    def _is_overtaken(self, current: Current, commit: Commit) -> bool:
        """Whether the member had the partition in an epoch that it has left behind, and has it still."""
        names = self._checker.names
        return commit.epoch < current.epoch and any(
            (names.get(topic_id), number) == commit.place and since <= commit.epoch
            for (topic_id, number), since in current.since.items()
        )

    # --- classic groups

    def _generation(self, group: GroupTruth, value: bytes | None, *, is_upgrade: bool) -> None:
        if value is None:
            if group.members and not is_upgrade:
                self._fail("groups with members stay", f"{group.group_id} is removed with {group.members}")
            if group.kind == "classic":
                group.removed()
            return
        new = rec.read_group(value)
        if group.kind == "consumer":
            self._fail("one kind of group", f"{group.group_id}: a classic generation in a consumer group")
        if new.generation < group.generation:
            self._fail("generations never fall", f"{group.group_id}: {group.generation}, {new.generation}")
        members = {m.member_id: m for m in new.members}
        if new.generation == group.generation:
            # Only a static member may take another's place.
            had, has = (sorted(m.assignment for m in each.values()) for each in (group.members, members))
            if had != has:
                self._fail(
                    "one assignment in a generation",
                    f"{group.group_id}: generation {new.generation} is stored twice, {had} and {has}",
                )
        seen: set[Place] = set()
        for m in new.members:
            places = read_assignment(m.assignment) or frozenset()
            if places & seen:
                self._fail("one owner in a generation", f"{group.group_id}: {sorted(places & seen)}")
            seen |= places
        group.kind, group.generation, group.members = "classic", new.generation, members

    # --- consumer groups

    def _consumer(self, group: GroupTruth, about: rec.Key, value: bytes | None) -> None:
        name, member_id = group.group_id, about.member_id
        if about.kind == rec.CONSUMER_GROUP:
            if value is None:
                if group.names:
                    self._fail("groups with members stay", f"{name} is removed with {sorted(group.names)}")
                if group.kind == "consumer":
                    group.removed()
                return
            if group.kind == "classic":
                self._fail("one kind of group", f"{name}: an epoch in a classic group")
            group.kind = "consumer"
            group.epoch = self._risen(name, "group epoch", group.epoch, rec.read_epoch(value))
        elif about.kind == rec.TARGET_EPOCH:
            if value is not None:
                epoch = rec.read_epoch(value)
                group.target_epoch = self._risen(name, "target epoch", group.target_epoch, epoch)
        elif about.kind == rec.CONSUMER_MEMBER:
            if value is None:
                group.names.discard(member_id)
                group.current.pop(member_id, None)
            else:
                group.names.add(member_id)
        elif about.kind == rec.CURRENT_MEMBER and value is not None:
            self._current(group, member_id, rec.read_current(value))
        elif about.kind == rec.CURRENT_MEMBER:
            group.current.pop(member_id, None)

    def _risen(self, name: str, what: str, old: int, new: int) -> int:
        if new < old:
            self._fail("epochs never fall", f"{name}: {what} {new} after {old}")
        return new

    def _current(self, group: GroupTruth, member_id: str, value: rec.CurrentValue) -> None:
        new = Current(value.epoch, to_parts(value.assigned), to_parts(value.revoking), since_of(value))
        if new.epoch != LEAVE_FOR_NOW:
            who = f"{group.group_id} {member_id}"
            highest = group.epoch_max.get(member_id, 0)
            group.epoch_max[member_id] = self._risen(who, "member epoch", highest, new.epoch)
        old = group.current.get(member_id)
        if old is not None:
            gone = (old.assigned | old.revoking) - (new.assigned | new.revoking)
            self._checker.on_taken_back(group, member_id, gone)
        group.current[member_id] = new
        group.told.setdefault((member_id, new.epoch), set()).add(new.assigned)

    def _disjoint(self, group: GroupTruth) -> None:
        owners: dict[Any, str] = {}
        for member_id, current in group.current.items():
            for part in current.assigned | current.revoking:
                other = owners.setdefault(part, member_id)
                if other != member_id:
                    self._fail(
                        "one owner of a partition",
                        f"{group.group_id}: {part[0].hex()[:6]}-{part[1]} is {other}'s and {member_id}'s",
                    )


def _keyed(records: Iterable[Record]) -> list[tuple[rec.Key, bytes | None]]:
    found = []
    for key, value in records:
        about = rec.read_key(key)
        assert about is not None
        found.append((about, value))
    return found


class GroupChecker:
    """All groups of one run.

    * A commit that a member was told of is committed.
    * What the newest coordinator answers to an OffsetFetch is the last commit that a member was told of, or a
      later one. (One that is deposed and has not heard of it answers what it has, as Kafka's does: counted.)
    * A member is told a generation's assignment, or an epoch and its partitions, only once that is committed.
    * Who thinks that it owns a partition: see the module's text.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.commits: dict[str, Commit] = {}
        self.groups: dict[str, GroupTruth] = {}
        self.members: dict[str, Member] = {}
        """By member id, the client that has it."""
        self.logs: dict[TopicPartition, GroupLog] = {}
        self._appended: dict[tuple[TopicPartition, int, int], tuple[Record, ...]] = {}
        """By leader epoch and base offset."""
        self._told: dict[tuple[str, int, int, Place], str] = {}

    def fail(self, name: str, message: str) -> None:
        self.world.checker.fail(name, message)

    @property
    def names(self) -> dict[TopicId, str]:
        """Topics that offsets are committed of."""
        groups = self.world.groups
        return {} if groups is None else groups.committed

    def count(self, what: str) -> None:
        self.world.counts[what] += 1

    def group(self, group_id: str) -> GroupTruth:
        found = self.groups.get(group_id)
        if found is None:
            found = self.groups[group_id] = GroupTruth(group_id)
        return found

    # --- the log

    def on_append(self, key: TopicPartition, epoch: int, base_offset: int, records: Sequence[Record]) -> None:
        """A coordinator appended a batch."""
        if key not in self.logs:
            log = self.logs[key] = GroupLog(self)

            def committed(entry: Entry) -> None:
                log.take(self.records_of(key, entry))

            self.world.checker.truth(key).on_entry = committed
        self._appended[key, epoch, base_offset] = tuple(records)

    def records_of(self, key: TopicPartition, entry: Entry) -> tuple[Record, ...]:
        """What is in a batch; of transactions nothing, see `txn_checks`."""
        if entry.producer[0] >= 0:
            return ()
        return self._appended[key, entry.epoch, entry.base]

    def is_newest(self, key: TopicPartition, epoch: int) -> bool:
        """Whether no later leader has begun."""
        leaders = self.world.checker.truth(key).leaders
        return not leaders or max(leaders) <= epoch

    def on_loaded(self, hosted: Hosted[Shard]) -> None:
        """A coordinator has read its partition."""
        key = hosted.partition.key
        values: dict[bytes, tuple[bytes, int]] = {}
        for entry in hosted.partition.log.shadow:  # type: ignore[attr-defined]
            for offset, (name, value) in enumerate(self.records_of(key, entry), entry.base):
                if value is None:
                    values.pop(name, None)
                else:
                    values[name] = value, offset
        self.count("coordinators loaded")
        found, wanted = _known(hosted.shard), _said(values)
        if found != wanted:
            differs = sorted(
                {k for k in found.keys() | wanted.keys() if found.get(k) != wanted.get(k)}, key=str
            )
            first = differs[0]
            self.fail(
                "coordinators know what their log says",
                f"{hosted.partition.name}: {first}: {found.get(first)}, the log has {wanted.get(first)}"
                f" ({len(differs)} differ)",
            )

    # --- offsets

    def on_fetch(
        self, shard: Shard, group_id: str, answers: Iterable[tuple[Place, OffsetValue | None]]
    ) -> None:
        """A coordinator answers an OffsetFetch."""
        log = shard._store._log
        assert isinstance(log, CheckedPartitionLog)
        if not self.is_newest(log.key, log.epoch):
            self.count("offsets told by deposed coordinators")
            return
        for place, value in answers:
            known = self.group(group_id).place(place)
            at = -1
            if value is not None:
                commit = self.commits.get(value.metadata)
                if commit is None:
                    self.fail("only what was sent", f"{group_id} {place}: told {value}")
                    return
                if commit.at < 0:
                    continue  # read from the log, which may be ahead of the watermark for a moment
                at = commit.at
            if at < known.acked_at:
                self.fail(
                    "acknowledged offsets stay",
                    f"{group_id} {place}: told {value}, acknowledged is a later one ({known.last})",
                )

    def send(self, member: Member, place: Place, offset: int, *, is_tainted: bool) -> Commit:
        """A member is about to commit an offset."""
        number = len(self.commits) + 1
        commit = Commit(number, member.group_id, place, offset, member.member_id, member.epoch, is_tainted)
        self.commits[f"c{number}"] = commit
        return commit

    def on_acked(self, commit: Commit) -> None:
        """It was told that the offset is committed."""
        self.count("offsets acknowledged")
        if commit.at < 0:
            self.fail(
                "acknowledged offsets are committed",
                f"{commit.group_id} {commit.place}: {commit.offset} of {commit.member_id} is acknowledged only",
            )
        known = self.group(commit.group_id).place(commit.place)
        if commit.at > known.removed_at:
            known.acked_at = max(known.acked_at, commit.at)

    # --- assignments

    def on_synced(self, member: Member, places: frozenset[Place]) -> None:
        """A member of a classic group was told its share of a generation."""
        group = self.group(member.group_id)
        generation, holder = member.epoch, member.instance_id or member.member_id
        self.count("classic assignments")
        if group.kind == "consumer":
            # Its generation is the member's epoch, the share is the coordinator's.
            self.on_beat(member, generation, member.owned)
            self.on_owned(member)
            return
        if generation > group.generation:
            self.fail(
                "assignments are stored before they are told",
                f"{member.name} of {member.group_id} is told generation {generation}, stored is {group.generation}",
            )
        stored = group.members.get(member.member_id)
        if generation == group.generation and stored is not None:
            written = read_assignment(stored.assignment)
            if written != places:
                self.fail(
                    "assignments are stored before they are told",
                    f"{member.name} of {member.group_id}: told {sorted(places)}, stored {written}",
                )
        for place in places:
            other = self._told.setdefault((group.group_id, group.lives, generation, place), holder)
            if other != holder:
                self.fail(
                    "one owner in a generation",
                    f"{group.group_id} generation {generation}: {place} is {other}'s and {holder}'s",
                )

    def on_beat(self, member: Member, epoch: int, parts: Parts | None) -> None:
        """A member of a consumer group was told its epoch, and what it has when that changed."""
        group = self.group(member.group_id)
        committed = group.told.get((member.member_id, epoch))
        if committed is None or (parts is not None and parts not in committed):
            self.fail(
                "assignments are stored before they are told",
                f"{member.name} ({member.member_id}) of {member.group_id}: told epoch {epoch} with {_short(parts)},"
                f" committed in it: {[_short(p) for p in committed or ()]}",
            )

    def on_owned(self, member: Member) -> None:
        """A member of a consumer group took partitions."""
        group = self.group(member.group_id)
        for other in self.members.values():
            if other is member or other.group_id != member.group_id or other.is_dead:
                continue
            for part in other.owned & member.owned:
                if group.has(other.member_id, part) and group.has(member.member_id, part):
                    self.fail("one owner of a partition", f"{part}: {member.name} and {other.name} have it")

    def on_taken_back(self, group: GroupTruth, member_id: str, gone: Parts) -> None:
        """Partitions leave the record of a member that stays."""
        member = self.members.get(member_id)
        if member is None or member.is_dead or not gone:
            return
        kept = member.owned & gone
        if kept:
            self.fail(
                "handed on when let go of",
                f"{group.group_id}: {member.name} has not let go of {_short(kept)}, the log says it has",
            )


def _short(parts: Parts | None) -> str:
    if parts is None:
        return "what it had"
    return " ".join(f"{topic_id.hex()[:4]}-{number}" for topic_id, number in sorted(parts)) or "nothing"


# --- what a coordinator knows, and what its log says --------------------------------------------


def _said(values: dict[bytes, tuple[bytes, int]]) -> dict[Any, Any]:
    """The last record of each key, with its offset, in a form that `_known` has too."""
    said: dict[Any, Any] = {}
    for key, (value, offset) in values.items():
        about = rec.read_key(key)
        assert about is not None
        name, member_id = about.group_id, about.member_id
        if about.kind == rec.OFFSET_COMMIT:
            read = rec.read_offset(value)._replace(record_offset=offset)
            said[name, "offset", about.topic, about.partition] = read
        elif about.kind == rec.GROUP_METADATA:
            group = rec.read_group(value)
            said[name, "generation"] = group.generation
            for m in group.members:
                said[name, "member", m.member_id] = (m.instance_id, m.session_timeout_ms, m.assignment)
        elif about.kind == rec.CONSUMER_GROUP:
            said[name, "epoch"] = rec.read_epoch(value)
        elif about.kind == rec.TARGET_EPOCH:
            said[name, "target epoch"] = rec.read_epoch(value)
        elif about.kind == rec.TARGET_MEMBER:
            if parts := to_parts(rec.read_target(value)):
                said[name, "target", member_id] = parts
        elif about.kind == rec.CONSUMER_MEMBER:
            said[name, "member", member_id] = rec.read_consumer_member(value)
        elif about.kind == rec.CURRENT_MEMBER:
            current = rec.read_current(value)
            said[name, "current", member_id] = (
                current.epoch,
                current.previous_epoch,
                current.state,
                to_parts(current.assigned),
                to_parts(current.revoking),
                since_of(current),
            )
    return said


def _known(shard: Shard) -> dict[Any, Any]:
    known: dict[Any, Any] = {}
    for name, offsets in shard.offsets.items():
        if name.startswith(TXN_PREFIX):
            continue
        for (topic, partition), value in offsets.items():
            known[name, "offset", topic, partition] = value
    for name, group in shard.groups.items():
        if name.startswith(TXN_PREFIX):
            continue
        if isinstance(group, ConsumerGroup):
            known[name, "epoch"] = group.epoch
            known[name, "target epoch"] = group.assignment_epoch
            for member_id, parts in group.targets.items():
                if parts:
                    known[name, "target", member_id] = parts
            for m in group.members.values():
                known[name, "member", m.member_id] = m.to_value()
                now = (m.epoch, m.previous_epoch, m.state, m.assigned, m.revoking, m.since)
                known[name, "current", m.member_id] = now
        elif isinstance(group, ClassicGroup) and group.stored:
            known[name, "generation"] = group.generation
            for each in group.members.values():
                now_ = (each.instance_id, each.session_timeout_ms, each.assignment)
                known[name, "member", each.member_id] = now_
    return known


# --- the shipped classes with an observer ---------------------------------------------------------


class CheckedPartitionLog(OffsetsLog):
    """A coordinator's log; each batch is noted."""

    @property
    def key(self) -> TopicPartition:
        return self._partition.key

    @property
    def epoch(self) -> int:
        return int(self._leadership.epoch)

    def append(self, records: Sequence[Any], done: Callable[[ErrorCode], None]) -> int:
        base_offset = super().append(records, done)
        assert _checker is not None
        _checker.on_append(self.key, self.epoch, base_offset, records)
        return base_offset


class CheckedShard(Shard):
    """A coordinator whose answers to OffsetFetch are looked at."""

    def fetch(
        self, group_id: str, member_id: str | None, member_epoch: int, keys: Sequence[Place] | None
    ) -> tuple[ErrorCode, list[tuple[Place, OffsetValue | None]]]:
        error, found = super().fetch(group_id, member_id, member_epoch, keys)
        if not error and not group_id.startswith(TXN_PREFIX):
            assert _checker is not None
            _checker.on_fetch(self, group_id, found)
        return error, found


class CheckedGroupHost(CheckedOffsetsHost):
    """The coordinators of a node; what they have read is compared with what is there."""

    log_class = CheckedPartitionLog
    shard_class = CheckedShard

    async def _load(self, hosted: Hosted[Shard]) -> None:
        await super()._load(hosted)
        if hosted.ready and not hosted.shard.closed:
            assert _checker is not None
            _checker.on_loaded(hosted)
