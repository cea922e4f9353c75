"""Channels to other roles, and whether they are there.

Theory. A dead peer must be noticed in seconds and a refused one at once, so channels ping while calls are open and
reconnect with a backoff of 50-500 ms (`http2.client`).

With a certificate (`tls`) channels show it, and take nobody for a role whose certificate says another one. New files
make a new generation of channels: calls that are open stay on the channel that they began on.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Any, Final, NamedTuple, NoReturn

import grpc
import grpc.aio

from penstock_core.limits import GRPC_MESSAGE_BYTES_MAX
from penstock_runtime.http2.client import Channel, ChannelLimits
from penstock_runtime.lifecycle import current_lifecycle
from penstock_runtime.logs import CONSTANT, get_log
from penstock_runtime.security.diagnosis import find_fault, find_stranger
from penstock_runtime.security.role_tls import RoleContexts
from penstock_runtime.security.tls_files import TlsFiles

TLS_IDLE_S: Final = 60.0
"""A channel without calls disconnects: so one of an older certificate is known to be done."""
OLD_CHANNEL_S_MAX = 24 * 3600.0
"""Streams on an older certificate are cut off after that: see `was_cut_off`."""
CHANNEL_CLOSED = "its channel was closed"
"""Why a stream ended that was cut off."""
_OLD_LOOK_S = 1.0
_TELL_AGAIN_S = 60.0
_FIND_AGAIN_S = 2.0
"""Between two looks for what is wrong with a connection, each of which is a connection more."""


class _Key(NamedTuple):
    address: str
    role: str
    lane: str


class _Secure(NamedTuple):
    """A channel with the certificate that it was made with."""

    channel: Channel
    contexts: RoleContexts
    watch: asyncio.Task[None]


class ChannelPool:
    """Channels by address, opened on first use and kept. One per role process; close it at the end."""

    def __init__(
        self,
        limits: ChannelLimits | None = None,
        *,
        tls: TlsFiles | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits or ChannelLimits()
        self._tls = tls
        self._clock_s = clock_s
        self._channels: dict[_Key, Channel] = {}
        self._secure: dict[_Key, _Secure] = {}
        self._old: list[tuple[_Secure, float]] = []
        self._closes_old: asyncio.Task[None] | None = None
        self._told: dict[str, tuple[str, float]] = {}
        if (lifecycle := current_lifecycle()) is not None:
            lifecycle.at_end(self.close)

    def get(self, address: str, role: str, lane: str = "") -> Channel:
        """The channel to the `role` at `address`; another `lane` is a connection of its own.

        Ask anew for every call: with a new certificate it is another channel.
        """
        key = _Key(address, role, lane)
        if self._tls is not None and self._tls.dials_tls:
            return self._get_secure(key, self._tls)
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = Channel(
                address, message_bytes_most=GRPC_MESSAGE_BYTES_MAX, limits=self._limits
            )
        return channel

    @property
    def old_count(self) -> int:
        """Channels of an older certificate that still carry calls."""
        return len(self._old)

    def _get_secure(self, key: _Key, files: TlsFiles) -> Channel:
        contexts = files.current
        known = self._secure.get(key)
        if known is not None:
            if known.contexts is contexts:
                return known.channel
            self._old.append((known, self._clock_s() + OLD_CHANNEL_S_MAX))
            if self._closes_old is None:
                self._closes_old = asyncio.create_task(self._close_old(), name="closing old channels")
        channel = Channel(
            key.address,
            message_bytes_most=GRPC_MESSAGE_BYTES_MAX,
            tls=lambda: contexts.client,
            check=lambda made: find_stranger(made.getpeercert(), contexts.identity, key.role),
            limits=replace(self._limits, idle_s=TLS_IDLE_S),
        )
        watch = asyncio.create_task(self._watch(key, channel, files), name=f"channel to {key.address}")
        self._secure[key] = _Secure(channel, contexts, watch)
        return channel

    async def _close_old(self) -> None:
        """Close channels of older certificates once they are idle, or too old."""
        while self._old:
            await asyncio.sleep(_OLD_LOOK_S)
            for each in tuple(self._old):
                secure, until_s = each
                # Idle is what a channel is that has had no call for its idle timeout.
                if secure.channel.get_state() is grpc.ChannelConnectivity.IDLE or self._clock_s() > until_s:
                    await _close_secure(secure)
                    self._old.remove(each)
        self._closes_old = None

    async def _watch(self, key: _Key, channel: Channel, files: TlsFiles) -> None:
        """Say why no connection is made; whoever calls hears only that it is so."""
        state, again_s = channel.get_state(), 0.0
        while state is not grpc.ChannelConnectivity.SHUTDOWN:
            if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE and self._clock_s() >= again_s:
                again_s = self._clock_s() + _FIND_AGAIN_S
                fault = await asyncio.to_thread(find_fault, key.address, files, key.role)
                self._tell(key, fault)
            elif state is grpc.ChannelConnectivity.READY:
                self._told.pop(key.address, None)
            try:
                await channel.wait_for_state_change(state)
            except grpc.aio.UsageError:
                return
            state = channel.get_state()

    def _tell(self, key: _Key, fault: str) -> None:
        now = self._clock_s()
        told, again_s = self._told.get(key.address, ("", 0.0))
        if not fault or (fault == told and now < again_s):
            return
        self._told[key.address] = fault, now + _TELL_AGAIN_S
        text = f"no TLS connection with the {key.role} at {key.address}: {fault}"
        get_log().warning(text, **{CONSTANT: "no TLS connection with one of ours"})

    async def drop(self, address: str) -> None:
        """Close every channel to an address that is no longer of use."""
        self._told.pop(address, None)
        for key in [k for k in self._channels if k.address == address]:
            await self._channels.pop(key).close()
        for key in [k for k in self._secure if k.address == address]:
            await _close_secure(self._secure.pop(key))

    async def close(self) -> None:
        """Close all; calls still open on them end as cancelled."""
        channels, self._channels = list(self._channels.values()), {}
        await asyncio.gather(*(channel.close() for channel in channels))
        if self._closes_old is not None:
            self._closes_old.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._closes_old
            self._closes_old = None
        secure, self._secure = [*self._secure.values(), *(s for s, _ in self._old)], {}
        self._old = []
        await asyncio.gather(*(_close_secure(each) for each in secure))


async def _close_secure(secure: _Secure) -> None:
    secure.watch.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await secure.watch
    await secure.channel.close()


class Probe(Enum):
    """What became of an attempt to connect."""

    ALIVE = "alive"
    REFUSED = "refused"
    SILENT = "silent"


async def probe(host: str, port: int, timeout_ms: int) -> Probe:
    """Whether something listens: REFUSED is proof of death, SILENT is not.

    ALIVE means that the kernel took the connection; a stopped process still does that.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            family, kind, proto, _, where = found[0]
            with socket.socket(family, kind, proto) as s:
                s.setblocking(False)
                await loop.sock_connect(s, where)
                return Probe.ALIVE
    except ConnectionRefusedError:
        return Probe.REFUSED
    except (TimeoutError, OSError):
        return Probe.SILENT


def was_cut_off() -> bool:
    """Of a CancelledError that a call raised: whether the call's channel was closed under it. Else the task that runs
    is being cancelled, and has to end.

    gRPC says the same of both, and a task that takes the one for the other ends without a word.
    """
    task = asyncio.current_task()
    return task is None or not task.cancelling()


async def fail(
    context: grpc.aio.ServicerContext[Any, Any], status: grpc.StatusCode, message: str
) -> NoReturn:
    """End the call with `status` and a line that names the thing and the mend."""
    await context.abort(status, message)


__all__ = [
    "CHANNEL_CLOSED",
    "ChannelPool",
    "Probe",
    "fail",
    "probe",
    "was_cut_off",
]
