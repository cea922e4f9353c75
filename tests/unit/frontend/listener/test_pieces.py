"""Answers that are written before they are whole: whose turn it is, slow readers, those that break off."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable

from penstock_frontend.listener.answers import CLOSE, WatchedReply
from penstock_frontend.listener.listener import Connection, ListenerLimits, Response
from support.listening import Answer, Run, connected, listening, metric, read_response, request
from support.waiting import eventually


def held_in(replies: list[WatchedReply]) -> Answer:
    def answer(_: Connection, frame: bytearray) -> Response | Awaitable[Response]:
        replies.append(WatchedReply(loop=asyncio.get_running_loop()))
        return replies[-1]

    return answer


def begin(reply: WatchedReply, number: int, total_bytes: int) -> None:
    reply.begin(total_bytes)
    reply.add(struct.pack(">i", number))


def test_pieces_leave_when_it_is_their_turn(run: Run) -> None:
    async def main() -> None:
        replies: list[WatchedReply] = []
        written: list[int] = []
        async with (
            listening(held_in(replies)) as (_, _h, endpoint, lifecycle),
            connected(endpoint) as (r, w),
        ):
            w.write(request(0) + request(1) + request(2))
            await eventually(lambda: len(replies) == 3, "the requests")
            for number, reply in enumerate(replies):
                reply.on_written = lambda number=number: written.append(number)
            begin(replies[1], 1, 12)
            replies[1].add(b"half")
            replies[2].set_result([b"\0\0\0\2"])
            begin(replies[0], 0, 8)
            assert await r.readexactly(8) == struct.pack(">ii", 8, 0), "it is not whole"
            assert not written
            replies[0].add(b"last")
            replies[0].set_result([])
            assert await r.readexactly(4) == b"last"
            assert await r.readexactly(12) == struct.pack(">ii", 12, 1) + b"half"
            assert written == [0]
            replies[1].add(b"rest")
            assert await r.readexactly(4) == b"rest"
            replies[1].set_result([])
            assert await read_response(r) == (2, b"")
            assert written == [0, 1, 2]
            assert metric(lifecycle, "penstock_kafka_request_seconds_count") == 3
            assert metric(lifecycle, "penstock_kafka_sent_bytes_total") == 12 + 16 + 8

    run(main())


def test_an_answer_that_breaks_off_ends_the_connection_and_nothing_follows(run: Run) -> None:
    async def main() -> None:
        replies: list[WatchedReply] = []
        async with listening(held_in(replies)) as (_, _h, endpoint, _l), connected(endpoint) as (r, w):
            w.write(request(0) + request(1))
            await eventually(lambda: len(replies) == 2, "the requests")
            replies[1].set_result([b"\0\0\0\1"])
            begin(replies[0], 0, 8)
            assert await r.readexactly(8) == struct.pack(">ii", 8, 0)
            replies[0].set_result(CLOSE)
            async with asyncio.timeout(60):
                assert await r.read() == b""

    run(main())


def test_an_answer_that_breaks_off_before_its_turn_is_not_begun(run: Run) -> None:
    async def main() -> None:
        replies: list[WatchedReply] = []
        async with listening(held_in(replies)) as (_, _h, endpoint, _l), connected(endpoint) as (r, w):
            w.write(request(0) + request(1))
            await eventually(lambda: len(replies) == 2, "the requests")
            begin(replies[1], 1, 8)
            replies[1].set_result(CLOSE)
            replies[0].set_result([b"\0\0\0\0"])
            assert await read_response(r) == (0, b"")
            async with asyncio.timeout(60):
                assert await r.read() == b""

    run(main())


def test_pieces_wait_for_a_slow_reader(run: Run) -> None:
    async def main() -> None:
        replies: list[WatchedReply] = []
        piece, count = bytes(64 * 1024), 400
        limits = ListenerLimits(write_buffer_bytes_max=256 * 1024)
        async with (
            listening(held_in(replies), limits) as (listener, _h, endpoint, _l),
            connected(endpoint) as (r, w),
        ):
            w.transport.pause_reading()  # type: ignore[attr-defined]
            w.write(request(0))
            await eventually(lambda: replies, "the request")
            (connection,) = listener.connections
            begin(replies[0], 0, 4 + count * len(piece))
            for _ in range(count):
                replies[0].add(piece)
                await asyncio.sleep(0)
            await eventually(lambda: connection._write_paused, "a pause")
            assert replies[0].pieces, "what the socket does not take is not written"
            assert connection._transport.get_write_buffer_size() <= 256 * 1024 + len(piece)
            replies[0].set_result([])
            w.transport.resume_reading()  # type: ignore[attr-defined]
            assert await read_response(r) == (0, piece * count)

    run(main())


def test_a_client_that_goes_in_the_middle_leaves_nothing(run: Run) -> None:
    async def main() -> None:
        replies: list[WatchedReply] = []
        async with listening(held_in(replies)) as (listener, _h, endpoint, lifecycle):
            async with connected(endpoint) as (r, w):
                w.write(request(0))
                await eventually(lambda: replies, "the request")
                begin(replies[0], 0, 12)
                await r.readexactly(8)
            await eventually(lambda: not listener.connections, "the end of the connection")
            replies[0].add(b"half")
            replies[0].set_result(CLOSE)
            await asyncio.sleep(0)
            assert metric(lifecycle, "penstock_unhandled_errors_total") == 0

    run(main())
