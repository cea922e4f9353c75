"""The Kafka listener against raw sockets: order, back-pressure, garbage, the end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import struct
import time
from collections.abc import Awaitable

import pytest
from prometheus_client import generate_latest

from penstock_core.errors import ErrorCode, InvariantBroken, PenstockError
from penstock_core.security.principal import Identity
from penstock_frontend.listener.admission import ConnectionCaps
from penstock_frontend.listener.listener import (
    CLOSE,
    NO_RESPONSE,
    Connection,
    ListenerLimits,
    Response,
)
from penstock_kafka.wire.frames import parse_request_header
from penstock_kafka.wire.produce import ProducePartition, ProduceSkim, encode_produce_request, skim_produce
from penstock_runtime.addresses import StartupError
from support.listening import (
    PASSER_BY,
    Answer,
    Run,
    closed_by_peer,
    connected,
    echo,
    listening,
    metric,
    passed_by,
    read_response,
    request,
)
from support.waiting import eventually


def test_thousand_pipelined_requests_are_answered_in_order(run: Run) -> None:
    async def main() -> None:
        seed = random.randrange(2**32)
        print("seed", seed)
        rng = random.Random(seed)

        async def later(frame: bytearray) -> Response:
            await asyncio.sleep(rng.random() / 100)
            return [bytes(frame[4:8])]

        def answer(connection: Connection, frame: bytearray) -> Response | Awaitable[Response]:
            assert connection.inflight_count <= 256
            kind = rng.randrange(4)
            if kind == 0:
                return bytes(frame[4:8])
            if kind == 1:
                return (frame[4:8],)
            if kind == 2:
                future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
                asyncio.get_running_loop().call_later(
                    rng.random() / 100, future.set_result, [bytes(frame[4:8])]
                )
                return future
            return later(frame)

        async with listening(answer) as (_, handler, endpoint, lifecycle), connected(endpoint) as (r, w):
            w.write(b"".join(request(i) for i in range(1000)))
            assert [(await read_response(r))[0] for _ in range(1000)] == list(range(1000))
            assert [struct.unpack_from(">i", f, 4)[0] for f in handler.frames] == list(range(1000))
            assert metric(lifecycle, "penstock_kafka_request_seconds_count") == 1000
            assert b'api="Metadata"' in generate_latest(lifecycle.registry)

    run(main())


def test_frames_cut_anywhere_arrive_whole(run: Run) -> None:
    async def main() -> None:
        seed = random.randrange(2**32)
        print("seed", seed)
        rng = random.Random(seed)
        bodies = [
            rng.randbytes(rng.choice([0, 1, 3, 100, 65_528, 65_536, 300_000, 3_000_000])) for _ in range(25)
        ]
        stream = b"".join(request(i, body) for i, body in enumerate(bodies))
        async with listening(echo) as (_, handler, endpoint, _l), connected(endpoint) as (r, w):

            async def send() -> None:
                pos = 0
                while pos < len(stream):
                    size = rng.choice([1, 2, 3, 5, 1000, 65_536, 200_000, 1_000_000])
                    w.write(stream[pos : pos + size])
                    pos += size
                    await w.drain()
                    if rng.random() < 0.3:
                        await asyncio.sleep(0.001)

            sender = asyncio.create_task(send())
            for i, body in enumerate(bodies):
                assert await read_response(r) == (i, body)
            await sender
            assert [f[8:] for f in handler.frames] == bodies

    run(main())


@pytest.mark.parametrize(
    ("garbage", "word"),
    [
        (b"\xff\xff\xff\xff", "frame_length"),
        (b"\x00\x00\x00\x00", "frame_length"),
        (b"\x7f\xff\xff\xff", "frame_length"),
        (b"\x00\x00\x00\x07abcdefg", "frame_length"),
        (b"GET / HTTP/1.1\r\n\r\n", "frame_length"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "frame_length"),
    ],
)
def test_garbage_closes_the_connection_and_is_counted(run: Run, garbage: bytes, word: str) -> None:
    async def main() -> None:
        async with listening(echo) as (_, handler, endpoint, lifecycle), connected(endpoint) as (r, w):
            w.write(request(7) + garbage)
            assert await read_response(r) == (7, b"")
            assert await closed_by_peer(r)
            assert len(handler.frames) == 1
            assert metric(lifecycle, "penstock_kafka_bad_frames_total") == 1
            assert f'reason="{word}"'.encode() in generate_latest(lifecycle.registry)

    run(main())


def test_a_huge_announced_length_takes_no_memory(run: Run) -> None:
    async def main() -> None:
        async with listening(echo) as (listener, _, endpoint, _l), connected(endpoint) as (_r, w):
            w.write(struct.pack(">i", 100 * 1024 * 1024) + bytes(10))

            def all_came() -> bool:
                return any(c._partial is not None and c._partial.filled == 10 for c in listener.connections)

            await eventually(all_came, "the beginning of the frame")
            (connection,) = listener.connections
            assert connection._partial is not None
            assert connection._partial.held_bytes <= 1024 * 1024

    run(main())


def test_a_slow_reader_stops_the_handling_of_its_requests(run: Run) -> None:
    async def main() -> None:
        big = bytes(200_000)
        handled_while_paused: list[bool] = []

        def answer(connection: Connection, frame: bytearray) -> Response:
            if int.from_bytes(frame[4:8], "big") == PASSER_BY:
                return [frame[4:8]]
            handled_while_paused.append(connection._write_paused)
            return [frame[4:8], big]

        limits = ListenerLimits(write_buffer_bytes_max=256 * 1024)
        async with (
            listening(answer, limits) as (listener, _, endpoint, _l),
            connected(endpoint) as (r, w),
        ):
            w.transport.pause_reading()  # type: ignore[attr-defined]
            for i in range(500):
                w.write(request(i))
            await eventually(lambda: any(c._write_paused for c in listener.connections), "a pause")
            await passed_by(endpoint)
            assert 0 < len(handled_while_paused) < 200
            w.transport.resume_reading()  # type: ignore[attr-defined]
            for i in range(500):
                assert await read_response(r) == (i, big)
            assert handled_while_paused == [False] * 500

    run(main())


def held_in(futures: list[asyncio.Future[Response]]) -> Answer:
    """Answers of which each is a future of this list, but for the passer-by's."""

    def answer(_: Connection, frame: bytearray) -> Response | Awaitable[Response]:
        if int.from_bytes(frame[4:8], "big") == PASSER_BY:
            return [frame[4:8]]
        futures.append(asyncio.get_running_loop().create_future())
        return futures[-1]

    return answer


