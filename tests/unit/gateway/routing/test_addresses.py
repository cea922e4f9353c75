"""Where clients are sent: networks, spread over gateways, direct and proxy listeners."""

from __future__ import annotations

import ipaddress
import random
import socket

import pytest

from penstock_core.metadata.image import MetadataImage
from penstock_gateway.routing.address_aliases import alias_of, needs_distinct_names
from penstock_gateway.routing.addresses import AddressBook, Arrival, OwnListener
from penstock_gateway.routing.client_networks import (
    AdvertisedRule,
    default_gateways,
    first_match,
    for_registration,
    rules_of,
)
from penstock_gateway.routing.node_spread import pick, spread
from penstock_proto.v1 import common_pb2 as common
from penstock_proto.v1 import metadata_pb2 as pb

NO_GATEWAYS: frozenset[str] = frozenset()


def node(node_id: int, fenced: bool = False) -> pb.MetadataRecord:
    return pb.MetadataRecord(
        node=pb.NodeRecord(
            node_id=node_id,
            fenced=fenced,
            grpc=common.Endpoint(host="127.0.0.1", port=6000 + node_id),
            listeners=[common.Endpoint(listener="DIRECT", host="10.0.0.1", port=7000 + node_id)],
        )
    )


def gateway(name: str, *addresses: tuple[str, str, int]) -> pb.MetadataRecord:
    advertised = [pb.AdvertisedAddress(network=n, host=h, port=p) for n, h, p in addresses]
    return pb.MetadataRecord(
        gateway=pb.GatewayRecord(
            gateway_id=name,
            listeners=[pb.GatewayListener(name="PROXY", mode="proxy", advertised=advertised)],
        )
    )


def image(*records: pb.MetadataRecord, version: int = 1) -> MetadataImage:
    return MetadataImage.from_records(records, version)


def book(told: str = "auto", me: str = "gateway-1", hosts: frozenset[str] = NO_GATEWAYS) -> AddressBook:
    listeners = {
        "PROXY": OwnListener("PROXY", "proxy", rules(told)),
        "DIRECT": OwnListener("DIRECT", "direct", rules("auto")),
    }
    return AddressBook(me, listeners, hosts)


def at(client: str, local: tuple[str, int] = ("127.0.0.1", 9092), listener: str = "PROXY") -> Arrival:
    return Arrival(listener, client, *local)


def rules(text: str) -> tuple[AdvertisedRule, ...]:
    """ "network=host:port,..." or "auto" or "host:port", for short."""
    table: list[tuple[str, tuple[str, int] | None]] = []
    for part in text.split(","):
        network, _, address = part.rpartition("=")
        host, _, port = address.rpartition(":")
        table.append((network or "*", None if address == "auto" else (host, int(port))))
    return rules_of(table, 9092)


def test_rules_take_the_bound_port_where_none_is_given() -> None:
    assert rules_of([("*", ("gw", 0)), ("10.0.0.0/8", None)], 9092) == (
        AdvertisedRule("*", "gw", 9092),
        AdvertisedRule("10.0.0.0/8", "", 0),
    )


def test_first_match_wins_by_network() -> None:
    table = rules("host-gateway=localhost:1,10.0.0.0/8=inner:2,*=outer:3")
    hosts = frozenset({"172.18.0.1"})
    for client, port in (("172.18.0.1", 1), ("10.2.3.4", 2), ("192.168.1.1", 3), ("::1", 3)):
        rule = first_match(table, client, hosts)
        assert rule is not None
        assert rule.port == port
    assert first_match(rules("10.0.0.0/8=inner:2"), "11.0.0.1", hosts) is None


def test_registration_leaves_out_a_wildcard() -> None:
    table = rules("10.0.0.0/8=inner:2,*=auto")
    assert [(a.host, a.port) for a in for_registration(table, "127.0.0.1", 9092)] == [
        ("inner", 2),
        ("127.0.0.1", 9092),
    ]
    for wildcard in ("0.0.0.0", "::", ""):
        assert [(a.host, a.port) for a in for_registration(table, wildcard, 9092)] == [
            ("inner", 2),
            ("", 9092),
        ]


def test_default_gateways_of_a_route_table() -> None:
    table = (
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\n"
        "eth0\t00000000\t010012AC\t0003\t0\t0\t0\t00000000\n"
        "eth0\t000012AC\t00000000\t0001\t0\t0\t0\t0000FFFF\n"
        "broken line\n"
    )
    assert default_gateways(table) == {"172.18.0.1"}
    assert default_gateways("") == frozenset()


