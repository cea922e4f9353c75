"""Which request is allowed when on a connection that signs in, and what is answered.

The order is Kafka's (SaslServerAuthenticator, KafkaChannel, SocketServer; KIP-43, KIP-152, KIP-368, KIP-511):

    ApiVersions, in full at most once > SaslHandshake > tokens until complete > anything
    anything > SaslHandshake when there is an expiry > tokens until complete > anything

After SaslHandshake v1 tokens come in SaslAuthenticate requests, after v0 as they are, with only a length before them.
`receive` says for each request where it goes; nothing but `Goes.HANDLER` may reach a handler. The mechanism
is the caller's: it hands in what came of each token. Times are a monotonic clock's milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock_core.errors import ErrorCode
from penstock_core.security.principal import Principal
from penstock_core.security.sasl import SaslFailure

SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
SASL_AUTHENTICATE: Final = 36

FAILURE_DELAY_MS: Final = 100
"""Between the request that fails and its answer (Kafka: connection.failed.authentication.delay.ms)."""
AUTHENTICATION_MS_MAX: Final = 10_000
"""From the accept, or from the beginning of a re-authentication, until it is complete."""
REAUTHENTICATION_INTERVAL_MS: Final = 1_000
"""A handshake that comes sooner after the last one that began is refused with ILLEGAL_SASL_STATE."""


class Stage(Enum):
    """How far a connection is."""

    VERSIONS_OR_HANDSHAKE = "ApiVersions or SaslHandshake"
    HANDSHAKE = "SaslHandshake"
    TOKENS = "tokens"
    COMPLETE = "complete"
    CLOSED = "closed"


class Goes(Enum):
    """Where a request goes."""

    API_VERSIONS = "to the answer for ApiVersions; then `versions_answered`"
    HANDSHAKE = "to `handshake`"
    TOKEN = "to the mechanism; then `challenged`, `succeeded` or `failed`"  # noqa: S105
    HANDLER = "to the handler of its API"


@dataclass(frozen=True, slots=True)
class Reply:
    """What to answer, in the form of the request's API, and whether the connection ends then."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    mechanisms: tuple[str, ...] = ()
    """Of SaslHandshake."""
    token: bytes = b""
    lifetime_ms: int = 0
    """Of SaslAuthenticate 1 and newer; 0: the session does not expire."""
    raw: bool = False
    """The token goes out as it is, with only a length before it: there is no request to answer."""
    close: bool = False
    delay_ms: int = 0
    """The answer and the close come so long after the request arrived, or later; nothing is read meanwhile. Counted
    from the arrival, for then the answer's time does not show what a check has cost.
    """


@dataclass(frozen=True, slots=True)
class Close:
    """Close without an answer, after `delay_ms`; `reason` is for log and metrics."""

    reason: str
    delay_ms: int = 0


