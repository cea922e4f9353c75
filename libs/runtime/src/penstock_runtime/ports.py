"""What a role takes from the world around it: clocks, chance, the network.

Each role has one object of this kind and hands its parts on in constructors: `NodePorts` in
`penstock_storage_node.ports`, `GatewayPorts` in `penstock_gateway.ports`, `ControllerPorts` in
`penstock_controller.active.ports`. The default of every field is the real thing; the simulator gives its own.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from penstock_core.metadata.image import Endpoint
from penstock_runtime.controller_client import ControllerClient
from penstock_runtime.grpc_server import GrpcServer, serve
from penstock_runtime.grpc_tools import ChannelPool
from penstock_runtime.http import HttpServer
from penstock_runtime.lifecycle import monotonic_ms


def wall_ms() -> int:
    """Wall clock, in ms since 1970."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of one process."""

    ms: Callable[[], int] = monotonic_ms
    """Never goes back."""
    s: Callable[[], float] = time.monotonic
    """The same clock in seconds, for what takes less than a millisecond."""
    wall_ms: Callable[[], int] = wall_ms
    """Since 1970. Steps when somebody sets it."""


REAL_CLOCKS = Clocks()


@dataclass(frozen=True, slots=True, kw_only=True)
class RolePorts:
    """What every role takes."""

    clocks: Clocks = REAL_CLOCKS
    serve: Callable[..., Awaitable[tuple[GrpcServer, Endpoint]]] = serve
    """Starts a gRPC server, as `grpc_server.serve`."""
    http: Callable[..., HttpServer] = HttpServer
    channels: Callable[..., ChannelPool] = ChannelPool
    freeze: Callable[[], None] = gc.freeze
    """Called when a whole metadata image has come: it has no cycles, so no collection needs to look at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPorts(RolePorts):
    """What those take that follow the controllers."""

    new_rng: Callable[[], random.Random] = random.Random
    """A generator of its own for each part that spreads its tries over time."""
    controllers: Callable[..., ControllerClient] = ControllerClient
