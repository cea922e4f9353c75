"""librdkafka that waits for its group's coordinator for nothing is woken.

`send_offsets_to_transaction` asks the transaction's coordinator first (AddOffsetsToTxn), then the group's
(TxnOffsetCommit). librdkafka remembers the latter as a broker of its own, and ends that broker's thread where all that
it knows were down at once and it goes back to its bootstrap list (KIP-1102; since 2.16), or where Metadata names the
node no more (since 2.10). It goes on remembering it: the second request waits then for a connection that nobody makes,
until the state of any other connection changes (rd_kafka_coord_req_fsm; librdkafka's issue 5511). Nothing ends that,
its own timeouts neither: the transaction is timed out by the cluster, and the producer fenced.

Behind one gateway all brokers are down at once whenever that gateway is restarted. So a connection on which offsets
were announced is closed when they do not come and nothing is under way on it: its client dials again, looks for the
group's coordinator and sends them. One that was only slow loses nothing by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from penstock_frontend.listener.client_software import is_librdkafka
from penstock_frontend.listener.connection import Connection
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.frames import RequestHeader
from penstock_kafka.wire.primitives import Buffer, Reader

HERE_S: Final = 1.0
"""How long offsets may be on their way where they come to this process too: librdkafka sends them as soon as it has
the answer, or has found and dialled the group's coordinator."""
ELSEWHERE_S: Final = 5.0
"""The same where they may go to another process, and only the end of their transaction is seen for sure: one that is
left open for longer costs its client a new connection."""
ANNOUNCED_MAX: Final = 10_000
"""Whoever calls itself librdkafka may announce: beyond so many at once a client is left to itself, as by Kafka."""
_ARRIVALS: Final = frozenset({ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN})
WATCHED: Final = _ARRIVALS | {ApiKey.ADD_OFFSETS_TO_TXN}
"""Requests to tell of; the transactional id is the first field of each."""


class OffsetsToCome:
    """Of one process. There is at most one announcement for each transactional id, and each ends by itself."""

    __slots__ = ("_announced", "_announced_max", "_patience_s")

    def __init__(self, patience_s: Callable[[], float], announced_max: int = ANNOUNCED_MAX) -> None:
        """`patience_s` is asked at each announcement."""
        self._patience_s = patience_s
        self._announced_max = announced_max
        self._announced: dict[str, tuple[Connection, asyncio.TimerHandle]] = {}

    def request_came(self, connection: Connection, header: RequestHeader, frame: Buffer) -> None:
        """One of `WATCHED`, before it is handled. Raises Malformed."""
        is_arrival = header.api_key in _ARRIVALS
        if not (self._announced if is_arrival else is_librdkafka(connection)):
            return
        transactional_id = Reader(frame, header.body_offset, header.flexible, header.items_max).string()
        before = self._announced.pop(transactional_id, None)
        if before is not None:
            before[1].cancel()
        if not is_arrival and len(self._announced) < self._announced_max:
            self._wait(transactional_id, connection)

    def _wait(self, transactional_id: str, connection: Connection) -> None:
        timer = asyncio.get_running_loop().call_later(self._patience_s(), self._look, transactional_id)
        self._announced[transactional_id] = connection, timer

    def _look(self, transactional_id: str) -> None:
        connection, _ = self._announced.pop(transactional_id)
        if connection.closing:
            return  # its client has dialled again, and is awake
        if connection.inflight_count:
            self._wait(transactional_id, connection)
            return
        connection.close("offsets of a transaction were announced and do not come")