def test_spread_names_every_address_and_keeps_loads_even() -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(200):
        nodes = rng.sample(range(1, 100), rng.randint(0, 12))
        places = [(f"10.0.0.{i}", 9092) for i in rng.sample(range(50), rng.randint(1, 6))]
        chosen = spread(nodes, places)
        shuffled = spread(rng.sample(nodes, len(nodes)), rng.sample(places, len(places)))
        assert chosen == shuffled
        assert set(chosen) == set(nodes)
        loads = [list(chosen.values()).count(p) for p in places]
        assert max(loads) - min(loads) <= 1
    with pytest.raises(ValueError, match="no address"):
        spread([1], [])


def test_spread_moves_few_nodes_when_an_address_goes() -> None:
    places = [(f"10.0.0.{i}", 9092) for i in range(4)]
    before, after = spread(range(1, 41), places), spread(range(1, 41), places[:3])
    stayed = sum(1 for n in before if before[n] in places[:3] and before[n] == after[n])
    assert stayed >= 20  # of the 30 that could


def test_pick_is_stable() -> None:
    assert pick(0, []) is None
    assert pick(7, [3, 1, 2]) == pick(7, [1, 2, 3])


def test_direct_listener_answers_with_the_nodes_own_endpoints() -> None:
    view = book().view(image(node(1), node(2)), at("127.0.0.1", listener="DIRECT"))
    assert view.addresses == {1: ("10.0.0.1", 7001), 2: ("10.0.0.1", 7002)}


def test_a_listener_of_another_security_is_named_to_nobody() -> None:
    """A client that speaks TLS is not sent to a port that does not, nor past the sign-in, while settings differ."""
    told = gateway("gateway-2", ("*", "10.0.0.2", 9092))
    secure = gateway("gateway-3", ("*", "10.0.0.3", 9092))
    secure.gateway.listeners[0].security = "SASL_SSL"
    mixed = node(2)
    mixed.node.listeners[0].security = "SASL_SSL"
    now = image(node(1), mixed, told, secure)
    for security, place, node_id in (("PLAINTEXT", "10.0.0.2", 1), ("SASL_SSL", "10.0.0.3", 2)):
        listeners = {
            "PROXY": OwnListener("PROXY", "proxy", rules("auto"), security),
            "DIRECT": OwnListener("DIRECT", "direct", rules("auto"), security),
        }
        view = AddressBook("gateway-1", listeners, NO_GATEWAYS)
        view.leave()
        assert set(view.view(now, at("10.9.9.9")).addresses.values()) == {(place, 9092)}
        assert set(view.view(now, at("10.9.9.9", listener="DIRECT")).addresses) == {node_id}


def test_with_tls_addresses_keep_the_spelling_that_the_certificate_has() -> None:
    def apart(host: str) -> list[str]:
        listeners = {"PROXY": OwnListener("PROXY", "proxy", rules("auto"), "SSL")}
        view = AddressBook("gateway-1", listeners, NO_GATEWAYS).view(
            image(node(1), node(2)), at("10.1.1.1", (host, 9092))
        )
        return [host for host, _ in view.apart.values()]

    assert apart("10.1.1.9") == ["10.1.1.9", "10.1.1.9"]
    first, second = apart("broker.test")
    assert first != second
    assert first.lower() == second.lower()


def test_alone_and_unregistered_a_gateway_names_what_the_client_reached() -> None:
    view = book().view(image(node(1), node(2)), at("10.1.1.1", ("10.1.1.9", 9092)))
    assert set(view.addresses.values()) == {("10.1.1.9", 9092)}


def test_a_gateway_that_was_dropped_goes_on_naming_itself_until_it_leaves() -> None:
    # It was paused, and the one that is still registered died meanwhile: the client has nobody else.
    other = image(node(1), node(2), node(3), gateway("gateway-2", ("*", "127.0.0.1", 9102)))
    mine = book()
    assert set(mine.view(other, at("127.0.0.1")).addresses.values()) == {
        ("127.0.0.1", 9092),
        ("127.0.0.1", 9102),
    }


