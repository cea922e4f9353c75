"""Settings of the doors beside the Kafka listeners: the native gRPC port, and the HTTP port."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from penstock_core.security.sasl import PLAIN, SCRAM_SHA_256, SCRAM_SHA_512
from penstock_core.security.session_token import LIFETIME_MS_MAX
from penstock_runtime.door import DoorSettings


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
