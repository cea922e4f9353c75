"""Commits in the background: the newest wins, a failure is told once, an idle query commits anew."""

from __future__ import annotations

import logging
import threading

import pytest

from pyspark_penstock.errors import GatewayError
from pyspark_penstock.group_commits import REPEAT_S, RETRY_S, GroupCommits, Offsets

KEY = ("t", 0)


def test_the_newest_wins_and_nobody_waits() -> None:
    made: list[tuple[int, str]] = []
    begun, may_end = threading.Event(), threading.Event()

    def commit(offsets: Offsets, metadata: str) -> list[str]:
        begun.set()
        assert may_end.wait(60)
        made.append((offsets[KEY], metadata))
        return []

    commits = GroupCommits(commit)
    commits.offer({KEY: 1}, "a")
    assert begun.wait(60)
    for offset in (2, 3, 4):
        commits.offer({KEY: offset}, "b")
    may_end.set()
    commits.settle(60)
    assert made == [(1, "a"), (4, "b")]


def test_an_idle_query_commits_once_an_hour() -> None:
    made: list[int] = []
    now = [0.0]

    def commit(offsets: Offsets, metadata: str) -> list[str]:
        made.append(offsets[KEY])
        return []

    commits = GroupCommits(commit, lambda: now[0])
    for seconds in (0.0, 10.0, REPEAT_S - 1, REPEAT_S, REPEAT_S + 5):
        now[0] = seconds
        commits.offer({KEY: 7}, "m")
        commits.settle(60)
    assert made == [7, 7]


def test_a_failure_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    answers = iter([["group g: it has members"], ["group g: it has members"], None, []])

    def commit(offsets: Offsets, metadata: str) -> list[str]:
        answer = next(answers)
        if answer is None:
            raise GatewayError("no gateway answers")
        return answer

    commits = GroupCommits(commit)
    with caplog.at_level(logging.WARNING, "pyspark_penstock"):
        for offset in range(4):
            commits.offer({KEY: offset}, "m")
            commits.settle(60)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert "it has members" in told[0]
    assert "no gateway answers" in told[1]


def test_what_failed_is_committed_a_little_later_though_the_query_is_idle() -> None:
    made: list[int] = []
    now = [0.0]

    def commit(offsets: Offsets, metadata: str) -> list[str]:
        made.append(offsets[KEY])
        return ["its coordinator moves"] if len(made) < 3 else []

    commits = GroupCommits(commit, lambda: now[0])
    for seconds in (0.0, RETRY_S - 1, RETRY_S, RETRY_S + 1, 2 * RETRY_S, 3 * RETRY_S, REPEAT_S):
        now[0] = seconds
        commits.offer({KEY: 7}, "m")
        commits.settle(60)
    assert made == [7, 7, 7]
