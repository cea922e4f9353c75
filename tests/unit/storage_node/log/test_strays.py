"""Logs that were set aside: their names, their age, and which of them may go."""

from __future__ import annotations

import random

import pytest

from penstock_core.ids import TopicId
from penstock_storage_node.log.strays import Stray, away_name, find, overdue, parse
from unit.storage_node.log.log_model import NOW_MS, ROOT, SMALL, TOPIC_ID, new_disk, open_directory

DAY_MS = 24 * 60 * 60 * 1000
HEX = "0123456789abcdef" * 2
OTHER_ID = TopicId(b"o" * 16)


def stray(name: str, set_aside_ms: int | None) -> Stray:
    return Stray(name, name, set_aside_ms)


def test_the_name_says_when_a_log_was_set_aside() -> None:
    fs = new_disk()
    directory = open_directory(fs)
    directory.create_log("t.x", 3, TOPIC_ID, SMALL).close(clean=True)
    directory.create_log("t.x", 3, OTHER_ID, SMALL)
    (name,) = [n for n in fs.list_directory(str(ROOT)) if n.endswith("-stray")]
    found = parse(name)
    assert found is not None
    assert (found.of, found.set_aside_ms) == ("t.x-3", NOW_MS)
    assert find(fs, str(ROOT), NOW_MS + 5) == [found], "and goes on saying it"


@pytest.mark.parametrize("topic", ["a", "a.17", "a." + "0" * 32, "x" * 249, "a-stray"])
def test_names_of_any_topic_are_read_back(topic: str) -> None:
    name = away_name(f"{topic}-0", "stray", stamp_ms=NOW_MS)
    assert len(name) <= 255
    found = parse(name)
    assert found is not None
    assert found.set_aside_ms == NOW_MS
    assert f"{topic}-0".startswith(found.of)


@pytest.mark.parametrize(
    "name",
    [
        "t-0",
        "t-0.abc-stray",
        "backup-stray",
        f"t-0.{HEX}-delete",
        f".{HEX}-stray",
        f"t-0.{HEX}-stray.old",
        "-stray",
    ],
)
def test_directories_of_others_are_no_strays(name: str) -> None:
    fs = new_disk()
    open_directory(fs)
    fs.make_directory(f"{ROOT}/{name}")
    assert parse(name) is None
    assert find(fs, str(ROOT), NOW_MS) == []
    assert fs.exists(f"{ROOT}/{name}")


def test_a_file_with_such_a_name_is_no_stray() -> None:
    fs = new_disk()
    open_directory(fs)
    fs.close(fs.create(f"{ROOT}/t-0.{NOW_MS}.{HEX}-stray"))
    assert find(fs, str(ROOT), NOW_MS) == []


def test_a_stray_without_a_time_gets_that_of_the_first_look_and_keeps_it() -> None:
    fs = new_disk()
    open_directory(fs)
    fs.make_directory(f"{ROOT}/t-0.{HEX}-stray")
    fs.close(fs.create(f"{ROOT}/t-0.{HEX}-stray/00000000000000000000.log"))
    (first,) = find(fs, str(ROOT), NOW_MS)
    assert (first.of, first.set_aside_ms) == ("t-0", NOW_MS)
    assert fs.exists(f"{ROOT}/{first.name}/00000000000000000000.log")
    after = fs.crash(lambda *_: b"", keep_names=lambda count: 0)
    assert find(after, str(ROOT), NOW_MS + DAY_MS) == [first]


def test_a_time_of_a_clock_that_was_not_set_is_none() -> None:
    fs = new_disk()
    open_directory(fs)
    fs.make_directory(f"{ROOT}/{away_name('t-0', 'stray', stamp_ms=86_400_000)}")
    (early,) = find(fs, str(ROOT), 90_000_000)
    assert early.set_aside_ms is None
    (later,) = find(fs, str(ROOT), NOW_MS)
    assert later.set_aside_ms == NOW_MS


def test_what_is_old_enough_goes_the_oldest_first_and_only_so_many_at_once() -> None:
    ages = [7 * DAY_MS, 7 * DAY_MS - 1, 30 * DAY_MS, 0, 9 * DAY_MS]
    strays = [stray(str(i), NOW_MS - age) for i, age in enumerate(ages)]
    assert [s.name for s in overdue(strays, NOW_MS, 7 * DAY_MS, 10)] == ["2", "4", "0"]
    assert [s.name for s in overdue(strays, NOW_MS, 7 * DAY_MS, 2)] == ["2", "4"]
    assert overdue(strays, NOW_MS, -1, 10) == []
    assert len(overdue(strays, NOW_MS, 0, 10)) == 5


def test_nothing_of_the_future_or_of_unknown_age_ever_goes() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(500):
        times = [rng.choice([None, NOW_MS + rng.randrange(-20 * DAY_MS, 20 * DAY_MS)]) for _ in range(5)]
        retention_ms = rng.choice([-1, 0, rng.randrange(20 * DAY_MS)])
        gone = overdue([stray(str(i), t) for i, t in enumerate(times)], NOW_MS, retention_ms, 3)
        for each in gone:
            assert each.set_aside_ms is not None
            assert 0 <= retention_ms <= NOW_MS - each.set_aside_ms
