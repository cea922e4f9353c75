"""Ends connections of a gRPC port beyond its bounds: gRPC accepts them itself, and asks nobody.

The process's own descriptors say which connections there are, and `OpenCalls` who has called by them. Nothing is looked
at while there are too few descriptors for any bound to be passed: at rest that is one `stat` a tick. What has to go is
shut down on a duplicate of its descriptor, once the duplicate turned out to be that connection: gRPC then
sees its end as it sees any other. None of this takes a new descriptor: somebody has to go just when all are taken.

Who goes first, of whichever address has most: connections by which nobody has called yet, the oldest of them, for
whoever dials for a purpose calls at once; then those without an open call, the longest unused one; then the newest.
A role of this cluster, by its certificate, never goes. Addresses of one /64 of IPv6 are one address there; it has four
times as many connections as one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import heapq
import ipaddress
import os
import socket
import stat
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock_core.security.login_limits import NETWORK_SHARES, network
from penstock_runtime.grpc_bounds import GrpcBounds
from penstock_runtime.grpc_calls import OpenCalls, PeerKey, counted_as, kernel_key
from penstock_runtime.grpc_doorstep import Doorstep
from penstock_runtime.lifecycle import current_lifecycle
from penstock_runtime.logs import CONSTANT, get_log
from penstock_runtime.memory import Trimmer
from penstock_runtime.spare_descriptor import SpareDescriptor

_DESCRIPTORS: Final = Path("/proc/self/fd")
TICK_S: Final = 0.25
"""Without a lifecycle, whose tick it shares otherwise."""
_TOGETHER: Final = 50
"""Descriptors looked at in one turn of the loop: 0.2 ms or less. A request takes four turns and more."""
_ENDED_TOGETHER: Final = 50
"""Each wakes gRPC's own threads, which want the interpreter."""
_REST_S: Final = 20e-6
"""What the loop has for others after a look, for each descriptor: three times what one takes, or more."""
_REST_LEAST_S: Final = 0.02
_LISTED_REST_S: Final = 200e-6
"""The same after they were counted by listing them: two hundred times what one takes."""
_LOOK_ANYWAY_S: Final = 60.0
"""Connections that come while other descriptors go are not seen by the number of all."""
_PEERS_MORE: Final = 1_000
"""So many peers that may be gone are remembered: then it is looked who is."""


@dataclass(slots=True)
class Connection:
    """One that was accepted."""

    descriptor: int
    inode: int
    """Which socket it is, though its number be given to another one."""
    key: PeerKey
    order: int
    """Of two, the one with the greater is younger, or as old."""


