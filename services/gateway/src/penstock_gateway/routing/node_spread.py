"""Spreads node ids over gateway addresses, the same way on every gateway.

Theory: rendezvous (highest random weight) hashing gives each (node, address) a
pseudo-random weight; a node takes its heaviest address, so an address that comes or
goes moves few nodes. Plain rendezvous may give three nodes to one of two addresses,
and a client that knows only one address is lost with it, so loads are bounded: each
address gets floor(n/m) nodes and n mod m of them one more. With at least as many
nodes as addresses every address is named.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

Address = tuple[str, int]


def weight(node_id: int, address: Address) -> int:
    """Weight of one pairing; equal on every gateway and release."""
    text = f"{node_id}|{address[0]}|{address[1]}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def spread(node_ids: Iterable[int], addresses: Iterable[Address]) -> dict[int, Address]:
    """An address for each node id; raises ValueError when there is no address."""
    nodes, places = sorted(set(node_ids)), sorted(set(addresses))
    if not places:
        raise ValueError("no address to spread node ids over")
    least, extra = divmod(len(nodes), len(places))
    load = dict.fromkeys(places, 0)
    chosen: dict[int, Address] = {}
    for node_id in nodes:
        for place in sorted(places, key=lambda p: weight(node_id, p), reverse=True):
            if load[place] < least:
                break
            if load[place] == least and extra:
                extra -= 1
                break
        load[place] += 1
        chosen[node_id] = place
    return chosen


def pick(seed: int, candidates: Iterable[int]) -> int | None:
    """One of the candidates, the same on every gateway: who is named as Kafka's controller."""
    return max(candidates, key=lambda c: weight(c, ("controller", seed)), default=None)
