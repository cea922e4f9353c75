"""Which logs a node creates, opens, deletes and sets aside, whatever order things happen in."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from penstock_core.errors import InvariantBroken
from penstock_core.ids import TopicId, TopicPartition
from penstock_storage_node.replica.placement import (
    AwaitName,
    CreateLog,
    DeleteLog,
    DiscardLog,
    Instruction,
    OpenLog,
    ParkLog,
    Placement,
    SetAside,
    TakeRole,
)

NAME = ("t", 0)
A = TopicPartition(TopicId(b"A" * 16), 0)
B = TopicPartition(TopicId(b"B" * 16), 0)


def mine(placement: Placement, key: TopicPartition = A) -> Instruction | None:
    return placement.on_state(key, NAME, is_mine=True)


def test_a_log_is_created_opened_and_deleted() -> None:
    placement = Placement()
    assert mine(placement) == CreateLog(A, NAME, stray=False)
    assert mine(placement) is None, "it is being created"
    assert placement.on_created(A, is_mine=True) == OpenLog(A, NAME)
    assert mine(placement) == TakeRole(A)
    assert placement.on_state(A, NAME, is_mine=False) == DeleteLog(A, NAME)
    assert placement.on_gone(A) is None
    assert placement.on_free(NAME) == []
    assert mine(placement) == CreateLog(A, NAME, stray=False)


def test_a_log_that_was_found_is_opened_and_one_of_another_topic_set_aside() -> None:
    placement = Placement()
    placement.on_found(NAME, A.topic_id)
    assert mine(placement) == OpenLog(A, NAME)
    placement = Placement()
    placement.on_found(NAME, A.topic_id)
    assert mine(placement, B) == CreateLog(B, NAME, stray=True)
    assert placement.strays() == []


def test_what_nobody_has_claimed_is_set_aside_once() -> None:
    placement = Placement()
    placement.on_found(NAME, A.topic_id)
    assert placement.strays() == [SetAside(NAME)]
    assert placement.strays() == []


def test_a_log_that_nobody_wants_by_the_time_it_is_there_is_discarded() -> None:
    placement = Placement()
    mine(placement)
    assert placement.on_created(A, is_mine=False) == DiscardLog(A, NAME)
    assert mine(placement) == AwaitName(A), "its directory is still there"
    assert placement.on_free(NAME) == [A], "wanted again meanwhile"
    assert mine(placement) == CreateLog(A, NAME, stray=False)


def test_a_topic_made_anew_waits_for_the_directory_of_the_old_one() -> None:
    placement = Placement()
    mine(placement, A)
    assert mine(placement, B) == AwaitName(B), "A's directory is being made under that name"
    assert placement.on_created(A, is_mine=False) == DiscardLog(A, NAME)
    assert mine(placement, B) == AwaitName(B)
    assert placement.on_free(NAME) == [B]
    assert mine(placement, B) == CreateLog(B, NAME, stray=False)


def test_a_topic_made_anew_waits_for_the_deletion_of_the_old_one() -> None:
    placement = Placement()
    mine(placement, A)
    placement.on_created(A, is_mine=True)
    assert placement.on_gone(A) == DeleteLog(A, NAME)
    assert mine(placement, B) == AwaitName(B)
    assert placement.on_free(NAME) == [B]


def test_whoever_waits_is_asked_for_again_when_nothing_was_created() -> None:
    placement = Placement()
    mine(placement, A)
    assert mine(placement, B) == AwaitName(B)
    assert placement.on_free(NAME) == [B]


def test_a_state_that_differs_from_the_partitions_is_found() -> None:
    placement = Placement()
    mine(placement)
    placement.on_created(A, is_mine=True)
    placement.validate([A])
    with pytest.raises(InvariantBroken):
        placement.validate([])


class Disk:
    """A disk that does what it is told, one thing at a time per name, in any order among names."""

    def __init__(self) -> None:
        self.directories: dict[tuple[str, int], TopicPartition] = {}

    def make(self, name: tuple[str, int], key: TopicPartition) -> None:
        assert name not in self.directories, "the directory of another log is in the way"
        self.directories[name] = key

    def remove(self, name: tuple[str, int], key: TopicPartition) -> None:
        assert self.directories.get(name) == key, "somebody else's directory would go"
        del self.directories[name]


@pytest.mark.parametrize("seed", range(200))
def test_any_order_of_metadata_and_disk_ends_with_what_the_metadata_want(seed: int) -> None:
    rng = random.Random(seed)
    placement, disk = Placement(), Disk()
    names = [("t", 0), ("t", 1), ("u", 0)]
    wanted: dict[tuple[str, int], TopicPartition] = {}
    partitions: set[TopicPartition] = set()
    creating: list[CreateLog] = []
    going: list[tuple[tuple[str, int], TopicPartition]] = []
    number = 0

    def carry_out(instruction: Instruction | None) -> None:
        match instruction:
            case CreateLog(key, name):
                disk.make(name, key)
                creating.append(instruction)
            case OpenLog(key, name):
                assert disk.directories[name] == key
                partitions.add(key)
            case DeleteLog(key, name):
                partitions.remove(key)
                going.append((name, key))
            case DiscardLog(key, name):
                going.append((name, key))
            case TakeRole(key):
                assert key in partitions

    def look(keys: Iterable[TopicPartition]) -> None:
        for key in keys:
            for name, now in wanted.items():
                if now == key:
                    carry_out(placement.on_state(key, name, is_mine=True))

    def disk_step() -> None:
        if creating and (not going or rng.random() < 0.5):
            made = creating.pop(rng.randrange(len(creating)))
            if rng.random() < 0.1:  # no space
                disk.remove(made.name, made.key)
                look([made.key, *placement.on_free(made.name)])
            else:
                carry_out(placement.on_created(made.key, is_mine=wanted.get(made.name) == made.key))
        elif going:
            name, key = going.pop(rng.randrange(len(going)))
            disk.remove(name, key)
            look(placement.on_free(name))

    for _ in range(60):
        name = rng.choice(names)
        match rng.randrange(4):
            case 0:
                old = wanted.pop(name, None)
                if old is not None:
                    carry_out(placement.on_gone(old))
                number += 1
                wanted[name] = TopicPartition(TopicId(number.to_bytes(16, "big")), name[1])
                look([wanted[name]])
            case 1:
                old = wanted.pop(name, None)
                if old is not None:
                    carry_out(placement.on_gone(old))
            case _:
                disk_step()
        placement.validate(partitions)
    while creating or going:
        disk_step()
        placement.validate(partitions)
    assert partitions == set(wanted.values())
    assert disk.directories == wanted


def test_a_parked_log_is_as_if_it_had_been_found() -> None:
    placement = Placement()
    mine(placement)
    placement.on_created(A, is_mine=True)
    assert placement.park(B) is None
    assert placement.park(A) == ParkLog(A, NAME)
    assert mine(placement) == AwaitName(A), "adopted before it was closed"
    assert placement.on_parked(A, NAME) == [A]
    assert placement.strays(lambda key: key == A) == [], "kept where it is"
    assert mine(placement) == OpenLog(A, NAME)


def test_another_topic_under_the_name_of_a_parked_log_sets_it_aside() -> None:
    placement = Placement()
    mine(placement)
    placement.on_created(A, is_mine=True)
    placement.park(A)
    assert mine(placement, B) == AwaitName(B)
    assert placement.on_parked(A, NAME) == [B]
    assert mine(placement, B) == CreateLog(B, NAME, stray=True)
