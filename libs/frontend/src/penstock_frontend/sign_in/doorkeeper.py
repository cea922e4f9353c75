"""Who gets the frames of a connection until its client has signed in.

`penstock_core.security.sasl_session` decides which request may come when and what is answered; here requests are
read, answers are written, and an answer that has to come late comes late. The connection hands over one frame at a
time. A client whose session has an end stays with the doorkeeper, which passes its requests on.

Kafka answers a request that may not come in the form of that request's API. Of others than the three APIs for signing
in nobody's body is read here: they end the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from penstock_core.errors import ErrorCode
from penstock_core.security.principal import user as user_principal
from penstock_core.security.sasl import SaslFailure
from penstock_core.security.sasl_session import Close, Goes, Reply, SaslSession, Stage
from penstock_frontend.listener.answers import CLOSE, Response
from penstock_frontend.listener.connection import Connection
from penstock_frontend.sign_in.desk import SignInDesk
from penstock_frontend.sign_in.exchanges import Exchange, exchange_of
from penstock_frontend.sign_in.passwords import TooManyPasswords
from penstock_kafka.wire import codec
from penstock_kafka.wire.api_versions import encode_api_versions_response
from penstock_kafka.wire.apis import ApiKey, is_supported
from penstock_kafka.wire.frames import RequestHeader, parse_request_header
from penstock_kafka.wire.primitives import Malformed

AnswerVersions = Callable[[Connection, RequestHeader, bytearray], bytes]
"""The answer to ApiVersions; raises Malformed."""

_DOOR: Final = "sign_in"


class _Door:
    """One connection."""

    __slots__ = ("exchange", "session")

    def __init__(self, session: SaslSession) -> None:
        self.session = session
        self.exchange: Exchange | None = None

    def end_exchange(self) -> None:
        """It is over, or the client is gone."""
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.gone()


class Doorkeeper:
    """That of one listener."""

    def __init__(
        self, desk: SignInDesk, mechanisms: Sequence[str], max_reauth_ms: int, answer_versions: AnswerVersions
    ) -> None:
        """`max_reauth_ms`: how long a client may go on until it signs in again, 0: for ever."""
        self._desk = desk
        self._mechanisms = tuple(mechanisms)
        self._max_reauth_ms = max_reauth_ms
        self._answer_versions = answer_versions

    def handle(self, connection: Connection, frame: bytearray) -> Response | Awaitable[Response]:
        """See `FrameHandler`."""
        now_ms = self._desk.now_ms()
        door: _Door | None = connection.state.get(_DOOR)
        if door is None:
            door = self._open(connection)
        session = door.session
        if session.expects_raw_token:
            goes = session.receive_token(now_ms)
            if isinstance(goes, Goes):
                return self._token(connection, door, None, bytes(frame), now_ms)
            return self._reply(connection, None, goes, now_ms)
        # Of somebody who has signed in it is each request: no more than that is done with it.
        goes = session.receive(frame[0] << 8 | frame[1], now_ms)
        if goes is Goes.HANDLER:
            return connection.pass_on(frame)
        if isinstance(goes, Close):
            return self._reply(connection, None, goes, now_ms)
        header = self._header(connection, frame)
        if header is None:
            return CLOSE
        if isinstance(goes, Reply):
            return self._reply(connection, header, goes, now_ms)
        try:
            return self._let(connection, door, goes, header, frame, now_ms)
        except Malformed as error:
            return connection.refuse("body", error.message)

    def _open(self, connection: Connection) -> _Door:
        accepted_ms = int(connection.opened_s * 1000)
        door = connection.state[_DOOR] = _Door(
            SaslSession(self._mechanisms, self._max_reauth_ms, accepted_ms)
        )
        connection.on_closed(door.end_exchange)
        return door

    @staticmethod
    def _header(connection: Connection, frame: bytearray) -> RequestHeader | None:
        """None when the connection is refused."""
        try:
            header = parse_request_header(frame, connection.items_max)
        except Malformed as error:
            connection.refuse("header", error.message)
            return None
        connection.client_id = header.client_id
        if header.api_key != ApiKey.API_VERSIONS and not is_supported(header.api_key, header.api_version):
            connection.refuse(
                "version", f"version {header.api_version} of api key {header.api_key} is not supported"
            )
            return None
        return header

    def _let(
        self,
        connection: Connection,
        door: _Door,
        goes: Goes,
        header: RequestHeader,
        frame: bytearray,
        now_ms: int,
    ) -> Response | Awaitable[Response]:
        """Do with a request what the session says. Raises Malformed."""
        session = door.session
        if goes is Goes.API_VERSIONS:
            return self._versions(connection, session, header, frame)
        if stale := self._desk.keeps_out():
            self._desk.failed(connection, session.mechanism or "unknown", "", stale)
            return CLOSE  # no code: with one clients would give up, instead of trying another gateway
        request = codec.decode_request(header, frame)
        if goes is Goes.TOKEN:
            return self._token(connection, door, header, bytes(request.auth_bytes), now_ms)
        reply = session.handshake(request.mechanism, header.api_version)
        if reply.error:
            self._desk.failed(connection, "unknown", "", "a mechanism that is not offered")
        else:

            def waits(delay_ms: int) -> None:
                # Else a right password never gets in from where others guess: waits are longer than the time.
                session.waits(delay_ms)
                if connection.deadline_s is not None:
                    connection.deadline_s += delay_ms / 1000

            door.exchange = exchange_of(session.mechanism, self._desk, connection.address, waits)
            if connection.admitted and session.deadline_ms is not None:  # it signs in again
                connection.detain(session.deadline_ms / 1000)
        return self._reply(connection, header, reply, now_ms)

    def _versions(
        self, connection: Connection, session: SaslSession, header: RequestHeader, frame: bytearray
    ) -> Response:
        if is_supported(header.api_key, header.api_version):
            answer = self._answer_versions(connection, header, frame)
        else:
            answer = encode_api_versions_response(header, {})
        # The error follows the correlation id; the header of this response has no tags.
        session.versions_answered(in_full=answer[4:6] == b"\0\0")
        return answer

    async def _token(
        self, connection: Connection, door: _Door, header: RequestHeader | None, token: bytes, arrived_ms: int
    ) -> Response:
        session, exchange, desk = door.session, door.exchange, self._desk
        if exchange is None:
            return CLOSE
        reply: Reply | Close
        try:
            answer = await exchange.evaluate(token)
        except SaslFailure as failure:
            if not exchange.refusal:  # else it is counted already
                desk.failed(connection, session.mechanism, exchange.user, failure.reason)
            reply = session.failed(failure)
        except TooManyPasswords:
            desk.failed(connection, session.mechanism, exchange.user, "too many passwords wait")
            return CLOSE
        else:
            if not exchange.complete:
                if exchange.refusal:
                    desk.failed(connection, session.mechanism, exchange.user, exchange.refusal)
                return await self._finish(connection, header, session.challenged(answer), arrived_ms)
            now_ms, ends_ms = desk.now_ms(), exchange.expires_at_ms
            left_ms = None if ends_ms is None else ends_ms - now_ms
            reply = session.succeeded(answer, user_principal(exchange.user), now_ms, left_ms)
            if session.stage is Stage.COMPLETE:
                if exchange.reliance is not None:
                    desk.signed_in.add(connection, exchange.reliance)
                again = bool(connection.mechanism)
                self._admit(connection, session)
                desk.succeeded(connection, session.mechanism, again=again)
            else:
                desk.failed(connection, session.mechanism, exchange.user, "another user than before")
        door.end_exchange()
        return await self._finish(connection, header, reply, arrived_ms)

    @staticmethod
    def _admit(connection: Connection, session: SaslSession) -> None:
        assert session.principal is not None
        expires = session.expires_at_ms is not None
        connection.admit(session.principal, session.mechanism, watched=expires)
        if not expires:
            del connection.state[_DOOR]

    def _reply(
        self, connection: Connection, header: RequestHeader | None, reply: Reply | Close, arrived_ms: int
    ) -> Response | Awaitable[Response]:
        """At once where it may be."""
        if isinstance(reply, Reply) and not reply.close:
            return _encode(header, reply)
        return self._finish(connection, header, reply, arrived_ms)

    async def _finish(
        self, connection: Connection, header: RequestHeader | None, reply: Reply | Close, arrived_ms: int
    ) -> Response:
        if isinstance(reply, Reply) and not reply.close:
            return _encode(header, reply)
        # Whole milliseconds: the request may have come almost one later than `arrived_ms` says.
        left_ms = arrived_ms + 1 + reply.delay_ms - self._desk.now_ms()
        if left_ms > 0:
            await asyncio.sleep(left_ms / 1000)
        if isinstance(reply, Close):
            if not connection.admitted:
                connection.audit.refused(connection.identity.host, reply.reason, connection)
            connection.close(reply.reason)
            return CLOSE
        connection.close_after_responses(reply.message or "its client may not sign in")
        return _encode(header, reply)


def _encode(header: RequestHeader | None, reply: Reply) -> Response:
    if header is None:
        return reply.token
    if header.api_key == ApiKey.SASL_HANDSHAKE:
        return codec.respond(header, error_code=reply.error, mechanisms=reply.mechanisms)
    if header.api_key == ApiKey.SASL_AUTHENTICATE:
        return codec.respond(
            header,
            error_code=reply.error,
            error_message=reply.message,
            auth_bytes=reply.token,
            session_lifetime=reply.lifetime_ms,
        )
    if header.api_key == ApiKey.API_VERSIONS:
        return encode_api_versions_response(header, {}, reply.error or ErrorCode.ILLEGAL_SASL_STATE)
    return CLOSE
