"""Sessions for questions of native clients: one for each identity, kept for its next question.

Setting up streams for every call would cost more than the call; sharing them between clients would ask with
another one's rights.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from penstock_frontend.authorizer import Identity
from penstock_gateway.relay.client_relay import ClientRelay

IDLE_MAX: Final = 64
"""Sessions that are kept; those of who asked longest ago end first. One in use is never ended."""


@dataclass(slots=True)
class _Session:
    client: ClientRelay
    users: int = 0


class QuerySessions:
    """Lives on the event loop."""

    def __init__(self, open_client: Callable[[Identity], ClientRelay]) -> None:
        self._open = open_client
        self._sessions: OrderedDict[Identity, _Session] = OrderedDict()

    @contextmanager
    def of(self, who: Identity) -> Iterator[ClientRelay]:
        """The session of `who`, for one question."""
        session = self._sessions.get(who)
        if session is None:
            session = self._sessions[who] = _Session(self._open(who))
        self._sessions.move_to_end(who)
        session.users += 1
        self._end_some()
        try:
            yield session.client
        finally:
            session.users -= 1

    def _end_some(self) -> None:
        over = len(self._sessions) - IDLE_MAX
        if over > 0:
            idle = [who for who, session in self._sessions.items() if not session.users]
            for who in idle[:over]:
                self._sessions.pop(who).client.close()
