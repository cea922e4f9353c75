"""Lets the kernel leave first packets (SYN) of some addresses unanswered at a listening socket.

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
_ATTACH: Final = 26
_DETACH: Final = 27
# linux/bpf_common.h: a load of a byte or a word, and, shift right, jump if equal, return.
_LOAD_BYTE: Final = 0x30
_LOAD_WORD: Final = 0x20
_AND: Final = 0x54
_SHIFT: Final = 0x74
_IF_EQUAL: Final = 0x15
_RETURN: Final = 0x06
_NETWORK_HEADER: Final = 0xFFF0_0000
"""linux/filter.h, SKF_NET_OFF: what is counted from there instead of from the TCP header."""
_TCP_FLAGS: Final = 13
_SYN: Final = 0x02
_SYN_ACK: Final = 0x12
_SOURCE_IPV4: Final = 12
_SOURCE_IPV6: Final = 8

_Step = tuple[int, int, int, int]
"""Code, how many steps to jump where true, and where false, operand."""
_TAKE: Final[_Step] = (_RETURN, 0, 0, 0xFFFF_FFFF)
_DROP: Final[_Step] = (_RETURN, 0, 0, 0)


def apply(listening: socket.socket, addresses: Collection[str]) -> None:
    """`keep_out` these, or `let_all_in` where there are none. Raises OSError."""
    if addresses:
        keep_out(listening, addresses)
    else:
        let_all_in(listening)


def keep_out(listening: socket.socket, addresses: Iterable[str]) -> None:
    """From now on first packets of these are dropped, of IPv6 those of their /64; of no others. Raises OSError."""
    program = list(steps(addresses))
    text = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in program))
    whole = struct.pack("@HP", len(program), ctypes.addressof(text))
    listening.setsockopt(socket.SOL_SOCKET, _ATTACH, whole)


def let_all_in(listening: socket.socket) -> None:
    """Take the filter away; raises OSError where there is none."""
    listening.setsockopt(socket.SOL_SOCKET, _DETACH, 0)


def steps(addresses: Iterable[str]) -> Iterator[_Step]:
    """The program, for at most `ADDRESSES_MAX`. It begins at a packet's TCP header."""
    parsed = [ipaddress.ip_address(each) for each in addresses]
    yield _LOAD_BYTE, 0, 0, _TCP_FLAGS
    yield _AND, 0, 0, _SYN_ACK
    yield _IF_EQUAL, 1, 0, _SYN
    yield _TAKE
    yield _LOAD_BYTE, 0, 0, _NETWORK_HEADER
    yield _SHIFT, 0, 0, 4
    v4 = [int(each) for each in parsed if each.version == 4]
    # Jumps reach no farther than 255 steps, and two for each of these are fewer.
    yield _IF_EQUAL, 0, 2 * len(v4) + 2, 4
    yield _LOAD_WORD, 0, 0, _NETWORK_HEADER + _SOURCE_IPV4
    for address in v4:
        yield _IF_EQUAL, 0, 1, address
        yield _DROP
    yield _TAKE
    for prefix in sorted({int(each) >> 64 for each in parsed if each.version == 6}):
        yield _LOAD_WORD, 0, 0, _NETWORK_HEADER + _SOURCE_IPV6
        yield _IF_EQUAL, 0, 3, prefix >> 32
        yield _LOAD_WORD, 0, 0, _NETWORK_HEADER + _SOURCE_IPV6 + 4
        yield _IF_EQUAL, 0, 1, prefix & 0xFFFF_FFFF
        yield _DROP
    yield _TAKE