class SaslSession:
    """One connection. Calls out of order raise RuntimeError: the caller's bug."""

    def __init__(self, mechanisms: Sequence[str], max_reauth_ms: int | None, accepted_at_ms: int) -> None:
        """`max_reauth_ms`: how long a session lasts at most (Kafka: connections.max.reauth.ms); None or 0: for ever."""
        self.stage = Stage.VERSIONS_OR_HANDSHAKE
        self.mechanism = ""
        """The one that is under way, or by which the principal signed in."""
        self.principal: Principal | None = None
        self.expires_at_ms: int | None = None
        self._mechanisms: Final = tuple(mechanisms)
        self._max_reauth_ms: Final = max_reauth_ms or None
        self._deadline_ms: int | None = accepted_at_ms + AUTHENTICATION_MS_MAX
        self._raw = False
        self._first_mechanism = ""
        self._reauth_began_ms: int | None = None

    @property
    def expects_raw_token(self) -> bool:
        """Whether the next frame is a token without a header."""
        return self.stage is Stage.TOKENS and self._raw

    @property
    def reauthenticating(self) -> bool:
        """Whether somebody has signed in here before and does so again."""
        return self.stage is Stage.TOKENS and self.principal is not None

    def overdue(self, now_ms: int) -> bool:
        """Whether signing in takes too long: the connection is to be closed."""
        return self._deadline_ms is not None and now_ms >= self._deadline_ms

    @property
    def deadline_ms(self) -> int | None:
        """When it will be overdue."""
        return self._deadline_ms

    def waits(self, delay_ms: int) -> None:
        """Login limits hold it up for so long: that is not the client's time."""
        if self._deadline_ms is not None:
            self._deadline_ms += delay_ms

    def receive(self, api_key: int, now_ms: int) -> Goes | Reply | Close:
        """Where a request goes; its body is not read yet."""
        if self.stage is Stage.COMPLETE:
            return self._receive_complete(api_key, now_ms)
        if self.overdue(now_ms):
            return self._close(f"not signed in within {AUTHENTICATION_MS_MAX} ms", 0)
        if self.stage is Stage.TOKENS and not self._raw:
            if api_key == SASL_AUTHENTICATE:
                return self._other_mechanism() or Goes.TOKEN
            self.stage = Stage.CLOSED
            return Reply(
                ErrorCode.ILLEGAL_SASL_STATE,
                f"Unexpected Kafka request of type {api_key} during SASL authentication.",
                close=True,
                delay_ms=FAILURE_DELAY_MS,
            )
        if api_key == SASL_HANDSHAKE and self.stage in (Stage.VERSIONS_OR_HANDSHAKE, Stage.HANDSHAKE):
            return Goes.HANDSHAKE
        if api_key == API_VERSIONS and self.stage is Stage.VERSIONS_OR_HANDSHAKE:
            return Goes.API_VERSIONS
        return self._close(f"request {api_key} while expecting {self.stage.value}")

    def receive_token(self, now_ms: int) -> Goes | Reply | Close:
        """Where a frame without a header goes, when `expects_raw_token`."""
        self._need(self.expects_raw_token)
        if self.overdue(now_ms):
            return self._close(f"not signed in within {AUTHENTICATION_MS_MAX} ms", 0)
        return self._other_mechanism() or Goes.TOKEN

    def versions_answered(self, in_full: bool) -> None:
        """ApiVersions was answered; if with an error (35 or 42), it may be asked again."""
        self._need(self.stage is Stage.VERSIONS_OR_HANDSHAKE)
        if in_full:
            self.stage = Stage.HANDSHAKE

    def handshake(self, mechanism: str, api_version: int) -> Reply:
        """The answer to SaslHandshake, after `receive` let it through."""
        self._need(self.stage in (Stage.VERSIONS_OR_HANDSHAKE, Stage.HANDSHAKE))
        if mechanism not in self._mechanisms:
            self.stage = Stage.CLOSED
            return Reply(
                ErrorCode.UNSUPPORTED_SASL_MECHANISM,
                mechanisms=self._mechanisms,
                close=True,
                delay_ms=FAILURE_DELAY_MS,
            )
        self.mechanism = mechanism
        self._raw = api_version < 1
        self.stage = Stage.TOKENS
        return Reply(mechanisms=self._mechanisms)

    def challenged(self, token: bytes) -> Reply:
        """The mechanism wants to hear more."""
        self._need(self.stage is Stage.TOKENS)
        return Reply(token=token, raw=self._raw)

    def succeeded(
        self, token: bytes, principal: Principal, now_ms: int, credential_lifetime_ms: int | None = None
    ) -> Reply | Close:
        """The mechanism is through; `credential_lifetime_ms` is how long a token counts yet, None: for ever."""
        self._need(self.stage is Stage.TOKENS)
        if self.principal is not None and principal != self.principal:
            # Kafka's text has both names; whoever asks knows his own, and the other is not his business.
            return self._fail("Cannot change principals during re-authentication")
        limits = [limit for limit in (self._max_reauth_ms, credential_lifetime_ms) if limit is not None]
        lifetime_ms = max(0, min(limits)) if limits else 0
        self.expires_at_ms = now_ms + lifetime_ms if limits else None
        self.principal = principal
        self._first_mechanism = self.mechanism
        self._deadline_ms = None
        self.stage = Stage.COMPLETE
        return Reply(token=token, lifetime_ms=lifetime_ms, raw=self._raw)

    def failed(self, failure: SaslFailure) -> Reply | Close:
        """The mechanism refuses."""
        self._need(self.stage is Stage.TOKENS)
        what = "re-authentication" if self.reauthenticating else "authentication"
        return self._fail(
            failure.client_text
            or f"Authentication failed during {what} due to invalid credentials with SASL mechanism {self.mechanism}"
        )

    def _receive_complete(self, api_key: int, now_ms: int) -> Goes | Reply | Close:
        if api_key == SASL_HANDSHAKE and self._may_begin_again(now_ms):
            self._reauth_began_ms = now_ms
            self._deadline_ms = now_ms + AUTHENTICATION_MS_MAX
            self.stage = Stage.HANDSHAKE
            return Goes.HANDSHAKE
        if self.expires_at_ms is not None and now_ms > self.expires_at_ms:
            return self._close("the session has expired and was not renewed", 0)
        if api_key == SASL_HANDSHAKE:
            return Reply(ErrorCode.ILLEGAL_SASL_STATE)
        if api_key == SASL_AUTHENTICATE:
            return Reply(
                ErrorCode.ILLEGAL_SASL_STATE,
                "SaslAuthenticate request received after successful authentication",
            )
        return Goes.HANDLER

    def _other_mechanism(self) -> Reply | Close | None:
        """Refuse a token of another mechanism than that of the first time. (Kafka closes without an answer.)"""
        if self.principal is None or self.mechanism == self._first_mechanism:
            return None
        return self._fail(
            f"SASL mechanism '{self.mechanism}' requested by client is not supported for re-authentication of "
            f"mechanism '{self._first_mechanism}'"
        )

    def _may_begin_again(self, now_ms: int) -> bool:
        began_ms = self._reauth_began_ms
        return self.expires_at_ms is not None and (
            began_ms is None or now_ms - began_ms >= REAUTHENTICATION_INTERVAL_MS
        )

    def _fail(self, message: str) -> Reply | Close:
        raw = self._raw
        self.stage = Stage.CLOSED
        if raw:
            return Close(message, FAILURE_DELAY_MS)
        return Reply(ErrorCode.SASL_AUTHENTICATION_FAILED, message, close=True, delay_ms=FAILURE_DELAY_MS)

    def _close(self, reason: str, delay_ms: int = FAILURE_DELAY_MS) -> Close:
        self.stage = Stage.CLOSED
        return Close(reason, delay_ms)

    def _need(self, right: bool) -> None:
        if not right:
            raise RuntimeError(f"out of order at stage {self.stage.name}")