def test_two_loopback_gateways_are_both_named() -> None:
    both = image(
        node(1),
        node(2),
        node(3, fenced=True),
        gateway("gateway-1", ("*", "127.0.0.1", 9092)),
        gateway("gateway-2", ("*", "127.0.0.1", 9102)),
    )
    first = book().view(both, at("127.0.0.1"))
    second = book(me="gateway-2").view(both, at("127.0.0.1", ("127.0.0.1", 9102)))
    assert set(first.addresses.values()) == {("127.0.0.1", 9092), ("127.0.0.1", 9102)}
    assert first == second


def test_a_gateway_that_left_is_named_no_more_even_by_itself() -> None:
    other = image(node(1), gateway("gateway-2", ("*", "127.0.0.1", 9102)))
    mine = book()
    mine.leave()
    assert mine.view(other, at("127.0.0.1")).addresses == {1: ("127.0.0.1", 9102)}


def test_unknown_and_foreign_loopback_addresses_are_not_named() -> None:
    records = image(
        node(1),
        node(2),
        gateway("gateway-1", ("*", "", 9092)),
        gateway("gateway-2", ("*", "", 9092)),
        gateway("gateway-3", ("*", "127.0.0.1", 9112)),
    )
    view = book().view(records, at("10.1.1.1", ("10.1.1.9", 9092)))
    assert set(view.addresses.values()) == {("10.1.1.9", 9092)}


def test_one_port_answers_each_network_with_its_own_address() -> None:
    text = "host-gateway=localhost:9092,*=auto"
    told = (("host-gateway", "localhost", 9092), ("*", "172.18.0.6", 9092))
    records = image(node(1), node(2), gateway("gateway-1", *told), gateway("gateway-2", *told))
    addresses = book(text, hosts=frozenset({"172.18.0.1"}))
    local = ("172.18.0.5", 9092)
    host = addresses.view(records, at("172.18.0.1", local))
    inside = addresses.view(records, at("172.18.0.9", local))
    assert set(host.addresses.values()) == {("localhost", 9092)}
    assert set(inside.addresses.values()) == {local, ("172.18.0.6", 9092)}
    assert host.key != inside.key


def test_a_balancers_address_stands_for_every_gateway() -> None:
    names = [gateway(f"gateway-{i}", ("*", "edge", 9092)) for i in (1, 2, 3)]
    view = book("edge:9092").view(image(node(1), node(2), *names), at("10.0.0.9", ("10.0.0.2", 9092)))
    assert set(view.addresses.values()) == {("edge", 9092)}


def test_views_follow_the_image() -> None:
    addresses = book()
    assert set(addresses.view(image(node(1)), at("127.0.0.1")).addresses) == {1}
    assert set(addresses.view(image(node(1), node(2), version=2), at("127.0.0.1")).addresses) == {1, 2}


@pytest.mark.parametrize(
    ("software", "needs"),
    [
        ("librdkafka 2.0.2", True),
        ("confluent-kafka-python 2.3.0-rdkafka-2.3.0", True),
        ("librdkafka 2.4.0", False),
        ("librdkafka v1.9.2-RC1", True),
        ("confluent-kafka-python 2.16.1-rdkafka-2.16.0", False),
        ("apache-kafka-java 3.9.2", False),
        ("", False),
    ],
)
def test_which_clients_need_distinct_names(software: str, needs: bool) -> None:
    assert needs_distinct_names(software) is needs


def test_spellings_are_distinct_and_mean_the_same() -> None:
    for host in ("127.0.0.1", "10.200.3.4", "localhost", "gw-1.example", "::1", "fd00::12:3"):
        spelled = [alias_of(host, n) for n in range(6)]
        assert spelled[0] == host
        assert len(set(spelled)) == 6
        for one in spelled:
            if host[0].isalpha() and ":" not in host:
                assert one.lower() == host
            else:
                family, *_, where = socket.getaddrinfo(one, 9092, type=socket.SOCK_STREAM)[0]
                assert ipaddress.ip_address(where[0]) == ipaddress.ip_address(host)
                assert family in (socket.AF_INET, socket.AF_INET6)


def test_nodes_on_one_address_are_told_apart() -> None:
    view = book().view(image(node(1), node(2), node(3)), at("127.0.0.1"))
    assert set(view.addresses.values()) == {("127.0.0.1", 9092)}
    assert dict(view.apart) == {1: ("127.0.0.1", 9092), 2: ("0x7f.0.0.1", 9092), 3: ("0x07f.0.0.1", 9092)}
