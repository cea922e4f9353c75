"""What all doors have in common, Kafka listeners and the ports beside them: security, certificate, who a client is."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, field_validator, model_validator

PLAINTEXT: Final = "PLAINTEXT"
SSL: Final = "SSL"
SASL_PLAINTEXT: Final = "SASL_PLAINTEXT"
SASL_SSL: Final = "SASL_SSL"
SECURITY: Final = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
"""Kafka's names of security protocols (org.apache.kafka.common.security.auth.SecurityProtocol)."""


class ListenerTls(BaseModel):
    """Files of a listener's certificate; PEM, read again when they change."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cert: Path
    """The certificate with the names that clients dial, and those between it and its CA's behind it."""
    key: Path
    """Its private key; nobody else may read it."""
    key_password_file: Path | None = None
    """File with the key's password, where it has one; nobody else may read it."""
    client_ca: Path | None = None
    """The CA of clients' certificates."""
    client_auth: Literal["none", "requested", "required"] = "none"
    """Whether clients show a certificate (Kafka: ssl.client.auth)."""

    @model_validator(mode="after")
    def _check_client_ca(self) -> ListenerTls:
        if self.client_auth != "none" and self.client_ca is None:
            raise ValueError(
                f"client_auth = {self.client_auth} needs client_ca, the CA of clients' certificates"
            )
        if self.client_auth == "none" and self.client_ca is not None:
            raise ValueError("client_ca does nothing without client_auth; set it to requested or required")
        return self

    def paths(self) -> tuple[Path, ...]:
        """All the files."""
        more = (self.key_password_file, self.client_ca)
        return (self.cert, self.key, *(path for path in more if path is not None))


class DoorSettings(BaseModel):
    """Who may come in by a port."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    security: str = PLAINTEXT
    """One of SECURITY."""
    tls: ListenerTls | None = None
    """For SSL and SASL_SSL."""
    principal_mapping_rules: str = "DEFAULT"
    """What user a client's certificate makes (Kafka: ssl.principal.mapping.rules); with SSL."""

    @property
    def _which(self) -> str:
        """Says in errors which door it is, where there are several: "listener NAME: ", or ""."""
        return ""

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
        where = f"{self._which}security = {self.security}"
        if self.has_tls and self.tls is None:
            raise ValueError(f"{where} needs tls = {{cert, key}}, the files of a certificate and its key")
        if self.tls is not None and not self.has_tls:
            raise ValueError(f"{where} has no use for tls; set it to SSL or SASL_SSL, or take tls away")
        if self.principal_mapping_rules != "DEFAULT" and not self.takes_certificates:
            raise ValueError(
                f"{self._which}principal_mapping_rules are for security = SSL with tls.client_auth = requested or"
                " required; elsewhere no certificate says who a client is"
            )
        return self
