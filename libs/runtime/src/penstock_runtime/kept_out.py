"""Addresses whose new connections the kernel leaves unanswered for a while, at the listening sockets of one port."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from penstock_runtime import syn_filter
from penstock_runtime.logs import CONSTANT, get_log
from penstock_runtime.waiting_addresses import WaitingAddresses

TOO_MANY: Final = 3
"""Connections of an address that were for nothing, together: with fewer it may be somebody who was there by chance."""
_TOGETHER_S: Final = 0.5
"""They count together for so long."""


class KeptOut:
    """Says who waits, and lets them in when they have waited: some first, for all who wait dial again together."""

    def __init__(self, port: str, apply: Callable[[list[str], list[str]], None]) -> None:
        """`port`: as people call it. `apply` sets the filter: whose first packets are dropped, and of whom some come
        in; nobody's at all: takes it away."""
        self._port = port
        self._apply = apply
        self._waiting = WaitingAddresses(syn_filter.ADDRESSES_MAX)
        self._filtered = False
        self._timer: asyncio.TimerHandle | None = None
        self._for_nothing: Counter[str] = Counter()
        """By address, since `_since_s`."""
        self._since_s = 0.0

    def was_for_nothing(self, address: str) -> None:
        """A connection of that address was. With too many of them it waits before it comes again."""
        now_s = asyncio.get_running_loop().time()
        if now_s > self._since_s + _TOGETHER_S:
            self._for_nothing.clear()
            self._since_s = now_s
        self._for_nothing[address] += 1
        if self._for_nothing[address] == TOO_MANY:
            self.send_away({address: TOO_MANY})

    def send_away(self, for_nothing: Mapping[str, int]) -> None:
        """`for_nothing`: by address, how many connections. Who had too many of them waits before he comes again."""
        addresses = [address for address, count in for_nothing.items() if count >= TOO_MANY]
        if not addresses:
            return
        now_s = asyncio.get_running_loop().time()
        self._waiting.send_away(addresses, now_s)
        waiting = self._waiting.waiting(now_s)
        text = f"new connections of {', '.join(waiting[:3])} to {self._port} wait"
        if len(waiting) > 3:
            text += f", and those of {len(waiting) - 3} more addresses"
        get_log().warning(text, **{CONSTANT: "new connections to a port wait: too many were for nothing"})
        self._keep_out()

    def close(self) -> None:
        """Let all in. Safe to call twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._set([], [])

    def _keep_out(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        self._set(self._waiting.waiting(now_s), self._waiting.returning(now_s))
        if self._timer is not None:
            self._timer.cancel()
        next_s = self._waiting.next_s(now_s)
        self._timer = None if next_s is None else loop.call_at(next_s, self._keep_out)

    def _set(self, nobody_of: list[str], some_of: list[str]) -> None:
        filters = bool(nobody_of or some_of)
        if filters or self._filtered:
            self._apply(nobody_of, some_of)
        self._filtered = filters
