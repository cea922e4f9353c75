"""gRPC as Penstock uses it: servers, channels, probes.

Theory. A dead peer must be noticed in seconds and a refused one at once, so channels
ping while calls are open and reconnect with a backoff of 50-500 ms; servers allow such
pings. Ports are not shared (`so_reuseport=0`): a taken port is an error, not two
processes that each get half of the calls.

gRPC's own log lines are off (see the package's __init__): every failure that matters
comes back as a status and is logged by who made the call.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from enum import Enum
from typing import Any, NoReturn

import grpc
import grpc.aio

from penstock_core.limits import GRPC_MESSAGE_BYTES_MAX
from penstock_core.metadata.image import Endpoint
from penstock_runtime.addresses import StartupError, bind_sockets, check_bind, check_free
from penstock_runtime.lifecycle import current_lifecycle

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
)


async def serve(
    bind: str,
    add_services: Callable[[grpc.aio.Server], None],
    *,
    allow_insecure_bind: bool,
    setting: str = "grpc_bind",
) -> tuple[grpc.aio.Server, Endpoint]:
    """Start a server on `bind` (port 0: a free one) and say where it listens.

    Raises StartupError, naming the setting, when the port is taken or would be open to
    other machines without `allow_insecure_bind`. Stop it with `await server.stop(grace_s)`.
    """
    address = check_bind(bind, setting, allow_insecure_bind=allow_insecure_bind)
    # gRPC's own failure has no reason in it; a plain bind first gives one.
    check_free(address, setting)
    server = grpc.aio.server(options=SERVER_OPTIONS)
    add_services(server)
    target = f"[::]:{address.port}" if address.host in ("", "*") else str(address)
    try:
        port = server.add_insecure_port(target)
    except RuntimeError:
        port = 0
    if port == 0:
        await server.stop(None)
        raise StartupError(f"{setting} = {bind}: port {address.port} is taken; choose another port")
    await server.start()
    if (lifecycle := current_lifecycle()) is not None:
        lifecycle.at_end(lambda: server.stop(None))
    return server, Endpoint("", address.host, port)


class ChannelPool:
    """Channels by address, opened on first use and kept. One per role; close it at the end."""

    def __init__(self, options: Options = ()) -> None:
        self._options = (*CHANNEL_OPTIONS, *options)
        self._channels: dict[tuple[str, str], grpc.aio.Channel] = {}
        if (lifecycle := current_lifecycle()) is not None:
            lifecycle.at_end(self.close)

    def get(self, address: str, lane: str = "") -> grpc.aio.Channel:
        """The channel to `address`; another `lane` is a connection of its own."""
        key = (address, lane)
        channel = self._channels.get(key)
        if channel is None:
            channel = grpc.aio.insecure_channel(address, options=self._options)
            self._channels[key] = channel
        return channel

    async def drop(self, address: str) -> None:
        """Close every channel to an address that is no longer of use."""
        for key in [k for k in self._channels if k[0] == address]:
            await self._channels.pop(key).close(None)

    async def close(self) -> None:
        """Close all; calls still open on them end as cancelled."""
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.close(None)


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


async def fail(
    context: grpc.aio.ServicerContext[Any, Any], status: grpc.StatusCode, message: str
) -> NoReturn:
    """End the call with `status` and a line that names the thing and the mend."""
    await context.abort(status, message)


__all__ = [
    "CHANNEL_OPTIONS",
    "SERVER_OPTIONS",
    "ChannelPool",
    "Probe",
    "bind_sockets",
    "fail",
    "probe",
    "serve",
]
