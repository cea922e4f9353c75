"""gRPC servers of the roles: `http2.server` behind a port of ours.

With a certificate (`tls`) servers let in who shows one of the cluster's CA, and each method only the roles that
`security.methods` names. A taken port is an error, not two processes that each get half of the calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc

from penstock_core.limits import GRPC_MESSAGE_BYTES_MAX
from penstock_core.metadata.image import Endpoint
from penstock_runtime.addresses import Plaintext, bind_sockets
from penstock_runtime.audit import audit_of
from penstock_runtime.grpc_bounds import GrpcBounds
from penstock_runtime.grpc_calls import OpenCalls
from penstock_runtime.grpc_port import BACKLOG, GrpcPort, PortTls
from penstock_runtime.http2.server import Peer, Server
from penstock_runtime.http2.wire import CallPace
from penstock_runtime.lifecycle import current_lifecycle
from penstock_runtime.security.listener_tls import ListenerTlsFiles
from penstock_runtime.security.role_guard import RoleGuard
from penstock_runtime.security.tls_files import TlsFiles
from penstock_runtime.turns import LoopTurns

_OF_ROLES: Final = CallPace(at_once=16, rests=False, resets_most=100_000)
"""A gateway begins and resets as many calls at once as it has clients that come or leave together."""


class GrpcServer:
    """One that listens."""

    def __init__(self, server: Server, port: GrpcPort) -> None:
        self._server = server
        self._port = port

    async def stop(self, grace_s: float | None) -> None:
        """Let nobody in any more; calls at hand have `grace_s` to end (None: none). Safe to call twice."""
        await self._port.close()
        await self._server.stop(grace_s)


async def serve(
    bind: str,
    add_services: Callable[[Any], None],
    *,
    allow_insecure_bind: Plaintext,
    setting: str = "grpc_bind",
    tls: TlsFiles | None = None,
    door: ListenerTlsFiles | None = None,
    interceptors: Sequence[Any] = (),
    bounds: GrpcBounds | None = None,
) -> tuple[GrpcServer, Endpoint]:
    """Start a server on `bind` (port 0: a free one) and say where it listens.

    `add_services` is given what generated code takes for a grpc.aio.Server. With `tls` only roles of this cluster may
    call, each what `security.methods` allows it. `door` is the TLS of a port for clients, and `interceptors` see their
    calls first. `bounds` are what others may take of the port.

    Raises StartupError, naming the setting, when the port is taken or would be open in plaintext to
    other machines without `allow_insecure_bind`. Stop it with `await server.stop(grace_s)`.
    """
    secure = tls is not None and not tls.takes_plaintext
    sockets, endpoint = bind_sockets(
        bind, setting, allow_insecure_bind=secure or allow_insecure_bind, backlog=BACKLOG
    )
    life = current_lifecycle()
    guards, guard = interceptors, None
    if tls is not None:
        guard = RoleGuard(
            tls.current.identity.trust_domain,
            refused=tls.refused,
            takes_plaintext=tls.takes_plaintext,
            audit=None if life is None else audit_of(life),
            wall_s=time.time,
        )
        guards = (guard, *interceptors)
    bounds = bounds or GrpcBounds()
    calls = OpenCalls(bounds)

    def refuses(peer: Peer, method: str) -> tuple[grpc.StatusCode, str] | None:
        if guard is not None and (why := guard.refuses(peer, method)):
            return grpc.StatusCode.PERMISSION_DENIED, why
        if why := calls.refuses(peer):
            return grpc.StatusCode.RESOURCE_EXHAUSTED, why
        return None

    server = Server(
        interceptors=(*guards, calls),
        streams_max=bounds.streams_max,
        message_bytes_most=GRPC_MESSAGE_BYTES_MAX,
        window_bytes=bounds.window_bytes,
        pace=CallPace() if bounds.calls_max else _OF_ROLES,
        refuses=refuses,
    )
    add_services(server)
    port = GrpcPort(
        server,
        bounds,
        calls,
        turns=LoopTurns() if life is None else LoopTurns.of(life),
        tls=_tls_of(tls, door),
        name=f"gRPC port {endpoint.port}",
    )
    port.open(sockets)
    made = GrpcServer(server, port)
    if life is not None:
        life.at_end(lambda: made.stop(None))
    return made, Endpoint("", endpoint.host, endpoint.port)


def _tls_of(tls: TlsFiles | None, door: ListenerTlsFiles | None) -> PortTls | None:
    if tls is not None:
        return PortTls(lambda: tls.current.server, tls.takes_plaintext)
    return None if door is None else PortTls(door.context)
