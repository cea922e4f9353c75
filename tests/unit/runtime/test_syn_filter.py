"""First packets of some addresses are left unanswered, by the kernel."""

from __future__ import annotations

import contextlib
import random
import select
import socket
from collections.abc import Iterator

import pytest

from penstock_runtime import syn_filter

UNANSWERED_S = 0.3
PATIENCE_MS = 20_000


@pytest.fixture
def ends() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def listening(ends: contextlib.ExitStack, host: str = "127.0.0.1") -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return ends.enter_context(
        socket.create_server((host, 0), family=family, dualstack_ipv6=host == "::", backlog=100)
    )


def dialling(ends: contextlib.ExitStack, to: socket.socket, source: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in source else socket.AF_INET
    dialler = ends.enter_context(socket.socket(family, socket.SOCK_STREAM))
    dialler.setblocking(False)
    dialler.bind((source, 0))
    dialler.connect_ex(("::1" if ":" in source else "127.0.0.1", to.getsockname()[1]))
    return dialler


def comes_in(dialler: socket.socket, timeout_ms: float = PATIENCE_MS) -> bool:
    poll = select.poll()
    poll.register(dialler, select.POLLOUT)
    return poll.poll(timeout_ms) == [(dialler.fileno(), select.POLLOUT)]


@pytest.mark.parametrize("host", ["127.0.0.1", "::"])
def test_some_wait_and_come_in_once_they_may(ends: contextlib.ExitStack, host: str) -> None:
    server = listening(ends, host)
    syn_filter.keep_out(server, ["127.0.1.1", "127.0.1.2"])
    kept_out = [dialling(ends, server, "127.0.1.1"), dialling(ends, server, "127.0.1.2")]
    for source in ("127.0.1.3", "127.0.0.1"):
        assert comes_in(dialling(ends, server, source))
    assert not any(comes_in(each, UNANSWERED_S * 1000) for each in kept_out)
    syn_filter.let_all_in(server)
    assert all(map(comes_in, kept_out))


def test_of_ipv6_the_64_waits(ends: contextlib.ExitStack) -> None:
    server = listening(ends, "::")
    syn_filter.keep_out(server, ["2001:db8::", "::"])
    assert comes_in(dialling(ends, server, "127.0.0.1"))
    dialler = dialling(ends, server, "::1")
    assert not comes_in(dialler, UNANSWERED_S * 1000)
    syn_filter.keep_out(server, ["2001:db8::", "2001:db8:0:1::", "127.0.0.1"])
    assert comes_in(dialler)
    assert not comes_in(dialling(ends, server, "127.0.0.1"), UNANSWERED_S * 1000)


def test_connections_that_are_there_go_on(ends: contextlib.ExitStack) -> None:
    server = listening(ends)
    before = dialling(ends, server, "127.0.1.1")
    assert comes_in(before)
    syn_filter.keep_out(server, ["127.0.1.1"])
    accepted = ends.enter_context(server.accept()[0])
    before.send(b"there")
    accepted.settimeout(PATIENCE_MS / 1000)
    assert accepted.recv(5) == b"there"
    # One that began under a filter has inherited it, and hears all the same.
    inherits = dialling(ends, server, "127.0.1.2")
    assert comes_in(inherits)
    accepted = ends.enter_context(server.accept()[0])
    syn_filter.let_all_in(server)
    inherits.send(b"there")
    accepted.settimeout(PATIENCE_MS / 1000)
    assert accepted.recv(5) == b"there"


def run(steps: list[tuple[int, int, int, int]], packet: bytes, network_header: int, chance: int = 0) -> int:
    """What the kernel makes of a program: the instructions that are used, by linux/bpf_common.h."""
    a, at = 0, 0
    while True:
        code, true, false, k = steps[at]
        at += 1
        where = network_header + k - 0xFFF00000 if k >= 0xFFF00000 else len(packet) - 20 + k
        match code:
            case 0x30:
                a = packet[where]
            case 0x20 if k == 0xFFFFF000 + 56:
                a = chance
            case 0x20:
                a = int.from_bytes(packet[where : where + 4])
            case 0x54:
                a &= k
            case 0x74:
                a >>= k
            case 0x15:
                at += true if a == k else false
            case 0x05:
                at += k
            case 0x06:
                return k
            case _:
                raise AssertionError(code)


def packet(source: str, flags: int) -> bytes:
    if ":" in source:
        head = b"\x60" + bytes(7) + socket.inet_pton(socket.AF_INET6, source) + bytes(16)
    else:
        head = b"\x45" + bytes(11) + socket.inet_aton(source) + bytes(4)
    return head + bytes(13) + bytes([flags]) + bytes(6)


def test_as_many_addresses_as_may_be(ends: contextlib.ExitStack) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    v4 = [socket.inet_ntoa(rng.randbytes(4)) for _ in range(syn_filter.ADDRESSES_MAX)]
    v6 = [
        socket.inet_ntop(socket.AF_INET6, rng.randbytes(8) + bytes(8))
        for _ in range(syn_filter.ADDRESSES_MAX)
    ]
    server = listening(ends, "::")
    syn = 0x02
    every = v4 + v6
    for nobody_of, some_of in (
        (v4, []),
        (v6, []),
        ([], v4),
        ([], v6),
        (v4[:30], v6[:34]),
        (v4[:20] + v6[:10], v4[20:40] + v6[10:24]),
        (v4[:1], v4[1:2]),
        (v6[:1], v6[1:2]),
    ):
        syn_filter.keep_out(server, nobody_of, some_of)  # the kernel's own check of the program
        steps = list(syn_filter.steps(nobody_of, some_of))
        for source in every:
            for chance in (0, 1, syn_filter.ONE_IN - 1, syn_filter.ONE_IN, rng.getrandbits(32)):
                kept_out = source in nobody_of or (source in some_of and chance % syn_filter.ONE_IN != 0)
                assert (run(steps, packet(source, syn), 0, chance) == 0) == kept_out, source
            assert run(steps, packet(source, 0x12), 0, 1) and run(steps, packet(source, 0x10), 0, 1)
        for source in v6:
            neighbour = socket.inet_pton(socket.AF_INET6, source)[:8] + rng.randbytes(8)
            of_64 = socket.inet_ntop(socket.AF_INET6, neighbour)
            assert (run(steps, packet(of_64, syn), 0, 1) == 0) == (source in [*nobody_of, *some_of])


def test_of_a_64_that_waits_and_comes_back_nobody_comes_in() -> None:
    steps = list(syn_filter.steps(["2001:db8::1"], ["2001:db8::2"]))
    assert run(steps, packet("2001:db8::2", 0x02), 0, 0) == 0


def test_of_some_one_in_eight_comes_in_at_once(ends: contextlib.ExitStack) -> None:
    server = listening(ends)
    syn_filter.keep_out(server, ["127.0.1.1"], ["127.0.1.2"])
    diallers = [dialling(ends, server, "127.0.1.2") for _ in range(90)]
    assert comes_in(dialling(ends, server, "127.0.1.3"))
    assert not comes_in(dialling(ends, server, "127.0.1.1"), UNANSWERED_S * 1000)
    # Of 90 by chance none, or more than half, once in 100,000 runs.
    assert 0 < sum(comes_in(each, 0) for each in diallers) < 45
    syn_filter.apply(server, [], [])
    assert all(map(comes_in, diallers))