class GrpcConnections:
    """Those of one port."""

    def __init__(self, port: int, bounds: GrpcBounds, calls: OpenCalls, host: str = "") -> None:
        """`host`: what the port is bound to. Others may have its number at another address."""
        self._port = port
        self._host = _only_host(host)
        self._bounds = bounds
        self._calls = calls
        self._known: dict[int, Connection | int] = {}
        """By descriptor: one of the port's, or the inode of another socket."""
        self._order = 0
        self._look_at = 0
        self._look_after_s = 0.0
        self._look_anyway_s = 0.0
        self._trimmer = Trimmer()
        self._peers_max = _PEERS_MORE
        self._looking: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stop_ticks: Callable[[], None] | None = None
        self._held: Callable[[], int] = lambda: 0
        """Descriptors that are not the port's, as far as others tell: clients of a Kafka listener come in thousands,
        and a look takes milliseconds then."""
        self._spare: SpareDescriptor | None = None
        self._doorstep: Doorstep | None = None
        self._lists = False
        self.ended = 0

    def start(self) -> None:
        """Look at every tick, until `stop`."""
        try:
            now = _descriptor_count()
            self._lists = not _told_count()
            self._doorstep = Doorstep(self._port, self._own_spare(), self.tick)
            self._doorstep.watch(_descriptors())
        except OSError:
            return  # not Linux: gRPC's own bound on all has to do
        self._look_anyway_s = _loop_s() + _LOOK_ANYWAY_S
        lifecycle = current_lifecycle()
        if lifecycle is not None:
            self._held = lifecycle.held_descriptors
        self._look_at = now - self._held() + self._least_bound
        if lifecycle is None:
            self._ring()
        else:
            self._stop_ticks = lifecycle.at_tick(self.tick)

    async def stop(self) -> None:
        """Look no more. Safe to call twice."""
        if self._timer is not None:
            self._timer.cancel()
        if self._stop_ticks is not None:
            self._stop_ticks()
            self._stop_ticks = None
        if self._looking is not None:
            self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looking
        if self._doorstep is not None:
            self._doorstep.close()
            self._doorstep = None
        if self._spare is not None:
            self._spare.close()
            self._spare = None

    def _own_spare(self) -> SpareDescriptor:
        if self._spare is None:
            self._spare = SpareDescriptor()
        return self._spare

    def _ring(self) -> None:
        self.tick()
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._ring)

    @property
    def _least_bound(self) -> int:
        bounds = self._bounds
        return min(bounds.strangers_max, bounds.connections_per_address_max, bounds.connections_max)

    def tick(self) -> None:
        """Look, where there may be too many."""
        now = _loop_s()
        if self._looking is not None or now < self._look_after_s:
            return
        try:
            count = _descriptor_count()
        except OSError:
            count = self._look_at + self._held() + 1  # none is left to count them with
        if self._lists:
            self._look_after_s = now + _LISTED_REST_S * count
        if (
            count - self._held() > self._look_at
            or len(self._calls.peers) > self._peers_max
            or now > self._look_anyway_s
        ):
            self._looking = asyncio.get_running_loop().create_task(
                self._look_and_rest(), name="grpc connections"
            )

    async def _look_and_rest(self) -> None:
        try:
            while True:
                ended = self.ended
                await self.look()
                if self.ended == ended:
                    break
                self._trimmer.freed()
                # More of them come while these go.
                await asyncio.sleep(max(_REST_LEAST_S, _REST_S * len(self._known)))
        except OSError:
            pass  # the machine has no file left to list them with: a later tick looks again
        finally:
            now = _loop_s()
            self._look_after_s = now + _REST_S * len(self._known)
            self._look_anyway_s = now + _LOOK_ANYWAY_S
            self._looking = None

    async def look(self) -> list[Connection]:
        """Find the port's connections, end those beyond the bounds; what is left."""
        calls_before, held, descriptors = self._calls.calls, self._held(), _descriptors()
        known: dict[int, Connection | int] = {}
        for begin in range(0, len(descriptors), _TOGETHER):
            for descriptor in descriptors[begin : begin + _TOGETHER]:
                found = self._identify(descriptor)
                if found is not None:
                    known[descriptor] = found
            await asyncio.sleep(0)
        self._known = known
        here = [each for each in known.values() if isinstance(each, Connection)]
        self._calls.forget({each.key for each in here}, calls_before)
        chosen = self._choose(here)
        if chosen:
            text = f"{len(chosen)} connections of gRPC port {self._port} ended: {self._which(here)}"
            get_log().warning(text, **{CONSTANT: "connections of the gRPC port ended: there are too many"})
        if self._doorstep is not None:
            # Before they are ended: while these go, gRPC would accept as many more.
            for_nothing = [each for each, _ in chosen if self._is_stranger(each)]
            self._doorstep.send_away(Counter(network(each.key.host) for each in for_nothing))
        await asyncio.sleep(0)
        doomed: list[Connection] = []
        for begin in range(0, len(chosen), _ENDED_TOGETHER):
            for connection, before in chosen[begin : begin + _ENDED_TOGETHER]:
                if self._priority(connection)[0] > before:
                    continue  # it has called meanwhile
                doomed.append(connection)
                self.ended += self._end(connection)
                # Until gRPC has closed it, it is a socket of no interest.
                known[connection.descriptor] = connection.inode
            await asyncio.sleep(0)
        gone = {each.descriptor for each in doomed}
        left = [each for each in here if each.descriptor not in gone]
        self._look_at = len(descriptors) - held - len(doomed) + self._room(left)
        self._peers_max = 2 * len(self._calls.peers) + _PEERS_MORE
        return left

    def _identify(self, descriptor: int) -> Connection | int | None:
        """The port's connection, another socket's inode, or None for what is no socket."""
        try:
            seen = os.fstat(descriptor)
        except OSError:
            return None
        if not stat.S_ISSOCK(seen.st_mode):
            return None
        known = self._known.get(descriptor)
        if known is not None and seen.st_ino == (known if isinstance(known, int) else known.inode):
            return known
        with contextlib.suppress(OSError), self._own_spare().of(descriptor) as s:
            inode, key = os.fstat(s.fileno()).st_ino, self._peer_of(s)
            if key is None:
                return inode
            self._order += 1
            return Connection(descriptor, inode, key, self._order)
        return None

    def _peer_of(self, s: socket.socket) -> PeerKey | None:
        """Whose connection to the port it is."""
        own = s.getsockname()
        if not isinstance(own, tuple) or own[1] != self._port:
            return None
        try:
            peer = s.getpeername()
        except OSError:
            return None  # the listening one
        if self._host and kernel_key(own[0], 0).host != self._host:
            return None
        return kernel_key(peer[0], peer[1]) if isinstance(peer, tuple) else None

    def _end(self, connection: Connection) -> bool:
        with contextlib.suppress(OSError), self._own_spare().of(connection.descriptor) as s:
            # The number may be another's by now.
            if os.fstat(s.fileno()).st_ino == connection.inode and self._peer_of(s) == connection.key:
                s.shutdown(socket.SHUT_RDWR)
                return True
        return False

    def _is_stranger(self, connection: Connection) -> bool:
        return connection.key not in self._calls.peers

    def _priority(self, connection: Connection) -> tuple[int, int]:
        """The least goes first."""
        peer = self._calls.peers.get(connection.key)
        if peer is None:
            return 0, connection.order
        if not peer.open_calls:
            return 1, peer.last_call
        return 2, -connection.order

    def _may_go(self, connection: Connection) -> bool:
        peer = self._calls.peers.get(connection.key)
        return peer is None or not peer.is_ours

    def _choose(self, here: list[Connection]) -> list[tuple[Connection, int]]:
        """Those that are too many, with the rank by which they were chosen."""
        bounds = self._bounds
        strangers = [each for each in here if self._is_stranger(each)]
        doomed = self._most_of(strangers, len(strangers) - bounds.strangers_max)
        gone = {each.descriptor for each in doomed}
        here = [each for each in here if each.descriptor not in gone]
        for shares in (1, NETWORK_SHARES):
            for each in _counted_by_address(here, shares).values():
                more = self._most_of(each, len(each) - bounds.connections_per_address_max * shares)
                gone.update(each.descriptor for each in more)
                doomed += more
            here = [each for each in here if each.descriptor not in gone]
        doomed += self._most_of(here, len(here) - bounds.connections_max)
        return [(each, self._priority(each)[0]) for each in doomed]

    def _most_of(self, among: list[Connection], count: int) -> list[Connection]:
        """So many, always one of the address that has most."""
        if count <= 0:
            return []
        lines = [
            (-len(each), address, sorted(filter(self._may_go, each), key=self._priority, reverse=True))
            for address, each in _by_address(among).items()
        ]
        heapq.heapify(lines)
        found: list[Connection] = []
        while lines and len(found) < count:
            size, address, line = heapq.heappop(lines)
            if line:
                found.append(line.pop())
                heapq.heappush(lines, (size + 1, address, line))
        return found

    def _room(self, here: list[Connection]) -> int:
        """How many may come before a bound can be passed."""
        bounds = self._bounds
        of_addresses = [
            bounds.connections_per_address_max * shares
            - max(map(len, _counted_by_address(here, shares).values()), default=0)
            for shares in (1, NETWORK_SHARES)
        ]
        strangers = sum(map(self._is_stranger, here))
        return max(
            0, min(bounds.strangers_max - strangers, *of_addresses, bounds.connections_max - len(here))
        )

    def _which(self, here: list[Connection]) -> str:
        """The bound that was passed, and by how many."""
        bounds = self._bounds
        strangers = sum(map(self._is_stranger, here))
        if strangers > bounds.strangers_max:
            return f"{strangers} have not called, and grpc_strangers_max = {bounds.strangers_max}"
        for shares in (1, NETWORK_SHARES):
            counted = _counted_by_address(here, shares)
            address = max(counted, key=lambda each: len(counted[each]), default="")
            if address and len(counted[address]) > bounds.connections_per_address_max * shares:
                return (
                    f"{len(counted[address])} are of {address}, and grpc_connections_per_address_max ="
                    f" {bounds.connections_per_address_max}"
                )
        return f"there were {len(here)}, and grpc_connections_max = {bounds.connections_max}"


