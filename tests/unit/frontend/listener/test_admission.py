"""Who may connect, and who goes when a listener is full."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from penstock_frontend.listener.admission import Admission, ConnectionCaps, makes_room

CAPS = ConnectionCaps(connections_max=5, per_address_max=3, new_per_address_per_s=10, new_per_address_burst=4)


def test_an_address_has_its_share_and_others_theirs() -> None:
    admission = Admission(CAPS)
    for _ in range(3):
        assert not admission.refusal("a", 0.0)
        admission.added("a")
    assert admission.refusal("a", 0.0) == "connections_per_address_max = 3"
    assert not admission.refusal("b", 0.0)
    admission.removed("a")
    assert not admission.refusal("a", 0.0)
    assert admission.by_address == {"a": 2}


def test_who_comes_too_fast_waits_for_the_rate() -> None:
    admission = Admission(CAPS)
    assert [bool(admission.refusal("a", 100.0)) for _ in range(6)] == [False] * 4 + [True] * 2
    assert not admission.refusal("a", 100.125)
    assert admission.refusal("a", 100.125) == "new_connections_per_address_per_s = 10"
    assert not admission.refusal("b", 100.125)
    assert [bool(admission.refusal("a", 500.0)) for _ in range(5)] == [False] * 4 + [True]


def test_whoever_has_one_address_of_ipv6_has_a_network_of_them() -> None:
    admission = Admission(CAPS)
    came = []
    for n in range(20):
        address = f"2001:db8::{n:x}"
        came.append(not admission.refusal(address, 0.0, has_quota=True))
        if came[-1]:
            admission.added(address)
    assert came == [True] * 12 + [False] * 8  # four addresses' worth
    assert admission.by_address == {"2001:db8::": 12}
    assert not admission.refusal("2001:db8:0:1::1", 0.0)
    assert not admission.refusal("::ffff:192.0.2.1", 0.0)
    for n in range(12):
        admission.removed(f"2001:db8::{n:x}")
    assert not admission.by_address and not admission._exactly
    # One address of them has no more than any other, and all together come four times as fast.
    for _ in range(3):
        admission.added("2001:db8::1")
    assert admission.refusal("2001:db8::1", 0.0)
    assert not admission.refusal("2001:db8::2", 0.0)
    other = Admission(CAPS)
    assert [not other.refusal(f"2001:db8::{n:x}", 100.0) for n in range(20)] == [True] * 16 + [False] * 4


def test_addresses_are_not_remembered_without_end() -> None:
    admission = Admission(CAPS)
    for n in range(100_000):
        admission.refusal(f"address {n}", n / 1e6)
    assert len(admission._buckets) <= 20_000


@dataclass(frozen=True)
class Peer:
    address: str
    quiet_since_s: float
    is_stranger: bool = False
    may_be_idle: bool = True


def room(peers: list[Peer], newcomer: str, most: int = 1) -> list[Peer]:
    counts = Counter(p.address for p in peers)
    return makes_room(peers, counts, newcomer, lambda p: p.quiet_since_s, most)


def test_the_greediest_addresss_idle_ones_make_room() -> None:
    honest = [Peer("honest", 1.0), Peer("honest", 2.0)]
    greedy = [Peer("greedy", 5.0), Peer("greedy", 3.0), Peer("greedy", 9.0, is_stranger=True)]
    busy = Peer("greedy", 0.0, may_be_idle=False)
    peers = [*honest, *greedy, busy]
    assert room(peers, "new") == [greedy[2]]
    assert room(peers, "honest", 10) == [greedy[2], greedy[1], greedy[0]]
    assert room(peers, "greedy") == []
    assert room([busy], "new") == []
