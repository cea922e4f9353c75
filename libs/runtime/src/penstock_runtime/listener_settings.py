"""Settings of one Kafka listener: where it binds, who may come in and how, where clients are told to come back."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from penstock_core.addresses import Address, parse_address
from penstock_core.security.sasl import OAUTHBEARER, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512

PLAINTEXT: Final = "PLAINTEXT"
SSL: Final = "SSL"
SASL_PLAINTEXT: Final = "SASL_PLAINTEXT"
SASL_SSL: Final = "SASL_SSL"
SECURITY: Final = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
"""Kafka's names of security protocols (org.apache.kafka.common.security.auth.SecurityProtocol)."""

BUILT_MECHANISMS: Final = (SCRAM_SHA_256, SCRAM_SHA_512, PLAIN, OAUTHBEARER)


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


class ListenerSettings(BaseModel):
    """A Kafka listener."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[A-Z][A-Z0-9_-]{0,63}$")
    bind: str
    mode: Literal["proxy", "direct"] = "proxy"
    advertised: str | dict[str, str] = "auto"
    """`auto`, `host:port`, or a table {client network: address}; first match wins. A network
    is `*`, a CIDR or `host-gateway`."""
    security: str = PLAINTEXT
    """One of SECURITY."""
    tls: ListenerTls | None = None
    """For SSL and SASL_SSL."""
    sasl_mechanisms: tuple[str, ...] = ()
    """By which clients may sign in; () on a SASL listener: SCRAM, and PLAIN over TLS. OAUTHBEARER has to be named,
    and needs the table `oauth` of the process."""
    max_reauth_ms: int = Field(default=0, ge=0)
    """How long a client that has signed in may go on until it does so again (KIP-368), in ms; 0: for ever.
    Kafka: connections.max.reauth.ms."""
    principal_mapping_rules: str = "DEFAULT"
    """What user a client's certificate makes (Kafka: ssl.principal.mapping.rules); on SSL listeners."""
    proxy_protocol: bool = False
    """Expect a PROXY protocol header (v1 or v2) first on every connection."""
    proxy_from: tuple[str, ...] = ()
    """The balancers that send it: networks as CIDR. Nobody else may connect to such a listener."""

    @property
    def has_tls(self) -> bool:
        """Whether its connections are encrypted."""
        return self.security in (SSL, SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        """Whether clients sign in."""
        return self.security in (SASL_PLAINTEXT, SASL_SSL)

    @property
    def may_face_others(self) -> bool:
        """Whether it is encrypted and knows who comes, so that any machine may reach it."""
        certified = self.tls is not None and self.tls.client_auth == "required"
        return self.security == SASL_SSL or (self.security == SSL and certified)

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """By which clients may sign in."""
        if not self.has_sasl:
            return ()
        scram = (SCRAM_SHA_256, SCRAM_SHA_512)
        # PLAIN tells the password to whoever listens on the way: without TLS only if it is named.
        return self.sasl_mechanisms or ((*scram, PLAIN) if self.has_tls else scram)

    @field_validator("bind")
    @classmethod
    def _check_bind(cls, value: str) -> str:
        parse_address(value)
        return value

    @field_validator("security")
    @classmethod
    def _check_security(cls, value: str) -> str:
        if value.upper() not in SECURITY:
            raise ValueError(f"security is one of {', '.join(SECURITY)}")
        return value.upper()

    @field_validator("sasl_mechanisms")
    @classmethod
    def _check_mechanisms(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for mechanism in value:
            if mechanism not in BUILT_MECHANISMS:
                raise ValueError(f"mechanism {mechanism!r} is none of {', '.join(BUILT_MECHANISMS)}")
        if len(set(value)) != len(value):
            raise ValueError("a mechanism is named twice; name each once")
        return value

    @field_validator("advertised")
    @classmethod
    def _check_advertised(cls, value: str | dict[str, str]) -> str | dict[str, str]:
        table = {"*": value} if isinstance(value, str) else value
        if not table:
            raise ValueError("the table of advertised addresses is empty; write auto")
        for network, address in table.items():
            if network not in ("*", "host-gateway"):
                try:
                    ipaddress.ip_network(network)
                except ValueError:
                    raise ValueError(f"network {network!r} is not *, host-gateway or a CIDR") from None
            if address != "auto":
                parse_address(address)
        return value

    @field_validator("proxy_from")
    @classmethod
    def _check_proxy_from(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for network in value:
            try:
                ipaddress.ip_network(network)
            except ValueError:
                raise ValueError(f"{network!r} is no CIDR, as 10.1.2.0/24") from None
        return value

    @model_validator(mode="after")
    def _check_balancers(self) -> ListenerSettings:
        if self.proxy_protocol and not self.proxy_from:
            raise ValueError(
                f"listener {self.name}: proxy_protocol needs proxy_from, the networks of the balancers as a list"
                ' of CIDRs, e.g. ["10.1.2.0/24"]'
            )
        if self.proxy_from and not self.proxy_protocol:
            raise ValueError(f"listener {self.name}: proxy_from does nothing without proxy_protocol = true")
        return self

    @model_validator(mode="after")
    def _check_door(self) -> ListenerSettings:
        where = f"listener {self.name}: security = {self.security}"
        if self.has_tls and self.tls is None:
            raise ValueError(f"{where} needs tls = {{cert, key}}, the files of a certificate and its key")
        if self.tls is not None and not self.has_tls:
            raise ValueError(f"{where} has no use for tls; set it to SSL or SASL_SSL, or take tls away")
        if not self.has_sasl and (self.sasl_mechanisms or self.max_reauth_ms):
            raise ValueError(
                f"{where} has no use for sasl_mechanisms and max_reauth_ms; set it to SASL_SSL, or take them away"
            )
        takes_certificates = self.tls is not None and self.tls.client_auth != "none"
        if self.principal_mapping_rules != "DEFAULT" and not (self.security == SSL and takes_certificates):
            raise ValueError(
                f"listener {self.name}: principal_mapping_rules are for security = SSL with tls.client_auth ="
                " requested or required; elsewhere no certificate says who a client is"
            )
        return self

    def advertised_by_network(self) -> list[tuple[str, Address | None]]:
        """(network, address) in order of match; None stands for `auto`."""
        table = {"*": self.advertised} if isinstance(self.advertised, str) else self.advertised
        return [(network, None if a == "auto" else parse_address(a)) for network, a in table.items()]
