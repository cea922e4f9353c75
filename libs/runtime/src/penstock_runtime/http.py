"""A small HTTP server: `/healthz`, `/readyz`, `/metrics`, and what a role adds.

`/healthz` says that the event loop turned within 2 s (503: start the process anew); `/readyz` says 503 and
the reason while the role does not serve (send it no clients). Reads only, no state changes: nothing here
needs a guard against forged requests yet. A port of its own for health alone (`health_only`) tells balancers 200
or 503, and not why.

`web` is aiohttp's; take it from here (see below why).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import sys
from collections.abc import Awaitable, Callable, Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

# aiohttp's client, which comes along with its server, reads every certificate authority of the
# system when it is loaded (40 ms and 2.5 MB in each process) for requests that a role never makes.
# It goes without where there is no ssl. TLS of a server is the event loop's, not aiohttp's.
if "aiohttp" not in sys.modules:
    sys.modules["ssl"] = None  # type: ignore[assignment]
try:
    from aiohttp import web
    from aiohttp.http_exceptions import HttpProcessingError
finally:
    sys.modules["ssl"] = ssl

from penstock_core.metadata.image import Endpoint
from penstock_runtime.addresses import Plaintext, bind_sockets
from penstock_runtime.http_door import HttpDoor, accept_tls
from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.logs import error_fields

_REQUEST_BYTES_MAX = 1024 * 1024
_SHUTDOWN_TIMEOUT_S = 1.0


class _ClientFaults(logging.Filter):
    """What cannot be read is answered 400 and is no error of ours: it is not logged, as with aiohttp's own unknown
    methods. Else any client of another protocol (HTTP/2 above all) fills the log."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_log = logging.getLogger("penstock.http")
_log.addFilter(_ClientFaults())


class HttpServer:
    """Health, metrics and `extra_routes` of one role.

    `bind` "" opens nothing; `start` then returns an endpoint with port 0.
    """

    def __init__(
        self,
        bind: str,
        lifecycle: Lifecycle,
        extra_routes: Iterable[web.AbstractRouteDef] = (),
        *,
        allow_insecure_bind: Plaintext | None = None,
        health_only: bool = False,
        setting: str = "http_bind",
        tls: Callable[[], ssl.SSLContext] | None = None,
        look: Callable[[web.Request], Awaitable[web.Response | None]] | None = None,
        may_face_others: bool = False,
    ) -> None:
        """`tls` gives the context for the next connection; `look` sees each request first, and may answer it;
        `may_face_others`: other machines may reach it, for it is encrypted and knows who asks."""
        self._bind = bind
        self._setting = setting
        self._lifecycle = lifecycle
        self._allow_insecure_bind = (
            lifecycle.allow_insecure_bind if allow_insecure_bind is None else allow_insecure_bind
        )
        if may_face_others:
            self._allow_insecure_bind = True
        self._tls = tls
        self._look = look
        self._accepting: list[asyncio.Task[None]] = []
        app = web.Application(middlewares=[self._guard], client_max_size=_REQUEST_BYTES_MAX)
        if health_only:
            app.add_routes([web.get("/healthz", self._is_alive), web.get("/readyz", self._is_ready)])
        else:
            app.add_routes(
                [
                    web.get("/healthz", self._healthz),
                    web.get("/readyz", self._readyz),
                    web.get("/metrics", self._metrics),
                    *extra_routes,
                ]
            )
        self._runner = web.AppRunner(app, access_log=None, logger=_log, shutdown_timeout=_SHUTDOWN_TIMEOUT_S)
        self._servers: list[asyncio.Server] = []
        self._door: HttpDoor | None = None
        self._started = False

    async def start(self) -> Endpoint:
        """Open the port. Raises StartupError naming the port and the mend."""
        if not self._bind:
            return Endpoint("", "", 0)
        sockets, endpoint = bind_sockets(
            self._bind, self._setting, allow_insecure_bind=self._allow_insecure_bind, backlog=128
        )
        await self._runner.setup()
        self._started = True
        self._lifecycle.at_end(self.stop)
        # aiohttp makes its protocol by a call
        make: Callable[[], asyncio.Protocol] = self._runner.server  # type: ignore[assignment]
        door = self._door = HttpDoor(make, sockets, f"HTTP port {endpoint.port}")
        loop = asyncio.get_running_loop()
        if self._tls is None:
            self._servers = [await loop.create_server(door, sock=s) for s in sockets]
        else:
            self._accepting = [loop.create_task(accept_tls(s, door, self._tls)) for s in sockets]
        return endpoint

    async def stop(self) -> None:
        """Close the port and what is open on it. Safe to call twice."""
        if self._started:
            self._started = False
            if self._door is not None:
                self._door.close()
            for server in self._servers:
                server.close()
            for accepting in self._accepting:
                accepting.cancel()
            await asyncio.gather(*self._accepting, return_exceptions=True)
            await self._runner.cleanup()

    async def _healthz(self, request: web.Request) -> web.Response:
        return _told(request, "ok", self._lifecycle.health_reason())

    async def _readyz(self, request: web.Request) -> web.Response:
        return _told(request, "ready", self._lifecycle.ready_reason())

    async def _is_alive(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self._lifecycle.health_reason() is None else 503)

    async def _is_ready(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self._lifecycle.ready_reason() is None else 503)

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            body=metrics_text(self._lifecycle.registry), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4}
        )

    @web.middleware
    async def _guard(self, request: web.Request, handler: object) -> web.StreamResponse:
        """An unexpected error is logged once and answered without its text."""
        try:
            answer = None if self._look is None else await self._look(request)
            response: web.StreamResponse = answer or await handler(request)  # type: ignore[operator]
        except web.HTTPException:
            raise
        except Exception as e:
            self._lifecycle.unhandled_errors.inc()
            self._lifecycle.log.error("http request failed", path=request.path, **error_fields(e))
            return web.Response(status=500, text="internal error; the log of this process says more\n")
        response.headers.setdefault("X-Content-Type-Options", "nosniff")
        response.headers.setdefault("Cache-Control", "no-store")
        return response


def _told(request: web.Request, well: str, reason: str | None) -> web.Response:
    """Yes, or 503 with the reason in one line; as JSON to who asks for it."""
    status = 200 if reason is None else 503
    if "application/json" in request.headers.get("Accept", ""):
        return web.json_response({well: reason is None, "reason": reason}, status=status)
    return web.Response(status=status, text=f"{well if reason is None else reason}\n")


def metrics_text(registry: CollectorRegistry) -> bytes:
    """All metrics in Prometheus' text form."""
    return generate_latest(registry)


__all__ = ["HttpServer", "metrics_text", "web"]
