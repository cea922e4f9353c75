"""The way back to one client: a connection of the node's own listener, or a stream on which a gateway relays one.

What a client has asked and no longer waits for must not be begun when its turn comes: it may have asked again by
another connection, and the late request would decide about what it does now.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable


class ClientStream:
    """Knows what is held for a client, and gives it up when the client is gone."""

    __slots__ = ("_held", "ended")

    def __init__(self) -> None:
        self.ended = False
        """The client is gone."""
        self._held: dict[Hashable, Callable[[], None]] = {}

    def hold(self, what: Hashable, give_up: Callable[[], None]) -> None:
        """Have `give_up` called when the client goes, unless `what` was let go before; at once if it is gone."""
        if self.ended:
            give_up()
        else:
            self._held[what] = give_up

    def let_go(self, what: Hashable) -> None:
        """It is answered."""
        self._held.pop(what, None)

    def end(self) -> None:
        """The client is gone."""
        self.ended = True
        held, self._held = self._held, {}
        for give_up in held.values():
            give_up()
