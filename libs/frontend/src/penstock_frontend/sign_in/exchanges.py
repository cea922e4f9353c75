"""One exchange of a mechanism: tokens in, tokens out, a user in the end.

The machines are in penstock_core.security; here they get their nonces, their threads and the waiting that login
limits ask for.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Protocol

from penstock_core.metadata.security import CredentialKey
from penstock_core.security.login_limits import Attempt, LoginLimits
from penstock_core.security.plain import PlainMemo, PlainServer
from penstock_core.security.sasl import PLAIN, SaslFailure
from penstock_core.security.scram import MECHANISM_OF, ScramCredential, ScramMechanism, ScramServer
from penstock_frontend.sign_in.credentials import Credentials, Reliance
from penstock_frontend.sign_in.passwords import PasswordPool

_NONCE_BYTES = 24

Waits = Callable[[int], None]


class Tools(Protocol):
    """What the exchanges of a process share."""

    credentials: Credentials
    memo: PlainMemo
    limits: LoginLimits
    passwords: PasswordPool

    @property
    def now_ms(self) -> Callable[[], int]:
        """A monotonic clock."""
        ...


class Exchange(Protocol):
    """An exchange that is under way."""

    @property
    def user(self) -> str:
        """Who wants to sign in, as far as it is known."""
        ...

    @property
    def reliance(self) -> Reliance | None:
        """By what the user has signed in; None before."""
        ...

    async def evaluate(self, token: bytes) -> bytes:
        """The answer to a token. Raises SaslFailure, and TooManyPasswords."""
        ...

    def gone(self) -> None:
        """The client is gone, or the exchange is over."""


class _Limited:
    """An attempt, as the limits see it."""

    def __init__(self, tools: Tools, address: str, waits: Waits) -> None:
        self._tools = tools
        self._waits = waits
        self._address = address
        self._attempt: Attempt | None = None
        self._versions: dict[CredentialKey, int] = {}
        self.reliance: Reliance | None = None

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

    def failed(self) -> None:
        """It was wrong."""
        if self._attempt is not None:
            self._tools.limits.failed(self._attempt, self._tools.now_ms())
            self._attempt = None

    def succeeded(self, user: str, mechanism: ScramMechanism) -> None:
        """It was right. Raises SaslFailure if the credential was changed meanwhile."""
        if self._attempt is not None:
            self._tools.limits.succeeded(self._attempt, self._tools.now_ms())
            self._attempt = None
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
        derivation = self._server.begin(token, self._tools.now_ms())
        if derivation is None:
            # Right a moment ago, by the credential that was looked for last.
            self.succeeded(self.user, ScramMechanism(next(reversed(self._versions)).mechanism))
            return b""
        await self.begin(self.user)
        salted = await self._tools.passwords.derive(derivation)
        try:
            self._server.finish(derivation, salted, self._tools.now_ms())
        except SaslFailure:
            self.failed()
            raise
        self.succeeded(self.user, derivation.credential.mechanism)
        return b""


def exchange_of(mechanism: str, tools: Tools, address: str, waits: Waits) -> Exchange:
    """A new exchange of that mechanism, with a client of that address; `waits` is told of each wait, in ms."""
    if mechanism == PLAIN:
        return PlainExchange(tools, address, waits)
    return ScramExchange(tools, address, waits, MECHANISM_OF[mechanism])
