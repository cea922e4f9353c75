"""The listening sockets of a gRPC port: when somebody has come, and who may not come for now.

They are gRPC's own. They are found among the process's descriptors, watched, and given a filter; gRPC accepts as ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from penstock_runtime import syn_filter
from penstock_runtime.kept_out import KeptOut
from penstock_runtime.spare_descriptor import SpareDescriptor

BACKLOG: Final = 32
"""Connections that the kernel has made and gRPC has not accepted: beyond, first packets are dropped, and come again a
second later. gRPC asks for as many as the machine allows (4,096), and accepts them all before anybody can look."""


class Doorstep:
    """Of one port."""

    def __init__(self, port: int, spare: SpareDescriptor, came: Callable[[], None]) -> None:
        """`came` is called soon after connections have come, once for all of them."""
        self._port = port
        self._spare = spare
        self._came = came
        self._kept_out = KeptOut(f"gRPC port {port}", self._filter)
        self._sockets: dict[int, int] = {}
        """Descriptors, and the inode that each is to have: its number may be another's once gRPC has closed it."""
        self._events: select.epoll | None = None

    def watch(self, descriptors: Iterable[int]) -> None:
        """Begin. Raises OSError where there is no descriptor left for it."""
        for each in descriptors:
            with contextlib.suppress(OSError), self._spare.of(each) as s:
                if self._is_own(s):
                    s.listen(BACKLOG)
                    self._sockets[each] = os.fstat(s.fileno()).st_ino
        self._events = select.epoll()
        for each in self._sockets:
            # At the edge: it is gRPC that takes them, and until it has there is nothing to be told again.
            self._events.register(each, select.EPOLLIN | select.EPOLLET)
        asyncio.get_running_loop().add_reader(self._events.fileno(), self._on_event)

    def close(self) -> None:
        """Let all in, and look no more. Safe to call twice."""
        if self._events is not None:
            asyncio.get_running_loop().remove_reader(self._events.fileno())
            self._events.close()
            self._events = None
            self._kept_out.close()

    def send_away(self, ended: Mapping[str, int]) -> None:
        """`ended`: by address, how many connections had to go. Who had too many of them waits before he dials again."""
        if self._events is not None:
            self._kept_out.send_away(ended)

    def _filter(self, nobody_of: list[str], some_of: list[str]) -> None:
        for descriptor, inode in self._sockets.items():
            # Where the kernel does not do it, the bounds on connections are still there.
            with contextlib.suppress(OSError), self._spare.of(descriptor) as s:
                if os.fstat(s.fileno()).st_ino == inode:
                    syn_filter.apply(s, nobody_of, some_of)

    def _is_own(self, s: socket.socket) -> bool:
        own = s.getsockname()
        return (
            isinstance(own, tuple)
            and own[1] == self._port
            and bool(s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
        )

    def _on_event(self) -> None:
        assert self._events is not None
        self._events.poll(0)
        self._came()
