"""A member of the consumer protocol (KIP-848), as the Java client and librdkafka are.

What it does with each error is AbstractHeartbeatRequestManager's and CommitRequestManager's of the Java client. A
heartbeat says what changed since the last one that was answered; after a lost answer it says everything.
A member that is to give up partitions commits first, then lets go, then says so at once.

A commit may be late: it is decided, then waits to be sent over a connection of its own while heartbeats go on, and
comes with the epoch and the partitions of before; without an answer it is sent again as it was. So do librdkafka
after a connection broke (rd_kafka_handle_OffsetCommit, rd_kafka_buf_retry), who commits over another connection than
that of heartbeats, and who does not await what it commits before it lets go (`commitAsync` in `onPartitionsRevoked`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock_core.errors import ErrorCode
from penstock_kafka.wire import codec
from penstock_storage_node.groups.consumer.group import LEAVE, LEAVE_FOR_NOW, NOTHING, Parts
from simulation import group_wire as wire
from simulation.group_channel import LOOK_AGAIN, RETRY_US, Channel, S
from simulation.group_members import WAIT, Member
from simulation.group_wire import Place

if TYPE_CHECKING:
    from simulation.group_checks import Commit
    from simulation.groups import Groups

HEARTBEAT_US = 1 * S
LATE_US = 6 * S
"""A commit waits no longer to be sent."""
_LATE_TRIES = 3
REBALANCE_MS = 5_000
_FENCED = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})
_FATAL = frozenset(
    {ErrorCode.UNRELEASED_INSTANCE_ID, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.GROUP_ID_NOT_FOUND}
)


class ConsumerMember(Member):
    """One member."""

    def __init__(
        self, groups: Groups, group_id: str, name: str, *, is_direct: bool, instance_id: str | None
    ) -> None:
        super().__init__(groups, group_id, name, is_direct=is_direct, instance_id=instance_id)
        self.member_id = str(groups.new_uuid())
        groups.checker.members[self.member_id] = self
        self.regex = groups.regex_of(group_id)
        self._said_all = False
        self._said: Parts | None = None
        self._is_leaving = False
        self._late_channel = Channel(self)

    async def _live(self) -> None:
        self.epoch = 0
        while not self._is_leaving:
            again = await self._beat()
            if not again and not self._is_leaving:
                await self.sleep(HEARTBEAT_US)

    async def _beat(self) -> bool:
        """A heartbeat; True when the next one is to follow at once."""
        everything = self.epoch == 0 or not self._said_all
        owned: Parts | None = self.owned
        if not everything and self._said == self.owned:
            owned = None
        values: dict[str, Any] = {
            "group_id": self.group_id,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "instance_id": self.instance_id,
            "rack_id": None,
            "rebalance_timeout": REBALANCE_MS if everything else -1,
            "subscribed_topic_names": None,
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": None if owned is None else wire.owned_topics(owned),
        }
        if everything and self.regex:
            values["subscribed_topic_regex"] = self.regex
        elif everything:
            values["subscribed_topic_names"] = tuple(self.groups.topics_of(self.group_id))
        answer = await self.call(wire.BEAT, **values)
        if answer is None:
            self._said_all = False
            return False
        error = ErrorCode(int(answer.error_code))
        if error:
            return await self._refused(error)
        if self._is_leaving:
            return False
        self._said_all = True
        if owned is not None:
            self._said = owned
        parts = None if answer.assignment is None else _parts(answer.assignment)
        self.groups.checker.on_beat(self, answer.member_epoch, parts)
        self.epoch = answer.member_epoch
        if parts is None or parts == self.owned:
            if not self.is_in:
                return not await self._begin()
            return False
        await self._reconcile(parts)
        return True

    async def _refused(self, error: ErrorCode) -> bool:
        self.note_error(error)
        self._said_all = False
        if error in LOOK_AGAIN:
            self.forget_coordinator()
            await self.sleep(RETRY_US)
        elif error in WAIT:
            await self.sleep(RETRY_US)
        elif error in _FENCED:
            # What it had is lost: it may be somebody else's already.
            self.say(f"is out: {error.name}")
            self.is_in = False
            self.owned, self._said = NOTHING, None
            self.stop_reading()
            self.epoch = 0
        elif error in _FATAL:
            self.fatal(error.name)
        else:
            self.unexpected("ConsumerGroupHeartbeat", error)
        return True

    async def _reconcile(self, parts: Parts) -> None:
        """Let go of what is not this member's any more, then take what is new."""
        epoch, kept = self.epoch, self.owned & parts
        gone = self._places(self.owned - parts)
        if gone and self.rng.random() < 0.8:
            if self._is_to_wait():
                self.run(self._commit_late(self.decide(sorted(gone))))
            else:
                await self.commit(sorted(gone))
        if self._is_leaving or self.epoch != epoch:
            return
        self.stop_reading(gone)
        self.owned = kept
        self.owned = parts
        self.say(f"has {len(parts)} partitions in epoch {self.epoch}")
        self.groups.checker.on_owned(self)
        self.is_in = False
        await self._begin()

    async def _begin(self) -> bool:
        """Find where to go on with what is new."""
        epoch = self.epoch
        new = sorted(self._places(self.owned) - self.positions.keys())
        if not await self.begin_reading(new, member_id=self.member_id, epoch=epoch):
            return False
        # What is read now is what this member still has.
        self.stop_reading(set(self.positions) - self._places(self.owned))
        self.is_in = self.epoch == epoch and not self._is_leaving
        return self.is_in

    def _places(self, parts: Parts) -> set[Place]:
        return {(name, number) for topic_id, number in parts if (name := self.groups.committed.get(topic_id))}

    async def _commit_once(self) -> None:
        if self._is_to_wait():
            self.run(self._commit_late(self.decide(self.read_on())))
        else:
            await super()._commit_once()

    def _is_to_wait(self) -> bool:
        """Whether the next commit is a late one."""
        groups = self.groups
        return not groups.is_finishing and groups.late_rng.random() < groups.late_chance

    async def _commit_late(self, sent: dict[Place, Commit]) -> None:
        """Whatever becomes of the partitions meanwhile."""
        groups, channel = self.groups, self._late_channel
        if not sent:
            return
        self.late_commits += 1
        await self.sleep(int(groups.late_rng.random() * LATE_US))
        for _ in range(_LATE_TRIES):
            if groups.is_finishing:
                break
            groups.checker.count("late commits sent")
            if sent.keys() - self.positions.keys():
                groups.checker.count("late commits of what was let go")
            errors = await self.send_commit(sent, channel)
            if errors is not None and not errors & (LOOK_AGAIN | WAIT):
                for error in sorted(errors):
                    self.on_commit_error(error)
                break
            if errors and errors & LOOK_AGAIN:
                channel.forget()
            await self.sleep(RETRY_US)
        self.late_commits -= 1
        # It may have come after a newer one of this member's own.
        self.settled.clear()

    def die(self) -> None:
        self._late_channel.end()
        super().die()

    def on_commit_error(self, error: ErrorCode) -> None:
        # A stale epoch and an unknown member are left to the next heartbeat.
        if error not in _FENCED and error is not ErrorCode.STALE_MEMBER_EPOCH:
            super().on_commit_error(error)

    def on_fetch_error(self, error: ErrorCode) -> None:
        if error not in _FENCED and error is not ErrorCode.STALE_MEMBER_EPOCH:
            super().on_fetch_error(error)

    async def leave(self) -> None:
        """Close: a static member is to come back, under another id."""
        self._is_leaving = True
        if self.is_in and self.positions:
            await self.commit(sorted(self.positions))
        self.is_in = False
        self.stop_reading()
        self.owned = NOTHING
        await self.call(
            wire.BEAT,
            S,
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=LEAVE if self.instance_id is None else LEAVE_FOR_NOW,
            instance_id=self.instance_id,
            rack_id=None,
            rebalance_timeout=-1,
            subscribed_topic_names=None,
            subscribed_topic_regex=None,
            server_assignor=None,
            topic_partitions=None,
        )
        self.die()


def _parts(assignment: Any) -> Parts:
    found = []
    for topic in assignment.topic_partitions:
        topic_id = codec.topic_id(topic.topic_id)
        assert topic_id is not None
        found += [(topic_id, number) for number in topic.partitions]
    return frozenset(found)
