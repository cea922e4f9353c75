"""OAUTHBEARER: what a client says, the exchange, and what a token must claim.

Sources: RFC 7628; Kafka: OAuthBearerClientInitialResponse, OAuthBearerSaslServer; RFC 8725 for what to refuse.
Whether a token's signature is right is decided elsewhere, by a library; here stands what its header and
claims must say then.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from penstock_core.security import sasl
from penstock_core.security.sasl import SaslFailure

ASYMMETRIC: Final = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)
"""Algorithms that a policy may allow. With a shared secret (HS*) every verifier could make tokens."""
LEEWAY_S: Final = 30
NAME_LENGTH_MAX: Final = 255

_SECONDS_MAX: Final = 1 << 53
_RESPONSE: Final = re.compile(
    rb"n,(?:a=(?P<authzid>(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+))?,\x01"
    rb"(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01"
)
_AUTH: Final = re.compile(rb"(?P<scheme>\w+) +(?P<token>[-_~+/.a-zA-Z0-9]+=*)")


@dataclass(frozen=True, slots=True)
class InitialResponse:
    """A client's first message."""

    token: str = field(repr=False)
    authzid: str = ""
    extensions: Mapping[str, str] = field(default_factory=dict, repr=False)


def parse(message: bytes) -> InitialResponse:
    """Read a client's first message. Raises SaslFailure; a key twice is refused, Kafka takes the last."""
    read = _RESPONSE.fullmatch(message)
    if read is None:
        raise SaslFailure("malformed OAUTHBEARER message")
    pairs: dict[str, bytes] = {}
    for pair in read["pairs"].split(b"\x01")[:-1]:
        key, _, value = pair.partition(b"=")
        if key.decode() in pairs:
            raise SaslFailure(f"OAUTHBEARER message with {key.decode()} twice")
        pairs[key.decode()] = value
    auth = _AUTH.fullmatch(pairs.pop("auth", b""))
    if auth is None or auth["scheme"].lower() != b"bearer":
        raise SaslFailure("OAUTHBEARER message without auth=Bearer token")
    return InitialResponse(
        auth["token"].decode("ascii"),
        sasl.decode_saslname((read["authzid"] or b"").decode("ascii")),
        {key: value.decode("ascii") for key, value in pairs.items()},
    )


class TokenRefused(Exception):
    """A token does not count; says why, for the log. The client hears `invalid_token`."""


class NotVerifiable(TokenRefused):
    """Nobody can say now whether it would count: its key may be among those that cannot be read. No guess at all."""


@dataclass(frozen=True, slots=True)
class TokenIdentity:
    """Who a token is for, and how long."""

    name: str
    expires_at_ms: int
    """By the wall clock, the leeway included: until then the same token would be taken again."""


@dataclass(frozen=True, slots=True)
class ClaimsPolicy:
    """What the header and the claims of a token must say. Raises ValueError for what would be unsafe."""

    issuer: str
    audiences: frozenset[str]
    algorithms: frozenset[str] = frozenset({"RS256", "ES256"})
    principal_claim: str = "sub"
    leeway_s: int = LEEWAY_S

    def __post_init__(self) -> None:
        if unsafe := sorted(self.algorithms - ASYMMETRIC):
            raise ValueError(f"algorithms {', '.join(unsafe)} are not among {', '.join(sorted(ASYMMETRIC))}")
        for what, value in (
            ("algorithms", self.algorithms),
            ("an issuer", self.issuer),
            ("audiences", self.audiences),
            ("a principal claim", self.principal_claim),
        ):
            if not value:
                raise ValueError(f"name {what}: without it every token would count")

    def check_header(self, header: Mapping[str, object]) -> None:
        """Raise TokenRefused unless the header is one whose signature may be looked at."""
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in self.algorithms:
            raise TokenRefused(f"alg {algorithm!r:.40} is not allowed")
        if "crit" in header:
            raise TokenRefused("crit demands what nobody here knows")

    def check(
        self, header: Mapping[str, object], claims: Mapping[str, object], now_s: float
    ) -> TokenIdentity:
        """Who a token with a right signature is for. Raises TokenRefused."""
        self.check_header(header)
        expires_s, issued_s = _seconds(claims, "exp"), _seconds(claims, "iat")
        if now_s >= expires_s + self.leeway_s:
            raise TokenRefused(f"exp was {now_s - expires_s:.0f} s ago")
        if issued_s > now_s + self.leeway_s:
            raise TokenRefused(f"iat is {issued_s - now_s:.0f} s ahead")
        if "nbf" in claims and _seconds(claims, "nbf") > now_s + self.leeway_s:
            raise TokenRefused("nbf is ahead")
        if claims.get("iss") != self.issuer:
            raise TokenRefused("iss is not the issuer of the settings")
        self._check_audience(claims.get("aud"))
        name = claims.get(self.principal_claim)
        if not isinstance(name, str) or not 0 < len(name) <= NAME_LENGTH_MAX or not name.isprintable():
            raise TokenRefused(f"{self.principal_claim} is no name of up to {NAME_LENGTH_MAX} characters")
        return TokenIdentity(name, int((expires_s + self.leeway_s) * 1000))

    def _check_audience(self, audience: object) -> None:
        said = audience if isinstance(audience, list) else [audience]
        if not all(isinstance(one, str) for one in said) or self.audiences.isdisjoint(said):
            raise TokenRefused("aud has none of the audiences of the settings")


