"""Members of consumer groups without a client: each does what its protocol asks, when it is told to.

`ClassicMember` joins, syncs (the leader of the group assigns ranges, as Java's RangeAssignor
does) and heartbeats; `ModernMember` speaks KIP-848. Neither fetches records.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID, uuid4

from bench.groups import wire as wire
from bench.groups.wire import Connection, Frame

from penstock_core.errors import ErrorCode
from penstock_kafka.wire.primitives import INT16, INT32, put_string

SESSION_MS: Final = 60_000
FIND_TIMEOUT_S: Final = 60.0
FIND_GROUPS_MAX: Final = 200
REST_TIMEOUT_S: Final = 60.0
"""How long a group may take to come to rest."""
_AGAIN: Final = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


class Refused(Exception):
    """A broker answered with an error that no member of this benchmark should see."""


def check(what: str, code: int) -> None:
    """Raise Refused unless `code` is NONE."""
    if code:
        raise Refused(f"{what}: {ErrorCode(code).name}")


async def find_coordinators(bootstrap: str, groups: Sequence[str]) -> dict[str, tuple[int, str]]:
    """Node id and address of the coordinator of each group; waits until all have one."""
    found: dict[str, tuple[int, str]] = {}
    deadline = time.monotonic() + FIND_TIMEOUT_S
    while True:
        missing = [group for group in groups if group not in found]
        if not missing:
            return found
        connection: Connection | None = None
        try:
            connection = await Connection.open(bootstrap.split(",")[0])
            answer = await connection.call(wire.find_coordinators(missing[:FIND_GROUPS_MAX]))
            for one in answer.coordinators:
                if not int(one.error_code):
                    found[one.key] = (one.node_id, f"{one.host}:{one.port}")
        except OSError as error:
            if time.monotonic() > deadline:
                raise Refused(f"FindCoordinator: {error}") from error
        finally:
            if connection is not None:
                connection.close()
        if time.monotonic() > deadline:
            raise Refused(f"FindCoordinator: {len(missing)} groups have none after {FIND_TIMEOUT_S:.0f} s")
        if not found or len(missing) <= FIND_GROUPS_MAX:
            await asyncio.sleep(0.1)


async def topic_id(bootstrap: str, topic: str) -> UUID:
    """Id of a topic."""
    connection = await Connection.open(bootstrap.split(",")[0])
    try:
        answer = await connection.call(wire.metadata(topic))
        found: UUID = answer.topics[0].topic_id
        return found
    finally:
        connection.close()


def put_subscription(topic: str) -> bytes:
    """Metadata of a classic consumer, version 1, owning nothing."""
    topics = INT32.pack(1) + put_string(topic, flexible=False)
    return INT16.pack(1) + topics + INT32.pack(-1) + INT32.pack(0)


def put_assignment(topic: str, partitions: Sequence[int]) -> bytes:
    """Assignment of a classic consumer, version 1."""
    numbers = b"".join(INT32.pack(p) for p in partitions)
    name = put_string(topic, flexible=False)
    return INT16.pack(1) + INT32.pack(1) + name + INT32.pack(len(partitions)) + numbers + INT32.pack(-1)


def ranges(members: Sequence[str], topic: str, partition_count: int) -> dict[str, bytes]:
    """An assignment for each member."""
    each, more = divmod(partition_count, len(members))
    out = {}
    start = 0
    for index, member_id in enumerate(sorted(members)):
        end = start + each + (index < more)
        out[member_id] = put_assignment(topic, range(start, end))
        start = end
    return out


class ClassicMember:
    """One member of a classic group, on a connection of its own."""

    def __init__(self, connection: Connection, group: str, topic: str, partition_count: int) -> None:
        self.connection = connection
        self.group = group
        self.topic = topic
        self.partition_count = partition_count
        self.member_id = ""
        self.generation = -1
        self.assignment = b""
        self.join_sent_s = 0.0
        self.beat_frame: Frame | None = None

    async def join_and_sync(self) -> None:
        """Into the next generation that the group completes."""
        subscription = put_subscription(self.topic)
        deadline = time.monotonic() + wire.CALL_TIMEOUT_S
        while True:
            if time.monotonic() > deadline:
                raise Refused(f"{self.group} does not come to rest")
            frame = wire.join(self.group, self.member_id, subscription, SESSION_MS)
            self.join_sent_s = time.perf_counter()
            joined = await self.connection.call(frame)
            code = int(joined.error_code)
            if code == ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = joined.member_id
                continue
            if code == ErrorCode.REBALANCE_IN_PROGRESS:
                continue
            if code in _AGAIN:
                await asyncio.sleep(0.1)
                continue
            check(f"JoinGroup of {self.group}", code)
            self.member_id, self.generation = joined.member_id, joined.generation_id
            if await self._sync(joined):
                self.beat_frame = wire.heartbeat(self.group, self.member_id, self.generation)
                return

    async def _sync(self, joined: Any) -> bool:
        assignments: Mapping[str, bytes] = {}
        if joined.leader == self.member_id:
            members = [m.member_id for m in joined.members]
            assignments = ranges(members, self.topic, self.partition_count)
        synced = await self.connection.call(
            wire.sync(self.group, self.member_id, self.generation, assignments)
        )
        code = int(synced.error_code)
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            return False
        check(f"SyncGroup of {self.group}", code)
        self.assignment = synced.assignment
        return True

    async def heartbeat(self) -> int:
        """A heartbeat; its error code."""
        assert self.beat_frame is not None
        response = await self.connection.ask(self.beat_frame)
        return INT16.unpack_from(response, self.beat_frame.error_at)[0]  # type: ignore[no-any-return]

    def commit_frame(self, partitions: Sequence[int]) -> Frame:
        return wire.commit(self.group, self.member_id, self.generation, self.topic, partitions)

    async def leave(self) -> None:
        answer = await self.connection.call(wire.leave(self.group, self.member_id))
        check("LeaveGroup", int(answer.error_code))
        self.member_id = ""


class ModernMember:
    """One member of a KIP-848 group, on a connection of its own."""

    def __init__(self, connection: Connection, group: str, topic: str, topic_id: UUID) -> None:
        self.connection = connection
        self.group = group
        self.topic = topic
        self.topic_id = topic_id
        self.member_id = str(uuid4())
        self.epoch = 0
        self.owned: frozenset[int] = frozenset()
        self._frame: Frame | None = None
        self.changed_s = 0.0
        """When its epoch or its partitions last changed."""

    async def join(self) -> None:
        """The first heartbeat."""
        self.epoch, self.owned = 0, frozenset()
        await self._exchange(wire.consumer_beat(self.group, self.member_id, 0, self.topic, {}))

    async def heartbeat(self) -> None:
        """A heartbeat; after one that changed what it has, another at once, as clients do."""
        before = self.owned
        await self._exchange(self.frame())
        if self.owned != before:
            await self._exchange(self._owning())

    def frame(self) -> Frame:
        """The heartbeat of a member that has nothing to say."""
        if self._frame is None:
            self._frame = wire.consumer_beat(self.group, self.member_id, self.epoch)
        return self._frame

    def _owning(self) -> Frame:
        numbers = {self.topic_id: sorted(self.owned)} if self.owned else {}
        return wire.consumer_beat(self.group, self.member_id, self.epoch, owned=numbers)

    async def _exchange(self, frame: Frame) -> None:
        answer = await self.connection.call(frame)
        check(f"ConsumerGroupHeartbeat of {self.group}", int(answer.error_code))
        epoch, owned = answer.member_epoch, self.owned
        if answer.assignment is not None:
            owned = frozenset(p for t in answer.assignment.topic_partitions for p in t.partitions)
        if (epoch, owned) != (self.epoch, self.owned):
            self.changed_s = time.perf_counter()
            self.epoch, self.owned = epoch, owned
            self._frame = None

    async def leave(self) -> None:
        await self.connection.call(wire.consumer_beat(self.group, self.member_id, -1))
        self.epoch, self.owned, self._frame = 0, frozenset(), None


def settled(crowd: Sequence[ModernMember], partition_count: int) -> bool:
    """Whether all members are in one epoch, every partition has one owner and everybody has a fair share:
    a broker may take a newcomer in before it makes the next assignment."""
    owned = [p for member in crowd for p in member.owned]
    fair = min(len(member.owned) for member in crowd) >= partition_count // len(crowd)
    at_rest = len({member.epoch for member in crowd}) == 1
    return fair and at_rest and len(owned) == partition_count == len(set(owned))
