"""Who is alive: sessions of nodes and gateways, as the active controller sees them.

Plain state with the clock passed in (ms). Rules:
- A new active controller takes everyone for just heard from.
- When the controller's own tick is late by d, every deadline moves by d: a stopped
  controller must not fence healthy nodes when it wakes.
- Silence for the session timeout ends a session. So does a disk whose jobs wait with no
  progress for as long, though heartbeats come.
- A broken stream alone ends nothing; whoever sees a refused connection calls `end`.

What to do about it is returned as an intent; only committed records change the image.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from penstock_core.ids import NodeId
from penstock_core.metadata import MetadataImage
from penstock_proto.v1 import controller_pb2 as api


class RequestedTransition(Enum):
    """What a heartbeat asks for, given the image."""

    NOTHING = "nothing"
    UNFENCE = "unfence"
    DRAIN = "drain"
    FENCE = "fence"
    NOTE_SPACE = "note space"
    """Its disk became full, or has room again."""


class Expired(NamedTuple):
    """A session that is over."""

    name: NodeId | str
    epoch: int
    reason: str


@dataclass(slots=True)
class _Session:
    epoch: int
    heard_ms: int
    metadata_version: int = 0
    disk_jobs_done: int = 0
    disk_progress_ms: int = 0
    disk_waiting: bool = False
    want_shutdown: bool = False
    active_since_ms: int | None = None
    ended: str | None = None
    """Why it is over before its time, until its process is heard again."""

    def shift(self, by_ms: int, now_ms: int) -> None:
        """Its deadlines move; not those that begin now, for it was heard before the tick that is late."""
        self.heard_ms = min(self.heard_ms + by_ms, now_ms)
        self.disk_progress_ms = min(self.disk_progress_ms + by_ms, now_ms)
        if self.active_since_ms is not None:
            self.active_since_ms = min(self.active_since_ms + by_ms, now_ms)


class Sessions:
    """All sessions of one term of activity."""

    def __init__(self, timeout_ms: int, tick_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._tick_ms = tick_ms
        self._nodes: dict[NodeId, _Session] = {}
        self._gateways: dict[str, _Session] = {}
        self._last_tick_ms: int | None = None

    def begin(self, image: MetadataImage, now_ms: int) -> None:
        """This controller became active: everyone in the image was just heard from."""
        self._nodes = {
            n.node_id: _Session(n.node_epoch, now_ms, disk_progress_ms=now_ms, active_since_ms=now_ms)
            for n in image.nodes.values()
        }
        self._gateways = {g.gateway_id: _Session(g.gateway_epoch, now_ms) for g in image.gateways.values()}
        self._last_tick_ms = now_ms

    # --- events ----------------------------------------------------------------------

    def node_registered(self, node_id: NodeId, epoch: int, now_ms: int) -> None:
        self._nodes[node_id] = _Session(epoch, now_ms, disk_progress_ms=now_ms)

    def gateway_registered(self, gateway_id: str, epoch: int, now_ms: int) -> None:
        self._gateways[gateway_id] = _Session(epoch, now_ms)

    def node_heartbeat(
        self, beat: api.NodeHeartbeat, image: MetadataImage, now_ms: int
    ) -> RequestedTransition | None:
        """Note a heartbeat; None when it is not of the node's current registration."""
        node_id = NodeId(beat.node_id)
        node = image.nodes.get(node_id)
        if node is None or node.node_epoch != beat.node_epoch:
            return None
        session = self._nodes.get(node_id)
        if session is None or session.epoch != beat.node_epoch:
            session = self._nodes[node_id] = _Session(beat.node_epoch, now_ms, disk_progress_ms=now_ms)
        session.heard_ms, session.ended = now_ms, None
        session.metadata_version = max(session.metadata_version, beat.metadata_version)
        if beat.disk_jobs_done != session.disk_jobs_done or beat.disk_jobs_waiting == 0:
            session.disk_progress_ms = now_ms
        session.disk_jobs_done = beat.disk_jobs_done
        session.disk_waiting = beat.disk_jobs_waiting > 0
        session.want_shutdown = beat.want_shutdown
        leaves = beat.want_shutdown or beat.disk_failed
        if node.fenced:
            session.active_since_ms = None
            caught_up = beat.metadata_version >= node.node_epoch
            hung = self._disk_hung(session, now_ms)
            return (
                RequestedTransition.UNFENCE
                if caught_up and not leaves and not hung
                else RequestedTransition.NOTHING
            )
        if leaves:
            return RequestedTransition.NOTHING if node.in_controlled_shutdown else RequestedTransition.DRAIN
        if session.active_since_ms is None:
            session.active_since_ms = now_ms
        if node.in_controlled_shutdown:
            return RequestedTransition.UNFENCE
        return (
            RequestedTransition.NOTHING
            if beat.disk_full == node.disk_full
            else RequestedTransition.NOTE_SPACE
        )

    def gateway_heartbeat(
        self, beat: api.GatewayHeartbeat, image: MetadataImage, now_ms: int
    ) -> RequestedTransition | None:
        """Note a heartbeat; None when the gateway is not registered so. FENCE: it wants to go."""
        gateway = image.gateways.get(beat.gateway_id)
        if gateway is None or gateway.gateway_epoch != beat.gateway_epoch:
            return None
        session = self._gateways.get(beat.gateway_id)
        if session is None or session.epoch != beat.gateway_epoch:
            session = self._gateways[beat.gateway_id] = _Session(beat.gateway_epoch, now_ms)
        session.heard_ms, session.ended = now_ms, None
        session.metadata_version = max(session.metadata_version, beat.metadata_version)
        return RequestedTransition.FENCE if beat.want_shutdown else RequestedTransition.NOTHING

    def end(self, name: NodeId | str, epoch: int, reason: str) -> None:
        """The process of this registration is known to be gone. It stays so until it is heard all the same."""
        session = self._gateways.get(name) if isinstance(name, str) else self._nodes.get(name)
        if session is not None and session.epoch == epoch:
            session.ended, session.active_since_ms = reason, None

    def tick(self, image: MetadataImage, now_ms: int) -> list[Expired]:
        """Nodes and gateways whose session is over and that the image still counts as up."""
        if self._last_tick_ms is not None:
            late_ms = now_ms - self._last_tick_ms - self._tick_ms
            if late_ms > self._tick_ms:
                for session in (*self._nodes.values(), *self._gateways.values()):
                    session.shift(late_ms, now_ms)
        self._last_tick_ms = now_ms
        over = []
        for node in image.nodes.values():
            if not node.fenced:
                session = self._nodes.setdefault(
                    node.node_id, _Session(node.node_epoch, now_ms, disk_progress_ms=now_ms)
                )
                reason = self._reason(session, now_ms)
                if reason is not None:
                    over.append(Expired(node.node_id, node.node_epoch, reason))
        for gateway in image.gateways.values():
            session = self._gateways.setdefault(gateway.gateway_id, _Session(gateway.gateway_epoch, now_ms))
            if session.ended is not None or now_ms - session.heard_ms > self._timeout_ms:
                over.append(Expired(gateway.gateway_id, gateway.gateway_epoch, session.ended or "silent"))
        self._forget(image)
        return over

    def silent(self, image: MetadataImage, for_ms: int, now_ms: int) -> list[Expired]:
        """Nodes and gateways that missed heartbeats, though not for a session timeout yet."""
        names: list[tuple[NodeId | str, int, _Session | None]] = [
            (n.node_id, n.node_epoch, self._nodes.get(n.node_id))
            for n in image.nodes.values()
            if not n.fenced
        ]
        names += [
            (g.gateway_id, g.gateway_epoch, self._gateways.get(g.gateway_id)) for g in image.gateways.values()
        ]
        return [
            Expired(name, epoch, "missed heartbeats")
            for name, epoch, session in names
            if session is not None and session.ended is None and now_ms - session.heard_ms > for_ms
        ]

    # --- questions ---------------------------------------------------------------------

    def alive(self, node_id: NodeId, now_ms: int) -> bool:
        session = self._nodes.get(node_id)
        return session is not None and session.ended is None and now_ms - session.heard_ms <= self._timeout_ms

    def heard_ms(self, name: NodeId | str) -> int | None:
        """When the node or gateway was last heard; None when never."""
        session = self._gateways.get(name) if isinstance(name, str) else self._nodes.get(name)
        return None if session is None else session.heard_ms

    def seen_by_others(self, image: MetadataImage, node_id: NodeId | None, version: int) -> bool:
        """Whether every other live node and every gateway has applied `version`."""
        nodes = (n.node_id for n in image.nodes.values() if not n.fenced and n.node_id != node_id)
        sessions: Iterable[_Session | None] = (
            *(self._nodes.get(n) for n in nodes),
            *(self._gateways.get(g) for g in image.gateways),
        )
        return all(s is not None and s.metadata_version >= version for s in sessions)

    def leaving(self) -> frozenset[NodeId]:
        """Nodes that want to stop."""
        return frozenset(node_id for node_id, session in self._nodes.items() if session.want_shutdown)

    def steady(self, node_id: NodeId, for_ms: int, now_ms: int) -> bool:
        """Whether the node has been serving for a while: fit to get its leadership back."""
        session = self._nodes.get(node_id)
        since = None if session is None else session.active_since_ms
        return since is not None and now_ms - since >= for_ms

    # --- inside --------------------------------------------------------------------------

    def _disk_hung(self, session: _Session, now_ms: int) -> bool:
        return session.disk_waiting and now_ms - session.disk_progress_ms > self._timeout_ms

    def _reason(self, session: _Session, now_ms: int) -> str | None:
        if session.ended is not None:
            return session.ended
        if now_ms - session.heard_ms > self._timeout_ms:
            return f"silent for {now_ms - session.heard_ms} ms"
        if self._disk_hung(session, now_ms):
            return f"disk made no progress for {now_ms - session.disk_progress_ms} ms"
        return None

    def _forget(self, image: MetadataImage) -> None:
        for name in [g for g in self._gateways if g not in image.gateways]:
            del self._gateways[name]
        for node_id in [n for n in self._nodes if n not in image.nodes]:
            del self._nodes[node_id]
