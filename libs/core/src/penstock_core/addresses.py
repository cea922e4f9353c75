"""Addresses: reading `host:port`, and what counts as loopback. No name is resolved here."""

from __future__ import annotations

import ipaddress
from typing import Final, NamedTuple

WILDCARD_HOSTS: Final = frozenset({"", "*", "0.0.0.0", "::"})  # noqa: S104  # nosec B104 - names them, binds nothing


class Address(NamedTuple):
    """A host name or IP address, and a TCP port (0 = any free one when binding)."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Read `host:port` (IPv6 hosts in brackets). Raises ValueError that names the mend."""
    host, colon, port_text = text.strip().rpartition(":")
    if not colon:
        raise ValueError(f"address {text!r} has no port; write host:port")
    if not (port_text.isascii() and port_text.isdigit()) or int(port_text) > 65535:
        raise ValueError(f"address {text!r} has no port between 0 and 65535 after its last colon")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"address {text!r}: write an IPv6 host in brackets, [host]:port")
    if any(c.isspace() or c in "/,@[]" for c in host):
        raise ValueError(f"address {text!r}: {host!r} is no host name")
    return Address(host, int(port_text))


def parse_member(text: str) -> tuple[int | None, Address]:
    """Read `ID@host:port` or plain `host:port`, the form of controller addresses."""
    id_text, at, address = text.strip().rpartition("@")
    if not at:
        return None, parse_address(address)
    if not (id_text.isascii() and id_text.isdigit()):
        raise ValueError(f"{text!r}: the part before @ is the id, a number; write 1@host:port")
    return int(id_text), parse_address(address)


def is_loopback(host: str) -> bool:
    """`localhost`, 127.0.0.0/8 and ::1. No name is resolved."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
