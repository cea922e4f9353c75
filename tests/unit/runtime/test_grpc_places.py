"""Which connections of a gRPC port go when there are too many."""

from __future__ import annotations

from penstock_runtime.grpc_bounds import GrpcBounds
from penstock_runtime.grpc_calls import OpenCalls, Peer, PeerKey
from penstock_runtime.grpc_places import Place, Places


class Port:
    """Who is here."""

    def __init__(self, **bounds: int) -> None:
        self.calls = OpenCalls(GrpcBounds(**bounds))
        self.places = Places(GrpcBounds(**bounds), self.calls)
        self.here: list[Place] = []
        self.why: list[str] = []
        self._number = 0

    def come(self, host: str) -> Place:
        self._number += 1
        place = Place(PeerKey(host, self._number), lambda why: None)
        self.here.append(place)
        for gone, why in self.places.come(place):
            self.here.remove(gone)
            self.why.append(why)
        assert len(self.places) == len(self.here)
        return place

    def called(
        self, place: Place, *, open_calls: int = 0, last_call: int = 1, is_ours: bool = False
    ) -> Place:
        peer = self.calls.peers[place.key] = Peer(place.key)
        peer.open_calls, peer.last_call, peer.is_ours = open_calls, last_call, is_ours
        return place


def test_of_those_who_have_not_called_the_address_with_most_loses_its_oldest() -> None:
    port = Port(strangers_max=4)
    port.come("127.0.0.2")
    younger = [port.come("127.0.0.2") for _ in range(3)]
    other = port.come("127.0.0.3")
    assert port.here == [*younger, other]
    assert port.why == ["5 have not called, and grpc_strangers_max = 4"]
    # Who has called is none of them.
    port.called(younger[0])
    port.come("127.0.0.2")
    assert len(port.here) == 5
    assert port.places.count_strangers() == 4


def test_of_an_address_the_unused_go_first_then_the_newest_and_never_our_own() -> None:
    port = Port(connections_per_address_max=3)
    ours = port.called(port.come("127.0.0.2"), is_ours=True, last_call=1)
    busy = port.called(port.come("127.0.0.2"), open_calls=1, last_call=2)
    unused = port.called(port.come("127.0.0.2"), last_call=3)
    elsewhere = port.come("127.0.0.3")
    new = port.come("127.0.0.2")
    assert port.here == [ours, busy, elsewhere, new]
    assert port.why == ["4 are of 127.0.0.2, and grpc_connections_per_address_max = 3"]
    assert (port.places.is_stranger(unused), port.places.is_stranger(new)) == (False, True)
    # It has not called: it goes for the next one.
    newer = port.called(port.come("127.0.0.2"), open_calls=1)
    assert port.here == [ours, busy, elsewhere, newer]
    # All are in use: nobody goes for one that may be for nothing.
    assert port.come("127.0.0.2") not in port.here
    port.called(busy, is_ours=True)
    port.called(newer, is_ours=True)
    assert port.come("127.0.0.2") not in port.here
    assert port.here == [ours, busy, elsewhere, newer]


def test_who_has_called_goes_by_use() -> None:
    port = Port(connections_max=3)
    unused = port.called(port.come("127.0.0.2"), last_call=1)
    used = port.called(port.come("127.0.0.2"), last_call=9)
    busy = [port.called(port.come("127.0.0.2"), open_calls=1)]
    elsewhere = port.come("127.0.0.3")
    assert port.here == [used, *busy, elsewhere]
    assert unused not in port.here
    port.called(used, open_calls=1)
    busier = port.called(elsewhere, open_calls=1)
    # All are in use: the newest of the address with most.
    assert port.come("127.0.0.4") in port.here
    assert port.here[:2] == [used, busier]


def test_addresses_of_one_64_are_one_where_somebody_has_to_go() -> None:
    many = [f"2001:db8::{n}" for n in range(5)]
    for strangers in (True, False):
        port = Port(strangers_max=6, connections_max=6)
        made = []
        for host in ("192.0.2.1", "192.0.2.1", *many, "192.0.2.2"):
            made.append(port.come(host))
            if not strangers:
                port.called(made[-1], last_call=len(made))
        assert [each.key.host for each in made if each not in port.here] == many[:2]


def test_a_64_has_four_times_the_connections_of_one_of_its_addresses() -> None:
    port = Port(connections_per_address_max=2)
    for _ in range(3):
        port.come("2001:db8::1")
    assert len(port.here) == 2
    port = Port(connections_per_address_max=2)
    for n in range(8):
        port.come(f"2001:db8::{n}")
    port.come("2001:db8:0:1::1")
    assert not port.why
    port.come("2001:db8::9")
    assert port.why == ["9 are of 2001:db8::/64, and grpc_connections_per_address_max = 2"]
    assert port.here[0].key.host == "2001:db8::1"
    assert port.here[-1].key.host == "2001:db8::9"


def test_of_all_the_address_with_most_loses() -> None:
    port = Port(connections_max=4)
    few = [port.called(port.come(f"127.0.0.{n}"), last_call=n) for n in (3, 4)]
    many = [port.called(port.come("127.0.0.2"), last_call=10 + n) for n in range(2)]
    another = port.come("127.0.0.5")
    assert port.here == [*few, many[1], another]
    assert port.why == ["there were 5, and grpc_connections_max = 4"]


def test_who_is_gone_is_forgotten() -> None:
    port = Port(connections_per_address_max=2)
    for _ in range(1_000):
        place = port.called(port.come("127.0.0.2"))
        port.here.remove(place)
        port.places.left(place)
        port.places.left(place)
    assert not port.why
    assert not port.calls.peers
    assert len(port.places) == 0


def test_with_no_descriptor_left_the_first_one_goes() -> None:
    port = Port()
    assert port.places.make_room() is None
    called, stranger = port.called(port.come("127.0.0.2")), port.come("127.0.0.2")
    ours = port.called(port.come("127.0.0.2"), is_ours=True)
    assert port.places.make_room() is stranger
    assert port.places.make_room() is called
    assert len(port.places) == 1
    assert not port.places.is_stranger(ours)
    assert port.places.make_room() is None


def test_who_calls_while_he_is_ended_is_forgotten_with_his_connection() -> None:
    port = Port(strangers_max=1)
    first = port.come("127.0.0.2")
    port.come("127.0.0.2")
    assert first not in port.here
    assert port.places.is_stranger(first)
    # A call of his was on its way.
    port.called(first)
    port.places.left(first)
    assert not port.calls.peers
    assert not port.places.is_stranger(first)


def test_a_number_that_is_given_again_is_the_new_ones() -> None:
    port = Port()
    old = port.called(port.come("127.0.0.2"))
    port._number -= 1
    new = port.called(port.come("127.0.0.2"))
    port.places.left(old)
    assert new.key in port.calls.peers
    port.places.left(new)
    assert not port.calls.peers
