"""Ports of a test's own listeners of a cluster, chosen before the cluster chooses those of its members."""

from __future__ import annotations

from penstock.local import ports
from penstock.local.plan import reserved_ports


def choose_listener_ports(count: int, base: int) -> list[int]:
    """Free ports for a cluster whose `--port` is `base`.

    From the range of bases, since members get theirs of the other one a moment later: a port that was only chosen
    looks free until somebody listens on it.
    """
    taken = reserved_ports(base)
    chosen: list[int] = []
    while len(chosen) < count:
        port = ports.choose_base()
        if port not in taken:
            taken.add(port)
            chosen.append(port)
    return chosen
