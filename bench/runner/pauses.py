"""What a client that endures a fault says, line by line, and how long it stood still. Pure.

A line is a word and nanoseconds of CLOCK_MONOTONIC: `commit`, `read` (a committed record), `aborted` and `fatal`, those
two with a reason behind them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

WORDS: Final = ("commit", "read", "aborted", "fatal")


@dataclass
class Story:
    """Times by word, in their order."""

    times_ns: dict[str, list[int]] = field(default_factory=lambda: {word: [] for word in WORDS})
    reasons: list[str] = field(default_factory=list)
    ended: bool = False
    """Whether the client says nothing more."""

    def add(self, line: str) -> None:
        """Raises ValueError for a line that is none."""
        word, _, rest = line.strip().partition(" ")
        time, _, reason = rest.partition(" ")
        if word not in self.times_ns or not time.isdecimal():
            raise ValueError(f"the client said {line.strip()!r}, and not what happened when")
        self.times_ns[word].append(int(time))
        if reason:
            self.reasons.append(f"{word}: {reason}")

    def count_since(self, word: str, since_ns: int) -> int:
        return sum(time >= since_ns for time in self.times_ns[word])


def longest_pause_s(times_ns: Sequence[int], since_ns: int, until_ns: int) -> float:
    """Longest time without an event that lies after `since_ns`, at least in part; what had not come to an end at
    `until_ns` counts up to there. What began before counts from its begin."""
    before = max((time for time in times_ns if time < since_ns), default=since_ns)
    after = sorted(time for time in times_ns if since_ns <= time <= until_ns)
    marks = [before, *after, until_ns]
    return max(later - earlier for earlier, later in pairwise(marks)) / 1e9


def steady(story: Story, words: Iterable[str], since_ns: int, count: int) -> bool:
    """Whether there were `count` of each since then."""
    return all(story.count_since(word, since_ns) >= count for word in words)
