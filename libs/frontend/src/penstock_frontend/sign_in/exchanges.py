"""One exchange of a mechanism: tokens in, tokens out, a user in the end.

The machines are in penstock_core.security; here they get their nonces, their threads and the waiting that login
limits ask for.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable
from typing import Protocol

from penstock_core.metadata.security import CredentialKey
from penstock_core.security.login_limits import Attempt, LoginLimits
from penstock_core.security.oauthbearer import (
    NotVerifiable,
    OAuthBearerServer,
    TokenIdentity,
    TokenRefused,
)
from penstock_core.security.plain import PlainMemo, PlainServer, parse
from penstock_core.security.sasl import OAUTHBEARER, PLAIN, SaslFailure
from penstock_core.security.scram import MECHANISM_OF, ScramCredential, ScramMechanism, ScramServer
from penstock_frontend.sign_in.credentials import Credentials, Reliance
from penstock_frontend.sign_in.passwords import PasswordPool

_NONCE_BYTES = 24

Waits = Callable[[int], None]


class Tokens(Protocol):
    """Whose word counts on what a token is worth (`TokenValidator`)."""

    async def verify(self, token: str) -> TokenIdentity:
        """For whom it counts. Raises TokenRefused."""
        ...


class Tools(Protocol):
    """What the exchanges of a process share."""

    credentials: Credentials
    memo: PlainMemo
    limits: LoginLimits
    passwords: PasswordPool
    tokens: Tokens | None
    """Whether a token counts; None where none does."""

    @property
    def now_ms(self) -> Callable[[], int]:
        """A monotonic clock."""
        ...

    @property
    def wall_ms(self) -> Callable[[], int]:
        """The wall clock."""
        ...


class Exchange(Protocol):
    """An exchange that is under way."""

    @property
    def user(self) -> str:
        """Who wants to sign in, as far as it is known."""
        ...

    @property
    def complete(self) -> bool:
        """Whether the user has signed in."""
        ...

    @property
    def reliance(self) -> Reliance | None:
        """On which credential of ours that relies; None before, and where it relies on none."""
        ...

    @property
    def expires_at_ms(self) -> int | None:
        """When what the user has shown counts no more, by `now_ms`; None: it has no end."""
        ...

    @property
    def refusal(self) -> str:
        """Why the user will not be let in, though the exchange has a message to go; "" as long as all is open."""
        ...

    async def evaluate(self, token: bytes) -> bytes:
        """The answer to a token. Raises SaslFailure, and TooManyPasswords."""
        ...

    def gone(self) -> None:
        """The client is gone, or the exchange is over."""


class _Limited:
    """An attempt, as the limits see it."""

    expires_at_ms: int | None = None
    refusal = ""

    def __init__(self, tools: Tools, address: str, waits: Waits) -> None:
        self._tools = tools
        self._waits = waits
        self._address = address
        self._attempt: Attempt | None = None
        self._versions: dict[CredentialKey, int] = {}
        self.reliance: Reliance | None = None

    @property
    def complete(self) -> bool:
        """See `Exchange`."""
        return self.reliance is not None

    def find(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        """A credential; which one it was is noted."""
        key = CredentialKey(user, mechanism)
        version = self._tools.credentials.version(key)
        if version is not None:
            self._versions[key] = version
        return self._tools.credentials.find(user, mechanism)

    async def begin(self, user: str) -> None:
        """Wait until the attempt may be looked at. Raises SaslFailure when too many wait."""
        self._attempt = self._tools.limits.begin(self._address, user, self._tools.now_ms())
        if self._attempt is None:
            raise SaslFailure("too many attempts from its address wait")
        if self._attempt.delay_ms:
            self._waits(self._attempt.delay_ms)
            await asyncio.sleep(self._attempt.delay_ms / 1000)
            self._tools.limits.looked_at(self._attempt)

    async def begin_again(self, user: str) -> None:
        """Before the answer shows: others that were begun with this attempt may have failed since. Raises SaslFailure.

        Else as many guesses as an address has connections were looked at for the price of the first.
        """
        if self._attempt is not None and not self._attempt.charged:
            await self.begin(user)

    def failed(self) -> None:
        """It was wrong."""
        if self._attempt is not None:
            self._tools.limits.failed(self._attempt, self._tools.now_ms())
            self._attempt = None

    def undecided(self) -> None:
        """Nobody can say: that is not the client's fault."""
        if self._attempt is not None:
            self._tools.limits.undecided(self._attempt, self._tools.now_ms())
            self._attempt = None

    def passed(self) -> None:
        """It was right."""
        if self._attempt is not None:
            self._tools.limits.succeeded(self._attempt, self._tools.now_ms())
            self._attempt = None

    def succeeded(self, user: str, mechanism: ScramMechanism) -> None:
        """It was right. Raises SaslFailure if the credential was changed meanwhile."""
        self.passed()
        key = CredentialKey(user, mechanism)
        version = self._versions.get(key)
        if version is None or version != self._tools.credentials.version(key):
            raise SaslFailure("the credential was changed meanwhile")
        self.reliance = Reliance(key, version)

    def gone(self) -> None:
        """Its place among those that wait is free."""
        if self._attempt is not None:
            self._tools.limits.looked_at(self._attempt)
            self._attempt = None


