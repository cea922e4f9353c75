"""The `[oauth]` table: whose tokens count, and where their keys are."""

from __future__ import annotations

import urllib.parse
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from penstock_core.security.oauthbearer import NAME_LENGTH_MAX, ClaimsPolicy

_HTTPS: Final = "https://"


class OauthSettings(BaseModel):
    """Tokens (JWT) of one issuer, for OAUTHBEARER and whatever else takes `Authorization: Bearer`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    issuer: str = Field(min_length=1)
    """What `iss` has to be, to the letter (Kafka: sasl.oauthbearer.expected.issuer)."""
    audiences: tuple[str, ...]
    """One of them has to be in `aud` (Kafka: sasl.oauthbearer.expected.audience)."""
    jwks: str
    """Where the issuer's keys are: a file, or an https URL (Kafka: sasl.oauthbearer.jwks.endpoint.url)."""
    jwks_ca: Path | None = None
    """The CA of that URL's certificate; the system's without."""
    algorithms: tuple[str, ...] = ("RS256", "ES256")
    """By which tokens may be signed; asymmetric ones only."""
    principal_claim: str = Field(default="sub", min_length=1, max_length=NAME_LENGTH_MAX)
    """The claim that is the user's name (Kafka: sasl.oauthbearer.sub.claim.name)."""
    jwks_refresh_ms: int = Field(default=300_000, ge=1_000, le=86_400_000)
    """How often keys are fetched from a URL, in ms. A file is looked at every 2 s."""
    jwks_stale_ms: int = Field(default=86_400_000, ge=10_000)
    """How long keys count when no newer ones can be had, in ms; then no token counts."""

    @field_validator("jwks")
    @classmethod
    def _check_jwks(cls, value: str) -> str:
        if "://" in value:
            parts = urllib.parse.urlsplit(value)
            if not value.startswith(_HTTPS) or not parts.hostname:
                raise ValueError("keys come by https only: give an https URL, or a file")
            if parts.username or parts.password:
                raise ValueError("an URL with a user in it is shown in logs; give one without")
        elif not value:
            raise ValueError("is empty; give a file with the issuer's keys (JWKS), or its https URL")
        return value

    @model_validator(mode="after")
    def _check_policy(self) -> OauthSettings:
        self.policy()
        if self.jwks_ca is not None and not self.is_url:
            raise ValueError("jwks_ca does nothing for a file; take it away")
        return self

    @property
    def is_url(self) -> bool:
        """Whether the keys are fetched."""
        return self.jwks.startswith(_HTTPS)

    def policy(self) -> ClaimsPolicy:
        """What tokens have to say. Raises ValueError."""
        return ClaimsPolicy(
            self.issuer, frozenset(self.audiences), frozenset(self.algorithms), self.principal_claim
        )
