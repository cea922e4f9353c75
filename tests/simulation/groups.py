"""Consumer groups in a run: who is in them, what befalls the members, and whether all is well at the end.

A part of the seeds has groups. Whatever concerns them is drawn from a generator of their own, so that the other
seeds run as if there were none.
"""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock_core.errors import ErrorCode
from penstock_core.ids import TopicId, TopicPartition
from penstock_core.metadata import MetadataImage
from penstock_core.topics import OFFSETS_TOPIC
from penstock_proto.v1 import controller_pb2 as api
from penstock_storage_node.groups.consumer.group import Parts
from simulation.group_channel import S
from simulation.group_checks import (
    GroupChecker,
)
from simulation.group_classic import ClassicMember
from simulation.group_consumer import ConsumerMember
from simulation.group_members import Member
from simulation.group_wire import Finder, Place
from simulation.settings import RUN_US

if TYPE_CHECKING:
    from simulation.settings import Settings
    from simulation.world import World

CHANCE = 0.25
"""Of a seed to have groups."""
TOPIC = "gwork"
"""What members read and commit offsets of; nobody writes it."""
GROUP_TICK_MS = 100
_SUBSCRIPTIONS = ("names", "names", "two names", "regex", "all")


@dataclass(slots=True)
class Slot:
    """A place for a member: when one ends, the next one is started."""

    group_id: str
    number: int
    is_direct: bool
    instance_id: str | None
    member: Member | None = None
    started: int = 0


@dataclass(slots=True)
class Group:
    """One group as it is planned."""

    group_id: str
    kind: str
    """classic, consumer, or mixed: each member that is started speaks either protocol."""
    subscription: str
    slots: list[Slot]


