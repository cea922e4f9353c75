"""Letting clients in: caps by the real peer, the PROXY header by exactly its bytes, and nobody held up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import socket
import struct
from typing import Any

import pytest

from penstock_frontend.authorizer import Principal
from penstock_frontend.listener import descriptors, doorway
from penstock_frontend.listener.admission import ConnectionCaps
from penstock_frontend.listener.listener import Connection, ListenerLimits, Response
from penstock_frontend.listener.proxy_protocol import take_header_bytes
from support.listening import (
    Handler,
    Run,
    closed_by_peer,
    connected,
    echo,
    listening,
    metric,
    read_response,
    request,
)
from support.waiting import eventually

V1 = b"PROXY TCP4 10.1.2.3 10.9.9.9 5555 9092\r\n"
V1_UNKNOWN = b"PROXY UNKNOWN\r\n"
V2 = (
    b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0f"
    + bytes([10, 1, 2, 3, 10, 9, 9, 9])
    + struct.pack(">HH", 5555, 9092)
    + b"\x04\x00\x00"
)
V2_LOCAL = b"\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00"


@pytest.mark.parametrize("header", [V1, V1_UNKNOWN, V2, V2_LOCAL])
def test_of_what_follows_a_header_nothing_is_taken(header: bytes) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(50):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            behind = b"\x16\x03\x01 then TLS\r\n"
            rest, data, found = header + behind, b"", None
            while found is None:
                size = rng.randrange(1, 30)
                part, rest = rest[:size], rest[size:]
                theirs.sendall(part)
                data, found = take_header_bytes(ours, data)
            theirs.sendall(rest)
            assert data == header
            assert ours.recv(100) == behind


def test_a_header_from_an_address_that_is_no_balancer_ends_the_connection(run: Run) -> None:
    async def main() -> None:
        async with listening(echo, proxy_protocol=True, proxy_from=("127.0.0.9/32",)) as (
            _,
            handler,
            where,
            life,
        ):
            with contextlib.suppress(ConnectionResetError):  # it may be as quick as that
                async with connected(where, "127.0.0.8") as (r, w):
                    w.write(V2 + request(1))
                    assert await closed_by_peer(r)
            await eventually(lambda: metric(life, "penstock_kafka_bad_frames_total") == 1, "the refusal")
            assert not handler.frames
            assert metric(life, "penstock_kafka_bad_frames_total") == 1
            async with connected(where, "127.0.0.9") as (r, w):
                w.write(V2 + request(1))
                assert (await read_response(r))[0] == 1

    run(main())


def test_a_header_that_does_not_come_ends_the_connection(run: Run) -> None:
    async def main() -> None:
        limits = ListenerLimits(first_request_timeout_ms=200)
        settings: dict[str, Any] = {"proxy_protocol": True, "proxy_from": ("127.0.0.1",)}
        async with listening(echo, limits, **settings) as (_, _h, where, life):
            for sent in (b"", V1[:20], V2[:15]):
                async with connected(where) as (r, w):
                    w.write(sent)
                    assert await closed_by_peer(r)
            assert metric(life, "penstock_kafka_bad_frames_total") == 3

    run(main())


def test_behind_a_balancer_caps_count_the_headers_address(run: Run) -> None:
    async def main() -> None:
        limits = ListenerLimits(caps=ConnectionCaps(per_address_max=1))
        settings: dict[str, Any] = {"proxy_protocol": True, "proxy_from": ("127.0.0.1",)}
        other = V1.replace(b"10.1.2.3", b"10.1.2.4")
        async with (
            listening(echo, limits, **settings) as (_, _h, where, life),
            connected(where) as (r1, w1),
            connected(where) as (r2, w2),
            connected(where) as (r3, w3),
        ):
            w1.write(V1 + request(1))
            assert (await read_response(r1))[0] == 1
            w2.write(V1 + request(2))
            assert await closed_by_peer(r2)
            w3.write(other + request(3))
            assert (await read_response(r3))[0] == 3
            assert metric(life, "penstock_kafka_connections_refused_total") == 1

    run(main())


def test_a_full_listener_closes_an_idle_connection_of_whoever_has_most(run: Run) -> None:
    async def main() -> None:
        limits = ListenerLimits(caps=ConnectionCaps(connections_max=4))
        async with contextlib.AsyncExitStack() as stack:
            _, _h, where, _l = await stack.enter_async_context(listening(echo, limits))
            greedy = [await stack.enter_async_context(connected(where, "127.0.0.7")) for _ in range(3)]
            honest = await stack.enter_async_context(connected(where, "127.0.0.8"))
            for n, (r, w) in enumerate([greedy[0], greedy[2], honest]):
                w.write(request(n))
                assert (await read_response(r))[0] == n
            new = await stack.enter_async_context(connected(where, "127.0.0.9"))
            new[1].write(request(9))
            assert (await read_response(new[0]))[0] == 9
            # It said nothing yet; the others have been served.
            assert await closed_by_peer(greedy[1][0])
            for n, (r, w) in enumerate([greedy[0], greedy[2], honest, new]):
                w.write(request(n))
                assert (await read_response(r))[0] == n
            again = await stack.enter_async_context(connected(where, "127.0.0.7"))
            assert await closed_by_peer(again[0])

    run(main())


def test_clients_leave_descriptors_to_files(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has most connections makes room, or is refused, while there are some for what is no client."""

    async def main() -> None:
        lowest = os.open(os.devnull, os.O_RDONLY)
        os.close(lowest)
        # What listens has one, and each connection two: the client is of this process too.
        monkeypatch.setattr(doorway, "first_reserved", lambda: lowest + 10)
        async with contextlib.AsyncExitStack() as stack:
            _, _h, where, life = await stack.enter_async_context(listening(echo))
            greedy: list[asyncio.StreamReader] = []
            while metric(life, "penstock_kafka_connections_refused_total") == 0:
                # Who is refused may hear of it before the dial has been seen to succeed.
                with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                    reader, writer = await stack.enter_async_context(connected(where, "127.0.0.7"))
                    writer.write(request(1))
                    await read_response(reader)
                    greedy.append(reader)
            assert 1 <= len(greedy) <= 5

            async def another_is_answered() -> bool:
                # Who could make room is looked for ten times a second.
                with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                    async with connected(where, "127.0.0.9") as (r, w):
                        w.write(request(9))
                        return (await read_response(r))[0] == 9
                return False

            async with asyncio.timeout(60):
                while not await another_is_answered():
                    pass
            # Which of them is no matter: within a millisecond they were used at the same time.
            looks = [asyncio.ensure_future(closed_by_peer(reader)) for reader in greedy]
            ended, others = await asyncio.wait(looks, timeout=60, return_when=asyncio.FIRST_COMPLETED)
            for look in others:
                look.cancel()
            assert ended and all(look.result() for look in ended)

    run(main())


