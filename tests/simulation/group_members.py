"""Members of consumer groups, as clients are: what both protocols have in common.

A member is one process with a coordinator's connection; see `program`. When it dies its connections break.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock_core.errors import ErrorCode
from penstock_kafka.wire.apis import ApiKey
from penstock_storage_node.groups.consumer.group import NOTHING, Parts
from simulation import group_wire as wire
from simulation.group_checks import Commit
from simulation.group_wire import Place
from simulation.program import Pause, Program

if TYPE_CHECKING:
    from simulation.groups import Groups

MS = 1_000
S = 1_000_000
REQUEST_TIMEOUT_US = 4 * S
RETRY_US = 100 * MS
"""Kafka's retry.backoff.ms."""

LOOK_AGAIN = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
"""The coordinator is elsewhere: it is looked for again."""
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
        self._is_direct = is_direct
        self._tainted: set[Place] = set()
        self._connection: Any = None
        self._waiting: dict[int, tuple[Callable[[Any], None], Any, ApiKey]] = {}
        self._number = 0

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
        self._drop_connection()
        for _, timer, _ in self._waiting.values():
            timer.cancel()
        self._waiting.clear()
        self.groups.on_dead(self)

    # --- time, requests

    async def call(self, api_key: ApiKey, timeout_us: int = REQUEST_TIMEOUT_US, **values: Any) -> Any:
        """Ask the coordinator; None without an answer. Found first, if it is not known."""
        if (self._connection is None or self._connection.closed) and not await self._find():
            await self.sleep(RETRY_US)
            return None
        connection = self._connection
        if connection is None:
            return None
        return await Pause(lambda resume: self._send(connection, api_key, timeout_us, values, resume))

    def _send(
        self,
        connection: Any,
        api_key: ApiKey,
        timeout_us: int,
        values: dict[str, Any],
        resume: Callable[[Any], None],
    ) -> None:
        self._number += 1
        number = self._number
        frame = wire.encode(api_key, number, self.name, **values)
        timer = self.world.scheduler.after(timeout_us, self._timed_out, number, connection)
        self._waiting[number] = (resume, timer, api_key)
        connection.send(frame, lambda data: self._answered(number, data))

    def _answered(self, number: int, data: bytes) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is None:
            return
        resume, timer, api_key = waiting
        timer.cancel()
        resume(wire.heartbeat_error(data) if api_key == wire.HEARTBEAT else wire.decode(api_key, data))

    def _timed_out(self, number: int, connection: Any) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is None:
            return
        self.world.counts["group requests timed out"] += 1
        if connection is self._connection:
            self._drop_connection()
            self._lost(connection)
        waiting[0](None)

    def _lost(self, connection: Any) -> None:
        """The connection broke: whatever waits on it gets no answer."""
        if connection is not self._connection and self._connection is not None:
            return
        self._connection = None
        waiting, self._waiting = self._waiting, {}
        for resume, timer, _ in waiting.values():
            timer.cancel()
            resume(None)

    def _drop_connection(self) -> None:
        if self._connection is not None and not self._connection.closed:
            self._connection.close()

    def forget_coordinator(self) -> None:
        """It is elsewhere."""
        connection = self._connection
        if connection is not None:
            connection.close()
            self._lost(connection)

    def _host_to_ask(self) -> str | None:
        if not self._is_direct:
            return ""
        up = [h.name for h in self.world.hosts if h.kind == "n" and h.is_up]
        return self.rng.choice(up) if up else None

    def _connect(self, host: str) -> Any:
        return wire.connect(self.world, self.groups.finder, host, self._lost)

    async def _find(self) -> bool:
        """FindCoordinator, and a connection to where it points."""
        host = self._host_to_ask()
        asked = None if host is None else self._connect(host)
        if asked is None:
            return False
        self._drop_connection()
        self._connection = asked
        values = {"key_type": 0, "coordinator_keys": (self.group_id,)}
        answer = await Pause(lambda resume: self._send(asked, wire.FIND, REQUEST_TIMEOUT_US, values, resume))
        if answer is None:
            return False
        found = answer.coordinators[0]
        error = ErrorCode(int(found.error_code))
        if error:
            self.note_error(error)
            if error not in LOOK_AGAIN:
                self.unexpected("FindCoordinator", error)
            return False
        if self._is_direct and found.host != host:
            if asked is self._connection:
                asked.close()
                self._lost(asked)
            self._connection = self._connect(found.host)
        return self._connection is not None

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
        places = list(self.positions)
        for place in places:
            self.positions[place] += self.rng.randint(0, 3)
        await self.commit(places)
        if self.groups.is_finishing and self.is_in:
            await self._settle(places)

    async def commit(self, places: list[Place]) -> bool:
        """Commit where this member is; whether all of it was acknowledged."""
        # Another part of the program may have let go of some while this one waited.
        places = [place for place in places if place in self.positions]
        if not places or self.epoch < 0:
            return False
        sent: dict[Place, Commit] = {}
        for place in places:
            is_tainted = place in self._tainted
            offset = self.positions[place]
            sent[place] = self.groups.checker.send(self, place, offset, is_tainted=is_tainted)
        items = [(place, commit.offset, f"c{commit.number}") for place, commit in sent.items()]
        answer = await self.call(
            wire.COMMIT,
            group_id=self.group_id,
            generation_id_or_member_epoch=self.epoch_of(sent),
            member_id=next(iter(sent.values())).member_id,
            group_instance_id=self.instance_id,
            topics=wire.commit_topics(items),
        )
        if answer is None:
            return False
        all_acked = True
        for topic in answer.topics:
            for part in topic.partitions:
                error = ErrorCode(int(part.error_code))
                if error:
                    all_acked = False
                    self.note_error(error)
                else:
                    self.groups.checker.on_acked(sent[topic.name, part.partition_index])
        errors = {ErrorCode(int(p.error_code)) for t in answer.topics for p in t.partitions} - {
            ErrorCode.NONE
        }
        for error in sorted(errors):
            self.on_commit_error(error)
        return all_acked

    @staticmethod
    def epoch_of(sent: dict[Place, Commit]) -> int:
        return next(iter(sent.values())).epoch

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
