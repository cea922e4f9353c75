"""One response of those to the parts of a request (see `penstock_kafka.wire.produce_parts`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from penstock_frontend.listener.answers import CLOSE, NO_RESPONSE, Response, Signal, WatchedReply
from penstock_kafka.wire.frames import RequestHeader
from penstock_kafka.wire.produce_parts import join_responses


class PartsAnswer:
    """Takes what the handler gives for each part; its connection gets NO_RESPONSE for all but the last."""

    __slots__ = ("_closes", "_last", "_loop", "_open", "_responses", "began_s", "spent_s")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._responses: list[bytes | None] = []
        """Of each part, in the order in which they were handed over; None: it has none, or not yet."""
        self._open = 0
        """Parts that are not answered."""
        self._last: tuple[RequestHeader, asyncio.Future[Response]] | None = None
        self._closes = False
        self.began_s = 0.0
        """When its first part was handed over, by perf_counter; 0: none was."""
        self.spent_s = 0.0
        """What the connection's quota is charged for, of all parts."""

    def add(self, result: Response | Awaitable[Response]) -> Response | Awaitable[Response]:
        """Of a part that is not the last."""
        index = self._begin()
        return (
            self._watch(index, result)
            if isinstance(result, Awaitable)
            else self._take_response(index, result)
        )

    def finish(
        self, header: RequestHeader, result: Response | Awaitable[Response]
    ) -> Response | Awaitable[Response]:
        """Of the last part of the request with that header: the response to all, once all are answered."""
        index = self._begin()
        if isinstance(result, Awaitable):
            out = self._watch(index, result)
        else:
            self._take_response(index, result)
            if not self._open:
                return self._join(header)
            out = self._loop.create_future()
        self._last = header, out
        return out

    def _begin(self) -> int:
        self._responses.append(None)
        return len(self._responses) - 1

    def _watch(self, index: int, result: Awaitable[Response]) -> asyncio.Future[Response]:
        out = WatchedReply(loop=self._loop)
        if isinstance(result, WatchedReply):
            out.on_written = result.on_written
        self._open += 1
        # The handler's future stays its own: what the connection cancels is another one.
        asyncio.ensure_future(result, loop=self._loop).add_done_callback(
            lambda done: self._on_answered(index, out, done)
        )
        return out

    def _on_answered(self, index: int, out: asyncio.Future[Response], done: asyncio.Future[Response]) -> None:
        self._open -= 1
        is_last = self._last is not None and self._last[1] is out
        if done.cancelled():
            out.cancel()
        elif (error := done.exception()) is not None:
            if not out.done():
                out.set_exception(error)
        else:
            response = self._take_response(index, done.result())
            if not is_last and not out.done():
                out.set_result(response)
        if self._last is not None and not self._open:
            header, last = self._last
            if not last.done():
                last.set_result(self._join(header))

    def _take_response(self, index: int, response: Response) -> Response:
        if isinstance(response, Signal):
            self._closes = self._closes or response is CLOSE
            return response
        self._responses[index] = response if isinstance(response, bytes) else b"".join(response)
        return NO_RESPONSE

    def _join(self, header: RequestHeader) -> Response:
        if self._closes:
            return CLOSE
        responses = [one for one in self._responses if one is not None]
        return join_responses(header, responses) if responses else NO_RESPONSE