def test_a_quarter_of_the_descriptors_is_kept_for_files_and_no_more_than_they_need() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    kept = soft - descriptors.first_reserved() if soft != resource.RLIM_INFINITY else 0
    assert kept in (0, 1_280, soft // 4)
    assert kept <= soft // 4


@pytest.mark.parametrize("proxied", [False, True])
def test_of_those_that_say_nothing_the_oldest_go_and_nobody_else(run: Run, proxied: bool) -> None:
    """With a header that is due they have not even been let in."""
    settings: dict[str, Any] = {"proxy_protocol": True, "proxy_from": ("127.0.0.0/8",)} if proxied else {}
    head = V2 if proxied else b""

    async def main() -> None:
        limits = ListenerLimits(caps=ConnectionCaps(strangers_max=5))
        async with contextlib.AsyncExitStack() as stack:
            _, _h, where, life = await stack.enter_async_context(listening(echo, limits, **settings))
            honest = [await stack.enter_async_context(connected(where, "127.0.0.8")) for _ in range(2)]
            for n, (r, w) in enumerate(honest):
                w.write(head + request(n))
                assert (await read_response(r))[0] == n
            greedy = [await stack.enter_async_context(connected(where, "127.0.0.7")) for _ in range(12)]
            for r, _ in greedy[:7]:
                assert await closed_by_peer(r)
            new = await stack.enter_async_context(connected(where, "127.0.0.9"))
            assert await closed_by_peer(greedy[7][0])
            new[1].write(head + request(9))
            assert (await read_response(new[0]))[0] == 9
            for n, (r, w) in enumerate([*honest, new]):
                w.write(request(20 + n))
                assert (await read_response(r))[0] == 20 + n
            assert metric(life, "penstock_kafka_connections_refused_total") == 8
            for n, (r, w) in enumerate(greedy[8:]):
                w.write(head + request(n))
                assert (await read_response(r))[0] == n

    run(main())


def test_of_one_network_of_ipv6_the_oldest_go_and_not_those_of_an_address_with_two(run: Run) -> None:
    """Else whoever has a /64 comes from ever new addresses, and those who share one make room for him."""

    async def main() -> None:
        limits = ListenerLimits(caps=ConnectionCaps(strangers_max=5))
        async with contextlib.AsyncExitStack() as stack:
            listener, _h, where, _l = await stack.enter_async_context(
                listening(echo, limits, proxy_protocol=True, proxy_from=("127.0.0.0/8",))
            )

            async def come(source: str, balancer: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
                r, w = await stack.enter_async_context(connected(where, balancer))
                before = {*listener.connections}
                kind = "TCP6" if ":" in source else "TCP4"
                to = "2001:db8::99" if ":" in source else "10.9.9.9"
                w.write(f"PROXY {kind} {source} {to} 5555 9092\r\n".encode())
                await eventually(lambda: {*listener.connections} - before, "it is here")
                return r, w

            honest = [await come("192.0.2.1", "127.0.0.8") for _ in range(2)]
            greedy = [await come(f"2001:db8::{n + 1:x}", f"127.0.1.{n + 1}") for n in range(6)]
            for r, _ in greedy[:3]:
                assert await closed_by_peer(r)
            for n, (r, w) in enumerate([*honest, *greedy[3:]]):
                w.write(request(n))
                assert (await read_response(r))[0] == n
            assert {each.peer_host for each in listener.connections} == {
                "192.0.2.1",
                "2001:db8::4",
                "2001:db8::5",
                "2001:db8::6",
            }

    run(main())


def test_who_has_to_go_before_it_was_looked_at_is_closed_and_no_longer_counted(run: Run) -> None:
    async def main() -> None:
        limits = ListenerLimits(caps=ConnectionCaps(strangers_max=0))
        async with listening(echo, limits) as (_, _h, where, life):
            for _ in range(5):
                async with connected(where) as (r, _w):
                    assert await closed_by_peer(r)
            assert metric(life, "penstock_kafka_connections_refused_total") == 5

    run(main())


def test_the_handler_sees_no_frame_before_the_doorkeeper_admits(run: Run) -> None:
    def ask(connection: Connection, frame: bytearray) -> Response:
        if frame[8:] == b"open":
            connection.admit(Principal("User", "someone"))
        return [frame[4:8], b"door"]

    async def main() -> None:
        async with (
            listening(echo, doorkeeper=Handler(ask)) as (_, handler, where, _l),
            connected(where) as (r, w),
        ):
            w.write(request(1, b"closed") + request(2, b"open") + request(3, b"body"))
            assert [await read_response(r) for _ in range(3)] == [(1, b"door"), (2, b"door"), (3, b"body")]
            assert [f[8:] for f in handler.frames] == [b"body"]
            assert str(handler.connections[0].principal) == "User:someone"

    run(main())


def test_slow_requests_of_one_read_leave_turns_to_others(run: Run) -> None:
    order: list[int] = []

    def slow(_: Connection, frame: bytearray) -> Response:
        number = int.from_bytes(frame[4:8], "big")
        order.append(number)
        if number < 100:
            sum(range(100_000))
        return [frame[4:8], b""]

    async def main() -> None:
        async with (
            listening(slow) as (_, _h, where, _l),
            connected(where) as (r1, w1),
            connected(where) as (r2, w2),
        ):
            w1.write(b"".join(request(n) for n in range(60)))
            await eventually(lambda: bool(order), "the first request")
            w2.write(request(1000))
            assert (await read_response(r2))[0] == 1000
            assert [(await read_response(r1))[0] for _ in range(60)] == list(range(60))
            assert order.index(1000) < 60
            assert [n for n in order if n < 100] == list(range(60))

    run(main())


def test_a_request_that_drips_is_ended_though_it_never_stops(run: Run) -> None:
    async def main() -> None:
        limits = ListenerLimits(frame_timeout_ms=500, first_request_timeout_ms=60_000)
        async with listening(echo, limits) as (_, _h, where, life), connected(where) as (r, w):
            w.write(request(1, bytes(1_000_000))[:1000])

            async def drip() -> None:
                while True:
                    w.write(bytes(10))
                    await asyncio.sleep(0.05)

            dripping = asyncio.create_task(drip())
            assert await closed_by_peer(r)
            dripping.cancel()
            assert metric(life, "penstock_kafka_bad_frames_total") == 1

    run(main())


def test_announced_frames_take_no_memory_and_a_received_one_only_what_came(run: Run) -> None:
    async def main() -> None:
        limits = ListenerLimits(frames_bytes_max=8 * 1024 * 1024)
        async with contextlib.AsyncExitStack() as stack:
            listener, handler, where, _l = await stack.enter_async_context(listening(echo, limits))
            for _ in range(6):
                _r, w = await stack.enter_async_context(connected(where, "127.0.0.66"))
                w.write(request(1, bytes(60_000_000))[:12])
            await eventually(
                lambda: len([c for c in listener.connections if c.frame_length]) == 6, "announced"
            )
            assert listener.memory.held_bytes <= 6 * 256 * 1024
            r, w = await stack.enter_async_context(connected(where))
            w.write(request(2, bytes(3_000_000)))
            assert (await read_response(r))[1] == bytes(3_000_000)
            assert handler.frames

    run(main())


def test_of_those_that_signed_in_and_ask_for_nothing_the_oldest_of_a_user_go(run: Run) -> None:
    def ask(connection: Connection, frame: bytearray) -> Response:
        connection.admit(Principal("User", bytes(frame[8:]).decode()))
        return [frame[4:8], b"door"]

    async def main() -> None:
        limits = ListenerLimits(caps=ConnectionCaps(signed_in_strangers_max=4))
        async with contextlib.AsyncExitStack() as stack:
            listener, _h, where, life = await stack.enter_async_context(
                listening(echo, limits, doorkeeper=Handler(ask))
            )

            async def signed_in(user: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
                r, w = await stack.enter_async_context(connected(where))
                w.write(request(1, user.encode()))
                assert await read_response(r) == (1, b"door")
                return r, w

            at_work = [await signed_in("mallory") for _ in range(3)]
            for r, w in at_work:
                w.write(request(2))
                assert (await read_response(r))[0] == 2
            alice = await signed_in("alice")
            greedy = [await signed_in("mallory") for _ in range(6)]
            for r, _ in greedy[:3]:
                assert await closed_by_peer(r)
            for n, (r, w) in enumerate([*at_work, alice, *greedy[3:]]):
                w.write(request(20 + n))
                assert (await read_response(r))[0] == 20 + n
            assert metric(life, "penstock_kafka_connections_refused_total") == 3
            for connection in list(listener.connections):
                connection.abort("the test is over")
            await eventually(lambda: not listener.connections, "all are gone")
            assert not len(listener._doorway._signed_in)

    run(main())
