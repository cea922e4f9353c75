"""How many calls are open at a gRPC port, and who has called by which connection.

HTTP/2 bounds the calls of a connection, and not those of an address or of all. Calls of our own roles, by
certificate, are not counted: what they may have open is bounded where it is served.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import grpc
import grpc.aio

from penstock_core.security.login_limits import network, shares_of
from penstock_runtime.grpc_bounds import GrpcBounds
from penstock_runtime.memory import Trimmer
from penstock_runtime.security.callers import caller
from penstock_runtime.security.role_guard import Connection

_NO_PROOF: Final = frozenset({"/penstock.v1.Gateway/Authenticate"})
"""Methods for whom nobody knows yet: who has called nothing else is a stranger."""

Handler = Any
Context = grpc.aio.ServicerContext[Any, Any]


class PeerKey(NamedTuple):
    """The other end of a connection, as the kernel and calls both have it."""

    host: str
    port: int


@lru_cache(maxsize=4096)
def peer_key(peer: str) -> PeerKey | None:
    """What gRPC's `peer()` says: "ipv4:192.0.2.1:5000", "ipv6:%5B2001:db8::1%5D:5000"; None for no address."""
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return None
    host, _, port = unquote(rest).rpartition(":")
    return kernel_key(host.removeprefix("[").removesuffix("]"), int(port))


def kernel_key(host: str, port: int) -> PeerKey:
    """What `getpeername` says, of IPv4 by way of IPv6 and of links too."""
    return PeerKey(host.removeprefix("::ffff:").partition("%")[0], port)


def counted_as(host: str) -> Iterator[tuple[str, int]]:
    """As what an address counts, each with how many shares of one address it may have: as itself, and of IPv6 as its
    /64, of which whoever has one address has them all."""
    yield host, 1
    whose = network(host)
    if (shares := shares_of(whose)) > 1:
        yield f"{whose}/64", shares


class Peer:
    """Who has called by one connection."""

    __slots__ = ("is_ours", "key", "last_call", "open_calls")

    def __init__(self, key: PeerKey) -> None:
        self.key = key
        self.open_calls = 0
        self.last_call = 0
        """Which call it was, of all that came."""
        self.is_ours = False
        """A role of this cluster, by its certificate."""


class OpenCalls(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Counts calls by connection and by address, and refuses those beyond a bound. Behind whoever asks for rights."""

    def __init__(self, bounds: GrpcBounds) -> None:
        self._bounds = bounds
        self._trimmer = Trimmer()
        self._counted: dict[str, tuple[Handler, Handler]] = {}
        self.peers: dict[PeerKey, Peer] = {}
        """Who has made a call that counts; until `forget`."""
        self.by_address: dict[str, int] = {}
        """Open calls that are not our own roles', also by the /64 of IPv6."""
        self.open = 0
        self.calls = 0

    def forget(self, key: PeerKey) -> None:
        """A connection is gone."""
        self.peers.pop(key, None)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        details: grpc.HandlerCallDetails,
    ) -> Handler:
        """The method's handler with the count around it."""
        handler = await continuation(details)
        if handler is None:
            return None
        method = str(details.method)
        known = self._counted.get(method)
        if known is None or known[0] is not handler:
            known = self._counted[method] = handler, self._count(handler, method not in _NO_PROOF)
        return known[1]

    def refuses(self, connection: Connection) -> str:
        """Why a connection may have no more calls; "" when it may. Of our own roles nobody knows yet who they are."""
        if not self._bounds.calls_max or "peer_spiffe_id" in connection.properties:
            return ""
        key = peer_key(connection.name)
        refusal = self._refusal("" if key is None else key.host)
        if refusal:
            self._trimmer.freed()
        return refusal

    def _refusal(self, address: str) -> str:
        bounds = self._bounds
        for whose, shares in counted_as(address):
            open_calls = self.by_address.get(whose, 0)
            if address and open_calls >= bounds.calls_per_address_max * shares:
                return (
                    f"{open_calls} calls of {whose} are open, and grpc_calls_per_address_max ="
                    f" {bounds.calls_per_address_max}; end some, or raise it"
                )
        if self.open >= bounds.calls_max:
            return (
                f"{self.open} calls are open, and grpc_calls_max = {bounds.calls_max}; try again, or raise it"
            )
        return ""

    async def _enter(self, context: Context, proves: bool) -> tuple[Peer | None, str | None]:
        """The peer whose call begins, and the address that it is counted for; "": by another kind of socket."""
        key = peer_key(context.peer())
        is_ours = caller() is not None
        counts = self._bounds.calls_max > 0 and not is_ours
        address = "" if key is None else key.host
        if counts and (refusal := self._refusal(address)):
            self._trimmer.freed()
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, refusal)
        peer = None
        if proves and key is not None:
            peer = self.peers.get(key)
            if peer is None:
                peer = self.peers[key] = Peer(key)
            self.calls += 1
            peer.open_calls += 1
            peer.last_call = self.calls
            peer.is_ours = is_ours
        if not counts:
            return peer, None
        self._counts(address, 1)
        return peer, address

    def _counts(self, address: str, change: int) -> None:
        """A call of that address has begun (1), or ended (-1)."""
        self.open += change
        for whose, _ in counted_as(address):
            if left := self.by_address.get(whose, 0) + change:
                self.by_address[whose] = left
            else:
                del self.by_address[whose]

    def _leave(self, peer: Peer | None, address: str | None) -> None:
        if peer is not None:
            peer.open_calls -= 1
        if address is not None:
            self._counts(address, -1)

    def _count(self, handler: Handler, proves: bool) -> Handler:
        enter, leave = self._enter, self._leave
        behaviour = (
            (handler.stream_stream or handler.stream_unary)
            if handler.request_streaming
            else (handler.unary_stream or handler.unary_unary)
        )
        counted: Callable[[Any, Context], Any]
        if inspect.isasyncgenfunction(behaviour):

            async def generates(request: Any, context: Context) -> Any:
                entered = await enter(context, proves)
                responses = behaviour(request, context)
                try:
                    async for response in responses:
                        yield response
                finally:
                    leave(*entered)
                    await responses.aclose()

            counted = generates
        else:

            async def answers(request: Any, context: Context) -> Any:
                entered = await enter(context, proves)
                try:
                    return await behaviour(request, context)
                finally:
                    leave(*entered)

            counted = answers
        make: Any = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }[handler.request_streaming, handler.response_streaming]
        return make(counted, handler.request_deserializer, handler.response_serializer)
