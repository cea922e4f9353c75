"""Who may stay on the Raft port before it is known who it is, and who of two with one name. Pure.

The port has to be open to peers that nobody has heard yet, so everybody can fill it. Whoever comes is let in, and
the one that has waited longest makes room: an honest peer says its hello at once and is through before that, while
refusing the newest would shut it out for as long as others hold their sockets.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

UNKNOWN_MAX = 16
UNKNOWN_PER_ADDRESS_MAX = 8
RIVAL_SILENCE_S = 1.0
"""A link that was silent for this long (twice a keepalive) gives its place to any newcomer of its name."""
CONTEST_S = 3.0
"""So long a newcomer that is worth as much has to come again and again to get the place of a link that is alive."""
_CONTEST_PAUSE_S = 1.0
LOG_LINES_MAX = 20
_LOG_PERIOD_S = 60.0

L = TypeVar("L")


class WaitingRoom(Generic[L]):
    """Connections that have not said who they are, with the address that each comes from."""

    def __init__(self) -> None:
        self._links: dict[L, str] = {}

    @property
    def links(self) -> list[L]:
        """All of them, the oldest first."""
        return list(self._links)

    def leaves_for(self, address: str) -> L | None:
        """Who has to go before somebody from `address` comes in: the oldest, its own address's first; None if none."""
        same = [link for link, other in self._links.items() if other == address]
        if len(same) >= UNKNOWN_PER_ADDRESS_MAX:
            return same[0]
        return next(iter(self._links)) if len(self._links) >= UNKNOWN_MAX else None

    def add(self, link: L, address: str) -> None:
        self._links[link] = address

    def address_of(self, link: L) -> str:
        """Where it came from; "" when it is not here."""
        return self._links.get(link, "")

    def discard(self, link: L) -> None:
        self._links.pop(link, None)


class Standing(NamedTuple):
    """What speaks for a link that says to be some controller. The first that differs decides."""

    is_member: bool
    """It has the data directory that the log names for that controller."""
    is_at_home: bool
    """It comes from the address that raft_peers names for it."""


class Contests:
    """Newcomers that claim the name of a link that is there."""

    def __init__(self) -> None:
        self._since: dict[int, tuple[float, float]] = {}

    def is_won(
        self, peer_id: int, now_s: float, silent_s: float, incumbent: Standing, rival: Standing
    ) -> bool:
        """Whether a newcomer gets the place.

        Without certificates nobody can tell which of two equals is the controller. The one that is there stays, so
        that one hello of a stranger disturbs nothing; but not for ever, since the stranger may have come first.
        """
        if silent_s >= RIVAL_SILENCE_S or rival > incumbent:
            self._since.pop(peer_id, None)
            return True
        if rival < incumbent:
            return False
        since, last = self._since.get(peer_id, (now_s, now_s))
        if now_s - last > _CONTEST_PAUSE_S:
            since = now_s
        self._since[peer_id] = (since, now_s)
        if now_s - since < CONTEST_S:
            return False
        del self._since[peer_id]
        return True


class LogBudget:
    """Lines that strangers can cause: so many a minute."""

    def __init__(self) -> None:
        self._started_s = 0.0
        self._count = 0

    def take(self, now_s: float) -> bool:
        if now_s - self._started_s >= _LOG_PERIOD_S or not self._count:
            self._started_s, self._count = now_s, 0
        self._count += 1
        return self._count <= LOG_LINES_MAX
