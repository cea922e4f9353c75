"""`Authenticate`: a SASL exchange over a stream, and a token that is good at every gateway.

Few may be at it at a time, in all and from one address, and each has 10 s, beside what login limits make it wait.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
import grpc.aio

from penstock_core.security.login_limits import network
from penstock_core.security.sasl import SaslFailure
from penstock_core.security.sasl_session import AUTHENTICATION_MS_MAX, FAILURE_DELAY_MS
from penstock_core.security.session_token import NoKey
from penstock_frontend.sign_in.callers import CallerDoor, CutOff
from penstock_frontend.sign_in.exchanges import Exchange, exchange_of
from penstock_frontend.sign_in.passwords import TooManyPasswords
from penstock_gateway.rpc.describe import peer_host
from penstock_proto.v1 import gateway_pb2 as pb

AT_IT_MAX: Final = 256
PER_ADDRESS_MAX: Final = 16
MESSAGE_BYTES_MAX: Final = 16 * 1024

Context = grpc.aio.ServicerContext[Any, Any]


class _Failed(Exception):
    """The exchange is over: a status and what the client is told."""

    def __init__(self, status: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Authenticator:
    """That of one gateway."""

    def __init__(self, door: CallerDoor) -> None:
        self._door = door
        self._offered = tuple(each for each in door.mechanisms if each != "OAUTHBEARER")
        self._at_it: Counter[str] = Counter()

    async def responses(
        self, requests: AsyncIterator[pb.AuthenticateRequest], context: Context
    ) -> AsyncIterator[pb.AuthenticateResponse]:
        """One exchange."""
        address = network(peer_host(context.peer()))
        if self._at_it.total() >= AT_IT_MAX or self._at_it[address] >= PER_ADDRESS_MAX:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, "too many sign in at this moment; try again"
            )
        self._at_it[address] += 1
        talk = _Talk(self._door, self._offered, peer_host(context.peer()))
        try:
            while not talk.complete:
                yield await talk.answer(requests)
        except _Failed as failure:
            await context.abort(failure.status, failure.message)
        finally:
            talk.gone()
            self._at_it[address] -= 1
            if not self._at_it[address]:
                del self._at_it[address]


class _Talk:
    """State of one exchange."""

    def __init__(self, door: CallerDoor, offered: tuple[str, ...], address: str) -> None:
        self._door = door
        self._offered = offered
        self._address = address
        self._exchange: Exchange | None = None
        self._mechanism = ""
        self._left_ms = AUTHENTICATION_MS_MAX
        self.complete = False

    def gone(self) -> None:
        """It is over."""
        if self._exchange is not None:
            self._exchange.gone()

    async def answer(self, requests: AsyncIterator[pb.AuthenticateRequest]) -> pb.AuthenticateResponse:
        """To the client's next message. Raises _Failed."""
        door, desk = self._door, self._door.desk
        if desk is None:
            raise _Failed(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"nobody signs in at this port: its security is {door.settings.security}",
            )
        try:
            door.check_news(for_sign_in=True)
        except CutOff as error:
            raise _Failed(grpc.StatusCode.UNAVAILABLE, str(error)) from None
        request = await self._next(requests)
        exchange = self._exchange
        if exchange is None:
            exchange = self._exchange = self._begin(request.mechanism)
        try:
            said = await exchange.evaluate(request.message)
        except SaslFailure as failure:
            door.refused(self._mechanism, exchange.user, self._address, failure.reason)
            await asyncio.sleep(FAILURE_DELAY_MS / 1000)
            raise _Failed(
                grpc.StatusCode.UNAUTHENTICATED,
                failure.client_text
                or "Authentication failed during authentication due to invalid credentials with SASL mechanism "
                + self._mechanism,
            ) from None
        except TooManyPasswords:
            raise _Failed(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many passwords wait; try again") from None
        response = pb.AuthenticateResponse(message=said)
        if exchange.complete:
            assert exchange.reliance is not None
            assert door.tokens is not None
            try:
                response.token = door.tokens.issue(exchange.reliance)
            except NoKey as error:
                raise _Failed(grpc.StatusCode.UNAVAILABLE, str(error)) from None
            response.token_lifetime_ms = door.tokens.lifetime_ms
            door.came(self._mechanism, exchange.user, self._address)
            self.complete = True
        return response

    async def _next(self, requests: AsyncIterator[pb.AuthenticateRequest]) -> pb.AuthenticateRequest:
        desk = self._door.desk
        assert desk is not None
        begun_ms = desk.now_ms()
        try:
            async with asyncio.timeout(self._left_ms / 1000):
                request = await anext(requests)
        except StopAsyncIteration:
            raise _Failed(grpc.StatusCode.CANCELLED, "the client left before it had signed in") from None
        except TimeoutError:
            raise _Failed(
                grpc.StatusCode.DEADLINE_EXCEEDED, "signing in takes too long; begin again"
            ) from None
        self._left_ms -= desk.now_ms() - begun_ms
        if len(request.message) > MESSAGE_BYTES_MAX:
            raise _Failed(grpc.StatusCode.INVALID_ARGUMENT, f"a message is at most {MESSAGE_BYTES_MAX} bytes")
        return request

    def _begin(self, mechanism: str) -> Exchange:
        desk = self._door.desk
        assert desk is not None
        if mechanism not in self._offered:
            self._door.refused("unknown", "", self._address, "a mechanism that is not offered")
            raise _Failed(
                grpc.StatusCode.UNAUTHENTICATED,
                f"this mechanism is not offered; there are {', '.join(self._offered)}",
            )
        self._mechanism = mechanism
        return exchange_of(mechanism, desk, self._address, lambda _delay_ms: None)
