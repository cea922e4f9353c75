"""gRPC as Penstock uses it: servers, channels, probes.

Theory. A dead peer must be noticed in seconds and a refused one at once, so channels
ping while calls are open and reconnect with a backoff of 50-500 ms; servers allow such
pings. Ports are not shared (`so_reuseport=0`): a taken port is an error, not two
processes that each get half of the calls.

gRPC's own log lines are off (see the package's __init__): every failure that matters
comes back as a status and is logged by who made the call.

With a certificate (`tls`) servers let in who shows one of the cluster's CA, and each method only the roles that
`security.methods` names; channels show it and take nobody for a role whose certificate says another one. New files
make a new generation of channels: calls that are open stay on the channel that they began on.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple, NoReturn

import grpc
import grpc.aio

from penstock_core.limits import GRPC_MESSAGE_BYTES_MAX
from penstock_core.metadata.image import Endpoint
from penstock_runtime.addresses import Plaintext, StartupError, bind_sockets, check_bind, check_free
from penstock_runtime.audit import audit_of
from penstock_runtime.grpc_bounds import GrpcBounds
from penstock_runtime.grpc_calls import OpenCalls
from penstock_runtime.grpc_connections import GrpcConnections
from penstock_runtime.lifecycle import current_lifecycle
from penstock_runtime.logs import CONSTANT, get_log
from penstock_runtime.security.both_ways import BothWays
from penstock_runtime.security.diagnosis import find_fault
from penstock_runtime.security.grpc_tls import (
    TARGET_NAME_OPTION,
    channel_credentials,
    door_credentials,
    host_name,
    server_credentials,
)
from penstock_runtime.security.listener_tls import ListenerTlsFiles
from penstock_runtime.security.role_guard import RoleGuard
from penstock_runtime.security.role_tls import RoleContexts
from penstock_runtime.security.tls_files import TlsFiles

Options = tuple[tuple[str, int | str], ...]

_BOTH_SIDES: Options = (
    ("grpc.max_send_message_length", GRPC_MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", GRPC_MESSAGE_BYTES_MAX),
    ("grpc.max_metadata_size", 16 * 1024),
    ("grpc.http2.max_pings_without_data", 0),
)
CHANNEL_OPTIONS: Options = (
    *_BOTH_SIDES,
    ("grpc.enable_http_proxy", 0),
    ("grpc.keepalive_time_ms", 2_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1_000),  # also the bound of one attempt to connect
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)
SERVER_OPTIONS: Options = (
    *_BOTH_SIDES,
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.server_handshake_timeout_ms", 5_000),
    # Streams that stay open are calls; a channel whose connection ended so makes a new one with its next call.
    ("grpc.max_connection_idle_ms", 300_000),
)
TLS_CHANNEL_OPTIONS: Options = (("grpc.client_idle_timeout_ms", 60_000),)
"""A channel without calls disconnects: so one of an older certificate is known to be done."""
OLD_CHANNEL_S_MAX = 24 * 3600.0
"""Streams on an older certificate are cut off after that: see `was_cut_off`."""
CHANNEL_CLOSED = "its channel was closed"
"""Why a stream ended that was cut off."""
_OLD_LOOK_S = 1.0
_TELL_AGAIN_S = 60.0


async def serve(
    bind: str,
    add_services: Callable[[grpc.aio.Server], None],
    *,
    allow_insecure_bind: Plaintext,
    setting: str = "grpc_bind",
    tls: TlsFiles | None = None,
    door: ListenerTlsFiles | None = None,
    interceptors: Sequence[Any] = (),
    bounds: GrpcBounds | None = None,
) -> tuple[grpc.aio.Server, Endpoint]:
    """Start a server on `bind` (port 0: a free one) and say where it listens.

    With `tls` only roles of this cluster may call, each what `security.methods` allows it. `door` is the TLS of a port
    for clients, and `interceptors` see their calls first. `bounds` are what others may take of the port.

    Raises StartupError, naming the setting, when the port is taken or would be open in plaintext to
    other machines without `allow_insecure_bind`. Stop it with `await server.stop(grace_s)`.
    """
    secure = tls is not None and not tls.takes_plaintext
    address = check_bind(bind, setting, allow_insecure_bind=secure or allow_insecure_bind)
    credentials = server_credentials(tls) if tls else door_credentials(door) if door else None
    # gRPC's own failure has no reason in it; a plain bind first gives one.
    check_free(address, setting)
    life = current_lifecycle()
    audit = None if life is None else audit_of(life)
    guards = interceptors
    if tls is not None:
        domain = tls.current.identity.trust_domain
        guard = RoleGuard(
            domain,
            refused=tls.refused,
            takes_plaintext=tls.takes_plaintext,
            audit=audit,
            wall_s=time.time,
        )
        guards = (guard, *interceptors)
    bounds = bounds or GrpcBounds()
    calls = OpenCalls(bounds)
    options = (
        *SERVER_OPTIONS,
        ("grpc.max_concurrent_streams", bounds.streams_max),
        ("grpc.max_allowed_incoming_connections", bounds.accepted_max),
    )
    server = grpc.aio.server(options=options, interceptors=(*guards, calls))
    add_services(server)
    if tls is not None and tls.takes_plaintext:
        return await _serve_both(server, bind, setting, tls, allow_insecure_bind, bounds)
    target = f"[::]:{address.port}" if address.host in ("", "*") else str(address)
    try:
        port = (
            server.add_insecure_port(target)
            if credentials is None
            else server.add_secure_port(target, credentials)
        )
    except RuntimeError:
        port = 0
    if port == 0:
        await server.stop(None)
        raise StartupError(f"{setting} = {bind}: port {address.port} is taken; choose another port")
    await server.start()
    _bound_connections(server, GrpcConnections(port, bounds, calls, address.host))
    if (lifecycle := current_lifecycle()) is not None:
        lifecycle.at_end(lambda: server.stop(None))
    return server, Endpoint("", address.host, port)


def _bound_connections(server: grpc.aio.Server, connections: GrpcConnections) -> None:
    """From now on until the server is stopped: its port may be another's then."""
    stop_server = server.stop

    async def stop(grace: float | None = None) -> None:
        await connections.stop()
        await stop_server(grace)

    server.stop = stop  # type: ignore[method-assign]
    connections.start()


