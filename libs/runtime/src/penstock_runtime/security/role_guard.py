"""Which role calls is looked at before anything else: one interceptor for a server's every method.

Deny by default: a method without a row in `methods` is for nobody, a certificate without a name of ours is
nobody's, and one of another trust domain is a stranger's though the CA be the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Any

import grpc
import grpc.aio

from penstock_core.security.audit import REFUSED
from penstock_core.security.identity import BadIdentity, PeerIdentity, parse_uri
from penstock_runtime.audit import Audit
from penstock_runtime.logs import Log, get_log
from penstock_runtime.security.callers import caller, set_caller
from penstock_runtime.security.methods import METHOD_ROLES

_LOGGED_MAX = 100
"""Different refusals that are logged, each once: others could fill the disk with them."""

_PERMISSION_DENIED = grpc.StatusCode.PERMISSION_DENIED.value[0]
"""What a context gives after its call was aborted."""

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
        log: Log | None = None,
        audit: Audit | None = None,
    ) -> None:
        self._audit = audit
        self._trust_domain = trust_domain
        self._roles = roles
        self._log = log or get_log()
        self._logged: set[tuple[str, str]] = set()
        self._guarded: dict[str, tuple[Handler, Handler]] = {}

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
        return identity, ""

    async def _admit(self, method: str, context: Context) -> None:
        identity, refusal = self.refusal(method, context.auth_context())
        if not refusal and identity is not None:
            set_caller(identity)
            return
        self._tell(method, context, identity, refusal)
        key = (method, str(identity))
        if key not in self._logged and len(self._logged) < _LOGGED_MAX:
            self._logged.add(key)
            self._log.warning("call refused", method=method, peer=context.peer(), reason=refusal)
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, refusal)

    def _tell(self, method: str, context: Context, identity: PeerIdentity | None, reason: str) -> None:
        if self._audit is None:
            return
        self._audit.tell(
            {
                "event": REFUSED,
                "outcome": "refused",
                "principal": "" if identity is None else str(identity),
                "address": context.peer(),
                "api": method.rpartition("/")[2],
                "reason": reason,
            }
        )

    def _ended(self, method: str, context: Context) -> None:
        """A call that was let in has failed: it may have said to be somebody else (`node_fault`, `gateway_fault`)."""
        if context.code() in (grpc.StatusCode.PERMISSION_DENIED, _PERMISSION_DENIED):
            self._tell(method, context, caller(), context.details())

    def _guard(self, method: str, handler: Handler) -> Handler:
        admit, ended = self._admit, self._ended
        behaviour = (
            (handler.stream_stream or handler.stream_unary)
            if handler.request_streaming
            else (handler.unary_stream or handler.unary_unary)
        )
        guarded: Callable[[Any, Context], Any]
        if inspect.isasyncgenfunction(behaviour):

            async def generates(request: Any, context: Context) -> Any:
                await admit(method, context)
                responses = behaviour(request, context)
                try:
                    async for response in responses:
                        yield response
                except Exception:
                    ended(method, context)
                    raise
                finally:
                    await responses.aclose()

            guarded = generates
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