def _seconds(claims: Mapping[str, object], name: str) -> float:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TokenRefused(f"{name} is missing or no number")
    if not 0 <= value < _SECONDS_MAX:  # nor is NaN; and an int may be larger than any float
        raise TokenRefused(f"{name} is no time")
    return float(value)


def challenge(status: str = "invalid_token", scope: str | None = None) -> bytes:
    """What a client hears of a token that does not count (RFC 7628, 3.2.2), spelled as Kafka does."""
    said = f'{{"status":{json.dumps(status)}'
    if scope is not None:
        said += f', "scope":{json.dumps(scope)}'
    return f"{said}}}".encode()


class _State(Enum):
    FIRST = 1
    REFUSED = 2
    COMPLETE = 3
    FAILED = 4


class OAuthBearerServer:
    """One exchange: `begin` gives the token to verify, `accept` or `refuse` says what came of it, and after a
    refusal `end` takes the client's last message. All raise SaslFailure.
    """

    def __init__(self) -> None:
        self.user = ""
        self._state = _State.FIRST
        self._challenge = b""

    @property
    def complete(self) -> bool:
        """Whether the user has signed in."""
        return self._state is _State.COMPLETE

    @property
    def refused(self) -> bool:
        """Whether the client's next message goes to `end`."""
        return self._state is _State.REFUSED

    def evaluate(
        self, message: bytes, verify: Callable[[str], TokenIdentity]
    ) -> tuple[bytes, TokenIdentity | None]:
        """A client's message, with a verifier at hand that raises TokenRefused: what to answer, and who it is."""
        if self.refused:
            self.end(message)
        response = self.begin(message)
        try:
            identity = verify(response.token)
        except TokenRefused:
            return self.refuse(), None
        return self.accept(response, identity), identity

    def begin(self, message: bytes) -> InitialResponse:
        """Read the first message."""
        state, self._state = self._state, _State.FAILED
        if state is not _State.FIRST:
            raise SaslFailure("a message after the end of the exchange")
        response = parse(message)
        self._state = _State.FIRST
        return response

    def accept(self, response: InitialResponse, identity: TokenIdentity) -> bytes:
        """The token counts; the answer is an empty one."""
        self._state = _State.FAILED
        self.user = identity.name
        if response.authzid not in ("", identity.name):
            raise SaslFailure("another authorization id than the token's principal", sasl.OTHER_AUTHZID)
        self._state = _State.COMPLETE
        return b""

    def refuse(self) -> bytes:
        """The token does not count: the challenge that says so."""
        self._state = _State.REFUSED
        self._challenge = challenge()
        return self._challenge

    def end(self, message: bytes) -> None:
        """The client's answer to the challenge; a lone \\x01. Raises SaslFailure in any case.

        Kafka would read anything else as another first message, which no client sends.
        """
        self._state = _State.FAILED
        if message != b"\x01":
            raise SaslFailure("something else than \\x01 after the challenge")
        raise SaslFailure("the token was refused", self._challenge.decode())
