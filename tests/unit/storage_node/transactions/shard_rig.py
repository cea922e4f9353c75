"""A shard with a log, a clock and markers that do what a test says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock_core.errors import ErrorCode, PenstockError
from penstock_storage_node.transactions.records import Partitions, read_key, read_value
from penstock_storage_node.transactions.shard import (
    Done,
    MarkersDue,
    Record,
    Shard,
    TransactionSettings,
)
from penstock_storage_node.transactions.state import Answer, End, Init, Refusal

EPOCH_MS = 1_700_000_000_000
HERE: Partitions = frozenset({("t", 0)})


class Rig:
    """`log` holds covered records; what was appended and is not covered waits in `appended`."""

    def __init__(self, log: Sequence[Record] = (), *, now_ms: int = 0, first_id: int = 1000) -> None:
        self.log = list(log)
        self.appended: list[tuple[Sequence[Record], Done]] = []
        self.refuses: ErrorCode = ErrorCode.NONE
        """What an append raises."""
        self.now_ms = now_ms
        self.markers: list[MarkersDue] = []
        self.next_id = first_id
        self.draws: list[Callable[[int | None], None]] | None = None
        """Draws that wait, when they do."""
        self.may_add = True
        self.shard = Shard(self, TransactionSettings())
        for record in self.log:
            self.shard.replay(record.key, record.value)
        while not self.shard.resume(2):
            pass

    # --- ports

    def append(self, records: Sequence[Record], done: Done) -> None:
        if self.refuses:
            raise PenstockError(self.refuses, "refused")
        self.appended.append((records, done))

    def draw_id(self, done: Callable[[int | None], None]) -> None:
        if self.draws is not None:
            self.draws.append(done)
            return
        self.next_id += 1
        done(self.next_id)

    def send_markers(self, due: MarkersDue) -> None:
        self.markers.append(due)

    def clock_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return EPOCH_MS + self.now_ms

    def may_add_id(self) -> bool:
        return self.may_add

    # --- what a test does

    def turn(self) -> None:
        """The end of a turn of the loop."""
        self.shard.end_turn()
        self.shard.validate()

    def cover(self, count: int | None = None) -> None:
        """The high watermark passes what was appended, or its first `count` batches."""
        self.turn()
        batches, self.appended = self.appended[:count], self.appended[count:] if count else []
        for records, done in batches:
            self.log += records
            done(ErrorCode.NONE)
        self.shard.validate()

    def settle(self) -> None:
        """Until nothing is under way: all is covered, every marker written."""
        while True:
            self.cover()
            due, self.markers = self.markers, []
            for each in due:
                self.shard.markers_done(each.transactional_id, each.producer_id, each.epoch)
            self.turn()
            if not self.appended and not self.markers:
                return

    def later(self, ms: int) -> None:
        self.now_ms += ms
        self.shard.tick()
        self.turn()

    def init(
        self, name: str = "id", producer_id: int = -1, epoch: int = -1, timeout_ms: int = 60_000
    ) -> Asked:
        asked = Asked()
        self.shard.init_producer_id(name, Init(timeout_ms, producer_id, epoch), asked, asked.is_alive)
        return asked

    def add(
        self, pair: tuple[int, int], partitions: Partitions = HERE, name: str = "id", version: int = 0
    ) -> Asked:
        asked = Asked()
        self.shard.add_partitions(name, pair, partitions, version, asked, asked.is_alive)
        return asked

    def end(
        self, pair: tuple[int, int], *, commits: bool = True, name: str = "id", version: int = 0
    ) -> Asked:
        asked = Asked()
        self.shard.end_transaction(name, End(*pair, commits, version), asked, asked.is_alive)
        return asked

    def ready(self, name: str = "id") -> tuple[int, int]:
        """A producer id and epoch for `name`, nothing under way."""
        asked = self.init(name)
        self.settle()
        return asked.pair

    def open(self, name: str = "id", version: int = 0) -> tuple[int, int]:
        """The same with a transaction that is open on HERE."""
        pair = self.ready(name)
        self.add(pair, name=name, version=version)
        self.settle()
        return pair

    def moved(self) -> Rig:
        """The coordinator of the next epoch: it knows what is covered."""
        self.shard.close()
        for _, done in self.appended:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return Rig(self.log, now_ms=self.now_ms, first_id=self.next_id + 1000)

    def state(self, name: str = "id") -> str:
        """Of an id, as committed."""
        return self.shard.values[name].state.name

    def states(self) -> list[tuple[str | None, str]]:
        """Covered records in short."""
        return [
            (read_key(key), "gone" if value is None else read_value(value).state.name)
            for key, value in self.log
        ]


class Asked:
    """A request: its answer, once there is one."""

    def __init__(self) -> None:
        self.answers: list[Refusal | Answer] = []
        self.gone = False

    def __call__(self, answer: Refusal | Answer) -> None:
        assert not self.answers, "answered twice"
        self.answers.append(answer)

    def is_alive(self) -> bool:
        return not self.gone

    @property
    def code(self) -> str:
        """Name of the error, "NONE", or "" while it waits."""
        if not self.answers:
            return ""
        (answer,) = self.answers
        return answer.code.name if isinstance(answer, Refusal) else "NONE"

    @property
    def pair(self) -> tuple[int, int]:
        (answer,) = self.answers
        assert isinstance(answer, Answer), answer
        return answer.producer_id, answer.epoch
