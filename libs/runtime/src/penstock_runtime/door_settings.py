"""Settings of the doors beside the Kafka listeners: the native gRPC port, and the HTTP port."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from penstock_core.security.sasl import OAUTHBEARER, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512
from penstock_core.security.session_token import LIFETIME_MS_MAX
from penstock_runtime.listener_settings import (
    PLAINTEXT,
    SASL_PLAINTEXT,
    SASL_SSL,
    SECURITY,
    SSL,
    ListenerTls,
)


class DoorSettings(BaseModel):
    """Who may come in by a port, in the words of a Kafka listener."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    security: str = PLAINTEXT
    """One of SECURITY."""
    tls: ListenerTls | None = None
    """For SSL and SASL_SSL."""
    principal_mapping_rules: str = "DEFAULT"
    """What user a client's certificate makes; with SSL."""

    @property
    def has_tls(self) -> bool:
        """Whether its connections are encrypted."""
        return self.security in (SSL, SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        """Whether clients sign in."""
        return self.security in (SASL_PLAINTEXT, SASL_SSL)

    @property
    def takes_certificates(self) -> bool:
        """Whether a client's certificate makes its user."""
        return self.security == SSL and self.tls is not None and self.tls.client_auth != "none"

    @property
    def may_face_others(self) -> bool:
        """Whether it is encrypted and knows who comes, so that any machine may reach it."""
        certified = self.tls is not None and self.tls.client_auth == "required"
        return self.security == SASL_SSL or (self.security == SSL and certified)

    @field_validator("security")
    @classmethod
    def _check_security(cls, value: str) -> str:
        if value.upper() not in SECURITY:
            raise ValueError(f"security is one of {', '.join(SECURITY)}")
        return value.upper()

    @model_validator(mode="after")
    def _check_door(self) -> DoorSettings:
        where = f"security = {self.security}"
        if self.has_tls and self.tls is None:
            raise ValueError(f"{where} needs tls = {{cert, key}}, the files of a certificate and its key")
        if self.tls is not None and not self.has_tls:
            raise ValueError(f"{where} has no use for tls; set it to SSL or SASL_SSL, or take tls away")
        if self.principal_mapping_rules != "DEFAULT" and not self.takes_certificates:
            raise ValueError(
                "principal_mapping_rules are for security = SSL with tls.client_auth; elsewhere no certificate "
                "says who a client is"
            )
        return self


class GrpcDoorSettings(DoorSettings):
    """The native API's."""

    mechanisms: tuple[Literal["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER"], ...] = ()
    """By which clients may sign in; () is SCRAM, over TLS PLAIN too. OAUTHBEARER is a JWT as Bearer."""
    token_lifetime_ms: int = Field(default=15 * 60_000, ge=1_000, le=LIFETIME_MS_MAX)
    """How long a token of Authenticate is good; then the client signs in again."""

    @property
    def offered(self) -> tuple[str, ...]:
        """By which clients may sign in."""
        if not self.has_sasl:
            return ()
        scram = (SCRAM_SHA_256, SCRAM_SHA_512)
        return self.mechanisms or ((*scram, PLAIN) if self.has_tls else scram)

    @model_validator(mode="after")
    def _check_grpc(self) -> GrpcDoorSettings:
        if self.tls is not None and self.tls.client_auth == "requested":
            raise ValueError(
                "tls.client_auth = requested: gRPC cannot ask for a certificate and do without; "
                "set it to none or required"
            )
        if self.mechanisms and not self.has_sasl:
            raise ValueError(f"security = {self.security} has no use for mechanisms; set it to SASL_SSL")
        return self


class HttpDoorSettings(DoorSettings):
    """The HTTP port's."""

    mechanisms: tuple[Literal["PLAIN", "OAUTHBEARER"], ...] = ()
    """PLAIN is Basic (a password of SCRAM's users), OAUTHBEARER a JWT as Bearer; () is Basic, over TLS only.
    Tokens of the native API count as Bearer wherever clients sign in."""
    metrics_public: bool = False
    """Whether everybody may read /metrics."""
    names: tuple[str, ...] = ()
    """Further host names by which clients reach this port, beside those of certificate and listeners."""

    @property
    def offered(self) -> tuple[str, ...]:
        """By which clients may sign in."""
        if not self.has_sasl:
            return ()
        # Basic tells the password to whoever listens on the way: without TLS only if it is named.
        return self.mechanisms or ((PLAIN,) if self.has_tls else ())

    @model_validator(mode="after")
    def _check_http(self) -> HttpDoorSettings:
        if self.mechanisms and not self.has_sasl:
            raise ValueError(f"security = {self.security} has no use for mechanisms; set it to SASL_SSL")
        return self


__all__ = ["OAUTHBEARER", "PLAIN", "DoorSettings", "GrpcDoorSettings", "HttpDoorSettings"]
