"""Which batch is sent when: in order in its partition, again until it is acknowledged, bounded in bytes."""

from __future__ import annotations

import random

import pytest

from pyspark_penstock.encode import Sealed
from pyspark_penstock.sink.window import IN_FLIGHT_MAX, IN_LINE_MAX, Outgoing, Window


def batch(partition: int, text: bytes) -> Outgoing:
    return Outgoing("t", Sealed(partition, text, 1))


def test_one_batch_of_a_partition_is_on_its_way() -> None:
    window = Window(10)
    for partition, text in ((0, b"a0"), (0, b"a1"), (1, b"b0")):
        window.offer(batch(partition, text))
    [(first, one), (second, other)] = window.take()
    assert (one.batch.records, other.batch.records) == (b"a0", b"b0")
    assert list(window.take()) == []
    window.acknowledged(second)
    assert list(window.take()) == []
    window.acknowledged(first)
    [(third, last)] = window.take()
    assert last.batch.records == b"a1"
    window.again(third)
    [(fourth, last)] = window.take()
    assert (last.batch.records, window.sent(third)) == (b"a1", None)
    window.offer(batch(5, b"12345678"))
    full = [window.is_full]
    window.acknowledged(fourth)
    full.append(window.is_full)
    assert full == [True, False]
    assert not window.is_empty


def test_parts_stand_where_the_large_batch_stood() -> None:
    window = Window(100)
    for text in (b"abcd", b"e"):
        window.offer(batch(0, text))
    [(number, _)] = window.take()
    window.in_parts(number, [Sealed(0, b"ab", 1), Sealed(0, b"cd", 1)])
    seen = []
    while not window.is_empty:
        [(number, item)] = window.take()
        seen.append(item.batch.records)
        window.acknowledged(number)
    assert seen == [b"ab", b"cd", b"e"]


def test_no_more_are_on_their_way_than_a_gateway_takes() -> None:
    window = Window(1 << 20)
    for partition in range(IN_FLIGHT_MAX + 5):
        window.offer(batch(partition, b"x"))
    first = list(window.take())
    assert len(first) == IN_FLIGHT_MAX
    window.acknowledged(first[0][0])
    assert len(list(window.take())) == 1
    window.broken()
    assert len(list(window.take())) == IN_FLIGHT_MAX


@pytest.mark.parametrize("seed", range(30))
def test_every_batch_arrives_in_order_whatever_breaks(seed: int) -> None:
    rnd = random.Random(seed)
    window = Window(200)
    logs: dict[int, list[bytes]] = {}
    wanted: dict[int, list[bytes]] = {}
    left = [batch(rnd.randrange(4), b"%d" % at) for at in range(60)]
    for item in left:
        wanted.setdefault(item.batch.partition, []).append(item.batch.records)
    on_the_way: list[tuple[int, Outgoing]] = []
    while left or not window.is_empty:
        if left and not window.is_full and rnd.random() < 0.5:
            window.offer(left.pop(0))
        on_the_way += window.take()
        if not on_the_way:
            continue
        what = rnd.random()
        number, item = on_the_way[0]
        if what < 0.15:
            # The stream breaks: some of what was sent is written, and no answer comes.
            for _, lost in on_the_way[: rnd.randrange(len(on_the_way) + 1)]:
                logs.setdefault(lost.batch.partition, []).append(lost.batch.records)
            on_the_way = []
            window.broken()
        elif what < 0.3:
            window.again(number)
            del on_the_way[0]
        else:
            logs.setdefault(item.batch.partition, []).append(item.batch.records)
            window.acknowledged(number)
            del on_the_way[0]
    for partition, log in logs.items():
        # Repeats stand next to each other: nothing of before comes behind a later batch.
        once = [text for at, text in enumerate(log) if at == 0 or log[at - 1] != text]
        assert once == wanted[partition]


def test_a_line_with_sequences_begins_with_one_batch_and_goes_on_with_several() -> None:
    window = Window(1000, IN_LINE_MAX)
    for at in range(10):
        window.offer(batch(0, b"%d" % at))
    [(first, _)] = window.take()
    window.acknowledged(first)
    texts = [(number, item.batch.records) for number, item in window.take()]
    assert [text for _, text in texts] == [b"1", b"2", b"3", b"4", b"5"]
    numbers = [number for number, _ in texts]
    assert [window.is_first(number) for number in numbers] == [True, False, False, False, False]
    # The second is refused: nothing goes out before all are answered, and then in order from there.
    window.again(numbers[1])
    window.acknowledged(numbers[0])
    for number in numbers[2:]:
        assert list(window.take()) == []
        window.again(number)
    # What may be written already goes alone; then there are several again.
    for text in (b"2", b"3", b"4", b"5"):
        [(number, item)] = window.take()
        assert item.batch.records == text
        window.acknowledged(number)
    assert [item.batch.records for _, item in window.take()] == [b"6", b"7", b"8", b"9"]


class Leader:
    """Takes sequences in their turn, knows the last five again, and any of a producer that it has nothing of."""

    def __init__(self) -> None:
        self.log: list[int] = []

    def takes(self, sequence: int) -> bool:
        if sequence in self.log[-5:]:
            return True
        if self.log and sequence != self.log[-1] + 1:
            return False
        self.log.append(sequence)
        return True


@pytest.mark.parametrize("seed", range(60))
def test_with_sequences_every_batch_is_there_once_whatever_breaks(seed: int) -> None:
    rnd = random.Random(seed)
    window = Window(200, IN_LINE_MAX)
    leaders = [Leader() for _ in range(3)]
    places = [(partition, sequence) for sequence in range(30) for partition in range(3)]
    left = [batch(partition, b"%d" % sequence) for partition, sequence in places]
    on_the_way: list[tuple[int, Outgoing]] = []

    def reaches(item: Outgoing) -> bool:
        return leaders[item.batch.partition].takes(int(item.batch.records))

    while left or not window.is_empty:
        while left and not window.is_full and rnd.random() < 0.7:
            window.offer(left.pop(0))
        on_the_way += window.take()
        if not on_the_way:
            continue
        what = rnd.random()
        number, item = on_the_way.pop(0)
        if what < 0.1:
            # The stream breaks, some of it written without an answer.
            for _, lost in [(number, item), *on_the_way][: rnd.randrange(len(on_the_way) + 2)]:
                reaches(lost)
            on_the_way = []
            window.broken()
        elif what < 0.3:
            window.again(number)  # refused, or written and the answer says that nobody knows
            if what < 0.2:
                reaches(item)
        elif reaches(item):
            window.acknowledged(number)
        else:
            assert not window.is_first(number)
            window.again(number)
    assert [leader.log for leader in leaders] == [list(range(30))] * 3


def test_parts_of_a_batch_stand_before_what_was_on_its_way_behind_it() -> None:
    window = Window(1000, IN_LINE_MAX)
    for text in (b"0", b"12", b"3"):
        window.offer(batch(0, text))
    [(first, _)] = window.take()
    window.acknowledged(first)
    (large, _), (behind, _) = window.take()
    window.in_parts(large, [Sealed(0, b"1", 1), Sealed(0, b"2", 1)])
    assert list(window.take()) == []
    window.again(behind)
    seen = []
    while not window.is_empty:
        for number, item in list(window.take()):
            seen.append(item.batch.records)
            window.acknowledged(number)
    assert seen == [b"1", b"2", b"3"]
