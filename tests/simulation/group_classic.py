"""A member of the classic protocol, as the Java client and librdkafka are.

What it does with each error is AbstractCoordinator's (JoinGroupResponseHandler, SyncGroupResponseHandler,
HeartbeatResponseHandler) and ConsumerCoordinator's (OffsetCommitResponseHandler) of the Java client; librdkafka's
rd_kafka_cgrp_handle_* do the same. It rebalances eagerly: before it joins again it commits and lets go.
"""

from __future__ import annotations

from typing import Any

from penstock_core.errors import ErrorCode
from penstock_storage_node.groups.consumer.group import NOTHING
from penstock_storage_node.groups.consumer.subscription import put_assignment, read_assignment
from simulation import group_wire as wire
from simulation.group_channel import LOOK_AGAIN, MS, RETRY_US, S
from simulation.group_members import WAIT, Member
from simulation.group_wire import Place

SESSION_MS = 4_000
REBALANCE_MS = 5_000
HEARTBEAT_US = 1 * S
_OUT = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})
PROTOCOL = "range"


class ClassicMember(Member):
    """One member."""

    _must_join = False

    async def _live(self) -> None:
        while True:
            if await self._join():
                await self._stay()
            else:
                await self.sleep(RETRY_US)

    # --- joining

    async def _join(self) -> bool:
        self.is_in = False
        self._must_join = False
        protocol = wire.item(
            wire.JOIN,
            "JoinGroupRequestProtocol",
            name=PROTOCOL,
            metadata=wire.subscription(self.groups.topics_of(self.group_id)),
        )
        answer = await self.call(
            wire.JOIN,
            (REBALANCE_MS + 5_000) * MS,
            group_id=self.group_id,
            session_timeout=SESSION_MS,
            rebalance_timeout=REBALANCE_MS,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=(protocol,),
            reason=None,
        )
        if answer is None:
            return False
        error = ErrorCode(int(answer.error_code))
        if error is ErrorCode.MEMBER_ID_REQUIRED:
            self._be(answer.member_id)
            return False
        if error:
            self._refused("JoinGroup", error)
            return False
        self._be(answer.member_id)
        self.epoch = answer.generation_id
        assignments: tuple[Any, ...] = ()
        if answer.leader == self.member_id and not answer.skip_assignment:
            assignments = self._assign([m.member_id for m in answer.members])
        return await self._sync(answer, assignments)

    def _be(self, member_id: str) -> None:
        self.groups.checker.members.pop(self.member_id, None)
        self.member_id = member_id
        self.groups.checker.members[member_id] = self

    def _assign(self, member_ids: list[str]) -> tuple[Any, ...]:
        """The leader's work."""
        places = self.groups.places_of(self.group_id)
        shares: dict[str, dict[str, list[int]]] = {member_id: {} for member_id in member_ids}
        for number, (topic, partition) in enumerate(places):
            shares[member_ids[number % len(member_ids)]].setdefault(topic, []).append(partition)
        return tuple(
            wire.item(
                wire.SYNC,
                "SyncGroupRequestAssignment",
                member_id=member_id,
                assignment=put_assignment(0, share),
            )
            for member_id, share in shares.items()
        )

    async def _sync(self, joined: Any, assignments: tuple[Any, ...]) -> bool:
        answer = await self.call(
            wire.SYNC,
            (REBALANCE_MS + 5_000) * MS,
            group_id=self.group_id,
            generation_id=self.epoch,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocol_name=joined.protocol_name,
            assignments=assignments,
        )
        if answer is None:
            return False
        error = ErrorCode(int(answer.error_code))
        if error:
            self._refused("SyncGroup", error)
            return False
        places = read_assignment(answer.assignment) or frozenset()
        self.say(f"has {sorted(places)} in generation {self.epoch}")
        self.owned = self.groups.parts_of(places)
        self.groups.checker.on_synced(self, places)
        return await self._begin(sorted(places))

    async def _begin(self, places: list[Place]) -> bool:
        """Find where to go on; heartbeats go out meanwhile."""
        while not self._must_join:
            if await self.begin_reading(places, member_id=None, epoch=-1):
                self.is_in = True
                return True
            await self._beat()
            await self.sleep(RETRY_US)
        self._let_go()
        return False

    def _refused(self, what: str, error: ErrorCode) -> None:
        """Of a JoinGroup, SyncGroup, Heartbeat or OffsetCommit."""
        self.note_error(error)
        self._must_join = True
        if error in LOOK_AGAIN:
            self.forget_coordinator()
        elif error in _OUT:
            # ILLEGAL_GENERATION leaves the member its id (resetStateOnResponseError).
            self._let_go()
            if error is ErrorCode.UNKNOWN_MEMBER_ID:
                self.groups.checker.members.pop(self.member_id, None)
                self.member_id = ""
            self.epoch = -1
        elif error is ErrorCode.FENCED_INSTANCE_ID:
            self.fatal(error.name)
        elif error is not ErrorCode.REBALANCE_IN_PROGRESS and (error not in WAIT or what == "SyncGroup"):
            self.unexpected(what, error)

    def _let_go(self) -> None:
        self.is_in = False
        self.owned = NOTHING
        self.stop_reading()

    # --- staying

    async def _stay(self) -> None:
        while not self._must_join:
            await self.sleep(HEARTBEAT_US)
            if not self._must_join:
                await self._beat()
        # Eager: commit, let go, join again.
        if self.positions and self.rng.random() < 0.8:
            await self.commit(list(self.positions))
        self._let_go()

    async def _beat(self) -> None:
        error = await self.call(
            wire.HEARTBEAT,
            group_id=self.group_id,
            generation_id=self.epoch,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )
        if error is None or error is ErrorCode.NONE:
            return
        if error in LOOK_AGAIN:
            self.note_error(error)
            self.forget_coordinator()
        elif error in WAIT:
            # aiokafka ends here.
            self.unexpected("Heartbeat", error)
        else:
            self._refused("Heartbeat", error)

    def on_commit_error(self, error: ErrorCode) -> None:
        if error in _OUT or error in (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.REBALANCE_IN_PROGRESS):
            self._refused("OffsetCommit", error)
        else:
            super().on_commit_error(error)

    async def leave(self) -> None:
        """Close: static members just go (KIP-345)."""
        if self.is_in and self.positions:
            await self.commit(list(self.positions))
        self._let_go()
        if self.instance_id is None and self.member_id:
            me = wire.item(
                wire.LEAVE, "MemberIdentity", member_id=self.member_id, group_instance_id=None, reason=None
            )
            await self.call(wire.LEAVE, S, group_id=self.group_id, members=(me,))
        self.die()