class Groups:
    """All groups of one run."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world = world
        self.rng = rng
        self.checker = GroupChecker(world)
        self.finder = Finder()
        self.committed: dict[TopicId, str] = {}
        """Topics that members commit offsets of."""
        self.is_finishing = False
        self.partition_count = rng.choice((2, 3, 5))
        self._retention_ms = rng.choice((8_000, 7 * 24 * 3_600_000))
        self._delay_ms = rng.choice((0, 500, 1_500))
        self._act_us = rng.choice((S, 2 * S, 4 * S))
        self._static_chance = rng.choice((0.0, 0.3, 0.7))
        if world.settings.static_members:
            self._static_chance = 1.0
        self._direct_chance = rng.choice((0.0, 0.3, 1.0))
        # Of a generator of their own: seeds without late commits run as they did before there were any.
        self.late_rng = random.Random(f"{world.seed}-late-commits")
        self.late_chance = self.late_rng.choice((0.0, 0.3))
        """Of a commit of a KIP-848 member to wait, see `group_consumer`."""
        self.groups = {g.group_id: g for g in self._plan()}
        self._members: list[Member] = []
        self._zombies: list[Member] = []

    @classmethod
    def draw(cls, world: World, settings: Settings) -> Groups | None:
        """Those of this seed, None when it has none."""
        rng = random.Random(f"{world.seed}-groups")
        has = rng.random() < CHANCE
        return cls(world, rng) if has or settings.with_groups else None

    def _plan(self) -> list[Group]:
        kinds = ["classic", "consumer"]
        if self.rng.random() < 0.5:
            kinds.append(self.rng.choice(("classic", "consumer", "mixed", "mixed", "mixed")))
        groups = []
        for number, kind in enumerate(kinds, 1):
            group_id = f"{kind}-{number}"
            slots = [self._slot(group_id, n) for n in range(1, self.rng.choice((2, 3, 3)) + 1)]
            subscription = self.rng.choice(_SUBSCRIPTIONS) if kind == "consumer" else "names"
            groups.append(Group(group_id, kind, subscription, slots))
        return groups

    def _slot(self, group_id: str, number: int) -> Slot:
        static = self.rng.random() < self._static_chance
        is_direct = self.rng.random() < self._direct_chance
        return Slot(group_id, number, is_direct, f"{group_id}-i{number}" if static else None)

    def keep_offsets(self) -> None:
        """Somebody commits offsets of groups that have no members."""
        self._retention_ms = 7 * 24 * 3_600_000

    # --- for the shipped code

    def node_settings(self) -> dict[str, Any]:
        """Of every storage node."""
        return {
            "group_initial_rebalance_delay_ms": self._delay_ms,
            "group_min_session_timeout_ms": 1_000,
            "group_consumer_session_timeout_ms": 4_000,
            "group_consumer_heartbeat_interval_ms": 1_000,
            "offsets_retention_minutes": self._retention_ms / 60_000,
            "offsets_retention_check_interval_ms": 2_000,
        }

    # --- for members

    def new_uuid(self) -> uuid.UUID:
        """An id as KIP-848's clients make theirs."""
        return uuid.UUID(int=self.rng.getrandbits(128), version=4)

    def topics_of(self, group_id: str) -> list[str]:
        """What its members name."""
        return [TOPIC, "passing"] if self.groups[group_id].subscription == "two names" else [TOPIC]

    def regex_of(self, group_id: str) -> str:
        """Their regular expression, "" for none."""
        return {"regex": "g.*|passing", "all": ".*"}.get(self.groups[group_id].subscription, "")

    def places_of(self, group_id: str) -> list[Place]:
        """Partitions that the members of a classic group share."""
        return [
            (topic, number) for topic in self.topics_of(group_id) for number in range(self.partition_count)
        ]

    def parts_of(self, places: Iterable[Place]) -> Parts:
        """The same, by topic id."""
        ids = {name: topic_id for topic_id, name in self.committed.items()}
        return frozenset((ids[topic], number) for topic, number in places)

    def _wanted(self, group: Group, image: MetadataImage) -> set[tuple[TopicId, int]]:
        regex = self.regex_of(group.group_id)
        return {
            (topic.topic_id, number)
            for topic in image.topics.values()
            if (re.fullmatch(regex, topic.name) if regex else topic.name in self.topics_of(group.group_id))
            for number in topic.partitions
        }

    # --- the run

    def start(self) -> None:
        """Make the topic, then the members."""
        self.world.scheduler.after(S, self._make_topic)

    def _make_topic(self) -> None:
        world = self.world

        def done(response: Any) -> None:
            newest = world.checker.images[max(world.checker.images)]
            topic = newest.topic(TOPIC)
            codes = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
            if response is not None and response.topics and response.topics[0].error.code in codes and topic:
                self.committed[topic.topic_id] = TOPIC
                self._begin()
            else:
                world.scheduler.after(S // 2, self._make_topic)

        new = api.NewTopic(name=TOPIC, partition_count=self.partition_count, replication_factor=3)
        if not world.workload._call("CreateTopics", api.CreateTopicsRequest(topics=[new]), done):
            world.scheduler.after(S // 2, self._make_topic)

    def _begin(self) -> None:
        for group in self.groups.values():
            for slot in group.slots:
                self.world.scheduler.after(int(self.rng.random() * 3 * S), self._start, slot)
        self.world.scheduler.after(self._act_us, self._act)

    def _start(self, slot: Slot) -> None:
        if slot.member is not None and not slot.member.is_dead:
            return
        slot.started += 1
        kind = self.groups[slot.group_id].kind
        if kind == "mixed":
            kind = self.rng.choice(("classic", "consumer"))
        member_type = ClassicMember if kind == "classic" else ConsumerMember
        name = f"m{slot.number}.{slot.started}"
        slot.member = member_type(
            self, slot.group_id, name, is_direct=slot.is_direct, instance_id=slot.instance_id
        )
        self._members.append(slot.member)
        self.world.counts["members started"] += 1
        slot.member.start()

    def on_dead(self, member: Member) -> None:
        """A member ended: its supervisor starts the next one, after a while."""
        for slot in self.groups[member.group_id].slots:
            if slot.member is member:
                wait_us = S // 2 if self.is_finishing else int((0.1 + 6 * self.rng.random() ** 2) * S)
                self.world.scheduler.after(wait_us, self._start, slot)

    def _act(self) -> None:
        """Something befalls a member."""
        world, rng = self.world, self.rng
        if self.is_finishing or world.scheduler.now_us > RUN_US:
            return
        world.scheduler.after(int(rng.expovariate(1) * self._act_us) + 1, self._act)
        slot = rng.choice([slot for group in self.groups.values() for slot in group.slots])
        member = slot.member
        if member is None or member.is_dead:
            return
        if member.is_hung:
            if rng.random() < 0.5:
                # Whoever supervises it starts another one beside it.
                world.counts["members replaced while they hung"] += 1
                self._zombies.append(member)
                slot.member = None
                self._start(slot)
            return
        action = rng.choice(("hang", "hang", "hang", "die", "die", "leave", "leave"))
        world.counts[f"members: {action}"] += 1
        if action == "hang":
            member.hang()
            world.scheduler.after(int((0.3 + 12 * rng.random() ** 1.5) * S), member.resume)
        elif action == "die":
            member.die()
        else:
            member.run(member.leave())

    # --- the end

    def finish(self) -> None:
        """Nothing befalls anybody any more."""
        self.is_finishing = True
        for member in self._zombies:
            member.die()
        for member in self._members:
            member.settled.clear()
            member.resume()
        for group in self.groups.values():
            for slot in group.slots:
                if slot.member is None or slot.member.is_dead:
                    self.world.scheduler.after(S // 2, self._start, slot)

    def partitions(self) -> list[TopicPartition]:
        """Those that groups alone use."""
        image = self.world.checker.images[max(self.world.checker.images)]
        return [
            TopicPartition(topic.topic_id, number)
            for name in (OFFSETS_TOPIC, TOPIC)
            if (topic := image.topic(name)) is not None
            for number in sorted(topic.partitions)
        ]

    def why_not_done(self, image: MetadataImage) -> str:
        """What still lacks, "" when every member has its share and nothing is left to anybody."""
        if not self.committed:
            return f"topic {TOPIC} was never made"
        why = next((why for group in self.groups.values() if (why := self._why_not(group, image))), "")
        return why or self._why_not_quiet()

    def _why_not_quiet(self) -> str:
        """A last commit may be under way still."""
        for key in self.partitions():
            end = self.world.checker.truth(key).end
            for host in self.world.hosts:
                partition = host.process.manager.registry.partitions.get(key) if host.kind == "n" else None
                if partition is not None and partition.log.log_end_offset != end:
                    return f"{partition.name} is being written: {partition.log.log_end_offset} of {end}"
        return ""

    def _why_not(self, group: Group, image: MetadataImage) -> str:
        parts: set[tuple[TopicId, int]] = set()
        places: set[Place] = set()
        count = 0
        for slot in group.slots:
            member = slot.member
            if member is None or member.is_dead or not member.is_in:
                return f"a member of {group.group_id} ({slot.number}) is not in"
            if member.late_commits or not member.settled.issuperset(member.positions):
                return f"{member.name} of {group.group_id} has not committed all"
            parts |= member.owned
            places |= member.positions.keys()
            count += len(member.positions)
        wanted = {(TOPIC, number) for number in range(self.partition_count)}
        if places != wanted or count != len(wanted):
            return f"{group.group_id}: {sorted(places)} are read, {sorted(wanted)} are there"
        if group.kind == "consumer" and parts != self._wanted(group, image):
            return f"{group.group_id}: {len(parts)} partitions are assigned, not those that there are"
        truth = self.checker.group(group.group_id)
        ids = {slot.member.member_id for slot in group.slots if slot.member is not None}
        known = set(truth.members) if truth.kind == "classic" else truth.names
        if known != ids:
            return f"{group.group_id}: members {sorted(known)}, alive are {sorted(ids)}"
        return ""

    def dispose(self) -> None:
        """After the run."""
        for member in self._members:
            member.dispose()