async def _serve_both(
    server: grpc.aio.Server,
    bind: str,
    setting: str,
    tls: TlsFiles,
    allow_insecure_bind: Plaintext,
    bounds: GrpcBounds,
) -> tuple[grpc.aio.Server, Endpoint]:
    """`serve` on a port that takes TLS and plaintext."""
    sockets, endpoint = bind_sockets(bind, setting, allow_insecure_bind=allow_insecure_bind)
    ways = BothWays(bounds)
    server.add_secure_port(f"unix:{ways.tls}", server_credentials(tls))
    server.add_insecure_port(f"unix:{ways.plain}")
    await server.start()
    await ways.open(sockets)
    if (lifecycle := current_lifecycle()) is not None:
        lifecycle.at_end(lambda: server.stop(None))
        lifecycle.at_end(ways.close)
    return server, Endpoint("", endpoint.host, endpoint.port)


class _Key(NamedTuple):
    address: str
    role: str
    lane: str


class _Secure(NamedTuple):
    """A channel with the certificate that it was made with."""

    channel: grpc.aio.Channel
    contexts: RoleContexts
    watch: asyncio.Task[None]


class ChannelPool:
    """Channels by address, opened on first use and kept. One per role process; close it at the end."""

    def __init__(
        self,
        options: Options = (),
        *,
        tls: TlsFiles | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = (*CHANNEL_OPTIONS, *options)
        self._tls = tls
        self._clock_s = clock_s
        self._channels: dict[_Key, grpc.aio.Channel] = {}
        self._secure: dict[_Key, _Secure] = {}
        self._old: list[tuple[_Secure, float]] = []
        self._closes_old: asyncio.Task[None] | None = None
        self._told: dict[str, tuple[str, float]] = {}
        if (lifecycle := current_lifecycle()) is not None:
            lifecycle.at_end(self.close)

    def get(self, address: str, role: str, lane: str = "") -> grpc.aio.Channel:
        """The channel to the `role` at `address`; another `lane` is a connection of its own.

        Ask anew for every call: with a new certificate it is another channel.
        """
        key = _Key(address, role, lane)
        if self._tls is not None and self._tls.dials_tls:
            return self._get_secure(key, self._tls)
        channel = self._channels.get(key)
        if channel is None:
            channel = grpc.aio.insecure_channel(address, options=self._options)
            self._channels[key] = channel
        return channel

    @property
    def old_count(self) -> int:
        """Channels of an older certificate that still carry calls."""
        return len(self._old)

    def _get_secure(self, key: _Key, files: TlsFiles) -> grpc.aio.Channel:
        contexts = files.current
        known = self._secure.get(key)
        if known is not None:
            if known.contexts is contexts:
                return known.channel
            self._old.append((known, self._clock_s() + OLD_CHANNEL_S_MAX))
            if self._closes_old is None:
                self._closes_old = asyncio.create_task(self._close_old(), name="closing old channels")
        channel = grpc.aio.secure_channel(
            key.address,
            channel_credentials(contexts),
            options=(
                *self._options,
                *TLS_CHANNEL_OPTIONS,
                (TARGET_NAME_OPTION, host_name(key.role, contexts.identity)),
            ),
        )
        watch = asyncio.create_task(self._watch(key, channel, files), name=f"channel to {key.address}")
        self._secure[key] = _Secure(channel, contexts, watch)
        return channel

    async def _close_old(self) -> None:
        """Close channels of older certificates once they are idle, or too old."""
        while self._old:
            await asyncio.sleep(_OLD_LOOK_S)
            keep: list[tuple[_Secure, float]] = []
            done: list[tuple[_Secure, float]] = []
            for secure, until_s in self._old:
                # Idle is what a channel is that has had no call for its idle timeout.
                idle = secure.channel.get_state() is grpc.ChannelConnectivity.IDLE
                (done if idle or self._clock_s() > until_s else keep).append((secure, until_s))
            self._old = keep
            for secure, _ in done:
                await _close_secure(secure)
        self._closes_old = None

    async def _watch(self, key: _Key, channel: grpc.aio.Channel, files: TlsFiles) -> None:
        """Say why no connection is made; whoever calls hears only that it is so."""
        state = channel.get_state()
        while state is not grpc.ChannelConnectivity.SHUTDOWN:
            if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
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
            await self._channels.pop(key).close(None)
        for key in [k for k in self._secure if k.address == address]:
            await _close_secure(self._secure.pop(key))

    async def close(self) -> None:
        """Close all; calls still open on them end as cancelled."""
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.close(None)
        if self._closes_old is not None:
            self._closes_old.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._closes_old
            self._closes_old = None
        secure, self._secure = [*self._secure.values(), *(s for s, _ in self._old)], {}
        self._old = []
        for each in secure:
            await _close_secure(each)


async def _close_secure(secure: _Secure) -> None:
    secure.watch.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await secure.watch
    await secure.channel.close(None)


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
    "CHANNEL_OPTIONS",
    "SERVER_OPTIONS",
    "ChannelPool",
    "Probe",
    "bind_sockets",
    "fail",
    "probe",
    "serve",
    "was_cut_off",
]
