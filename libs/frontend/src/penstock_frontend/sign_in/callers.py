"""Who comes by a door beside the Kafka listeners: the native gRPC port, and HTTP.

A caller shows what it has with each call: a certificate, a token that this cluster gave (`Authenticate`), a JWT of the
issuer, or, at HTTP, a name with a password. Users, limits and counts are the listeners' own. What fails is answered
with words that are the same for every reason, and where a secret was guessed 100 ms later.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeVar

from penstock_core.metadata.image import MetadataImage
from penstock_core.metadata.security import CredentialKey
from penstock_core.security.oauthbearer import NotVerifiable, TokenIdentity, TokenRefused
from penstock_core.security.principal import ANONYMOUS, Identity, Principal, client_identity, user
from penstock_core.security.sasl import OAUTHBEARER, PLAIN, SaslFailure
from penstock_core.security.sasl_session import FAILURE_DELAY_MS
from penstock_core.security.serial_number import serial_of
from penstock_core.security.session_token import (
    PREFIX,
    BadSessionToken,
    SessionClaims,
    SessionKeys,
)
from penstock_frontend.audit import ASKING, Asking, ListenerAudit
from penstock_frontend.listener.listener import NotCertified
from penstock_frontend.sign_in.certified import Certified, Holders
from penstock_frontend.sign_in.credentials import Reliance
from penstock_frontend.sign_in.desk import SignInDesk
from penstock_frontend.sign_in.exchanges import PlainExchange
from penstock_frontend.sign_in.old_news import OldNews
from penstock_frontend.sign_in.passwords import TooManyPasswords
from penstock_runtime.audit import Audit
from penstock_runtime.door import DoorSettings
from penstock_runtime.door_settings import HttpDoorSettings
from penstock_runtime.security.refused import RefusedCertificates

CREDENTIAL_LENGTH_MAX: Final = 16 * 1024
K = TypeVar("K")
JWTS_KEPT: Final = 1_024
"""Whose signatures need not be looked at again."""
JWT_KEPT_MS: Final = 60_000
"""Then they are, since the issuer may have taken a key away."""

TOKEN: Final = "TOKEN"  # noqa: S105 - a name, beside those of mechanisms
"""In the place of a mechanism, of who shows a token that `Authenticate` gave."""
_REFUSED: Final = "the credentials are refused; sign in again"


class NotLetIn(Exception):
    """The caller does not say who it is, or not truly; the text is for the caller."""


class CutOff(Exception):
    """Nobody is let in here for now: what is known of users may be old. Another gateway may know better."""


class Guest(NamedTuple):
    """Whoever is at a door: a `penstock_frontend.audit.Visitor`."""

    listener: str
    identity: Identity
    mechanism: str
    client_id: str | None = None

    @property
    def principal(self) -> Principal:
        """Who it is, as far as it is known."""
        return self.identity.principal


class Caller(NamedTuple):
    """Whoever was let in, and what that relies on."""

    principal: Principal
    mechanism: str = ""
    reliance: Reliance | None = None
    """On which credential; None for certificates and JWTs."""
    expires_at_ms: int | None = None
    """By the wall clock, of a JWT: what it began ends then. Of our own tokens the credential is watched."""
    certificate: str = ""
    """The serial number of the one that was shown; "" without one."""


class Tokens:
    """Tokens that this cluster's gateways give, from the newest metadata."""

    def __init__(self, desk: SignInDesk, image: Callable[[], MetadataImage], lifetime_ms: int = 0) -> None:
        self._desk = desk
        self._image = image
        self.lifetime_ms = lifetime_ms
        self._secrets: Mapping[str, bytes] | None = None
        self._keys = SessionKeys({})

    @property
    def keys(self) -> SessionKeys:
        """Those of the newest metadata."""
        secrets = self._image().security.secrets
        if secrets is not self._secrets:
            self._secrets, self._keys = secrets, SessionKeys(secrets)
        return self._keys

    def issue(self, reliance: Reliance) -> str:
        """For who has just signed in by that credential. Raises NoKey."""
        key = reliance.key
        return self.keys.issue(
            SessionClaims(key.user, key.mechanism, reliance.version, self._desk.wall_ms() + self.lifetime_ms)
        )

    def read(self, token: str) -> Caller:
        """For whom it is, if it counts and its credential is still there. Raises BadSessionToken."""
        claims = self.keys.read(token, self._desk.wall_ms())
        reliance = Reliance(CredentialKey(claims.user, claims.mechanism), claims.version)
        if self._desk.credentials.version(reliance.key) != reliance.version:
            raise BadSessionToken("its user was deleted, or has another password")
        return Caller(user(claims.user), TOKEN, reliance)


