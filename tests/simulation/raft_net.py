"""The Raft port without sockets: `PeerTransport` runs as it is over these.

A frame is one datagram of `network`, so it may be lost, doubled or overtaken within a
connection: worse than TCP, which is what the transport's guards are for. In half of the seeds
(`is_tcp`) frames of a connection keep their order, as on a real network.
"""

from __future__ import annotations

import errno
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock_controller.quorum.peer_connection import HELLO_BYTES_MAX, PeerNetwork

if TYPE_CHECKING:
    from simulation.process import Process
    from simulation.world import World

RAFT_PORT = 4001


def address_of(host: str) -> str:
    """The transport wants IP addresses, lest it asks a resolver."""
    return f"10.0.0.{host[1:]}"


def host_of(address: str) -> str:
    return f"c{address.rpartition('.')[2]}"


class SimPoller:
    """Where PySyncObj's tick would wait for sockets."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.wait_s = 0.0
        self._callbacks: dict[int, Callable[[int, int], None]] = {}

    def subscribe(self, descr: int, callback: Callable[[int, int], None], _mask: int) -> None:
        self._callbacks[descr] = callback

    def unsubscribe(self, descr: int) -> None:
        self._callbacks.pop(descr, None)

    def poll(self, timeout: float) -> None:
        self.wait_s = timeout

    def readable(self, descr: int) -> None:
        callback = self._callbacks.get(descr)
        if callback is not None:
            callback(descr, 1)


class SimPipeNotifier:
    """PySyncObj wakes its poller by this when somebody proposes."""

    def __init__(self, poller: SimPoller, callback: Callable[[], None] | None = None) -> None:
        del callback
        self._process = poller.process

    def notify(self) -> None:
        self._process.raft_wake()  # type: ignore[attr-defined]


def sim_network(process: Process) -> PeerNetwork:
    """What the transport of one controller takes for the network."""
    connection: Any = SimPeerConnection
    return PeerNetwork(_no_resolver, lambda *_: SimSocket(process.world, process), connection)


def _no_resolver(host: str, port: int, **_: object) -> list[Any]:
    return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]


class SimSocket:
    """A listening, connecting or connected socket."""

    def __init__(self, world: World, process: Process) -> None:
        self.world = world
        self.process = process
        self.number = world.next_number()
        self.accepted: deque[SimSocket] = deque()
        self.connection: Connection | None = None
        self.end = 0
        self._listens_at = ""

    def setsockopt(self, *_: object) -> None:
        return None

    def setblocking(self, _: bool) -> None:
        return None

    def fileno(self) -> int:
        return self.number

    def bind(self, address: tuple[str, int]) -> None:
        self._listens_at = host_of(address[0])

    def listen(self, _: int) -> None:
        self.world.raft_listeners[self._listens_at] = self

    def accept(self) -> tuple[SimSocket, tuple[str, int]]:
        if not self.accepted:
            raise BlockingIOError
        accepted = self.accepted.popleft()
        assert accepted.connection is not None
        return accepted, (address_of(accepted.connection.hosts[0]), 0)

    def connect_ex(self, address: tuple[str, int]) -> int:
        self.connection = Connection(self.world, self.process.name, host_of(address[0]))
        return errno.EINPROGRESS

    def close(self) -> None:
        if self._listens_at and self.world.raft_listeners.get(self._listens_at) is self:
            del self.world.raft_listeners[self._listens_at]


class Connection:
    """Two ends that send frames to each other."""

    def __init__(self, world: World, client: str, server: str) -> None:
        self.world = world
        self.hosts = (client, server)
        self.links: list[SimPeerConnection | None] = [None, None]
        self._arrival_us = [0, 0]
        network = world.network
        if not (self._blocked(0) or self._blocked(1)):
            world.scheduler.after(2 * network.delay_us(), self._connected)
        # Else nothing comes back, and the transport gives up after a while.

    def _blocked(self, end: int) -> bool:
        return (self.hosts[end], self.hosts[1 - end]) in self.world.network.blocked

    def _connected(self) -> None:
        client = self.links[0]
        if client is None or client.closed:
            return
        listener = self.world.raft_listeners.get(self.hosts[1])
        if listener is None:
            client.run(client.close, "connection refused")
            return
        accepted = SimSocket(self.world, listener.process)
        accepted.connection, accepted.end = self, 1
        listener.accepted.append(accepted)
        process: Any = listener.process
        process.raft_event(process.poller.readable, listener.number)
        client.run(client.connected)

    def send(self, end: int, payload: bytes) -> None:
        world = self.world
        network = world.network
        if not world.is_raft_tcp:
            network.send(self.hosts[end], self.hosts[1 - end], self._arrive, 1 - end, payload)
            return
        network.sent += 1
        if self._blocked(end):
            return
        arrival_us = max(self._arrival_us[1 - end], world.scheduler.now_us + network.delay_us())
        self._arrival_us[1 - end] = arrival_us
        world.scheduler.at(arrival_us, self._arrive, 1 - end, payload)

    def _arrive(self, end: int, payload: bytes) -> None:
        link = self.links[end]
        if link is None or self._blocked(1 - end):
            return
        if not link.closed:
            link.run(link.receive, payload)
        elif self.world.host_of[self.hosts[end]].is_powered:
            # Its machine knows nothing of this connection (any more): a reset.
            self.closed(end)

    def closed(self, end: int) -> None:
        """One end closed; the other hears of it when anything gets there."""
        if not self._blocked(end):
            self.world.scheduler.after(self.world.network.delay_us(), self._tell, 1 - end)

    def _tell(self, end: int) -> None:
        link = self.links[end]
        if link is not None and not link.closed and not self._blocked(1 - end):
            link.run(link.close, "peer closed the connection")


class SimPeerConnection:
    """Stands in for `PeerConnection`."""

    def __init__(
        self,
        _poller: SimPoller,
        sock: SimSocket,
        on_frame: Callable[[Any, memoryview], None],
        on_closed: Callable[[Any, str], None],
        now: Callable[[], float],
        *,
        connecting: bool,
    ) -> None:
        self.peer_id: int | None = None
        self.tls = None
        self.frame_bytes_max = HELLO_BYTES_MAX
        self.connecting = connecting
        self.opened_at = self.last_read_at = self.last_sent_at = now()
        self.closed = False
        self.tls = None
        """Links are plain here, as they are without `[tls]`."""
        self.number = sock.number
        self._now = now
        process: Any = sock.process
        self._process = process
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._unsent: list[bytes] = []
        assert sock.connection is not None
        self.connection = sock.connection
        self._end = sock.end
        self.connection.links[sock.end] = self
        self._links: dict[SimPeerConnection, None] = process.raft_links
        self._links[self] = None

    def __hash__(self) -> int:
        return self.number

    @property
    def is_idle(self) -> bool:
        return not self._unsent

    @property
    def unsent_bytes(self) -> int:
        return sum(map(len, self._unsent))

    def crawls(self) -> bool:
        """Frames come whole."""
        return False

    def run(self, call: Callable[..., None], *args: Any) -> None:
        """On the tick thread of the process that this link belongs to."""
        self._process.raft_event(call, *args)

    def connected(self) -> None:
        if self.closed:
            return
        self.connecting = False
        self.last_read_at = self._now()
        unsent, self._unsent = self._unsent, []
        for payload in unsent:
            self.connection.send(self._end, payload)

    def send(self, payload: bytes) -> bool:
        if self.closed:
            return False
        self.last_sent_at = self._now()
        if self.connecting:
            self._unsent.append(payload)
        else:
            self.connection.send(self._end, payload)
        return True

    def receive(self, payload: bytes) -> None:
        if self.closed:
            return
        self.last_read_at = self._now()
        if len(payload) > self.frame_bytes_max:
            self.close(f"bad frame: length {len(payload)}, the most is {self.frame_bytes_max}")
            return
        self._on_frame(self, memoryview(payload))

    def close(self, reason: str) -> None:
        if self.closed:
            return
        self.closed = True
        self._links.pop(self, None)
        self.connection.closed(self._end)
        self._on_closed(self, reason)

    def die(self, *, silently: bool) -> None:
        """The process is gone; its kernel tells the peer, unless it is gone too."""
        self.closed = True
        if not silently:
            self.connection.closed(self._end)
