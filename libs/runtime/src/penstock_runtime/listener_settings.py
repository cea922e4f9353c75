"""Settings of one Kafka listener: where it binds, who may come in and how, where clients are told to come back."""

from __future__ import annotations

import ipaddress
from typing import Final, Literal

from pydantic import Field, field_validator, model_validator

from penstock_core.addresses import Address, parse_address
from penstock_core.security.sasl import OAUTHBEARER, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512
from penstock_runtime.door import DoorSettings

BUILT_MECHANISMS: Final = (SCRAM_SHA_256, SCRAM_SHA_512, PLAIN, OAUTHBEARER)


class ListenerSettings(DoorSettings):
    """A Kafka listener."""

    name: str = Field(pattern=r"^[A-Z][A-Z0-9_-]{0,63}$")
    bind: str
    mode: Literal["proxy", "direct"] = "proxy"
    advertised: str | dict[str, str] = "auto"
    """`auto`, `host:port`, or a table {client network: address}; first match wins. A network
    is `*`, a CIDR or `host-gateway`."""
    sasl_mechanisms: tuple[str, ...] = ()
    """By which clients may sign in; () on a SASL listener: SCRAM, and PLAIN over TLS. OAUTHBEARER has to be named,
    and needs the table `oauth` of the process."""
    max_reauth_ms: int = Field(default=0, ge=0)
    """How long a client that has signed in may go on until it does so again (KIP-368), in ms; 0: for ever.
    Kafka: connections.max.reauth.ms."""
    proxy_protocol: bool = False
    """Expect a PROXY protocol header (v1 or v2) first on every connection."""
    proxy_from: tuple[str, ...] = ()
    """The balancers that send it: networks as CIDR. Nobody else may connect to such a listener."""

    @property
    def _which(self) -> str:
        return f"listener {self.name}: "

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
    def _check_sign_in(self) -> ListenerSettings:
        if not self.has_sasl and (self.sasl_mechanisms or self.max_reauth_ms):
            raise ValueError(
                f"{self._which}security = {self.security} has no use for sasl_mechanisms and max_reauth_ms;"
                " set it to SASL_SSL, or take them away"
            )
        return self

    def advertised_by_network(self) -> list[tuple[str, Address | None]]:
        """(network, address) in order of match; None stands for `auto`."""
        table = {"*": self.advertised} if isinstance(self.advertised, str) else self.advertised
        return [(network, None if a == "auto" else parse_address(a)) for network, a in table.items()]