def test_reading_stops_at_the_cap_of_unanswered_requests(run: Run) -> None:
    async def main() -> None:
        futures: list[asyncio.Future[Response]] = []
        limits = ListenerLimits(inflight_requests_max=10)
        async with (
            listening(held_in(futures), limits) as (_, _h, endpoint, _l),
            connected(endpoint) as (r, w),
        ):
            w.write(b"".join(request(i) for i in range(25)))
            await eventually(lambda: len(futures) >= 10, "ten requests at hand")
            await passed_by(endpoint)
            assert len(futures) == 10
            for i in reversed(range(10)):
                futures[i].set_result([i.to_bytes(4, "big")])
            assert [(await read_response(r))[0] for _ in range(10)] == list(range(10))
            await eventually(lambda: len(futures) >= 20, "ten more")
            await passed_by(endpoint)
            assert len(futures) == 20
            for i in range(10, 20):
                futures[i].set_result([i.to_bytes(4, "big")])
            await eventually(lambda: len(futures) == 25, "the rest")
            for i in range(20, 25):
                futures[i].set_result([i.to_bytes(4, "big")])
            assert [(await read_response(r))[0] for _ in range(15)] == list(range(10, 25))

    run(main())


def test_byte_caps_of_one_connection_and_of_one_address(run: Run) -> None:
    async def main() -> None:
        futures: list[asyncio.Future[Response]] = []
        limits = ListenerLimits(inflight_bytes_max=250_000, frames_bytes_max=1_200_000)
        async with (
            listening(held_in(futures), limits) as (listener, handler, endpoint, _l),
            connected(endpoint) as (r1, w1),
            connected(endpoint) as (r2, w2),
        ):
            for i in range(4):
                w1.write(request(i, bytes(100_000)))
            await eventually(lambda: len(futures) >= 3, "three requests at hand")
            await w1.drain()
            await passed_by(endpoint)
            assert len(futures) == 3
            w2.write(request(9, bytes(200_000)))
            await eventually(lambda: any(c._starved for c in listener.connections), "a wait for memory")
            await passed_by(endpoint)
            assert len(futures) == 3
            # It is the second client that waits; the first is at its own cap.
            (first,) = {c for c in handler.connections if c.inflight_count}
            assert first._inflight_bytes >= 250_000
            assert not first._starved
            futures[0].set_result([(0).to_bytes(4, "big")])
            futures[1].set_result([(1).to_bytes(4, "big")])
            assert [(await read_response(r1))[0] for _ in range(2)] == [0, 1]
            for count in (4, 5):
                await eventually(lambda: len(futures) >= count, f"request {count}")  # noqa: B023
                for i, future in enumerate(futures):
                    if not future.done():
                        future.set_result([i.to_bytes(4, "big")])
            assert len(futures) == 5
            await read_response(r1)
            await read_response(r1)
            await read_response(r2)

    run(main())