def _only_host(host: str) -> str:
    """The one address that a port is bound to, as the kernel names it; "": a name or all of them."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return ""
    if address.is_unspecified:
        return ""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    return kernel_key(socket.inet_ntop(family, address.packed), 0).host


def _by_address(connections: Iterable[Connection]) -> dict[str, list[Connection]]:
    """By what counts as one address where somebody has to go."""
    found: dict[str, list[Connection]] = {}
    for each in connections:
        found.setdefault(network(each.key.host), []).append(each)
    return found


def _counted_by_address(connections: Iterable[Connection], shares: int) -> dict[str, list[Connection]]:
    """By what may have so many shares of one address: by itself, or by the /64 of IPv6."""
    found: dict[str, list[Connection]] = {}
    for each in connections:
        for whose, has in counted_as(each.key.host):
            if has == shares:
                found.setdefault(whose, []).append(each)
    return found


def _descriptors() -> list[int]:
    try:
        with os.scandir(_DESCRIPTORS) as entries:
            return [int(each.name) for each in entries]
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
    import resource  # there is none on Windows, where nobody comes here

    # To list them takes one more than there may be: every number has been given.
    return list(range(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))


def _descriptor_count() -> int:
    return _told_count() or len(_descriptors())


def _told_count() -> int:
    # Since Linux 6.2 the directory's size is their number; 0 before.
    return _DESCRIPTORS.stat().st_size


def _loop_s() -> float:
    return asyncio.get_running_loop().time()
