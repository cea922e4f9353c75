"""PySyncObj's transport over our own links, with the guards that the stock one lacks.

- The journal is synced before a vote or an acknowledgement leaves (sync-on-send).
- Acknowledgements and votes of another term, and a voter's second vote, do not count.
- Appends pass `append_filter`; snapshots are checked before they are installed.
- Peers say hello with their ids; anybody else is closed. Nothing is ever unpickled.
- The peer of the higher id dials, so nobody comes in the name of a lower one. Of two that claim one name
  `admission` says who stays, and who makes room before it has said one.
- A message that no elected peer sends (a leap of the term, an acknowledgement of what is not there, an append that
  cuts committed entries) closes its link before any of it counts.
- Quiet links carry keepalives; silent ones are closed; lost ones are dialled again
  after 0.1 s by the peer of the higher id.
- A leader of an older term is told so, else a controller that moved ahead would never
  again take its appends.

Everything here runs on the tick thread, but for name resolution.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pysyncobj.poller import POLL_EVENT_TYPE
from pysyncobj.transport import Transport

from penstock_controller.quorum.admission import Contests, LogBudget, Standing, WaitingRoom
from penstock_controller.quorum.append_filter import bare, cuts_committed, filter_append
from penstock_controller.quorum.events import QuorumConfig
from penstock_controller.quorum.messages import BadMessage, Message, decode, encode
from penstock_controller.quorum.peer_connection import (
    FRAME_BYTES_MAX,
    REAL_NETWORK,
    PeerConnection,
    PeerNetwork,
)
from penstock_controller.quorum.peer_tls import TlsStream
from penstock_controller.quorum.raft_port import PeerNode, RaftPort
from penstock_core.errors import ErrorCode, PenstockError

_log = logging.getLogger(__name__)

HOUSEKEEPING_S = 0.02
KEEPALIVE_S = 1.0
LINK_SILENCE_S = 5.0
HELLO_S = 2.0
TERM_LEAP_MAX = 1 << 32
"""No term so much above ours is taken: elections alone do not lead there."""
FIRST_TERM_MAX = 1 << 61
"""What a controller without a log takes: its peers may be anywhere below, and have as much before them."""
UNSENT_APPENDS_BYTES_MAX = 16 * 1024 * 1024
_BACKLOG = 128
_ACCEPTS_A_TURN = 4
_HANDSHAKES_A_TURN = 2
"""Steps of TLS handshakes; one takes two. One connection a turn is let in then, so that each gets its steps."""
LEADER_LOST_S = 0.05
_REFUSALS_LOGGED_MAX = 100
_SOMETHING = object()
_SYNCED_FIRST = frozenset({"request_vote", "response_vote", "next_node_idx"})


class PeerTransport(Transport):  # type: ignore[misc]
    """Links to all peers of one controller."""

    def __init__(
        self,
        raft: RaftPort,
        config: QuorumConfig,
        nodes: Mapping[int, PeerNode],
        on_bad_frame: Callable[[str], None] | None,
        network: PeerNetwork = REAL_NETWORK,
    ) -> None:
        super().__init__(raft, None, [])
        self._raft = raft
        self._config = config
        self._nodes = nodes
        self._on_bad_frame = on_bad_frame
        self._network = network
        self._tls = network.tls
        self._handshakes_left = 0
        self._links: dict[int, PeerConnection] = {}
        self._dialling: dict[int, PeerConnection] = {}
        self._unknown: WaitingRoom[PeerConnection] = WaitingRoom()
        self._standing: dict[int, Standing] = {}
        self._contests = Contests()
        self._log_budget = LogBudget()
        self._dialled_at: dict[int, float] = {}
        self._addresses: dict[str, str] = {}
        self._resolving: set[str] = set()
        self._resolver = ThreadPoolExecutor(1, "raft-resolver")
        self._refusals_logged: set[str] = set()
        self._votes: tuple[int, set[int]] = (0, set())
        self._next_housekeeping = 0.0
        self._server: socket.socket | None = None
        # A fresh controller counts as just in contact, so that watchers may come early.
        self._clock_s = raft.clock_s
        self.last_append: tuple[float, int] = (self._clock_s(), 0)
        """When the leader was last heard, and its term."""
        self._listen()

    # --- PySyncObj's interface -------------------------------------------------------

    def send(self, node: PeerNode, message: Message) -> bool:
        link = self._links.get(node.controller_id)
        if link is None:
            return False
        kind = message["type"]
        if kind in _SYNCED_FIRST:
            self._raft.journal.sync()
            if kind == "next_node_idx":
                message = dict(message, term=self._raft.raftCurrentTerm)
        elif message.get("serialized", _SOMETHING) is None:
            self._raft.end_turn_of(node)
        elif message.get("entries") and link.unsent_bytes > UNSENT_APPENDS_BYTES_MAX:
            # As if it was lost: the peer says where it stands once it has taken what waits.
            self._raft.end_turn_of(node)
            return False
        payload = encode(message)
        # None is a follower's queued command that PySyncObj would hand to the leader: proposals
        # are made on the active controller only, so it simply fails.
        return payload is not None and link.send(payload)

    def destroy(self) -> None:
        for link in [*self._links.values(), *self._dialling.values(), *self._unknown.links]:
            link.close("this controller stops")
        if self._server is not None:
            self._raft.poller.unsubscribe(self._server.fileno())
            self._server.close()
            self._server = None
        self._resolver.shutdown(wait=False, cancel_futures=True)

    # --- for the raft node -------------------------------------------------------------

    @property
    def reachable(self) -> frozenset[int]:
        return frozenset(self._links)

    def is_idle(self, node: PeerNode) -> bool:
        """Whether the peer is linked and the system has taken all that was sent to it."""
        link = self._links.get(node.controller_id)
        return link is not None and link.is_idle

    @property
    def is_complete(self) -> bool:
        """Whether every peer is linked, so that nobody is to be dialled."""
        return len(self._links) == len(self._nodes)

    def broadcast(self, message: Message) -> None:
        for controller_id in list(self._links):
            self.send(self._nodes[controller_id], message)

    def say_hello(self, controller_id: int) -> None:
        """Tell a connected peer again who we are: we are a full member now."""
        self.send(self._nodes[controller_id], self._raft.hello(controller_id))

    def hears_leader(self) -> bool:
        """True while a leader is alive as far as this controller can tell."""
        raft = self._raft
        if raft.is_leader:
            return True
        leader = raft.leader_id
        return leader in self._links and self._clock_s() - self.last_append[0] < self._config.silence_min_s

    def housekeeping(self) -> None:
        """Each tick: dial, keep alive, give up."""
        now = self._clock_s()
        self._handshakes_left = _HANDSHAKES_A_TURN
        if now < self._next_housekeeping:
            return
        self._next_housekeeping = now + HOUSEKEEPING_S
        for controller_id, node in self._nodes.items():
            if controller_id < self._config.controller_id and controller_id not in self._links:
                self._dial(node, now)
        for link in list(self._links.values()):
            if now - link.last_read_at > LINK_SILENCE_S:
                link.close(f"silent for {LINK_SILENCE_S:g} s")
            elif link.crawls():
                link.close("its message comes too slowly")
            elif self._tls is not None and link.tls and (refused := self._tls.refusal(link.tls.peer_serial)):
                link.close(refused)
            elif now - link.last_sent_at > KEEPALIVE_S:
                self._say(link, {"type": "keepalive"})
        for link in [*self._unknown.links, *self._dialling.values()]:
            if now - link.opened_at > HELLO_S:
                link.close("no hello in time")

    # --- connections -------------------------------------------------------------------

    def _listen(self) -> None:
        host, port = self._config.bind_host, self._config.bind_port
        server = None
        try:
            family, kind, proto, _, address = self._network.getaddrinfo(host, port, type=socket.SOCK_STREAM)[
                0
            ]
            server = self._network.socket(family, kind, proto)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.setblocking(False)
            server.bind(address)
            server.listen(_BACKLOG)
        except OSError as error:
            if server is not None:
                server.close()
            raise PenstockError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"cannot bind raft address {host}:{port} ({error.strerror}); free the port or set raft_bind",
            ) from None
        self._server = server
        self._raft.poller.subscribe(
            server.fileno(), self._on_accept, POLL_EVENT_TYPE.READ | POLL_EVENT_TYPE.ERROR
        )

    def _on_accept(self, _fd: int, _mask: int) -> None:
        for _ in range(_ACCEPTS_A_TURN if self._tls is None else 1):
            if self._server is None:
                return
            try:
                sock, remote = self._server.accept()
            except OSError:
                # Nobody is left, the peer gave up, or we are out of descriptors; the poller asks again.
                return
            address = str(remote[0]).removeprefix("::ffff:")
            leaves = self._unknown.leaves_for(address)
            if leaves is not None:
                leaves.close("makes room for a newer one")
            self._unknown.add(self._open(sock, connecting=False), address)

    def _dial(self, node: PeerNode, now: float) -> None:
        controller_id = node.controller_id
        if (
            controller_id in self._dialling
            or now - self._dialled_at.get(controller_id, 0) < self._config.retry_s
        ):
            return
        self._dialled_at[controller_id] = now
        address = self._resolve(node.peer.host)
        if address is None:
            return
        try:
            sock = self._network.socket(
                socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM
            )
        except OSError:
            return  # out of descriptors, say: another time
        sock.setblocking(False)
        result = sock.connect_ex((address, node.peer.port))
        if result not in (0, errno.EINPROGRESS):
            sock.close()
            self._addresses.pop(node.peer.host, None)
            return
        link = self._open(sock, connecting=True)
        self._dialling[controller_id] = link
        self._say(link, self._raft.hello(controller_id))

    @staticmethod
    def _say(link: PeerConnection, message: Message) -> None:
        payload = encode(message)
        if payload is not None:
            link.send(payload)

    def _resolve(self, host: str) -> str | None:
        """An IP address for `host`; None while a thread looks it up."""
        try:
            return str(ipaddress.ip_address(host))
        except ValueError:
            pass
        known = self._addresses.get(host)
        if known is None and host not in self._resolving:
            self._resolving.add(host)
            self._resolver.submit(self._look_up, host)
        return known

    def _look_up(self, host: str) -> None:
        try:
            self._addresses[host] = str(
                self._network.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0]
            )
        except OSError:
            _log.debug("cannot resolve %s", host)
        finally:
            self._resolving.discard(host)

    def _open(self, sock: socket.socket, *, connecting: bool) -> PeerConnection:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        given: dict[str, Any] = {}
        if self._tls is not None:
            contexts = self._tls.current
            context = contexts.client if connecting else contexts.server
            given["may_shake_hands"] = self._may_shake_hands
            if connecting:
                given["tls"] = TlsStream(context, is_server=False) if self._tls.dials_tls else None
            elif self._tls.takes_plaintext:
                given["tls_if_spoken"] = lambda: TlsStream(context, is_server=True)
            else:
                given["tls"] = TlsStream(context, is_server=True)
        return self._network.connection(
            self._raft.poller,
            sock,
            self._on_frame,
            self._on_closed,
            self._clock_s,
            connecting=connecting,
            **given,
        )

    def _may_shake_hands(self) -> bool:
        """A step of a handshake costs a millisecond of the thread that holds elections: a few in a turn."""
        self._handshakes_left -= 1
        return self._handshakes_left >= 0

    def _on_closed(self, link: PeerConnection, reason: str) -> None:
        came_from = self._unknown.address_of(link)
        self._unknown.discard(link)
        for controller_id, dialled in list(self._dialling.items()):
            if dialled is link:
                del self._dialling[controller_id]
                self._addresses.pop(self._nodes[controller_id].peer.host, None)
                if reason.startswith("tls: "):
                    address = self._nodes[controller_id].peer.address
                    self._log_once(f"controller {controller_id} at {address}: {reason.removeprefix('tls: ')}")
        if link.peer_id is None:
            if came_from and reason.startswith("tls: "):
                self._bad_frame(
                    f"raft port: closed a connection of {came_from}: {reason.removeprefix('tls: ')}"
                )
            elif reason.startswith("bad frame"):
                self._bad_frame(f"raft port: {reason}; closed a connection that is no controller's")
            return
        if self._links.get(link.peer_id) is not link:
            return
        del self._links[link.peer_id]
        self._standing.pop(link.peer_id, None)
        _log.info("link to controller %d lost: %s", link.peer_id, reason)
        if reason.startswith("bad frame"):
            self._bad_frame(f"controller {link.peer_id}: {reason}")
        node = self._nodes[link.peer_id]
        self._raft.on_link_lost(node, LEADER_LOST_S)
        self._onNodeDisconnected(node)

    def _log_once(self, line: str) -> None:
        """A peer that is refused dials again ten times a second."""
        if line not in self._refusals_logged and len(self._refusals_logged) < _REFUSALS_LOGGED_MAX:
            self._refusals_logged.add(line)
            _log.warning("%s", line)

    def _bad_frame(self, line: str) -> None:
        if self._log_budget.take(self._clock_s()):
            _log.warning("%s", line)
        if self._on_bad_frame is not None:
            self._on_bad_frame(line)

    # --- messages ------------------------------------------------------------------------

    def _on_frame(self, link: PeerConnection, payload: memoryview) -> None:
        try:
            message = decode(payload)
        except BadMessage as error:
            link.close(f"bad frame: {error}")
            return
        if link.peer_id is None:
            self._on_hello(link, message)
        elif message["type"] == "hello":
            self._on_further_hello(link, link.peer_id, message)
        elif fault := self._fault_of(message):
            link.close(f"bad frame: {fault}")
        else:
            self._on_message(self._nodes[link.peer_id], message)

    def _on_hello(self, link: PeerConnection, message: Message) -> None:
        if message["type"] != "hello":
            link.close("bad frame: spoke before its hello")
            return
        peer_id = message["from"]
        if message["to"] != self._config.controller_id or peer_id not in self._nodes:
            link.close("bad frame: hello from a controller that is not in raft_peers")
            return
        if misplaced := self._misplaced(link, peer_id):
            link.close(f"bad frame: {misplaced}")
            return
        if self._tls is not None and link.tls is not None:
            fault = link.tls.peer_fault(self._tls.current.identity, peer_id) or self._tls.refusal(
                link.tls.peer_serial
            )
            if fault:
                link.close(f"tls: {fault}")
                return
        if self._raft.is_stranger(message):
            link.close(f"bad frame: controller {peer_id} is of another cluster; check raft_peers")
            return
        if self._raft.is_former(peer_id, message):
            reason = (
                f"controller {peer_id} came with a data directory that was replaced; wipe that, "
                f"start it again, then `penstock controller replace {peer_id}`"
            )
            self._log_once(reason)
            link.close(reason)
            return
        standing = self._standing_of(link, message)
        old = self._links.get(peer_id)
        if old is not None and link.tls is None:
            # A certificate would say which of the two it is: with one, the newer connection is the true one.
            now = self._clock_s()
            silent_s = now - old.last_read_at
            if not self._contests.is_won(peer_id, now, silent_s, self._standing[peer_id], standing):
                reason = (
                    f"a second connection says to be controller {peer_id}; kept the first. Two processes with "
                    "one controller_id, or a stranger on the network?"
                )
                self._log_once(reason)
                link.close(reason)
                return
        dialled = self._dialling.pop(peer_id, None)
        if dialled is not None and dialled is not link:
            dialled.close("doubled")
        self._unknown.discard(link)
        link.peer_id = peer_id
        link.frame_bytes_max = FRAME_BYTES_MAX
        if old is not None:
            del self._links[peer_id]
            old.peer_id = None
            old.close("replaced by a newer one")
            self._onNodeDisconnected(self._nodes[peer_id])
        if dialled is not link:
            self._say(link, self._raft.hello(peer_id))
        self._raft.on_hello(peer_id, message)
        self._links[peer_id] = link
        self._standing[peer_id] = standing
        self._onNodeConnected(self._nodes[peer_id])
        self._raft.on_link_made()

    def _misplaced(self, link: PeerConnection, peer_id: int) -> str:
        """Why a hello comes on a connection of the wrong direction; "" when it does not."""
        for controller_id, dialled in self._dialling.items():
            if dialled is link and controller_id != peer_id:
                return f"controller {peer_id} answers at the address of controller {controller_id}; check raft_peers"
        if link in self._unknown.links and peer_id < self._config.controller_id:
            return f"hello of controller {peer_id}, which this one dials itself"
        return ""

    def _standing_of(self, link: PeerConnection, message: Message) -> Standing:
        peer_id = message["from"]
        is_member = self._raft.is_member_directory(peer_id, message["directory_id"])
        host = self._nodes[peer_id].peer.host
        came_from = self._unknown.address_of(link)
        is_at_home = not came_from or came_from == self._resolve(host)
        if not is_at_home:
            # The name may have got another address since.
            self._addresses.pop(host, None)
        return Standing(is_member, is_at_home)

    def _on_further_hello(self, link: PeerConnection, peer_id: int, message: Message) -> None:
        """A peer says again who it is, since it is a full member now."""
        if message["from"] != peer_id or message["to"] != self._config.controller_id:
            link.close("bad frame: hello of another controller")
            return
        self._standing[peer_id] = self._standing[peer_id]._replace(
            is_member=self._raft.is_member_directory(peer_id, message["directory_id"])
        )
        self._raft.on_hello(peer_id, message)

    def _fault_of(self, message: Message) -> str:
        """Why no peer that keeps to Raft sends this here and now; "" when one may."""
        raft = self._raft
        term, own = message.get("term", 0), raft.raftCurrentTerm
        entries = raft.journal.entries
        last_index = entries[-1][1]
        if term > (own + TERM_LEAP_MAX if last_index > 1 else FIRST_TERM_MAX):
            return f"term {term} leaps from {own}"
        kind = message["type"]
        if kind == "next_node_idx" and term == own and raft.is_leader:
            if not 1 <= message["next_node_idx"] <= last_index + 1:
                return f"acknowledges up to {message['next_node_idx']}, the log ends at {last_index}"
        elif kind == "append_entries" and term >= own:
            if term == own and raft.is_leader:
                return f"leads in term {term}, in which this controller leads"
            if "entries" in message and cuts_committed(message, entries[0][1], entries, raft.raftCommitIndex):
                return f"append of term {term} behind {message['prevLogIdx']} cuts committed entries off"
        return ""

    def _on_message(self, node: PeerNode, message: Message) -> None:
        kind = message["type"]
        raft = self._raft
        term = raft.raftCurrentTerm
        if kind == "append_entries":
            self._on_append(node, message, term)
        elif kind == "next_node_idx":
            if message["term"] > term:
                raft.step_down(message["term"])
            elif message["term"] == term:
                self._onMessageReceived(node, message)
                raft.after_ack(node, message)
        elif kind == "response_vote":
            self._on_vote(node, message, term)
        elif kind == "request_vote":
            if raft.may_vote:
                self._onMessageReceived(node, message)
                raft.after_vote_request()
        elif kind == "prevote":
            granted = raft.may_vote and raft.would_vote(message)
            reply = {"type": "prevote_reply", "round": message["round"], "term": term, "granted": granted}
            self.send(node, reply)
        elif kind == "prevote_reply":
            raft.on_prevote_reply(node.controller_id, message)
        elif kind == "term_notice":
            if message["term"] > term:
                raft.step_down(message["term"])
        elif kind == "timeout_now":
            self._onMessageReceived(node, message)

    def _on_vote(self, node: PeerNode, message: Message, term: int) -> None:
        if message["term"] != term:
            return
        if self._votes[0] != term:
            self._votes = (term, set())
        if node.controller_id not in self._votes[1]:
            self._votes[1].add(node.controller_id)
            self._onMessageReceived(node, message)

    def _on_append(self, node: PeerNode, message: Message, term: int) -> None:
        if message["term"] < term:
            self.send(node, {"type": "term_notice", "term": term})
            return
        self.last_append = (self._clock_s(), message["term"])
        raft = self._raft
        raft.on_leader_sign(message)
        if "serialized" in message:
            if not raft.installing:
                raft.receive_snapshot(message["serialized"])
            self._onMessageReceived(node, bare(message, 1))
            self.acknowledge(node, None)
            return
        if raft.installing:
            # The log is about to be replaced: what comes now is sent again once it is.
            self._onMessageReceived(node, bare(message, 1))
            self.acknowledge(node, None)
            return
        filtered = filter_append(message, raft.journal.entries[0][1], raft.journal.entries)
        self._onMessageReceived(node, filtered.message)
        if filtered.acknowledge is not None:
            self.acknowledge(node, filtered.acknowledge)

    def acknowledge_leader(self, index: int) -> None:
        """Acknowledge the log through `index` to the leader, if one is known and linked."""
        node = self._nodes.get(self._raft.leader_id)
        if node is not None:
            self.acknowledge(node, index)

    def acknowledge(self, node: PeerNode, index: int | None) -> None:
        """Acknowledge the log through `index`; None says only "alive"."""
        ack = {
            "type": "next_node_idx",
            "next_node_idx": (index or 0) + 1,
            "reset": False,
            "success": index is not None,
        }
        self.send(node, ack)
