"""Which role calls is looked at before anything else: one interceptor for a server's every method.

Deny by default: a method without a row in `methods` is for nobody, a certificate without a name of ours is
nobody's, and one of another trust domain is a stranger's though the CA be the same. A certificate that is refused by
its serial number opens nothing, and streams that it opened before end as soon as the metadata say so.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

import grpc
import grpc.aio

from penstock_core.security.audit import REFUSED
from penstock_core.security.identity import BadIdentity, PeerIdentity, parse_uri
from penstock_runtime.audit import Audit
from penstock_runtime.logs import Log, get_log
from penstock_runtime.security.callers import caller, set_caller
from penstock_runtime.security.methods import METHOD_ROLES
from penstock_runtime.security.refused import RefusedCertificates, serial_in_pem
from penstock_runtime.security.resumed_sessions import RESUMED_AFTER_END, is_resumed_after_end

_LOGGED_MAX = 100
"""Different refusals that are logged, each once: others could fill the disk with them."""

_PERMISSION_DENIED = grpc.StatusCode.PERMISSION_DENIED.value[0]
"""What a context gives after its call was aborted."""


class Connection(Protocol):
    """One, as a server knows it."""

    name: str
    """As `ServicerContext.peer` says it."""
    properties: Mapping[str, Sequence[bytes]]
    """As `ServicerContext.auth_context` says them."""


Handler = Any
Context = grpc.aio.ServicerContext[Any, Any]
_parse = lru_cache(maxsize=1024)(parse_uri)


class RoleGuard(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Lets a call through to its handler when the caller's role may make it."""

    def __init__(
        self,
        trust_domain: str,
        *,
        roles: Mapping[str, frozenset[str]] = METHOD_ROLES,
        refused: RefusedCertificates | None = None,
        takes_plaintext: bool = False,
        log: Log | None = None,
        audit: Audit | None = None,
        wall_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`takes_plaintext`: who comes without TLS may do everything, as in a cluster without certificates. By `wall_s`
        (since 1970) certificates end."""
        self._wall_s = wall_s
        self._takes_plaintext = takes_plaintext
        self._audit = audit
        self._trust_domain = trust_domain
        self._roles = roles
        self._log = log or get_log()
        self._logged: set[tuple[str, str]] = set()
        self._guarded: dict[str, tuple[Handler, Handler]] = {}
        self._refused = RefusedCertificates() if refused is None else refused
        self._refused.on_change(self._end_refused)
        self._streams: dict[asyncio.Task[Any], str] = {}
        """Calls that are served as streams, with the serial number that opened them."""
        self._cut: dict[asyncio.Task[Any], str] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        details: grpc.HandlerCallDetails,
    ) -> Handler:
        """The method's handler with the question before it."""
        handler = await continuation(details)
        if handler is None:
            return None
        method = str(details.method)
        known = self._guarded.get(method)
        if known is None or known[0] is not handler:
            known = self._guarded[method] = handler, self._guard(method, handler)
        return known[1]

    def refusal(self, method: str, properties: Mapping[str, Any]) -> tuple[PeerIdentity | None, str]:
        """Who calls, and why he may not call this method: "" when he may."""
        allowed = self._roles.get(method, frozenset())
        names = list(properties.get("peer_spiffe_id", ()))
        if len(names) != 1:
            return (
                None,
                "the certificate names no role (one spiffe:// name is needed); issue it by penstock cert",
            )
        try:
            identity = _parse(names[0].decode("utf-8", "replace"))
        except BadIdentity as error:
            return None, f"the certificate names no role: {error}; issue it by penstock cert"
        if identity.trust_domain != self._trust_domain:
            return identity, f"{identity} is of another cluster; this one is {self._trust_domain}"
        if identity.role not in allowed:
            whom = " or ".join(sorted(allowed)) or "nobody"
            return identity, f"{method.rpartition('/')[2]} is for {whom}, and this is {identity}"
        if is_resumed_after_end(properties, self._wall_s()):
            return identity, RESUMED_AFTER_END
        return identity, self._refused.fault(_serial(properties)) if self._refused.any else ""

    def _end_refused(self) -> None:
        for task, serial in self._streams.items():
            fault = self._refused.fault(serial)
            if fault and task not in self._cut:
                self._cut[task] = fault
                # As if the caller had gone: every handler bears that at any place.
                task.cancel()

    async def _served(self, context: Context, method: str, serve: Callable[[], Awaitable[Any]]) -> Any:
        """A stream, for as long as the certificate that opened it counts."""
        task = asyncio.current_task()
        assert task is not None
        # With the first answer gRPC would send it, and once more with the status when that write is cut off: such a
        # status never leaves, and the caller would wait for ever.
        await context.send_initial_metadata(())
        self._streams[task] = serial = _serial(context.auth_context())
        try:
            if self._refused.any and (refusal := self._refused.fault(serial)):
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, refusal)
            return await serve()
        except asyncio.CancelledError:
            fault = self._cut.get(task)
            if fault is None:
                raise
            task.uncancel()
            self._log.warning("stream ended", method=method, peer=context.peer(), reason=fault)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, fault)
        finally:
            self._streams.pop(task, None)
            self._cut.pop(task, None)

    async def _admit(self, method: str, context: Context) -> None:
        properties = context.auth_context()
        if self._takes_plaintext and b"ssl" not in properties.get("transport_security_type", ()):
            return
        identity, refusal = self.refusal(method, properties)
        if not refusal and identity is not None:
            set_caller(identity)
            return
        self._refused_call(method, context.peer(), identity, refusal)
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, refusal)

    def refuses(self, connection: Connection, method: str) -> str:
        """Why a call is refused, before anything is done for it; "" when it is not, or nobody knows the method."""
        properties = connection.properties
        if method not in self._roles or (
            self._takes_plaintext and b"ssl" not in properties.get("transport_security_type", ())
        ):
            return ""
        identity, refusal = self.refusal(method, properties)
        if refusal:
            self._refused_call(method, connection.name, identity, refusal)
        return refusal

    def _refused_call(self, method: str, peer: str, identity: PeerIdentity | None, reason: str) -> None:
        self._tell(method, peer, identity, reason)
        key = (method, str(identity))
        if key not in self._logged and len(self._logged) < _LOGGED_MAX:
            self._logged.add(key)
            self._log.warning("call refused", method=method, peer=peer, reason=reason)

    def _tell(self, method: str, peer: str, identity: PeerIdentity | None, reason: str) -> None:
        if self._audit is None:
            return
        self._audit.tell(
            {
                "event": REFUSED,
                "outcome": "refused",
                "principal": "" if identity is None else str(identity),
                "address": peer,
                "api": method.rpartition("/")[2],
                "reason": reason,
            }
        )

    def _ended(self, method: str, context: Context) -> None:
        """A call that was let in has failed: it may have said to be somebody else (`node_fault`, `gateway_fault`)."""
        if context.code() in (grpc.StatusCode.PERMISSION_DENIED, _PERMISSION_DENIED):
            self._tell(method, context.peer(), caller(), context.details())

    def _guard(self, method: str, handler: Handler) -> Handler:
        admit, ended = self._admit, self._ended
        behaviour = (
            (handler.stream_stream or handler.stream_unary)
            if handler.request_streaming
            else (handler.unary_stream or handler.unary_unary)
        )
        guarded: Callable[[Any, Context], Any]
        if inspect.isasyncgenfunction(behaviour):

            async def generates(request: Any, context: Context) -> None:
                await admit(method, context)
                responses = behaviour(request, context)

                async def give() -> None:
                    try:
                        async for response in responses:
                            await context.write(response)
                    finally:
                        await responses.aclose()

                try:
                    await self._served(context, method, give)
                except Exception:
                    ended(method, context)
                    raise

            guarded = generates
        elif handler.request_streaming or handler.response_streaming:

            async def streams(request: Any, context: Context) -> Any:
                await admit(method, context)
                try:
                    return await self._served(context, method, lambda: behaviour(request, context))
                except Exception:
                    ended(method, context)
                    raise

            guarded = streams
        else:

            async def answers(request: Any, context: Context) -> Any:
                await admit(method, context)
                try:
                    return await behaviour(request, context)
                except Exception:
                    ended(method, context)
                    raise

            guarded = answers
        make: Any = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }[handler.request_streaming, handler.response_streaming]
        return make(guarded, handler.request_deserializer, handler.response_serializer)


def _serial(properties: Mapping[str, Any]) -> str:
    found = list(properties.get("x509_pem_cert", ()))
    return serial_in_pem(found[0]) if found else ""
