"""What the checks of groups hold against a log, and that groups leave the other seeds alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock_core.ids import TopicId
from penstock_storage_node.groups import records as rec
from penstock_storage_node.groups.consumer.subscription import put_assignment
from penstock_storage_node.groups.records import Record
from simulation.group_checks import GroupChecker, GroupLog
from simulation.invariants import Violation
from simulation.settings import Settings
from simulation.world import World

T = TopicId(b"t" * 16)


class Log:
    """A partition's truth, fed by hand."""

    def __init__(self) -> None:
        world: Any = World(1)
        world.groups = SimpleNamespace(committed={T: "t"})
        self.checker = GroupChecker(world)
        self.log = GroupLog(self.checker)
        self.numbers: dict[int, Any] = {}

    def take(self, *records: Record) -> None:
        self.log.take(records)

    def generation(self, number: int, **shares: list[int]) -> Record:
        members = tuple(
            rec.MemberValue(m, None, "c", "/c", 1, 1, b"", put_assignment(0, {"t": share}))
            for m, share in shares.items()
        )
        return Record(
            rec.group_key("g"), rec.put_group(rec.GroupValue("consumer", number, "range", None, 0, members))
        )

    def current(self, member_id: str, epoch: int, assigned: list[int], revoking: list[int]) -> Record:
        value = rec.CurrentValue(epoch, epoch - 1, 0, {T: tuple(assigned)}, {T: tuple(revoking)})
        return Record(rec.consumer_key(rec.CURRENT_MEMBER, "g", member_id), rec.put_current(value))

    def commit(self, member_id: str, epoch: int, offset: int, *, is_tainted: bool = False) -> Record:
        member: Any = SimpleNamespace(group_id="g", member_id=member_id, epoch=epoch)
        commit = self.checker.send(member, ("t", 0), offset, is_tainted=is_tainted)
        self.numbers[offset] = commit
        value = rec.OffsetValue(offset, -1, f"c{commit.number}", 0)
        return Record(rec.offset_key("g", "t", 0), rec.put_offset(value))

    def refuses(self, name: str, *records: Record) -> None:
        with pytest.raises(Violation) as found:
            self.take(*records)
        assert found.value.name == name
        self.checker.world.violation = None  # the first one is remembered


def test_only_members_of_the_stored_generation_commit() -> None:
    log = Log()
    log.take(log.generation(1, a=[0], b=[1]), log.commit("a", 1, 5))
    log.take(log.commit("c", 2, 6))  # of a generation that the coordinator alone knows yet
    log.take(log.generation(3, b=[0, 1]), log.commit("b", 3, 7))
    log.refuses("only members commit", log.commit("a", 1, 8))
    log = Log()
    log.take(log.generation(1, a=[0], b=[1]))
    log.refuses("only members commit", log.commit("fenced", 1, 8))


def test_only_members_commit_in_their_epoch() -> None:
    log = Log()
    epoch = Record(rec.consumer_key(rec.CONSUMER_GROUP, "g"), rec.put_epoch(3))
    log.take(epoch, log.current("a", 3, [0], []), log.commit("a", 3, 5))
    log.take(log.current("a", 4, [0], []))
    log.refuses("only members commit", log.commit("a", 3, 6))
    # An older epoch will do for a partition that it had in it, and has still; offsets may go back there.
    value = rec.CurrentValue(5, 4, 0, {T: (0,)}, {T: (1,)}, {T: (3,)}, {T: (5,)})
    log.take(Record(rec.consumer_key(rec.CURRENT_MEMBER, "g", "a"), rec.put_current(value)))
    log.take(log.commit("a", 5, 8), log.commit("a", 3, 7))
    log.refuses("only members commit", log.commit("a", 2, 9))
    # That it has the same number of another topic says nothing.
    other = TopicId(b"o" * 16)
    value = rec.CurrentValue(6, 5, 0, {other: (0,)}, {}, {other: (3,)}, {})
    log.take(Record(rec.consumer_key(rec.CURRENT_MEMBER, "g", "a"), rec.put_current(value)))
    log.refuses("only members commit", log.commit("a", 5, 10))


def test_offsets_never_go_back_but_for_a_member_that_overtook_itself() -> None:
    log = Log()
    log.take(log.generation(1, a=[0]), log.commit("a", 1, 5), log.commit("a", 1, 4))
    log.take(log.generation(2, b=[0]), log.commit("b", 2, 3, is_tainted=True))
    log.take(log.generation(3, c=[0]))
    log.refuses("committed offsets never go back", log.commit("c", 3, 2))


def test_generations_and_epochs_never_fall_and_have_one_assignment() -> None:
    log = Log()
    log.take(log.generation(2, a=[0], b=[1]), log.generation(2, a=[0], other=[1]))
    log.refuses("one assignment in a generation", log.generation(2, a=[0, 1]))
    log.refuses("generations never fall", log.generation(1, a=[0]))
    log.refuses("one owner in a generation", log.generation(4, a=[0], b=[0]))
    log = Log()
    log.take(log.current("a", 4, [0], []))
    log.refuses("epochs never fall", log.current("a", 3, [0], []))


def test_a_partition_has_one_owner_and_leaves_it_when_the_owner_lets_go() -> None:
    log = Log()
    log.take(log.current("a", 1, [0, 1], []))
    log.refuses("one owner of a partition", log.current("b", 2, [0], []))
    log = Log()
    member: Any = SimpleNamespace(name="m", is_dead=False, owned=frozenset({(T, 0), (T, 1)}))
    log.checker.members["a"] = member
    log.take(log.current("a", 1, [0, 1], []), log.current("a", 1, [0], [1]))
    log.refuses("handed on when let go of", log.current("a", 2, [0], []))
    member.owned = frozenset({(T, 0)})
    log.take(log.current("a", 2, [0], []))


def test_offsets_of_a_group_with_members_stay() -> None:
    log = Log()
    gone = Record(rec.offset_key("g", "t", 0), None)
    log.take(log.generation(1, a=[0]), log.commit("a", 1, 5))
    log.refuses("offsets of live groups stay", gone)
    log.take(log.generation(2), gone)


def test_what_is_acknowledged_is_committed() -> None:
    log = Log()
    record = log.commit("a", 0, 5)
    with pytest.raises(Violation, match="acknowledged offsets are committed"):
        log.checker.on_acked(log.numbers[5])
    log.take(record)
    log.checker.on_acked(log.numbers[5])


def test_groups_draw_nothing_from_the_generator_of_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that seeds without groups replay as they did, whatever changes in groups."""
    alone = World(1)
    assert alone.groups is None
    draw = Settings.draw

    def drawn(rng: Any) -> Settings:
        settings = draw(rng)
        settings.with_groups = True
        return settings

    monkeypatch.setattr(Settings, "draw", staticmethod(drawn))
    beside = World(1)
    assert beside.groups is not None
    assert beside.rng.getstate() == alone.rng.getstate()