class CallerDoor:
    """Says who comes by one door."""

    def __init__(
        self,
        name: str,
        settings: DoorSettings,
        desk: SignInDesk | None,
        image: Callable[[], MetadataImage],
        mechanisms: tuple[str, ...] = (),
        *,
        token_lifetime_ms: int = 0,
        holders: Holders | None = None,
        news: OldNews | None = None,
        audit: Audit | None = None,
    ) -> None:
        """`desk` is needed where clients sign in; `holders` knows which certificates are
        refused. Raises StartupError for rules that cannot be used."""
        self.name = name
        self.settings = settings
        self.mechanisms = mechanisms
        holders = holders or Holders(RefusedCertificates())
        # Where they sign in a certificate makes nobody; a refused one lets nobody in all the same.
        rules = settings.principal_mapping_rules if settings.takes_certificates else None
        shows = settings.tls is not None and settings.tls.client_auth != "none"
        self._certified = Certified(name, rules, holders) if shows else None
        self._takes_basic = PLAIN in mechanisms and isinstance(settings, HttpDoorSettings)
        self.desk = desk
        self.tokens = None if desk is None else Tokens(desk, image, token_lifetime_ms)
        self._jwts: OrderedDict[bytes, tuple[TokenIdentity, int]] = OrderedDict()
        self.present = Present()
        refused = holders.refused
        refused.on_change(lambda: self.present.end_refused(refused.fault))
        self._news = news
        self._audit = ListenerAudit(audit or Audit(), name)

    @property
    def signs_in(self) -> bool:
        """Whether callers have to say who they are by a credential."""
        return self.settings.has_sasl

    @property
    def schemes(self) -> tuple[str, ...]:
        """Of the Authorization header, the best first; () where it is not looked at."""
        if not self.signs_in:
            return ()
        return ("Bearer", "Basic") if self._takes_basic else ("Bearer",)

    def came(self, mechanism: str, name: str, address: str) -> None:
        """A user has signed in by the mechanism."""
        if self.desk is not None:
            who = Guest(self.name, client_identity(user(name), address), mechanism)
            self.desk.caller_came(self._audit, who)

    def refused(self, mechanism: str, name: str, address: str, reason: str) -> None:
        """Somebody who says to be that user has not."""
        if self.desk is not None:
            who = Guest(self.name, client_identity(ANONYMOUS, address), mechanism)
            self.desk.caller_refused(self._audit, who, name, reason)

    def asking(self, caller: Caller, address: str, api: str) -> Identity:
        """Who asks in this task from now on, also for the audit log."""
        identity = client_identity(caller.principal, address)
        ASKING.set(Asking(identity, self.name, None, caller.mechanism, api))
        return identity

    async def caller(self, authorization: str | None, certificate: bytes | None, address: str) -> Caller:
        """Who calls: `authorization` is the header, `certificate` DER. Raises NotLetIn and CutOff."""
        if self.signs_in or self.settings.takes_certificates:
            self.check_news()
        shown = self._by_certificate(certificate, address)
        if not self.signs_in:
            return shown
        signed_in = await self._by_authorization(authorization, address)
        return signed_in._replace(certificate=shown.certificate)

    async def _by_authorization(self, authorization: str | None, address: str) -> Caller:
        assert self.desk is not None
        scheme, _, value = (authorization or "").partition(" ")
        value = value.strip()
        if not value or len(value) > CREDENTIAL_LENGTH_MAX:
            raise self.turned_away(
                address, f"sign in: send Authorization: {' or '.join(self.schemes)} with each call"
            )
        if scheme.lower() == "bearer":
            if value.startswith(PREFIX):
                return self._by_own_token(value, address)
            if OAUTHBEARER in self.mechanisms and self.desk.tokens is not None:
                return await self._by_jwt(value, address)
            raise await self._refused(OAUTHBEARER, "", address, "tokens of others are not taken here")
        if scheme.lower() == "basic" and self._takes_basic:
            return await self._by_password(value, address)
        raise self.turned_away(address, f"Authorization is {' or '.join(self.schemes)} here")

    def turned_away(self, address: str, reason: str) -> NotLetIn:
        """Somebody shows nothing that counts here; what to raise."""
        self._audit.refused(address, reason)
        return NotLetIn(reason)

    def check_news(self, *, for_sign_in: bool = False) -> None:
        """Raise CutOff when the metadata are too old to be served by, or to sign in by."""
        if self._news is None:
            return
        reason = self._news.keeps_out() if for_sign_in else self._news.ends()
        if reason:
            raise CutOff(f"{reason}; try another gateway")

    def _by_certificate(self, certificate: bytes | None, address: str) -> Caller:
        if self._certified is None:
            return Caller(ANONYMOUS)
        if not self.signs_in:
            self.check_news(for_sign_in=True)
        try:
            principal = self._certified(certificate)
            return Caller(principal, certificate="" if certificate is None else serial_of(certificate))
        except NotCertified as error:
            raise self.turned_away(address, str(error)) from None

    def _by_own_token(self, token: str, address: str) -> Caller:
        assert self.tokens is not None
        try:
            return self.tokens.read(token)
        except BadSessionToken as error:
            self.refused(TOKEN, "", address, str(error))
            raise NotLetIn("the token does not count any more; sign in again") from None

    async def _by_jwt(self, token: str, address: str) -> Caller:
        desk = self.desk
        assert desk is not None
        assert desk.tokens is not None
        known = hashlib.sha256(token.encode()).digest()
        kept = self._jwts.get(known)
        if kept is not None and desk.now_ms() < kept[1] and desk.wall_ms() < kept[0].expires_at_ms:
            return _of_jwt(kept[0])
        self.check_news(for_sign_in=True)
        attempt = desk.limits.begin(address, known.hex(), desk.now_ms())
        if attempt is None:
            raise await self._refused(OAUTHBEARER, "", address, "too many attempts from its address wait")
        try:
            if attempt.delay_ms:
                await asyncio.sleep(attempt.delay_ms / 1000)
            try:
                identity = await desk.tokens.verify(token)
            except TokenRefused as refused:
                if isinstance(refused, NotVerifiable):
                    desk.limits.undecided(attempt, desk.now_ms())
                else:
                    desk.limits.failed(attempt, desk.now_ms())
                raise await self._refused(
                    OAUTHBEARER, "", address, f"the token is refused: {refused}"
                ) from None
            desk.limits.succeeded(attempt, desk.now_ms())
        finally:
            desk.limits.looked_at(attempt)
        while len(self._jwts) >= JWTS_KEPT:
            self._jwts.popitem(last=False)
        self._jwts[known] = identity, desk.now_ms() + JWT_KEPT_MS
        self.came(OAUTHBEARER, identity.name, address)
        return _of_jwt(identity)

    async def _by_password(self, value: str, address: str) -> Caller:
        desk = self.desk
        assert desk is not None
        try:
            name, colon, password = base64.b64decode(value, validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            raise await self._refused(PLAIN, "", address, "malformed Basic") from None
        if not colon or "\0" in name + password:
            raise await self._refused(PLAIN, "", address, "malformed Basic")
        self.check_news(for_sign_in=True)
        exchange = PlainExchange(desk, address, _no_deadline)
        try:
            await exchange.evaluate(f"\0{name}\0{password}".encode())
        except SaslFailure as failure:
            raise await self._refused(PLAIN, name, address, failure.reason) from None
        except TooManyPasswords:
            raise await self._refused(PLAIN, name, address, "too many passwords wait") from None
        finally:
            exchange.gone()
        self.came(PLAIN, name, address)
        return Caller(user(name), PLAIN, exchange.reliance)

    async def _refused(self, mechanism: str, name: str, address: str, reason: str) -> NotLetIn:
        self.refused(mechanism, name, address, reason)
        await asyncio.sleep(FAILURE_DELAY_MS / 1000)
        return NotLetIn(_REFUSED)


class Stay:
    """One call while it lasts. `end` takes the reason, and True after it if another gateway may serve the client."""

    __slots__ = ("caller", "end")

    def __init__(self, caller: Caller, end: Callable[[str, bool], None]) -> None:
        self.caller = caller
        self.end = end


class Present:
    """Calls under way, by the credential that they rely on: they end with it."""

    def __init__(self) -> None:
        self._all: set[Stay] = set()
        self._by_key: dict[CredentialKey, set[Stay]] = {}
        self._by_certificate: dict[str, set[Stay]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def end_all(self, reason: str) -> None:
        """Nobody is served any more."""
        for stay in list(self._all):
            stay.end(reason, True)

    @contextmanager
    def during(self, caller: Caller, end: Callable[[str, bool], None], left_ms: int | None) -> Iterator[None]:
        """A call is under way; `left_ms` of it at most."""
        timer: Any = None
        if left_ms is not None:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(
                max(0, left_ms) / 1000, end, "the token has expired; get another one", False
            )
        reliance = caller.reliance
        stay = Stay(caller, end)
        self._all.add(stay)
        if reliance is not None:
            self._by_key.setdefault(reliance.key, set()).add(stay)
        if caller.certificate:
            self._by_certificate.setdefault(caller.certificate, set()).add(stay)
        try:
            yield
        finally:
            self._all.discard(stay)
            if timer is not None:
                timer.cancel()
            if reliance is not None:
                _leave(self._by_key, reliance.key, stay)
            if caller.certificate:
                _leave(self._by_certificate, caller.certificate, stay)

    def end_refused(self, fault: Callable[[str], str]) -> None:
        """End calls whose certificate counts no more; `fault` says why, "" when it does."""
        for certificate, stays in list(self._by_certificate.items()):
            if reason := fault(certificate):
                for stay in list(stays):
                    stay.end(reason, False)

    def on_metadata(self, old: MetadataImage, new: MetadataImage) -> None:
        """End calls whose credential is another one now, or none."""
        credentials = new.security.credentials
        if old.security.credentials is credentials:
            return
        for key, stays in list(self._by_key.items()):
            found = credentials.get(key)
            for stay in list(stays):
                assert stay.caller.reliance is not None
                if found is None or found.version != stay.caller.reliance.version:
                    stay.end("its user was deleted, or has another password; sign in again", False)


def _leave(of: dict[K, set[Stay]], key: K, stay: Stay) -> None:
    stays = of[key]
    stays.discard(stay)
    if not stays:
        del of[key]


def _of_jwt(identity: TokenIdentity) -> Caller:
    return Caller(user(identity.name), OAUTHBEARER, None, identity.expires_at_ms)


def _no_deadline(_delay_ms: int) -> None:
    return None
