"""What a transport of the quorum asks of the node that it carries messages for.

PySyncObj's node and its transport know each other: the node makes the transport and sends by it, the
transport hands what comes to the node. The second half is named here, so that a transport depends on
this and not on `raft`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from pysyncobj.node import Node

from penstock_controller.quorum.events import RaftPeer
from penstock_controller.quorum.journal import DurableJournal
from penstock_controller.quorum.messages import Message
from penstock_controller.quorum.snapshot import Chunk


class PeerNode(Node):  # type: ignore[misc]
    """A member of the quorum for PySyncObj; its id is the controller id as text."""

    def __init__(self, peer: RaftPeer) -> None:
        super().__init__(str(peer.controller_id))
        self.peer = peer

    @property
    def controller_id(self) -> int:
        return self.peer.controller_id


class RaftPort(Protocol):
    """A quorum member, as its transport sees it. All of it belongs to the tick thread."""

    clock_s: Callable[[], float]
    journal: DurableJournal

    @property
    def poller(self) -> Any:
        """PySyncObj's poller, which every socket subscribes to."""

    @property
    def raftCurrentTerm(self) -> int:  # noqa: N802 - PySyncObj's name
        """The present term."""
        ...

    @property
    def raftCommitIndex(self) -> int:  # noqa: N802 - PySyncObj's name
        """Through where the log is known to be committed."""
        ...

    @property
    def is_leader(self) -> bool:
        """Whether this controller leads."""
        ...

    @property
    def leader_id(self) -> int:
        """Controller id of the leader, -1 when none is known."""
        ...

    @property
    def may_vote(self) -> bool:
        """Whether this controller's data directory was admitted."""
        ...

    @property
    def installing(self) -> bool:
        """A snapshot of the leader is being checked; until then its appends are signs of life only."""
        ...

    # Who is there

    def hello(self, peer_id: int) -> Message:
        """What to say first on a link to that peer."""
        ...

    def on_hello(self, peer_id: int, message: Message) -> None:
        """What a peer said first, or said again."""

    def is_stranger(self, message: Message) -> bool:
        """Whether a hello comes from another cluster."""
        ...

    def is_former(self, peer_id: int, message: Message) -> bool:
        """Whether it comes with a data directory that was replaced."""
        ...

    def is_member_directory(self, peer_id: int, directory_id: bytes) -> bool:
        """Whether a peer counts with this data directory, as far as is known here."""
        ...

    def on_link_made(self) -> None:
        """A peer has said who it is."""

    def on_link_lost(self, node: PeerNode, within_s: float) -> None:
        """A link ended; when it was the leader's, stand for election within that time."""

    # Terms and votes

    def step_down(self, term: int) -> None:
        """Somebody is at a higher term: follow from there."""

    def would_vote(self, message: Message) -> bool:
        """The answer to a pre-vote."""
        ...

    def on_prevote_reply(self, peer_id: int, message: Message) -> None:
        """A peer's answer to ours."""

    def after_vote_request(self) -> None:
        """PySyncObj has taken a vote request."""

    # Appends

    def on_leader_sign(self, message: Message) -> None:
        """An append of a current leader arrived."""

    def receive_snapshot(self, chunk: Chunk) -> None:
        """Take a part of the leader's snapshot."""

    def after_ack(self, node: PeerNode, message: Message) -> None:
        """PySyncObj has taken an acknowledgement."""

    def end_turn_of(self, node: PeerNode) -> None:
        """It was sent all that it may have in this turn: a part of a snapshot waits for the next one."""
