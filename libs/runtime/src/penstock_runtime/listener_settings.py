"""Settings of one Kafka listener."""

from __future__ import annotations

import ipaddress
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from penstock_core.addresses import Address, parse_address


class ListenerSettings(BaseModel):
    """A Kafka listener: where it binds, how clients are told to come back to it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[A-Z][A-Z0-9_-]{0,63}$")
    bind: str
    mode: Literal["proxy", "direct"] = "proxy"
    advertised: str | dict[str, str] = "auto"
    """`auto`, `host:port`, or a table {client network: address}; first match wins. A network
    is `*`, a CIDR or `host-gateway`."""
    security: str = "PLAINTEXT"
    proxy_protocol: bool = False
    """Expect a PROXY protocol header (v1 or v2) first on every connection."""
    proxy_from: tuple[str, ...] = ()
    """The balancers that send it: networks as CIDR. Nobody else may connect to such a listener."""

    @field_validator("bind")
    @classmethod
    def _check_bind(cls, value: str) -> str:
        parse_address(value)
        return value

    @field_validator("security")
    @classmethod
    def _check_security(cls, value: str) -> str:
        if value.upper() != "PLAINTEXT":
            raise ValueError(f"security {value} is not built yet; use PLAINTEXT")
        return "PLAINTEXT"

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

    def advertised_by_network(self) -> list[tuple[str, Address | None]]:
        """(network, address) in order of match; None stands for `auto`."""
        table = {"*": self.advertised} if isinstance(self.advertised, str) else self.advertised
        return [(network, None if a == "auto" else parse_address(a)) for network, a in table.items()]
