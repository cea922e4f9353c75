"""The controller comes to know every replica's size, whatever sessions break and whatever it forgets."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from penstock_core.ids import TopicId, TopicPartition
from penstock_storage_node.cluster.size_telling import CHANGE_BYTES, SizePart, SizeTelling
from penstock_storage_node.replica.sizes import ReplicaSizes


def key(number: int) -> TopicPartition:
    return TopicPartition(TopicId(b"T" * 16), number)


class Log:
    def __init__(self, size_bytes: int, staged_bytes: int = 0) -> None:
        self.size_bytes = size_bytes
        self.staged_bytes = staged_bytes


class World:
    """A node's logs, its telling, a session that answers in order, and what a controller makes of it."""

    def __init__(self, part_max: int) -> None:
        self.logs: dict[TopicPartition, Log] = {}
        self.sizes = ReplicaSizes(self.logs.get)
        self.telling = SizeTelling(lambda: self.sizes.sizes, part_max)
        self.known: dict[TopicPartition, int] = {}
        self.is_whole = False
        self.answers: deque[bool] = deque()
        self.part_max = part_max
        self.told_count = 0

    def set_size(self, number: int, size: int | None) -> None:
        if size is None:
            self.logs.pop(key(number), None)
        else:
            self.logs[key(number)] = Log(size)
        self.sizes.note(key(number))

    def look(self) -> None:
        for _ in self.sizes.look(self.telling.changed):
            pass

    def beat(self, *, is_heard: bool = True) -> None:
        part = self.telling.next_part() if self.telling.has_more else None
        self.telling.sent(part)
        if is_heard:
            self._hear(part)
            self.answers.append(not self.is_whole)

    def _hear(self, part: SizePart | None) -> None:
        if part is None:
            return
        assert len(part.sizes) <= self.part_max
        self.told_count += len(part.sizes)
        if part.first_of_all:
            self.known, self.is_whole = {}, False
        self.known.update(part.sizes)
        self.is_whole = self.is_whole or part.last_of_all

    def answer(self) -> None:
        if self.answers:
            self.telling.answered(wants_all=self.answers.popleft())

    def break_session(self) -> None:
        self.answers.clear()
        self.telling.begin()

    def forget(self) -> None:
        """Another controller is the active one."""
        self.known, self.is_whole = {}, False
        self.break_session()

    def settle(self) -> None:
        self.look()
        for _ in range(200):
            self.beat()
            self.answer()
        assert self.is_whole and not self.telling.has_more


_ACTIONS = st.one_of(
    st.tuples(st.just("size"), st.integers(0, 11), st.one_of(st.none(), st.integers(0, 5 * CHANGE_BYTES))),
    st.tuples(st.sampled_from(["look", "beat", "lost", "answer", "break", "forget"])),
)


@given(actions=st.lists(_ACTIONS, max_size=60), part_max=st.integers(1, 5))
def test_what_the_controller_knows_is_what_there_is(actions: list[tuple[object, ...]], part_max: int) -> None:
    world = World(part_max)
    lost = False
    for action in actions:
        match action:
            case ("size", int(number), size):
                world.set_size(number, size if isinstance(size, int) else None)
            case ("look",):
                world.look()
            case ("beat",) if not lost:
                world.beat()
            case ("lost",):
                world.beat(is_heard=False)  # nothing after it is heard either: streams keep their order
                lost = True
            case ("answer",):
                world.answer()
            case ("break",):
                world.break_session()
                lost = False
            case ("forget",):
                world.forget()
                lost = False
    if lost:
        world.break_session()
    world.settle()
    for number in range(12):
        log = world.logs.get(key(number))
        size, known = 0 if log is None else log.size_bytes, world.known.get(key(number), 0)
        assert abs(size - known) < CHANGE_BYTES and abs(size - known) * 100 <= max(known, 1), number
    assert world.sizes.total_bytes == sum(log.size_bytes for log in world.logs.values())


def test_only_what_has_changed_is_told_again() -> None:
    world = World(2_000)
    for number in range(5_000):
        world.set_size(number, 10 * CHANGE_BYTES)
    world.settle()
    world.told_count = 0
    world.set_size(7, 10 * CHANGE_BYTES + 1)
    world.settle()
    assert world.told_count == 0
    world.set_size(7, 11 * CHANGE_BYTES)
    world.set_size(8, None)
    world.settle()
    assert world.told_count == 2
    assert world.known[key(7)] == 11 * CHANGE_BYTES and world.known[key(8)] == 0


def test_what_waits_to_be_written_is_not_on_the_disk() -> None:
    logs = {key(1): Log(500, staged_bytes=300)}
    sizes = ReplicaSizes(logs.get)
    sizes.note(key(1))
    told: list[TopicPartition] = []
    assert len(list(sizes.look(told.append))) == 1 and told == [key(1)]
    assert (sizes.total_bytes, dict(sizes.sizes)) == (200, {key(1): 200})
    assert not list(sizes.look(told.append)), "nobody said that anything has changed"
