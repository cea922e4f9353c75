"""Whether a token counts, and for whom: by the issuer's keys, which are kept fresh in the background.

Keys that were read once are used until they are older than `jwks_stale_ms`, though nobody answers meanwhile; without
keys no token counts. A token of a key that is not known has the keys read again, once in a while: issuers change them.
Faults are one log line each, and one when they are over.

PyJWT and cryptography are loaded by `open_token_validator`, so only where the settings have an `[oauth]` table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock_core.security.oauthbearer import NotVerifiable, TokenIdentity, TokenRefused
from penstock_runtime.addresses import StartupError
from penstock_runtime.lifecycle import Lifecycle, monotonic_ms
from penstock_runtime.logs import CONSTANT, Log
from penstock_runtime.oauth_settings import OauthSettings
from penstock_runtime.ports import wall_ms
from penstock_runtime.security.jwks_source import JwksSource, NotRead, source_of

if TYPE_CHECKING:
    from penstock_runtime.security.jwks import KeySet

TOKEN_LENGTH_MAX: Final = 16 * 1024
UNKNOWN_KEY_MS: Final = 10_000
"""So long after one look at the keys a token of an unknown key asks for the next."""
RETRY_S: Final = 10.0
"""After a look that failed."""
WAIT_S_MAX: Final = 6.0
"""How long a token waits for keys that are being read."""
_SHARED: Final = "penstock_token_validator"


class TokenValidator:
    """That of one process."""

    def __init__(
        self,
        settings: OauthSettings,
        source: JwksSource,
        log: Log,
        clock_ms: Callable[[], int] = monotonic_ms,
        wall_clock_ms: Callable[[], int] = wall_ms,
    ) -> None:
        """Raises ImportError where PyJWT or cryptography is missing."""
        from penstock_runtime.security import jwks

        self._jwks = jwks
        self._settings = settings
        self._policy = settings.policy()
        self._source = source
        self._log = log
        self._clock_ms = clock_ms
        self._wall_clock_ms = wall_clock_ms
        self._keys: KeySet | None = None
        self._good_ms = 0
        self._tried_ms: int | None = None
        self._looking: asyncio.Task[None] | None = None
        self._running: asyncio.Task[None] | None = None
        self.fault = "they were not read yet"
        """Why the keys could not be read when that was last tried; "" if they could."""
        self._told: tuple[str, bool] | None = None
        self.accepted = self.refused = 0

    async def verify(self, token: str) -> TokenIdentity:
        """For whom a token counts, and how long. Raises TokenRefused (NotVerifiable where that is for want of keys):
        the text is for our log, not for the client."""
        try:
            try:
                identity = self._check(token)
            except self._jwks.UnknownKey:
                await self._look_for_it()
                identity = self._check_again(token)
        except TokenRefused:
            self.refused += 1
            raise
        self.accepted += 1
        return identity

    def _check_again(self, token: str) -> TokenIdentity:
        """With the keys that there are now."""
        try:
            return self._check(token)
        except self._jwks.UnknownKey as unknown:
            if self.fault and self.keys is not None:
                raise NotVerifiable(f"{unknown}, and newer keys cannot be read: {self.fault}") from None
            if self.fault:
                raise NotVerifiable(str(unknown)) from None
            raise

    def _check(self, token: str) -> TokenIdentity:
        if len(token) > TOKEN_LENGTH_MAX:
            raise TokenRefused(f"it has {len(token)} characters, the most is {TOKEN_LENGTH_MAX}")
        header = self._jwks.header_of(token)
        self._policy.check_header(header)
        keys = self.keys
        if keys is None:
            raise self._jwks.UnknownKey(f"there are no keys of the issuer: {self.fault}")
        return self._policy.check(header, keys.claims(token, header), self._wall_clock_ms() / 1000)

    @property
    def keys(self) -> KeySet | None:
        """Those that count now; None when there are none, or none that are fresh enough."""
        if self._keys is not None and self.age_ms > self._settings.jwks_stale_ms:
            return None
        return self._keys

    @property
    def age_ms(self) -> int:
        """Since the keys were last read, or seen to be the same."""
        return self._clock_ms() - self._good_ms

    # Reading keys

    def start(self, lifecycle: Lifecycle) -> None:
        """Keep the keys fresh from now on. May be called again."""
        if self._running is None:
            self._running = lifecycle.create_task(self._run(), "keys of tokens")

    async def _run(self) -> None:
        while True:
            await asyncio.shield(self._look())
            wait_s = self._source.look_again_s
            await asyncio.sleep(min(wait_s, RETRY_S) if self.fault else wait_s)

    async def _look_for_it(self) -> None:
        """Look at the keys again unless that was a moment ago."""
        tried_ms = self._tried_ms
        if self._looking is None and tried_ms is not None and self._clock_ms() - tried_ms < UNKNOWN_KEY_MS:
            return
        await asyncio.wait([self._look()], timeout=WAIT_S_MAX)

    def _look(self) -> asyncio.Task[None]:
        """Read the keys; whoever asks meanwhile waits for the same look."""
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._read())
        return self._looking

    async def _read(self) -> None:
        self._tried_ms = self._clock_ms()
        try:
            document = await asyncio.to_thread(self._source.read)
            if document is not None:
                self.take(document)
            elif not self.fault:
                self._good_ms = self._clock_ms()
        except NotRead as error:
            self._failed(str(error))
        finally:
            self._looking = None

    def take(self, document: bytes) -> None:
        """Use the keys of a document from now on, if it is one."""
        try:
            keys = self._jwks.KeySet(document, self._policy.algorithms)
        except self._jwks.BadKeys as error:
            self._failed(str(error))
            return
        self._keys, self._good_ms = keys, self._clock_ms()
        if self.fault:
            self.fault, self._told = "", None
            self._log.info("keys of tokens are read", jwks=self._settings.jwks, keys=len(keys))

    def _failed(self, reason: str) -> None:
        self.fault = reason
        if self._told == (reason, self.keys is None):
            return
        self._told = reason, self.keys is None
        self._log.warning(
            "the keys of tokens cannot be read; " + self._meanwhile(),
            **{CONSTANT: "the keys of tokens cannot be read"},
            jwks=self._settings.jwks,
            reason=reason,
        )

    def _meanwhile(self) -> str:
        if self.keys is None:
            return "no token counts until they can"
        return f"those of before count for {self._settings.jwks_stale_ms - self.age_ms} ms more"


class _Metrics(Collector):
    def __init__(self, validator: TokenValidator) -> None:
        self._validator = validator

    def collect(self) -> Iterable[Metric]:
        """Samples for Prometheus."""
        validator = self._validator
        keys = validator.keys
        yield GaugeMetricFamily(
            "penstock_oauth_keys", "Keys by which tokens count now.", value=0 if keys is None else len(keys)
        )
        yield GaugeMetricFamily(
            "penstock_oauth_keys_age_seconds",
            "Since the keys of tokens were last read.",
            value=0 if keys is None else validator.age_ms / 1000,
        )
        tokens = CounterMetricFamily(
            "penstock_oauth_tokens", "Tokens that were looked at.", labels=["outcome"]
        )
        tokens.add_metric(["accepted"], validator.accepted)
        tokens.add_metric(["refused"], validator.refused)
        yield tokens


def open_token_validator(settings: OauthSettings | None, lifecycle: Lifecycle) -> TokenValidator | None:
    """That of the process, made when it is first asked for; None without settings. `start` it once the loop runs.

    Raises StartupError when the packages are missing, or a file of keys is not good.
    """
    if settings is None:
        return None
    found = lifecycle.shared.get(_SHARED)
    if isinstance(found, TokenValidator):
        return found
    source = source_of(settings)
    try:
        made = TokenValidator(settings, source, lifecycle.log.bind(part="oauth"))
    except ImportError as error:
        raise StartupError(
            f"oauth needs the package {error.name}: install penstock-runtime[oauth] where this process runs,"
            " or take oauth away"
        ) from None
    if not settings.is_url:
        _read_at_start(made, source, settings)
    lifecycle.registry.register(_Metrics(made))
    lifecycle.shared[_SHARED] = made
    return made


def _read_at_start(validator: TokenValidator, source: JwksSource, settings: OauthSettings) -> None:
    try:
        document = source.read()
    except NotRead as error:
        raise StartupError(f"oauth.jwks = {settings.jwks}: {error}; give the issuer's JWKS") from None
    if document is not None:
        validator.take(document)
    if validator.keys is None:
        raise StartupError(f"oauth.jwks = {settings.jwks}: {validator.fault}; give the issuer's JWKS")