def test_disconnect_in_flight_cancels_coroutines_and_leaves_futures(run: Run) -> None:
    async def main() -> None:
        cancelled = asyncio.Event()
        gone = asyncio.Event()
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

        async def wait() -> Response:
            never: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
            try:
                return await never
            except asyncio.CancelledError:
                cancelled.set()
                raise

        def answer(connection: Connection, frame: bytearray) -> Awaitable[Response]:
            connection.on_closed(gone.set)
            return future if frame[7] == 0 else wait()

        async with listening(answer) as (listener, handler, endpoint, _):
            async with connected(endpoint) as (_r, w):
                w.write(request(0) + request(1))
                await eventually(lambda: len(handler.frames) == 2, "both requests at hand")
            await gone.wait()
            await cancelled.wait()
            assert not future.done()
            future.set_result([b"late"])
            await asyncio.sleep(0)
            assert not listener.connections

    run(main())


def test_a_client_that_closed_is_gone_though_what_it_sent_is_not_read_yet(run: Run) -> None:
    async def main() -> None:
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        seen: list[Connection] = []

        def answer(connection: Connection, _: bytearray) -> Awaitable[Response]:
            seen.append(connection)
            return future

        limits = ListenerLimits(inflight_requests_max=1)
        async with listening(answer, limits=limits) as (_, handler, endpoint, _):
            async with connected(endpoint) as (_r, w):
                # The second is not looked at before the first is answered: reading stops.
                w.write(request(0) + request(1))
                await eventually(lambda: len(handler.frames) == 1, "the first at hand")
                assert seen[0].is_there()
                w.write(request(2))
            await eventually(lambda: not seen[0].is_there(), "the end of its connection heard of")
            assert len(handler.frames) == 1
            future.set_result([b"late"])

    run(main())


def test_close_comes_after_earlier_responses(run: Run) -> None:
    async def main() -> None:
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

        def answer(_: Connection, frame: bytearray) -> Response | Awaitable[Response]:
            if frame[7] == 0:
                return future
            return {1: NO_RESPONSE, 3: CLOSE}.get(frame[7], [frame[4:8]])

        async with listening(answer) as (_, handler, endpoint, _l), connected(endpoint) as (r, w):
            w.write(b"".join(request(i) for i in range(6)))
            await eventually(lambda: len(handler.frames) == 6, "all requests at hand")
            future.set_result([bytes(4)])
            assert [(await read_response(r))[0] for _ in range(2)] == [0, 2]
            assert await closed_by_peer(r)

    run(main())


