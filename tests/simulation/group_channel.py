"""How a member of a group reaches its coordinator: FindCoordinator, then a connection to where that points.

What is on its way when the connection breaks, or takes too long, gets no answer; the coordinator is looked for
again with the next request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock_core.errors import ErrorCode
from penstock_kafka.wire.apis import ApiKey
from simulation import group_wire as wire
from simulation.program import Pause

if TYPE_CHECKING:
    from simulation.group_members import Member

MS = 1_000
S = 1_000_000
REQUEST_TIMEOUT_US = 4 * S
RETRY_US = 100 * MS
"""Kafka's retry.backoff.ms."""

LOOK_AGAIN = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
"""The coordinator is elsewhere: it is looked for again."""


class Channel:
    """One member's way to its coordinator."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._connection: Any = None
        self._waiting: dict[int, tuple[Callable[[Any], None], Any, ApiKey]] = {}
        self._number = 0

    async def call(self, api_key: ApiKey, timeout_us: int = REQUEST_TIMEOUT_US, **values: Any) -> Any:
        """Ask the coordinator; None without an answer. Found first, if it is not known."""
        if (self._connection is None or self._connection.closed) and not await self._find():
            await self._member.sleep(RETRY_US)
            return None
        connection = self._connection
        if connection is None:
            return None
        return await Pause(lambda resume: self._send(connection, api_key, timeout_us, values, resume))

    def forget(self) -> None:
        """The coordinator is elsewhere."""
        connection = self._connection
        if connection is not None:
            connection.close()
            self._lost(connection)

    def end(self) -> None:
        """The member's process is no more."""
        self._drop_connection()
        for _, timer, _ in self._waiting.values():
            timer.cancel()
        self._waiting.clear()

    # --- requests

    def _send(
        self,
        connection: Any,
        api_key: ApiKey,
        timeout_us: int,
        values: dict[str, Any],
        resume: Callable[[Any], None],
    ) -> None:
        self._number += 1
        number = self._number
        frame = wire.encode(api_key, number, self._member.name, **values)
        timer = self._member.world.scheduler.after(timeout_us, self._timed_out, number, connection)
        self._waiting[number] = (resume, timer, api_key)
        connection.send(frame, lambda data: self._answered(number, data))

    def _answered(self, number: int, data: bytes) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is None:
            return
        resume, timer, api_key = waiting
        timer.cancel()
        resume(wire.heartbeat_error(data) if api_key == wire.HEARTBEAT else wire.decode(api_key, data))

    def _timed_out(self, number: int, connection: Any) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is None:
            return
        self._member.world.counts["group requests timed out"] += 1
        if connection is self._connection:
            self._drop_connection()
            self._lost(connection)
        waiting[0](None)

    def _lost(self, connection: Any) -> None:
        """The connection broke: whatever waits on it gets no answer."""
        if connection is not self._connection and self._connection is not None:
            return
        self._connection = None
        waiting, self._waiting = self._waiting, {}
        for resume, timer, _ in waiting.values():
            timer.cancel()
            resume(None)

    def _drop_connection(self) -> None:
        if self._connection is not None and not self._connection.closed:
            self._connection.close()

    # --- where the coordinator is

    def _host_to_ask(self) -> str | None:
        member = self._member
        if not member.is_direct:
            return ""
        up = [h.name for h in member.world.hosts if h.kind == "n" and h.is_up]
        return member.rng.choice(up) if up else None

    def _connect(self, host: str) -> Any:
        return wire.connect(self._member.world, self._member.groups.finder, host, self._lost)

    async def _find(self) -> bool:
        """FindCoordinator, and a connection to where it points."""
        member = self._member
        host = self._host_to_ask()
        asked = None if host is None else self._connect(host)
        if asked is None:
            return False
        self._drop_connection()
        self._connection = asked
        values = {"key_type": 0, "coordinator_keys": (member.group_id,)}
        answer = await Pause(lambda resume: self._send(asked, wire.FIND, REQUEST_TIMEOUT_US, values, resume))
        if answer is None:
            return False
        found = answer.coordinators[0]
        error = ErrorCode(int(found.error_code))
        if error:
            member.note_error(error)
            if error not in LOOK_AGAIN:
                member.unexpected("FindCoordinator", error)
            return False
        if member.is_direct and found.host != host:
            if asked is self._connection:
                asked.close()
                self._lost(asked)
            self._connection = self._connect(found.host)
        return self._connection is not None
