"""The address at which a client is told to find each node id.

Rules "Where a client is sent" and "Several gateways": on a `direct` listener a node's own
endpoint of the same listener name; on a `proxy` listener a live gateway's address of the same listener
name, by the client's network. This gateway answers "auto" with the address that the
client reached; another gateway's "auto" is known only where it registered its bind
address.

Another gateway, or a node, counts only if its listener has the same security too: a client that speaks TLS
is never sent to a port that does not, nor one that signs in past the sign-in.

Warts: another gateway's loopback address is never named to a client from outside
(only the gateways' own machine could reach it), unless it was written for that
client's network. A gateway that has registered no address known to this client is
simply not named.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from penstock_core.addresses import is_loopback
from penstock_core.metadata.image import MetadataImage, NodeImage
from penstock_gateway.routing.address_aliases import with_distinct_aliases
from penstock_gateway.routing.client_networks import AdvertisedRule, first_match
from penstock_gateway.routing.node_spread import Address, spread

VIEWS_MAX = 1024
"""Address views remembered; one per (listener, client network) in use."""

MODE_PROXY = "proxy"
MODE_DIRECT = "direct"
PLAINTEXT = "PLAINTEXT"


class Arrival(NamedTuple):
    """By which door a client came: the connection's listener, peer and local address."""

    listener: str
    client_host: str
    local_host: str
    local_port: int


@dataclass(frozen=True, slots=True)
class OwnListener:
    """A listener of this gateway: name, mode, parsed `advertised` setting, security."""

    name: str
    mode: str
    rules: tuple[AdvertisedRule, ...]
    security: str = PLAINTEXT

    @property
    def has_tls(self) -> bool:
        """Whether clients compare the host with a certificate."""
        return self.security.endswith("SSL")


class AddressView(NamedTuple):
    """Addresses by node id for one client network.

    `key` is equal for equal views; `apart` are the same addresses in a spelling for each
    node, for clients that need it (see `spelling`).
    """

    key: tuple[object, ...]
    addresses: Mapping[int, Address]
    apart: Mapping[int, Address]


class AddressBook:
    """Answers `view(image, arrival)`; remembers answers of the newest image only."""

    def __init__(
        self, gateway_id: str, listeners: Mapping[str, OwnListener], host_gateways: frozenset[str]
    ) -> None:
        self._gateway_id = gateway_id
        self._listeners = listeners
        self._host_gateways = host_gateways
        self._version = -1
        self._leaving = False
        self._views: OrderedDict[Arrival, AddressView] = OrderedDict()

    def leave(self) -> None:
        """Clients are to go elsewhere: from now on this gateway counts only while it is registered."""
        self._leaving = True
        self._views.clear()

    def view(self, image: MetadataImage, arrival: Arrival) -> AddressView:
        """Every registered node's address for that client (nodes without one are left out)."""
        if image.version != self._version:
            self._views.clear()
            self._version = image.version
        found = self._views.get(arrival)
        if found is None:
            if len(self._views) >= VIEWS_MAX:
                self._views.popitem(last=False)
            found = self._views[arrival] = self._make(image, arrival)
        return found

    def _make(self, image: MetadataImage, arrival: Arrival) -> AddressView:
        own = self._listeners[arrival.listener]
        if own.mode == MODE_DIRECT:
            endpoints = {
                int(n.node_id): (endpoint.host, endpoint.port)
                for n in image.nodes.values()
                if (endpoint := n.listeners.get(arrival.listener)) is not None
                and endpoint.security == own.security
            }
            return AddressView((MODE_DIRECT, arrival.listener), endpoints, endpoints)
        places = self.gateway_addresses(image, arrival)
        # Fenced nodes keep their place, so that a node that dies moves no other one.
        addresses = spread(image.nodes, places)
        apart = with_distinct_aliases(addresses, names_only=own.has_tls)
        return AddressView((MODE_PROXY, *places), addresses, apart)

    def gateway_addresses(self, image: MetadataImage, arrival: Arrival) -> list[Address]:
        """Distinct addresses of live gateways for that client on its proxy listener, sorted.

        This gateway stands in it until it leaves, registered or not: the client reached it here. The
        controllers drop a gateway that was paused or cut off, and the others that they still name may be
        dead; librdkafka (2.16) that is told of dead ones alone asks nobody else again. One that leaves
        stands in it while it is registered, and when nobody else does.
        """
        own = self._own_address(arrival)
        security = self._listeners[arrival.listener].security
        places = {
            address
            for gateway_id, gateway in image.gateways.items()
            if gateway_id != self._gateway_id
            for listener in gateway.record.listeners
            if listener.name == arrival.listener
            and listener.mode == MODE_PROXY
            and (listener.security or PLAINTEXT) == security
            for address in self._other_address(
                [AdvertisedRule.from_pb(a) for a in listener.advertised], arrival
            )
        }
        if not self._leaving or self._gateway_id in image.gateways or not places:
            places.add(own)
        return sorted(places)

    def _own_address(self, arrival: Arrival) -> Address:
        rule = first_match(self._listeners[arrival.listener].rules, arrival.client_host, self._host_gateways)
        if rule is None or not rule.host:
            return arrival.local_host, arrival.local_port
        return rule.host, rule.port

    def _other_address(self, rules: list[AdvertisedRule], arrival: Arrival) -> list[Address]:
        rule = first_match(rules, arrival.client_host, self._host_gateways)
        if rule is None or not rule.host:
            return []
        if is_loopback(rule.host) and not rule.narrow and not is_loopback(arrival.client_host):
            return []
        return [(rule.host, rule.port)]


def live_nodes(image: MetadataImage) -> list[NodeImage]:
    """Nodes that serve: registered and not fenced, by id."""
    return sorted((n for n in image.nodes.values() if not n.fenced), key=lambda n: n.node_id)
