"""Members of consumer groups, as clients are: what both protocols have in common.

A member is one process, see `program`, that asks its coordinator over a `Channel`. When it dies its connections break.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock_core.errors import ErrorCode
from penstock_kafka.wire.apis import ApiKey
from penstock_storage_node.groups.consumer.group import NOTHING, Parts
from simulation import group_wire as wire
from simulation.group_channel import LOOK_AGAIN, REQUEST_TIMEOUT_US, Channel, S
from simulation.group_checks import Commit
from simulation.group_wire import Place
from simulation.program import Program

if TYPE_CHECKING:
    from simulation.groups import Groups

WAIT = frozenset({ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})
"""The coordinator will answer later."""


_NOT_NOW = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.GROUP_ID_NOT_FOUND})
"""A commit comes to nothing: the coordinator may know less of topics than the rest; a group whose members all
seemed gone may have expired, which the next heartbeat brings to light."""


class Member(Program):
    """One member of one group."""

    def __init__(
        self, groups: Groups, group_id: str, name: str, *, is_direct: bool, instance_id: str | None
    ) -> None:
        super().__init__(groups.world)
        self.groups = groups
        self.rng = groups.rng
        self.group_id = group_id
        self.name = name
        self.instance_id = instance_id
        self.member_id = ""
        self.epoch = -1
        """Generation, or member epoch."""
        self.owned: Parts = NOTHING
        """What a member of a consumer group thinks that it has."""
        self.positions: dict[Place, int] = {}
        """The next offset to commit, of the partitions that this member reads."""
        self.is_in = False
        """It has its share, as far as it knows."""
        self.settled: set[Place] = set()
        """Of `positions`, since the last change: acknowledged, and read back."""
        self.late_commits = 0
        """Commits that wait to be sent, or answered then."""
        self.is_direct = is_direct
        """It goes to the nodes, not through gateways."""
        self.channel = Channel(self)
        self._tainted: set[Place] = set()

    # --- life

    def start(self) -> None:
        """Begin."""
        self.say("starts")
        self.run(self._live())
        self.run(self._commit_now_and_then())

    async def _live(self) -> None:
        """Be a member."""
        raise NotImplementedError

    async def leave(self) -> None:
        """Close, as a consumer does when its application ends."""
        raise NotImplementedError

    def say(self, line: str) -> None:
        self.world.say(f"{self.group_id}/{self.name}", line)

    def hang(self) -> None:
        """Nothing of it runs from now on."""
        self.say("hangs")
        super().hang()

    def resume(self) -> None:
        """It goes on as if nothing had happened; what it reads for a living comes first."""
        if self.is_dead or not self.is_hung:
            return
        self.say("goes on")
        self.is_hung = False
        if self.rng.random() < 0.7:
            self.run(self._commit_once())
        self.go_on()

    def die(self) -> None:
        """SIGKILL."""
        if self.is_dead:
            return
        self.say("dies")
        self.is_dead = True
        self.owned = NOTHING
        self.channel.end()
        self.groups.on_dead(self)

    # --- requests

    async def call(self, api_key: ApiKey, timeout_us: int = REQUEST_TIMEOUT_US, **values: Any) -> Any:
        """Ask the coordinator; None without an answer. Found first, if it is not known."""
        return await self.channel.call(api_key, timeout_us, **values)

    def forget_coordinator(self) -> None:
        """It is elsewhere."""
        self.channel.forget()

    # --- errors

    def note_error(self, error: ErrorCode) -> None:
        """For the run's summary."""
        self.world.errors[f"groups: {error.name}"] += 1

    def unexpected(self, what: str, error: ErrorCode) -> None:
        """No client knows what to do with it."""
        self.groups.checker.fail(
            "no unexpected answer", f"{what} of {self.name} in {self.group_id}: {error.name}"
        )

    def fatal(self, why: str) -> None:
        """The client ends with an exception that its application gets."""
        self.world.counts["members ended by an error"] += 1
        self.say(f"gives up: {why}")
        self.die()

    # --- offsets

    def _begin_reading(self, found: dict[Place, int], *, tainted: set[Place]) -> None:
        self.positions |= found
        self._tainted = (self._tainted - found.keys()) | tainted
        self.settled.clear()

    def stop_reading(self, places: set[Place] | None = None) -> None:
        """Those partitions are somebody else's from now on; None for all."""
        for place in list(self.positions) if places is None else places:
            self.positions.pop(place, None)
            self._tainted.discard(place)
        self.settled.clear()

    async def _commit_now_and_then(self) -> None:
        await self.sleep(int(self.rng.random() * S))
        while True:
            await self.sleep(int(S * (0.6 + 0.8 * self.rng.random())))
            if self.groups.is_finishing and self.settled.issuperset(self.positions):
                continue
            if self.is_in and self.positions:
                await self._commit_once()

    async def _commit_once(self) -> None:
        """Some more was read: commit it."""
        places = self.read_on()
        await self.commit(places)
        if self.groups.is_finishing and self.is_in:
            await self._settle(places)

    def read_on(self) -> list[Place]:
        """Some more was read; of which places."""
        places = list(self.positions)
        for place in places:
            self.positions[place] += self.rng.randint(0, 3)
        return places

    async def commit(self, places: list[Place]) -> bool:
        """Commit where this member is; whether all of it was acknowledged."""
        sent = self.decide(places)
        errors = await self.send_commit(sent, self.channel) if sent else None
        for error in sorted(errors or ()):
            self.on_commit_error(error)
        return errors is not None and not errors

    def decide(self, places: list[Place]) -> dict[Place, Commit]:
        """What is to be committed of them now, and as whom; nothing where this member is in no epoch."""
        # Another part of the program may have let go of some while this one waited.
        places = [place for place in places if place in self.positions]
        sent: dict[Place, Commit] = {}
        for place in places if self.epoch >= 0 else ():
            is_tainted = place in self._tainted
            offset = self.positions[place]
            sent[place] = self.groups.checker.send(self, place, offset, is_tainted=is_tainted)
        return sent

    async def send_commit(self, sent: dict[Place, Commit], channel: Channel) -> set[ErrorCode] | None:
        """Send what was decided, as it was then. Errors of what was refused; None without an answer."""
        items = [(place, commit.offset, f"c{commit.number}") for place, commit in sent.items()]
        one = next(iter(sent.values()))
        answer = await channel.call(
            wire.COMMIT,
            group_id=self.group_id,
            generation_id_or_member_epoch=one.epoch,
            member_id=one.member_id,
            group_instance_id=self.instance_id,
            topics=wire.commit_topics(items),
        )
        if answer is None:
            return None
        errors: set[ErrorCode] = set()
        for topic in answer.topics:
            for part in topic.partitions:
                error = ErrorCode(int(part.error_code))
                if error:
                    errors.add(error)
                    self.note_error(error)
                else:
                    self.groups.checker.on_acked(sent[topic.name, part.partition_index])
        return errors

    def on_commit_error(self, error: ErrorCode) -> None:
        """A commit was refused."""
        if error in LOOK_AGAIN:
            self.forget_coordinator()
        elif error not in _NOT_NOW and error not in WAIT:
            self.unexpected("OffsetCommit", error)

    async def fetch(
        self, places: list[Place], *, member_id: str | None, epoch: int
    ) -> tuple[dict[Place, int], set[Place]] | None:
        """Committed offsets, -1 for none, and those of them that are older than what was acknowledged before
        this member asked; None without an answer."""
        checker = self.groups.checker
        truth = checker.group(self.group_id)
        acked = {place: truth.place(place).acked_at for place in places}
        answer = await self.call(
            wire.FETCH,
            groups=wire.fetch_groups(self.group_id, member_id, epoch, places),
            require_stable=False,
        )
        if answer is None:
            return None
        group = answer.groups[0]
        error = ErrorCode(int(group.error_code))
        if error:
            self.note_error(error)
            self.on_fetch_error(error)
            return None
        found: dict[Place, int] = {}
        behind: set[Place] = set()
        for topic in group.topics:
            for part in topic.partitions:
                if int(part.error_code):
                    self.note_error(ErrorCode(int(part.error_code)))
                    return None
                place = (topic.name, part.partition_index)
                found[place] = part.committed_offset
                commit = checker.commits.get(part.metadata or "")
                at = -1 if commit is None else commit.at
                if at < acked[place] and (commit is None or commit.at >= 0):
                    behind.add(place)
        return found, behind

    def on_fetch_error(self, error: ErrorCode) -> None:
        """An OffsetFetch was refused."""
        if error in LOOK_AGAIN:
            self.forget_coordinator()
        elif error not in WAIT:
            self.unexpected("OffsetFetch", error)

    async def begin_reading(self, places: list[Place], *, member_id: str | None, epoch: int) -> bool:
        """Go on where the last owner of each has committed."""
        answer = await self.fetch(places, member_id=member_id, epoch=epoch) if places else ({}, set())
        if answer is None:
            return False
        found, behind = answer
        self._begin_reading({place: max(found.get(place, -1), 0) for place in places}, tainted=behind)
        return True

    async def _settle(self, places: list[Place]) -> None:
        """At the end: what was committed is what is found."""
        wanted = {place: self.positions[place] for place in places if place in self.positions}
        epoch = self.epoch
        if not await self.commit(list(wanted)):
            return
        answer = await self.fetch(list(wanted), member_id=None, epoch=-1)
        if answer is None or epoch != self.epoch:
            return
        found, _ = answer
        for place, offset in wanted.items():
            if self.positions.get(place) == offset and found.get(place) == offset:
                self.settled.add(place)
