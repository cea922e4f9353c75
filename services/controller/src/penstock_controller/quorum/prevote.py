"""Pre-vote (Raft thesis 9.6): ask before disturbing. Pure; the clock is passed in.

A controller whose election deadline has passed asks its peers whether they would vote
for it, without raising any term. Peers that hear from a live leader say no, so one that
was paused or cut off cannot unseat a healthy leader. This guard is what makes a short
election deadline safe (a lost link to the leader makes it 0-50 ms).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

ROUND_S = 0.1
"""A round without a majority is given up after this, plus up to half of it at random."""


@dataclass(slots=True)
class PreVote:
    """The asking side."""

    peer_count: int
    random: Callable[[], float]
    round_id: int = 0
    _ends_at: float = 0.0
    _granted: set[int] = field(default_factory=set)

    def poll(self, now: float) -> tuple[bool, bool]:
        """(won, ask): whether to stand now, and whether to send a new round's questions."""
        if len(self._granted) + 1 > (self.peer_count + 1) / 2:
            self._granted.clear()
            self._ends_at = 0.0
            self.round_id += 1
            return True, False
        if now < self._ends_at:
            return False, False
        self.round_id += 1
        self._granted.clear()
        self._ends_at = now + ROUND_S * (1 + self.random() / 2)
        return False, True

    def granted(self, peer_id: int, round_id: int) -> None:
        if round_id == self.round_id:
            self._granted.add(peer_id)

    def cancel(self) -> None:
        """A leader is there: grants of this round count no more."""
        self.round_id += 1
        self._granted.clear()
        self._ends_at = 0.0


def would_vote(
    *,
    hears_leader: bool,
    own_term: int,
    own_last: tuple[int, int],
    asked_term: int,
    asked_last: tuple[int, int],
) -> bool:
    """The answering side. `*_last` are (last log term, last log index)."""
    return not hears_leader and asked_term > own_term and asked_last >= own_last