@pytest.mark.parametrize("how", ["sync", "coroutine", "future", "type"])
def test_a_failing_handler_closes_only_its_connection(run: Run, how: str) -> None:
    async def main() -> None:
        async def bad() -> Response:
            raise PenstockError(ErrorCode.INVALID_REQUEST, "no")

        def answer(_: Connection, frame: bytearray) -> Response | Awaitable[Response]:
            if frame[7] == 0:
                return [frame[4:8]]
            if how == "sync":
                raise KeyError("bug")
            if how == "coroutine":
                return bad()
            if how == "type":
                return 5  # type: ignore[return-value]
            future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
            future.set_exception(ValueError("bug"))
            return future

        async with (
            listening(answer) as (_, _h, endpoint, lifecycle),
            connected(endpoint) as (r, w),
            connected(endpoint) as (r2, w2),
        ):
            w.write(request(0) + request(1))
            assert await read_response(r) == (0, b"")
            assert await closed_by_peer(r)
            w2.write(request(0))
            assert await read_response(r2) == (0, b"")
            assert not lifecycle.failed.is_set()

    run(main())


def test_a_broken_invariant_ends_the_role(run: Run) -> None:
    async def main() -> None:
        async def bad() -> Response:
            raise InvariantBroken("impossible")

        async with (
            listening(lambda c, f: bad()) as (_, _h, endpoint, lifecycle),
            connected(endpoint) as (r, w),
        ):
            w.write(request(0))
            assert await closed_by_peer(r)
            assert lifecycle.failed.is_set()
            assert lifecycle.exit_code == 70

    run(main())


def test_stop_answers_what_is_at_hand(run: Run) -> None:
    async def main() -> None:
        done = asyncio.Event()

        async def slow(frame: bytearray) -> Response:
            await done.wait()
            return [bytes(frame[4:8])]

        async with (
            listening(lambda c, f: slow(f)) as (listener, handler, endpoint, _l),
            connected(endpoint) as (r, w),
        ):
            w.write(request(1) + request(2))
            await eventually(lambda: len(handler.frames) == 2, "both requests at hand")
            (connection,) = listener.connections
            stopping = asyncio.create_task(listener.stop(timeout_ms=60_000))
            await eventually(lambda: connection._close_when_empty, "the stop")
            assert not stopping.done()
            done.set()
            await stopping
            assert [(await read_response(r))[0] for _ in range(2)] == [1, 2]
            assert await closed_by_peer(r)
            with pytest.raises(OSError):
                await asyncio.open_connection(endpoint.host, endpoint.port)

    run(main())


def test_too_many_connections_are_refused_and_counted(run: Run) -> None:
    async def main() -> None:
        limits = ListenerLimits(caps=ConnectionCaps(per_address_max=2))
        async with (
            listening(echo, limits) as (_, _h, endpoint, lifecycle),
            connected(endpoint) as (r1, w1),
            connected(endpoint),
            connected(endpoint) as (r3, _w3),
        ):
            assert await closed_by_peer(r3)
            w1.write(request(1))
            assert await read_response(r1) == (1, b"")
            assert metric(lifecycle, "penstock_kafka_connections_refused_total") == 1
            assert metric(lifecycle, "penstock_kafka_connections") == 2

    run(main())


@pytest.mark.parametrize("sent", [b"", request(1)[:3], request(1, bytes(100))[:50]])
def test_silence_in_the_middle_of_a_request_is_bounded(run: Run, sent: bytes) -> None:
    async def main() -> None:
        limits = ListenerLimits(first_request_timeout_ms=200, frame_timeout_ms=200)
        async with listening(echo, limits) as (_, _h, endpoint, lifecycle), connected(endpoint) as (r, w):
            w.write(sent)
            assert await closed_by_peer(r)
            assert metric(lifecycle, "penstock_kafka_bad_frames_total") == 1

    run(main())


