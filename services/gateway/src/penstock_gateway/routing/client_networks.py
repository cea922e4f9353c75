"""Which of a listener's advertised addresses a client is answered with.

An advertised address stands for one client network: "*" (everyone), a CIDR, or
"host-gateway": the client is the default gateway of one of this host's networks,
which is how the machine that runs containers looks from inside one. The first match
wins. An entry without a host is "auto": the address that the client itself reached.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock_core.addresses import WILDCARD_HOSTS
from penstock_proto.v1 import metadata_pb2 as pb

EVERYONE = "*"
HOST_GATEWAY = "host-gateway"


@dataclass(frozen=True, slots=True)
class AdvertisedRule:
    """One entry of a listener's `advertised` setting; host "" means auto."""

    network: str
    host: str
    port: int

    def matches(self, client_host: str, host_gateways: frozenset[str]) -> bool:
        """Whether a client with that IP address is of this entry's network."""
        if self.network == EVERYONE:
            return True
        if self.network == HOST_GATEWAY:
            return client_host in host_gateways
        try:
            return ipaddress.ip_address(client_host) in ipaddress.ip_network(self.network)
        except ValueError:
            return False

    @property
    def narrow(self) -> bool:
        """True when the entry was written for some clients only, not for everyone."""
        return self.network != EVERYONE

    @classmethod
    def from_pb(cls, message: pb.AdvertisedAddress) -> AdvertisedRule:
        return cls(message.network or EVERYONE, message.host, message.port)

    def to_pb(self) -> pb.AdvertisedAddress:
        return pb.AdvertisedAddress(network=self.network, host=self.host, port=self.port)


def rules_of(
    table: Iterable[tuple[str, tuple[str, int] | None]], bound_port: int
) -> tuple[AdvertisedRule, ...]:
    """Rules from (network, address) pairs in order of match.

    None stands for auto; port 0 for the port that the listener is bound to.
    """
    return tuple(
        AdvertisedRule(network, "", 0)
        if address is None
        else AdvertisedRule(network, address[0], address[1] or bound_port)
        for network, address in table
    )


def first_match(
    rules: Iterable[AdvertisedRule], client_host: str, host_gateways: frozenset[str]
) -> AdvertisedRule | None:
    """The entry for that client, or None when no network holds it."""
    for rule in rules:
        if rule.matches(client_host, host_gateways):
            return rule
    return None


def for_registration(
    rules: Sequence[AdvertisedRule], bind_host: str, bind_port: int
) -> list[pb.AdvertisedAddress]:
    """What other gateways may tell their clients of this listener.

    Auto becomes the bind address, unless that is a wildcard: then nobody outside
    knows the address that a client would reach, and the host stays empty.
    """
    known_host = "" if bind_host in WILDCARD_HOSTS else bind_host
    return [
        pb.AdvertisedAddress(network=r.network, host=r.host, port=r.port)
        if r.host
        else pb.AdvertisedAddress(network=r.network, host=known_host, port=bind_port)
        for r in rules
    ]


def default_gateways(route_table: str) -> frozenset[str]:
    """Gateway addresses in the text of Linux's /proc/net/route (IPv4).

    Lines that can't be read are left out: without the table no client counts as
    "host-gateway", and the next entry of the list answers.
    """
    found = set()
    for line in route_table.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 4:
            continue
        try:
            gateway, flags = int(fields[2], 16), int(fields[3], 16)
        except ValueError:
            continue
        # RTF_UP | RTF_GATEWAY; the number is in the byte order of the machine, little-endian.
        if flags & 0x3 == 0x3 and gateway:
            found.add(str(ipaddress.IPv4Address(gateway.to_bytes(4, "little"))))
    return frozenset(found)
