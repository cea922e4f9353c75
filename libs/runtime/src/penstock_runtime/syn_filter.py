"""Lets the kernel leave first packets (SYN) of some addresses unanswered at a listening socket: all, or all but a few.

Whoever dials sends it again after 1 s, then 2 and 4 (RFC 6298), and comes in once the filter is gone: nobody accepts,
closes or answers meanwhile, and a packet that is dropped costs a few microseconds of nobody's loop. A classic BPF
program (socket(7), SO_ATTACH_FILTER; Linux, no rights needed); connections inherit it and are not
concerned, for none of their packets is a bare SYN.
"""

from __future__ import annotations

import ctypes
import ipaddress
import socket
import struct
from collections.abc import Collection, Iterable, Iterator
from typing import Final

ADDRESSES_MAX: Final = 64
"""Of one program: each is looked at for each SYN."""
ONE_IN: Final = 8
"""First packets of whom some are let in. A power of two."""
_ATTACH: Final = 26
_DETACH: Final = 27
# linux/bpf_common.h: a load of a byte or a word, and, shift right, jump if equal, jump, return.
_LOAD_BYTE: Final = 0x30
_LOAD_WORD: Final = 0x20
_AND: Final = 0x54
_SHIFT: Final = 0x74
_IF_EQUAL: Final = 0x15
_JUMP: Final = 0x05
_RETURN: Final = 0x06
_NETWORK_HEADER: Final = 0xFFF0_0000
"""linux/filter.h, SKF_NET_OFF: what is counted from there instead of from the TCP header."""
_RANDOM: Final = 0xFFFF_F000 + 56
"""linux/filter.h, SKF_AD_OFF + SKF_AD_RANDOM: a number of 32 bits by chance."""
_TCP_FLAGS: Final = 13
_SYN: Final = 0x02
_SYN_ACK: Final = 0x12
_SOURCE_IPV4: Final = 12
_SOURCE_IPV6: Final = 8

_Step = tuple[int, int, int, int]
"""Code, how many steps to jump where true, and where false, operand."""
_TAKE: Final[_Step] = (_RETURN, 0, 0, 0xFFFF_FFFF)
_DROP: Final[_Step] = (_RETURN, 0, 0, 0)
_SOME: Final[tuple[_Step, ...]] = (
    (_LOAD_WORD, 0, 0, _RANDOM),
    (_AND, 0, 0, ONE_IN - 1),
    (_IF_EQUAL, 1, 0, 0),
    _DROP,
    _TAKE,
)


def apply(listening: socket.socket, nobody_of: Collection[str], some_of: Collection[str] = ()) -> None:
    """`keep_out` these, or `let_all_in` where there are none. Raises OSError."""
    if nobody_of or some_of:
        keep_out(listening, nobody_of, some_of)
    else:
        let_all_in(listening)


def keep_out(listening: socket.socket, nobody_of: Iterable[str], some_of: Iterable[str] = ()) -> None:
    """From now on first packets of the former are dropped, and of the latter all but one in `ONE_IN`, by chance; of
    IPv6 those of their /64; of no others. Raises OSError."""
    program = list(steps(nobody_of, some_of))
    text = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in program))
    whole = struct.pack("@HP", len(program), ctypes.addressof(text))
    listening.setsockopt(socket.SOL_SOCKET, _ATTACH, whole)


def let_all_in(listening: socket.socket) -> None:
    """Take the filter away; raises OSError where there is none."""
    listening.setsockopt(socket.SOL_SOCKET, _DETACH, 0)


def steps(nobody_of: Iterable[str], some_of: Iterable[str] = ()) -> Iterator[_Step]:
    """The program, for at most `ADDRESSES_MAX` together. It begins at a packet's TCP header."""
    # Of one /64 that is among both nobody comes in: the last one counts.
    verdicts = [*((each, _SOME) for each in some_of), *((each, (_DROP,)) for each in nobody_of)]
    parsed = [(ipaddress.ip_address(each), verdict) for each, verdict in verdicts]
    yield _LOAD_BYTE, 0, 0, _TCP_FLAGS
    yield _AND, 0, 0, _SYN_ACK
    yield _IF_EQUAL, 1, 0, _SYN
    yield _TAKE
    yield _LOAD_BYTE, 0, 0, _NETWORK_HEADER
    yield _SHIFT, 0, 0, 4
    # Only jumps without a condition reach farther than 255 steps.
    yield _IF_EQUAL, 1, 0, 4
    v4 = [
        step
        for address, verdict in parsed
        if address.version == 4
        for step in ((_IF_EQUAL, 0, len(verdict), int(address)), *verdict)
    ]
    yield _JUMP, 0, 0, len(v4) + 2
    yield _LOAD_WORD, 0, 0, _NETWORK_HEADER + _SOURCE_IPV4
    yield from v4
    yield _TAKE
    for prefix, verdict in sorted(
        {int(each) >> 64: how for each, how in parsed if each.version == 6}.items()
    ):
        yield _LOAD_WORD, 0, 0, _NETWORK_HEADER + _SOURCE_IPV6
        yield _IF_EQUAL, 0, 2 + len(verdict), prefix >> 32
        yield _LOAD_WORD, 0, 0, _NETWORK_HEADER + _SOURCE_IPV6 + 4
        yield _IF_EQUAL, 0, len(verdict), prefix & 0xFFFF_FFFF
        yield from verdict
    yield _TAKE
