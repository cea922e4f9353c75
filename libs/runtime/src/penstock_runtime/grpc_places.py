"""Who has a place at a gRPC port, and who goes when there are too many. Pure.

Who goes first, of whichever address has most: connections by which nobody has called yet, the oldest of them, for
whoever dials for a purpose calls at once; then those without an open call, the longest unused one; then the newest. Of
who is just coming nobody knows yet: he counts as one with a call.
A role of this cluster, by its certificate, never goes. Addresses of one /64 of IPv6 are one address there; it has four
times as many connections as one of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from penstock_core.security.login_limits import network
from penstock_runtime.grpc_bounds import GrpcBounds
from penstock_runtime.grpc_calls import OpenCalls, PeerKey, counted_as


class Place:
    """One connection, from the moment when it was accepted."""

    __slots__ = ("counted", "end", "has_called", "key", "network", "order")

    def __init__(self, key: PeerKey, end: Callable[[str], None]) -> None:
        """`end` ends it, and is told why."""
        self.key = key
        self.end = end
        self.network = network(key.host)
        self.counted = tuple(counted_as(key.host))
        self.has_called = False
        """Told when it has left: while it is here `OpenCalls` knows."""
        self.order = 0
        """Of two, the one with the greater is younger."""


class Places:
    """Those of one port. Calls take constant time, but for one that looks who goes."""

    def __init__(self, bounds: GrpcBounds, calls: OpenCalls) -> None:
        """`calls` knows who has called."""
        self._bounds = bounds
        self._calls = calls
        self._here: dict[Place, None] = {}
        self._of: dict[PeerKey, Place] = {}
        self._counts: Counter[str] = Counter()
        """By what connections are counted as (`counted_as`)."""
        self._strangers: dict[Place, None] = {}
        """The oldest first; some may have called meanwhile."""
        self._order = 0

    def __len__(self) -> int:
        return len(self._here)

    def count_strangers(self) -> int:
        """By how many nobody has called; more where nobody has looked, but never beyond the bound."""
        if len(self._strangers) > self._bounds.strangers_max:
            self._strangers = {each: None for each in self._strangers if self.is_stranger(each)}
        return len(self._strangers)

    def come(self, place: Place) -> Iterator[tuple[Place, str]]:
        """Somebody has come: who has to go, it itself maybe, already forgotten here; and why."""
        self._order += 1
        place.order = self._order
        self._here[place] = None
        self._strangers[place] = None
        self._of[place.key] = place
        for whose, _ in place.counted:
            self._counts[whose] += 1
        bounds = self._bounds
        if (strangers := self.count_strangers()) > bounds.strangers_max:
            why = f"{strangers} have not called, and grpc_strangers_max = {bounds.strangers_max}"
            yield from self._goes(self._strangers, why, place)
        for whose, shares in place.counted:
            if (count := self._counts[whose]) > bounds.connections_per_address_max * shares:
                theirs = [each for each in self._here if (whose, shares) in each.counted]
                setting = f"grpc_connections_per_address_max = {bounds.connections_per_address_max}"
                yield from self._goes(theirs, f"{count} are of {whose}, and {setting}", place)
        if len(self._here) > bounds.connections_max:
            why = f"there were {len(self._here)}, and grpc_connections_max = {bounds.connections_max}"
            yield from self._goes(self._here, why, place)

    def left(self, place: Place) -> None:
        """It has to go, or its connection is gone: to be called then too, for it may have called in between."""
        place.has_called = not self.is_stranger(place)
        if place in self._here:
            del self._here[place]
            self._strangers.pop(place, None)
            for whose, _ in place.counted:
                self._counts[whose] -= 1
                if not self._counts[whose]:
                    del self._counts[whose]
        # Its number may be another one's already.
        if self._of.get(place.key, place) is place:
            self._of.pop(place.key, None)
            self._calls.forget(place.key)

    def make_room(self) -> Place | None:
        """Who goes when the process has no descriptor left; already forgotten here."""
        return next((place for place, _ in self._goes(self._here, "", None)), None)

    def is_stranger(self, place: Place) -> bool:
        """Whether nobody has called by it; of one that has left too."""
        return not place.has_called and place.key not in self._calls.peers

    def _goes(self, among: Iterable[Place], why: str, newcomer: Place | None) -> Iterator[tuple[Place, str]]:
        """One of the address that has most, if there is one that may go."""
        by_network: dict[str, list[Place]] = {}
        for each in among:
            by_network.setdefault(each.network, []).append(each)
        for theirs in sorted(by_network.values(), key=len, reverse=True):
            candidates = [each for each in theirs if self._may_go(each)]
            if candidates:
                goes = min(candidates, key=lambda each: self._priority(each, each is newcomer))
                self.left(goes)
                yield goes, why
                return

    def _priority(self, place: Place, is_newcomer: bool) -> tuple[int, int]:
        """The least goes first."""
        peer = self._calls.peers.get(place.key)
        if is_newcomer or (peer is not None and peer.open_calls):
            return 2, -place.order
        return (0, place.order) if peer is None else (1, peer.last_call)

    def _may_go(self, place: Place) -> bool:
        peer = self._calls.peers.get(place.key)
        return peer is None or not peer.is_ours