class ScramExchange(_Limited):
    """SCRAM."""

    def __init__(self, tools: Tools, address: str, waits: Waits, mechanism: ScramMechanism) -> None:
        super().__init__(tools, address, waits)
        nonce = secrets.token_urlsafe(_NONCE_BYTES)
        self._server = ScramServer(mechanism, nonce, self.find, tools.credentials.secret)
        self._begun = False

    @property
    def user(self) -> str:
        """See `Exchange`."""
        return self._server.user

    async def evaluate(self, token: bytes) -> bytes:
        """See `Exchange`."""
        if not self._begun:
            self._begun = True
            answer = self._server.evaluate(token)
            await self.begin(self._server.user)
            return answer
        await self.begin_again(self._server.user)
        try:
            answer = self._server.evaluate(token)
        except SaslFailure:
            self.failed()
            raise
        self.succeeded(self._server.user, self._server.mechanism)
        return answer


class PlainExchange(_Limited):
    """PLAIN."""

    def __init__(self, tools: Tools, address: str, waits: Waits) -> None:
        super().__init__(tools, address, waits)
        self._server = PlainServer(self.find, tools.credentials.secret, tools.memo)

    @property
    def user(self) -> str:
        """See `Exchange`."""
        return self._server.user

    async def evaluate(self, token: bytes) -> bytes:
        """See `Exchange`."""
        self._server.user = parse(token).user
        # Before what is remembered of right passwords: that it knows one is an answer too.
        await self.begin(self.user)
        derivation = self._server.begin(token, self._tools.now_ms())
        if derivation is None:
            # Right a moment ago, by the credential that was looked for last.
            self.succeeded(self.user, ScramMechanism(next(reversed(self._versions)).mechanism))
            return b""
        salted = await self._tools.passwords.derive(derivation)
        await self.begin_again(self.user)
        try:
            self._server.finish(derivation, salted, self._tools.now_ms())
        except SaslFailure:
            self.failed()
            raise
        self.succeeded(self.user, derivation.credential.mechanism)
        return b""


class OAuthBearerExchange(_Limited):
    """OAUTHBEARER. A token that does not count is answered with a challenge; the client's answer ends the exchange."""

    def __init__(self, tools: Tools, address: str, waits: Waits, tokens: Tokens) -> None:
        super().__init__(tools, address, waits)
        self._tokens = tokens
        self._server = OAuthBearerServer()

    @property
    def user(self) -> str:
        """See `Exchange`."""
        return self._server.user

    @property
    def complete(self) -> bool:
        """See `Exchange`."""
        return self._server.complete

    async def evaluate(self, token: bytes) -> bytes:
        """See `Exchange`."""
        if self._server.refused:
            self._server.end(token)
        response = self._server.begin(token)
        # Whoever comes again and again with the same bad token is slowed; others behind its address are not.
        await self.begin(hashlib.sha256(response.token.encode()).hexdigest())
        try:
            identity = await self._tokens.verify(response.token)
        except TokenRefused as refused:
            if isinstance(refused, NotVerifiable):
                self.undecided()
            else:
                self.failed()
            self.refusal = f"the token is refused: {refused}"
            return self._server.refuse()
        answer = self._server.accept(response, identity)
        self.passed()
        left_ms = identity.expires_at_ms - self._tools.wall_ms()
        self.expires_at_ms = self._tools.now_ms() + left_ms
        return answer


def exchange_of(mechanism: str, tools: Tools, address: str, waits: Waits) -> Exchange:
    """A new exchange of that mechanism, with a client of that address; `waits` is told of each wait, in ms."""
    if mechanism == PLAIN:
        return PlainExchange(tools, address, waits)
    if mechanism == OAUTHBEARER and tools.tokens is not None:
        return OAuthBearerExchange(tools, address, waits, tools.tokens)
    return ScramExchange(tools, address, waits, MECHANISM_OF[mechanism])