def test_who_is_silent_goes_though_the_look_at_all_takes_many_turns(run: Run) -> None:
    """A loop that is slow has time for few in each turn, and others have come and gone before it is through."""

    async def main() -> None:
        limits = ListenerLimits(first_request_timeout_ms=200)
        async with contextlib.AsyncExitStack() as stack:
            listener, _, endpoint, lifecycle = await stack.enter_async_context(listening(echo, limits))
            ticks = itertools.count()
            listener.turns.clock_s = lambda: float(next(ticks))  # whatever is done takes a second
            silent = [await stack.enter_async_context(connected(endpoint)) for _ in range(170)]
            r, w = await stack.enter_async_context(connected(endpoint))
            w.write(request(1, b"x"))
            assert await read_response(r) == (1, b"x")
            for reader, _ in silent:
                assert await closed_by_peer(reader)
            assert metric(lifecycle, "penstock_kafka_bad_frames_total") == 170
            w.write(request(2, b"y"))
            assert await read_response(r) == (2, b"y")

    run(main())


V1 = b"PROXY TCP4 10.1.2.3 10.9.9.9 5555 9092\r\n"
V2 = (
    b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0f"
    + bytes([10, 1, 2, 3, 10, 9, 9, 9])
    + struct.pack(">HH", 5555, 9092)
    + b"\x04\x00\x00"
)


@pytest.mark.parametrize("header", [V1, V2])
@pytest.mark.parametrize("cut", [0, 1, 5, 20])
def test_the_proxy_protocol_names_the_client(run: Run, header: bytes, cut: int) -> None:
    async def main() -> None:
        async with (
            listening(echo, proxy_protocol=True, proxy_from=("127.0.0.0/8",)) as (
                listener,
                handler,
                endpoint,
                _l,
            ),
            connected(endpoint) as (r, w),
        ):
            w.write(header[:cut])
            await w.drain()
            assert not listener.connections
            assert not handler.frames
            w.write(header[cut:] + request(1, b"x"))
            assert await read_response(r) == (1, b"x")
            connection = handler.connections[0]
            assert (connection.peer_host, connection.peer_port) == ("10.1.2.3", 5555)
            assert (connection.local_host, connection.local_port) == ("10.9.9.9", 9092)

    run(main())


def test_without_the_expected_proxy_header_the_connection_is_closed(run: Run) -> None:
    async def main() -> None:
        async with (
            listening(echo, proxy_protocol=True, proxy_from=("127.0.0.0/8",)) as (
                _,
                handler,
                endpoint,
                lifecycle,
            ),
            connected(endpoint) as (r, w),
        ):
            w.write(request(1))
            assert await closed_by_peer(r)
            assert not handler.frames
            assert metric(lifecycle, "penstock_kafka_bad_frames_total") == 1

    run(main())


def test_a_taken_port_and_an_open_one_are_named(run: Run) -> None:
    async def main() -> None:
        async with listening(echo) as (_, _h, endpoint, _l):
            with pytest.raises(StartupError, match=f"listener PROXY.*port {endpoint.port} is taken"):
                async with listening(echo, bind=endpoint.address):
                    pass
        with pytest.raises(StartupError, match="allow_insecure_bind"):
            async with listening(echo, bind="0.0.0.0:0"):
                pass

    run(main())


def large_produce(record_bytes: int, partitions: int = 2) -> bytes:
    """A Produce request with its length."""
    records = memoryview(bytes(record_bytes))
    items = [ProducePartition("t", None, index, records) for index in range(partitions)]
    parts = encode_produce_request(9, 7, "bad", ProduceSkim(None, -1, 30_000, items))
    frame = b"".join(bytes(part) for part in parts)
    return struct.pack(">i", len(frame)) + frame


def test_a_large_produce_of_who_may_write_nowhere_is_not_held(run: Run) -> None:
    async def main() -> None:
        asked: list[str] = []

        def may_write(who: Identity) -> bool:
            asked.append(who.host)
            return False

        most = 0

        def answer(connection: Connection, frame: bytearray) -> Response:
            nonlocal most
            if frame[1]:
                return [frame[4:8]]
            most = max(most, len(frame))
            found = skim_produce(frame, parse_request_header(frame))
            return [frame[4:8], b"".join(bytes([p.partition, len(p.records)]) for p in found.partitions)]

        async with listening(answer, may_write=may_write) as (listener, _, endpoint, _):
            for first in (3, 4, 5, 6, 100_000):
                async with connected(endpoint) as (reader, writer):
                    data = large_produce(4_000_000)
                    writer.write(data[:first])
                    await writer.drain()
                    await passed_by(endpoint)
                    writer.write(data[first:] + large_produce(10))
                    await writer.drain()
                    assert await read_response(reader) == (7, b"\x00\x00\x01\x00")
                    # A small one is not asked about: its handler decides, with its records.
                    assert await read_response(reader) == (7, b"\x00\x0a\x01\x0a")
                    assert listener.memory.held_bytes == 0
            assert most < 200
            assert asked == ["127.0.0.1"] * 5

    run(main())


