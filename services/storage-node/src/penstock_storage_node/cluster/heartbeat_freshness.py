"""How lately the controllers knew that this node lives, and what they knew: whether it may be deposed unheard.

A controller fences a node, and makes another one the leader of what it led, a session timeout after its
last heartbeat at the earliest. So a node that has had the answer to a heartbeat which it *sent* within that
time, and the metadata that were the newest at that answer, leads what it leads; the time of the answer
itself says less, for it may have waited in a buffer while this process was stopped. And a heartbeat can get
through where metadata do not: they come from another controller.

It is no lease. Leadership moves without fencing too, for balance or by an administrator, and a controller
that lost its majority goes on answering until it notices. What must hold in any case is left to ISR, epochs
and the high watermark; this is for what a node tells its clients beyond them.
"""

from __future__ import annotations

from collections import deque

NEVER = float("-inf")


class HeartbeatFreshness:
    """Heartbeats of one node and their answers, of which each stream has one for one, in order."""

    def __init__(self) -> None:
        self.heard_ms = NEVER
        """When a controller answered last."""
        self._version = 0
        """Of the metadata that the last answer speaks of."""
        self._known_ms = NEVER
        """When the last heartbeat that was answered was sent."""
        self._sent_ms: deque[float] = deque()

    def begin(self) -> None:
        """A new stream: what the last one was not answered it never will be."""
        self._sent_ms.clear()

    def sent(self, now_ms: float) -> None:
        """A heartbeat is about to go out."""
        self._sent_ms.append(now_ms)

    def answered(self, version: int, now_ms: float) -> None:
        """The next heartbeat's answer is here; metadata have that version."""
        self.heard_ms, self._version = now_ms, version
        if self._sent_ms:
            self._known_ms = self._sent_ms.popleft()

    def is_recent(self, version: int, within_ms: float, now_ms: float) -> bool:
        """Whether a controller has heard from this node since `within_ms` ago, and told nothing newer than
        metadata of `version`."""
        return now_ms - self._known_ms <= within_ms and version >= self._version
