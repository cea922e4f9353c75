"""Letting clients in: accept, caps by who they are, the PROXY header, TLS, then the connection.

The PROXY header comes before anything else, TLS too, so it is read here, by exactly its bytes. It is believed
of the addresses in `proxy_from` alone; from there it must come. Caps count the address that it names.

A handshake costs 0.5 to 2 ms of the loop, so each begins only when the client's first bytes are there, and
few in one turn of the loop: a thousand clients that come back at once do not hold up those that are there. It also
holds 63 KB until it is done, so few are under way (`HandshakeLine`).

Nothing here is waited for in the accept loop: a client that says nothing holds up none that comes after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from penstock_core.security.login_limits import network
from penstock_frontend.listener.admission import Admission, makes_room
from penstock_frontend.listener.connection import Connection, ConnectionOwner
from penstock_frontend.listener.descriptors import first_reserved
from penstock_frontend.listener.proxy_protocol import ProxyHeader, take_header_bytes
from penstock_frontend.listener.strangers import Strangers
from penstock_runtime.handshakes import Begin, End, HandshakeLine, HandshakePace, SilentPace
from penstock_runtime.memory import RoomForTls

_REFUSED_LOG_INTERVAL_S = 1.0
_NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_NO_DESCRIPTORS_PAUSE_S = 0.1
_ROOM_AT_ONCE = 100
"""Connections that may have to go are looked for once for so many newcomers."""
_ROOM_LOOKED_FOR_S = 0.1
"""At most so often when none was found."""
_FEW_SHARE = 50
"""Fewer strangers than a fiftieth of the most are few: newcomers do not wait for each other."""
_TOGETHER = 2
"""With more of them so many come in together,"""
_PAUSE_S = 0.001
"""and then nobody for so long: each costs 0.12 ms, and a thousand that dialled together made acks wait 25 ms."""
_SILENT_FEW_SHARE = 10
"""Up to a tenth of the most that are kept after a handshake without a request are few: nobody waits for them."""
_SHUTDOWN_TIMEOUT_S = 2.0
"""How long a connection that we close waits for the other side to say that it ends too."""
_TLS_HANDSHAKE = 0x16
"""First byte of a ClientHello (RFC 8446, 5.1)."""
_NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "RECORD_LAYER_FAILURE"})
_RESET = struct.pack("ii", 1, 0)
"""Linger of 0 s: who is refused leaves no socket in TIME_WAIT with us."""


class DoorwayOwner(ConnectionOwner, Protocol):
    """The listener, as its doorway sees it."""

    connections: set[Connection]

    def quiet_since_s(self, connection: Connection) -> float:
        """Since when nothing was sent either way."""
        ...


class _Turn:
    """A client that waits for its handshake, or is at it."""

    __slots__ = ("begins", "task")

    def __init__(self, task: asyncio.Task[None], begins: asyncio.Future[None]) -> None:
        self.task = task
        self.begins = begins


class Doorway:
    """The way in of one listener."""

    def __init__(self, owner: DoorwayOwner, tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        self._owner = owner
        self._tls = tls
        self._admission = Admission(owner.limits.caps)
        self._balancers = [ipaddress.ip_network(each) for each in owner.settings.proxy_from]
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._entering: dict[asyncio.Task[None], socket.socket | None] = {}
        """None once the task takes care of the socket itself."""
        caps = owner.limits.caps
        self._strangers_max = caps.strangers_max if tls is None else caps.tls_strangers_max
        self._strangers: Strangers[asyncio.Task[None] | Connection] = Strangers(
            self._strangers_max, _is_stranger
        )
        over_tls = tls is not None
        self._signed_in: Strangers[Connection] = Strangers(
            caps.tls_signed_in_strangers_max if over_tls else caps.signed_in_strangers_max, _asked_for_nothing
        )
        """By principal, in place of the address."""
        self._greeted: Strangers[Connection] = Strangers(caps.tls_greeted_max, _is_stranger)
        """Of the strangers those whose handshake is done."""
        self._handshakes: HandshakeLine[_Turn | Connection] = HandshakeLine(
            caps.tls_handshakes_max, caps.tls_places_max
        )
        self._handshakes_timer: asyncio.TimerHandle | None = None
        self._pace = HandshakePace()
        self._silent_pace = SilentPace()
        self._silent_few = caps.tls_greeted_max // _SILENT_FEW_SHARE
        self._tls_room = RoomForTls()
        self._first_reserved = first_reserved()
        self._logged_s = -1e9
        self._room: deque[Connection] = deque()
        self._room_looked_for_s = -1e9

    def open(self, sockets: Iterable[socket.socket]) -> None:
        """Accept on these listening sockets, which are the doorway's from now on."""
        self._sockets = list(sockets)
        self._accepting = [
            self._owner.loop.create_task(self._accept(s), name=f"accepting at {self._owner.name}")
            for s in self._sockets
        ]

    async def close(self) -> None:
        """Let nobody in any more. Safe to call twice."""
        tasks = [*self._accepting, *self._entering]
        self._accepting = []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in self._sockets:
            each.close()
        self._sockets = []
        if self._handshakes_timer is not None:
            self._handshakes_timer.cancel()

    def left(self, connection: Connection) -> None:
        """A connection that was let in is gone."""
        self._admission.removed(connection.source)
        if self._tls is not None and not connection.request_count:
            self._pace.wasted(connection.address, self._owner.loop.time())
        self._strangers.gone(connection.address, connection)
        self._greeted.gone(connection.address, connection)
        self._signed_in.gone(str(connection.principal), connection)
        self._gives_its_place(connection)

    def signed_in(self, connection: Connection) -> None:
        """A client has just signed in: another one that did and has asked for nothing may have to go for it."""
        self._gives_its_place(connection)
        goes = self._signed_in.come(str(connection.principal), connection)
        if goes is not None:
            self._goes(
                goes[1].address, goes[1], "too many signed in and ask for nothing, its user most of them"
            )

    def _gives_its_place(self, connection: Connection) -> None:
        """It has signed in, or is gone: the next handshake may begin."""
        if self._tls is not None:
            self._handshakes.over(connection.address, connection)
            self._go_on()

    async def _accept(self, listening: socket.socket) -> None:
        loop = self._owner.loop
        together = 0
        while True:
            try:
                client, peer = await loop.sock_accept(listening)
            except OSError as error:
                if error.errno in _NO_DESCRIPTORS:
                    self._say_refused("", f"no file descriptors are left ({error.strerror})")
                    self._make_room("")
                    await asyncio.sleep(_NO_DESCRIPTORS_PAUSE_S)
                continue
            self._greet(client, str(peer[0]) if isinstance(peer, tuple) else "")
            together += 1
            if together >= _TOGETHER and len(self._strangers) > self._strangers_max // _FEW_SHARE:
                # Somebody dials and says nothing: those who are here are served in between.
                together = 0
                await asyncio.sleep(_PAUSE_S)

    def _greet(self, client: socket.socket, host: str) -> None:
        owner = self._owner
        proxied = owner.settings.proxy_protocol
        if proxied and not self._is_balancer(host):
            self._bad_header(client, host, "its address is not in proxy_from of the listener")
            return
        # A balancer's connections are many; each is counted by its header's address below.
        if not proxied and not self._may_enter(client, host):
            return
        task = owner.loop.create_task(self._enter(client, host, proxied))
        self._entering[task] = client
        self._is_here(network(host), task)

        def over(task: asyncio.Task[None]) -> None:
            self._strangers.gone(network(host), task)
            not_begun = self._entering.pop(task)
            if not_begun is None:
                return
            not_begun.close()
            if not proxied:
                self._admission.removed(host)

        task.add_done_callback(over)

    def _is_balancer(self, host: str) -> bool:
        address = ipaddress.ip_address(host.partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in network for network in self._balancers)

    async def _enter(self, client: socket.socket, host: str, proxied: bool) -> None:
        owner = self._owner
        task = asyncio.current_task()
        assert task is not None
        self._entering[task] = None
        header: ProxyHeader | None = None
        came_from, counted = host, not proxied
        made: list[Connection] = []
        try:
            if proxied:
                async with asyncio.timeout(owner.limits.first_request_timeout_ms / 1000):
                    header = await self._read_header(client)
                host = header.source[0] if header.source is not None else host
                if not self._may_enter(client, host):
                    return
                counted = True
            client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

            def connection() -> Connection:
                made.append(Connection(owner, network(host), header, source=host))
                return made[0]

            # uvloop closes the socket itself when this fails.
            if self._tls is None:
                await owner.loop.connect_accepted_socket(connection, client)
            elif await self._says_hello(client, host):
                await self._shake_hands(connection, client, host, self._tls)
        except TimeoutError:
            self._bad_header(client, host, "it sent no whole PROXY protocol header in time")
        except ssl.SSLError:
            client.close()
        except ValueError as error:
            self._bad_header(client, host, str(error))
        except OSError:
            client.close()
        except asyncio.CancelledError:
            client.close()
            raise
        finally:
            # Once it is connected, `lost` says that it left.
            if made and made[0].connected:
                if not made[0].closed:
                    self._strangers.gone(network(came_from), task)  # the connection takes its place
                    self._is_here(network(host), made[0])
                    self._is_greeted(network(host), made[0])
            elif counted:
                self._admission.removed(host)
            # A task that was cancelled keeps its error, and that these frames: with the task in one of them it would
            # stay until a full collection, which is rare.
            del task

    async def _says_hello(self, client: socket.socket, host: str) -> bool:
        """Wait for the first byte, which stays unread; False when this is the end of it."""
        owner = self._owner
        data = b""
        try:
            async with asyncio.timeout(owner.limits.first_request_timeout_ms / 1000):
                await self._readable(client)
            data = client.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            self._bad_handshake(client, host, "no handshake came")
            return False
        if not data:  # a probe
            client.close()
            return False
        if data[0] != _TLS_HANDSHAKE:
            self._bad_handshake(client, host, _speaks_no_tls(owner.settings.security))
            return False
        return True

    async def _shake_hands(
        self,
        connection: Callable[[], Connection],
        client: socket.socket,
        host: str,
        context: Callable[[], ssl.SSLContext],
    ) -> None:
        owner = self._owner
        timeout_s = owner.limits.handshake_timeout_ms / 1000
        wait_s = self._pace.wait_s(network(host), owner.loop.time(), timeout_s)
        if wait_s is None:
            self._bad_handshake(client, host, "too many handshakes of its address were for nothing")
            return
        if self._is_silent(network(host)):
            silent_s = self._silent_pace.wait_s(owner.loop.time(), timeout_s)
            if silent_s is None:
                self._bad_handshake(
                    client, host, "too many say nothing after their handshakes, some of its address"
                )
                return
            wait_s = max(wait_s, silent_s)
        if wait_s:
            await asyncio.sleep(wait_s)
        wasted = False
        task = asyncio.current_task()
        assert task is not None
        turn = _Turn(task, owner.loop.create_future())
        del task  # see `_enter`; the turn goes too
        self._handshakes.come(network(host), turn)
        try:
            self._go_on()
            if not await self._begins(turn):
                self._bad_handshake(client, host, "too many handshakes are under way")
                return
            await owner.turns.next()
            wasted = True
            self._tls_room.make()
            await owner.loop.connect_accepted_socket(
                connection,
                client,
                ssl=context(),
                ssl_handshake_timeout=timeout_s,
                ssl_shutdown_timeout=_SHUTDOWN_TIMEOUT_S,
            )
            wasted = False  # `left` says whether its client asked for anything
        except ssl.SSLError as error:
            self._bad_handshake(client, host, _words(error, owner.settings.security))
        except ConnectionAbortedError:
            self._bad_handshake(client, host, "its handshake came too slowly")
        except ConnectionError:
            self._bad_handshake(client, host, "it ended the connection during the handshake")
        finally:
            if wasted:
                self._pace.wasted(network(host), owner.loop.time())
            self._handshake_is_over(host, turn)
            del turn

    def _is_silent(self, address: str) -> bool:
        """Many have done their handshake and say nothing, some of this address."""
        return len(self._greeted) > self._silent_few and self._greeted.has(address)

    async def _begins(self, turn: _Turn) -> bool:
        """Wait for its turn; False when that does not come in time."""
        try:
            async with asyncio.timeout(self._owner.limits.handshake_timeout_ms / 1000):
                await turn.begins
        except TimeoutError:
            return False
        finally:
            del turn
        return True

    def _handshake_is_over(self, host: str, turn: _Turn) -> None:
        self._handshakes.over(network(host), turn)
        self._go_on()

    def _go_on(self) -> None:
        """Let handshakes begin for which there is a place."""
        if self._handshakes_timer is not None:
            self._handshakes_timer.cancel()
            self._handshakes_timer = None
        loop = self._owner.loop
        while (step := self._handshakes.step(loop.time())) is not None:
            if isinstance(step, Begin):
                assert isinstance(step.one, _Turn)
                if not step.one.begins.done():
                    step.one.begins.set_result(None)
            elif isinstance(step, End):
                if isinstance(step.one, _Turn):
                    self._goes(
                        step.address, step.one.task, "too many handshakes are under way and wait for it"
                    )
                else:
                    self._goes(
                        step.address, step.one, "too many are about to sign in, and others wait for it"
                    )
            else:
                self._handshakes_timer = loop.call_later(step.wait_s, self._go_on)
                break

    async def _read_header(self, client: socket.socket) -> ProxyHeader:
        data = b""
        while True:
            data, header = take_header_bytes(client, data)
            if header is not None:
                return header
            await self._readable(client)

    async def _readable(self, client: socket.socket) -> None:
        loop = self._owner.loop
        ready = asyncio.Event()
        loop.add_reader(client, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(client)

    # Caps

    def _may_enter(self, client: socket.socket, host: str) -> bool:
        """Count a client in, or refuse it."""
        now_s = self._owner.loop.time()
        allowed = self._owner.quotas.may_connect(host)
        reason = self._admission.refusal(host, now_s, has_quota=allowed is not None)
        if not reason and allowed is False:
            reason = "connection_creation_rate of its quota"
        taken = client.fileno() >= self._first_reserved
        if not reason and (self._admission.full or taken) and not self._make_room(network(host)):
            reason = (
                f"file_descriptors of clients = {self._first_reserved} (raise ulimit -n)"
                if taken
                else f"connections_max = {self._admission.caps.connections_max}"
            )
        if reason:
            self._owner.metrics.refused[self._owner.name, reason.partition(" ")[0]] += 1
            self._say_refused(host, f"{reason} reached")
            self._owner.audit.refused(host, f"{reason} reached")
            _reset(client)
            return False
        self._admission.added(host)
        return True

    def _is_here(self, host: str, one: asyncio.Task[None] | Connection) -> None:
        """Somebody more who made no request yet: another one may have to go for it."""
        goes = self._strangers.come(host, one)
        if goes is None:
            return
        self._goes(*goes, "too many wait that made no request yet, and its address has most of them")

    def _is_greeted(self, host: str, one: Connection) -> None:
        """A handshake is done: another one that made no request since may have to go for it."""
        if self._tls is None:
            return
        if not one.admitted:
            self._handshakes.greeted(host, one, self._owner.loop.time())
            return
        goes = self._greeted.come(host, one)
        if goes is not None:
            self._goes(*goes, "too many wait after their handshakes, and its address has most of them")

    def _goes(self, address: str, other: asyncio.Task[None] | Connection, reason: str) -> None:
        self._owner.metrics.refused[self._owner.name, "strangers"] += 1
        self._say_refused(address, reason)
        self._owner.audit.refused(address, reason)
        if isinstance(other, Connection):
            other.abort(reason)
        else:
            other.cancel()

    def _make_room(self, newcomer: str) -> bool:
        """Close an idle connection of whoever has most; False when that is the newcomer itself."""
        owner, by_address = self._owner, self._admission.by_address
        for fresh in (False, True):
            while self._room:
                one = self._room.popleft()
                if not one.closing and one.may_be_idle and by_address[one.address] > by_address[newcomer]:
                    owner.metrics.refused[owner.name, "made_room"] += 1
                    one.abort("the listener is full, and its address has most connections")
                    return True
            now_s = owner.loop.time()
            if fresh or now_s - self._room_looked_for_s < _ROOM_LOOKED_FOR_S:
                return False
            self._room_looked_for_s = now_s
            self._room.extend(
                makes_room(owner.connections, by_address, newcomer, owner.quiet_since_s, _ROOM_AT_ONCE)
            )
        return False

    def _say_refused(self, host: str, reason: str) -> None:
        now_s = self._owner.loop.time()
        # One line a second is enough to say so; the counter has them all.
        if now_s - self._logged_s >= _REFUSED_LOG_INTERVAL_S:
            self._logged_s = now_s
            self._owner.log.warning("connection refused", peer=host, reason=reason)

    def _bad_handshake(self, client: socket.socket, host: str, reason: str) -> None:
        owner = self._owner
        owner.metrics.bad_frames[owner.name, "tls_handshake"] += 1
        self._say_refused(host, reason)
        owner.audit.refused(host, reason)
        client.close()

    def _bad_header(self, client: socket.socket, host: str, reason: str) -> None:
        owner = self._owner
        owner.metrics.bad_frames[owner.name, "proxy_header"] += 1
        self._say_refused(host, reason)
        owner.audit.refused(host, reason)
        _reset(client)


def _asked_for_nothing(one: Connection) -> bool:
    return one.asked_for_nothing and not one.closing


def _is_stranger(one: asyncio.Task[None] | Connection) -> bool:
    if isinstance(one, Connection):
        return one.is_stranger and not one.closing
    return not one.done()


def _speaks_no_tls(security: str) -> str:
    return (
        f"it speaks no TLS; the listener is {security}: set security.protocol={security} at the client, or"
        " use another listener"
    )


def _words(error: ssl.SSLError, security: str) -> str:
    """Why a handshake failed, with what to look at."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused ({error.verify_message}); look at it and at tls.client_ca"
    reason = error.reason or "unknown error"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it shows no certificate, and tls.client_auth is required"
    if "ALERT" in reason:
        alert = reason.lower().replace("_", " ").rpartition("alert ")[2]
        return f"it refuses our certificate ({alert}); look at tls.cert and at the CA that the client trusts"
    if reason in _NOT_TLS:
        return _speaks_no_tls(security)
    if reason in ("UNSUPPORTED_PROTOCOL", "VERSION_TOO_LOW", "NO_SHARED_CIPHER"):
        return "it speaks no TLS 1.2, or none of our ciphers"
    return f"its handshake failed ({reason.lower().replace('_', ' ')})"


def _reset(client: socket.socket) -> None:
    with contextlib.suppress(OSError):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    client.close()