def test_a_denied_frame_that_is_no_produce_closes_and_one_of_who_may_write_is_held(run: Run) -> None:
    async def main() -> None:
        async with listening(echo, may_write=lambda _: False) as (_, _, endpoint, lifecycle):
            async with connected(endpoint) as (reader, writer):
                writer.write(struct.pack(">ihhih", 1_000_000, 0, 9, 1, -1) + b"\xff" * 100_000)
                assert await closed_by_peer(reader)
            assert metric(lifecycle, "penstock_kafka_bad_frames_total") == 1
        async with (
            listening(echo, may_write=lambda _: True) as (_, _, endpoint, _),
            connected(endpoint) as (reader, writer),
        ):
            body = bytes(1_000_000)
            writer.write(request(7, body, api_key=0))
            assert await read_response(reader) == (7, body)

    run(main())


def test_who_is_denied_gets_all_answers_in_order_while_others_are_served(run: Run) -> None:
    async def main() -> None:
        def answer(connection: Connection, frame: bytearray) -> Response:
            if frame[1] == 11:
                connection.was_denied()
            return [bytes(frame[4:8])]

        async with (
            listening(answer) as (_, _, endpoint, _),
            connected(endpoint) as (reader, writer),
            connected(endpoint) as (other, to_other),
        ):
            writer.write(b"".join(request(n, api_key=11) for n in range(300)))
            assert (await read_response(reader))[0] == 0
            to_other.write(request(1))
            assert (await read_response(other))[0] == 1
            for n in range(1, 300):
                assert (await read_response(reader))[0] == n

    run(main())


def test_join_groups_of_a_connection_wait_a_few_at_a_time(run: Run) -> None:
    async def main() -> None:
        waiting: list[asyncio.Future[Response]] = []

        def answer(connection: Connection, frame: bytearray) -> Response | Awaitable[Response]:
            if frame[1] != 11:
                return [bytes(frame[4:8])]
            waiting.append(asyncio.get_running_loop().create_future())
            return waiting[-1]

        async with listening(answer) as (_, handler, endpoint, _), connected(endpoint) as (reader, writer):
            writer.write(b"".join(request(n, api_key=11) for n in range(20)) + request(20))
            await eventually(lambda: len(waiting) == 5, "five of them are handed over")
            await passed_by(endpoint)
            assert len(handler.frames) == 5 + 3  # and the passer-by's
            for n in range(20):
                await eventually(lambda n=n: len(waiting) > n, "the next one is")  # type: ignore[misc]
                assert len(waiting) <= n + 5
                waiting[n].set_result([struct.pack(">i", n)])
                assert (await read_response(reader))[0] == n
            assert (await read_response(reader))[0] == 20

    run(main())


def test_who_is_told_to_wait_is_not_read_before(run: Run) -> None:
    """Not by a part of a millisecond either, which is what event loops count in."""

    async def main() -> None:
        told_s: list[float] = []
        waited_s: list[float] = []

        def answer(connection: Connection, frame: bytearray) -> Response:
            if told_s:
                waited_s.append(time.perf_counter() - told_s[-1])
            while time.perf_counter() * 1000 % 1 < 0.8:
                pass
            told_s.append(time.perf_counter())
            connection.mute(3)
            return echo(connection, frame)

        async with listening(answer) as (_, _, endpoint, _), connected(endpoint) as (reader, writer):
            for number in range(50):
                writer.write(request(number))
                assert (await read_response(reader))[0] == number
        assert len(waited_s) == 49
        assert min(waited_s) >= 0.003

    run(main())
