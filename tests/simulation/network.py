"""Who hears whom: delays, losses, one-way blocks, and connections that break.

A *host* is a name. A datagram (`send`) may be lost, doubled and overtaken. A *pipe* is one
TCP connection: its bytes arrive in order or not at all. Loss on it is delay (the kernel sends
again), a block holds everything back until it ends, and whoever hears nothing for the
keepalive's time takes the connection for dead.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from simulation.scheduler import Scheduler

RETRANSMIT_US = 200_000
DEAD_AFTER_US = 4_000_000
"""gRPC's keepalive: pings after 2 s without bytes, 2 s for the answer."""


@dataclass(slots=True)
class NetworkProfile:
    """How bad the network is, for one seed."""

    delay_us_min: int = 50
    delay_us_max: int = 2_000
    slow_probability: float = 0.01
    """Chance of a delay of up to `slow_us_max`."""
    slow_us_max: int = 60_000
    loss_probability: float = 0.005
    duplicate_probability: float = 0.005
    duplicate_us_max: int = 1_500_000
    """How long after a datagram its double may come; most come much sooner."""
    reorder_probability: float = 0.01
    late_us_max: int = 1_500_000
    """How late one may come that is overtaken."""
    late_share: float = 0.0
    """What a block held back follows at most so many times its length later: the longer nothing was answered, the
    more seldom a kernel sends again. 0: at once."""
    late_lanes: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Of channels by their lane: a part of the packets takes longer, at most so many microseconds."""


class Network:
    """The state of all ways between hosts."""

    def __init__(self, scheduler: Scheduler, profile: NetworkProfile) -> None:
        self.profile = profile
        self.scheduler = scheduler
        self.blocked: set[tuple[str, str]] = set()
        """(from, to) that carry nothing."""
        self.pipes: dict[Pipe, None] = {}
        self.lost = self.doubled = self.reordered = self.sent = 0
        self.is_faulty = True
        self.disturbed_us: dict[str, int] = {}
        """When something last happened to a host, or to a way to or from it."""
        self._rng = scheduler.rng

    def disturb(self, *hosts: str) -> None:
        """Something happens to these."""
        for host in hosts:
            self.disturbed_us[host] = self.scheduler.now_us

    # --- faults

    def block(self, source: str, target: str) -> None:
        """Nothing of `source` reaches `target` from now on."""
        if (source, target) in self.blocked:
            return
        self.blocked.add((source, target))
        self.disturb(source, target)
        for pipe in list(self.pipes):
            pipe.on_blocked(source, target)

    def unblock(self, source: str, target: str) -> None:
        """The opposite of `block`; what was held back follows."""
        if (source, target) not in self.blocked:
            return
        self.blocked.discard((source, target))
        self.disturb(source, target)
        for pipe in list(self.pipes):
            pipe.on_unblocked(source, target)

    def heal(self) -> None:
        """All ways are open again, and the weather is fine."""
        for source, target in sorted(self.blocked):
            self.unblock(source, target)
        self.is_faulty = False

    # --- datagrams

    def delay_us(self) -> int:
        """The time that one packet takes."""
        profile, rng = self.profile, self._rng
        if self.is_faulty and rng.random() < profile.slow_probability:
            return int(rng.random() * profile.slow_us_max) + profile.delay_us_min
        return profile.delay_us_min + int(rng.random() * (profile.delay_us_max - profile.delay_us_min))

    def send(self, source: str, target: str, deliver: Callable[..., object], *args: Any) -> None:
        """One datagram, on its own."""
        self.sent += 1
        if (source, target) in self.blocked:
            return
        profile, rng = self.profile, self._rng
        if self.is_faulty:
            chance = rng.random()
            if chance < profile.loss_probability:
                self.lost += 1
                return
            chance -= profile.loss_probability
            if chance < profile.duplicate_probability:
                self.doubled += 1
                later_us = self.delay_us() + int(rng.random() * rng.random() * profile.duplicate_us_max)
                self.scheduler.after(later_us, self._deliver, source, target, deliver, args)
            elif chance < profile.duplicate_probability + profile.reorder_probability:
                self.reordered += 1
                later_us = int(rng.random() * rng.random() * profile.late_us_max)
                self.scheduler.after(later_us, self._deliver, source, target, deliver, args)
                return
        self.scheduler.after(self.delay_us(), self._deliver, source, target, deliver, args)

    def _deliver(
        self, source: str, target: str, deliver: Callable[..., object], args: tuple[Any, ...]
    ) -> None:
        if (source, target) not in self.blocked:
            deliver(*args)


class Pipe:
    """One TCP connection. Each end has a callback for messages and one for its end."""

    __slots__ = (
        "_arrival_us",
        "_held",
        "_late_until_us",
        "_network",
        "_packet",
        "_sent_count",
        "_sent_us",
        "_stalled_us",
        "closed",
        "ends",
        "lane",
        "on_end",
        "on_messages",
    )

    def __init__(self, network: Network, client: str, server: str, lane: str = "") -> None:
        self.ends = (client, server)
        self.lane = lane
        self.on_messages: list[Callable[[list[Any]], None]] = [_drop, _drop]
        """Called at end i (0 client, 1 server) with messages to it that arrive together."""
        self.on_end: list[Callable[[str], None]] = [_drop, _drop]
        self.closed = [False, False]
        self._network = network
        self._arrival_us = [0, 0]
        self._held: tuple[list[tuple[int, list[Any]]], list[tuple[int, list[Any]]]] = ([], [])
        """What a block holds back: what was under way already when it began comes first."""
        self._late_until_us = 0
        """When all that the last block held back has been sent again."""
        self._sent_count = [0, 0]
        self._stalled_us = [-1, -1]
        self._packet: list[list[Any]] = [[], []]
        """What was sent at `_sent_us` to end i; what follows in the same moment goes with it."""
        self._sent_us = [-1, -1]
        network.pipes[self] = None

    def send(self, end: int, message: Any) -> None:
        """From end `end` to the other one."""
        if self.closed[end]:
            return
        network = self._network
        network.sent += 1
        other = 1 - end
        now_us = network.scheduler.now_us
        if self._sent_us[other] == now_us:
            self._packet[other].append(message)
            return
        self._sent_us[other] = now_us
        self._packet[other] = [message]
        self._sent_count[end] += 1
        self._carry(end, self._sent_count[end], self._packet[other])

    def _carry(self, end: int, number: int, packet: list[Any]) -> None:
        network, other = self._network, 1 - end
        if (self.ends[end], self.ends[other]) in network.blocked or self._held[end]:
            self._hold(end, number, packet)
            return
        delay_us = network.delay_us()
        if network.is_faulty and network._rng.random() < network.profile.loss_probability:
            network.lost += 1
            delay_us += RETRANSMIT_US
        share, most_us = network.profile.late_lanes.get(self.lane, (0.0, 0))
        if share and network.is_faulty and network._rng.random() < share:
            delay_us += int(network._rng.random() * most_us)
        arrival_us = max(self._arrival_us[other], network.scheduler.now_us + delay_us)
        self._arrival_us[other] = arrival_us
        network.scheduler.at(arrival_us, self._arrive, other, number, packet)

    def _hold(self, end: int, number: int, packet: list[Any]) -> None:
        insort(self._held[end], (number, packet), key=itemgetter(0))

    def _arrive(self, end: int, number: int, packet: list[Any]) -> None:
        if self.closed[end]:
            return
        if (self.ends[1 - end], self.ends[end]) in self._network.blocked:
            self._hold(1 - end, number, packet)
            return
        self.on_messages[end](packet)

    def close(self, end: int, reason: str = "closed") -> None:
        """This end closes; the other one hears of it, if anything of it gets there."""
        if self.closed[end]:
            return
        self.closed[end] = True
        other = 1 - end
        if self.closed[other]:
            self._network.pipes.pop(self, None)
            return
        network = self._network
        if (self.ends[end], self.ends[other]) in network.blocked:
            network.scheduler.after(DEAD_AFTER_US, self._end, other, "keepalive: the peer is silent")
            return
        arrival_us = max(self._arrival_us[other], network.scheduler.now_us + network.delay_us())
        network.scheduler.at(arrival_us, self._end, other, reason)

    def vanish(self, end: int) -> None:
        """The machine of this end lost power: the other end hears nothing, for a while."""
        if not self.closed[end]:
            self.closed[end] = True
            self._network.scheduler.after(DEAD_AFTER_US, self._end, 1 - end, "keepalive: the peer is silent")

    def _end(self, end: int, reason: str) -> None:
        if self.closed[end]:
            return
        self.closed[end] = True
        if self.closed[1 - end]:
            self._network.pipes.pop(self, None)
        self.on_end[end](reason)

    # --- blocks

    def on_blocked(self, source: str, target: str) -> None:
        for end in (0, 1):
            if (self.ends[end], self.ends[1 - end]) == (source, target):
                # Either end misses answers: its own, or those to what does not arrive.
                self.stall(0)
                self.stall(1)

    def on_unblocked(self, source: str, target: str) -> None:
        for end in (0, 1):
            if (self.ends[end], self.ends[1 - end]) == (source, target):
                self._release_later(end)
                if (target, source) not in self._network.blocked:
                    self._stalled_us = [-1, -1]
                    if self.closed[0] != self.closed[1]:
                        # Given up by one end meanwhile: whatever the other one sends now is answered with a reset.
                        left = self.closed.index(False)
                        scheduler = self._network.scheduler
                        if self._late_until_us > scheduler.now_us:
                            scheduler.at(self._late_until_us, self._reset, left)
                        else:
                            scheduler.after(self._network.delay_us(), self._end, left, "reset by peer")

    def _release_later(self, end: int) -> None:
        network = self._network
        share, now_us = network.profile.late_share, network.scheduler.now_us
        if not (share and network.is_faulty and self._held[end]):
            self._release(end)
            return
        late_us = int(network._rng.random() * share * (now_us - max(self._stalled_us)))
        self._late_until_us = max(self._late_until_us, now_us + late_us)
        network.scheduler.after(late_us, self._release, end)

    def _release(self, end: int) -> None:
        if (self.ends[end], self.ends[1 - end]) in self._network.blocked:
            return  # once more
        held, self._held[end][:] = list(self._held[end]), []
        for number, packet in held:
            self._carry(end, number, packet)

    def _reset(self, end: int) -> None:
        """Behind what was sent before."""
        scheduler = self._network.scheduler
        arrival_us = max(self._arrival_us[end], scheduler.now_us + self._network.delay_us())
        scheduler.at(arrival_us, self._end, end, "reset by peer")

    def stall(self, end: int) -> None:
        """From now on this end's pings are not answered."""
        if self._stalled_us[end] < 0 and not self.closed[end]:
            now_us = self._network.scheduler.now_us
            self._stalled_us[end] = now_us
            # Servers ping less often.
            after_us = DEAD_AFTER_US if end == 0 else 2 * DEAD_AFTER_US
            self._network.scheduler.after(after_us, self._give_up, end, now_us)

    def unstall(self, end: int) -> None:
        """They are answered again."""
        if (self.ends[0], self.ends[1]) not in self._network.blocked and (
            self.ends[1],
            self.ends[0],
        ) not in self._network.blocked:
            self._stalled_us[end] = -1

    def _give_up(self, end: int, since_us: int) -> None:
        if self._stalled_us[end] != since_us or self.closed[end]:
            return
        self._end(end, "keepalive: the peer is silent")
        other = 1 - end
        if not self.closed[other]:
            if (self.ends[end], self.ends[other]) in self._network.blocked:
                self.stall(other)
            else:
                self._network.scheduler.after(self._network.delay_us(), self._end, other, "reset by peer")


def _drop(_: Any) -> None:
    return None
