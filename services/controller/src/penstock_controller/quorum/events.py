"""Plain data that crosses from the tick thread to the event loop, and the quorum's settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from penstock_core.metadata import MetadataImage
from penstock_proto.v1 import metadata_pb2 as pb


@dataclass(frozen=True, slots=True)
class RaftPeer:
    """One member of the quorum, itself included."""

    controller_id: int
    host: str
    port: int

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class QuorumMeters:
    """Where measurements go; called on the tick or the snapshot thread."""

    journal_sync_s: Callable[[float], None] | None = None
    snapshot_s: Callable[[float], None] | None = None
    bad_frame: Callable[[str], None] | None = None
    """Told why a connection was closed."""


APPEND_PERIOD_S = 0.1
"""How often a leader is heard of while a follower lacks anything."""
REST_APPEND_S = 0.25
"""The same of one whose followers hold all there is. Each time costs every controller some tenths of a millisecond."""


@dataclass(frozen=True, slots=True)
class QuorumConfig:
    """What a quorum member needs to know. Times in seconds, as PySyncObj has them."""

    controller_id: int
    peers: tuple[RaftPeer, ...]
    bind_host: str
    bind_port: int
    directory: Path
    directory_id: bytes
    # Of meta.properties, empty while unknown.
    cluster_id: bytes = b""
    tick_s: float = 0.01
    # Longest wait for the network while a leader is known and all peers are linked.
    rest_s: float = 2.5 * REST_APPEND_S
    append_period_s: float = APPEND_PERIOD_S
    # The same of a leader at rest.
    rest_append_s: float = REST_APPEND_S
    silence_min_s: float = 1.0
    silence_max_s: float = 1.6
    leader_fallback_s: float = 1.2
    retry_s: float = 0.1
    # Commands between two snapshots.
    snapshot_every_count: int = 10_000
    # A leader's transfer at a clean stop may take this long.
    transfer_s: float = 0.5


class Applied(NamedTuple):
    """A command that changed the metadata: `image` is the state after it."""

    image: MetadataImage
    records: list[pb.MetadataRecord]
    command_id: int
    # Partitions that got another leader, for metrics.
    leader_changes: int = 0
    # Why, and when by the clock of whoever generated it, in ms since 1970; for the history alone.
    causes: tuple[pb.Cause, ...] = ()
    time_ms: int = 0


class Reset(NamedTuple):
    """The metadata jumped (snapshot at start or from the leader): no delta leads here."""

    image: MetadataImage


class Outcome(Enum):
    """What became of a proposal."""

    APPLIED = "applied"
    # A part of a large command is applied; it counts with the last part only.
    STAGED = "staged"
    # Committed, but its base version was not the current one: it changed nothing.
    STALE = "stale"
    # Not committed as far as this controller knows; it may still be.
    UNKNOWN = "unknown"


@dataclass(slots=True, eq=False)
class Proposal:
    """A proposal's end, reported once."""

    token: object
    outcome: Outcome


class PeerSaid(NamedTuple):
    """Hello of a connected peer."""

    controller_id: int
    directory_id: bytes
    # Whether it has been a full member with this directory.
    joined: bool


@dataclass(frozen=True, slots=True)
class QuorumStatus:
    """The quorum as this controller sees it."""

    leader_id: int = -1
    term: int = 0
    # Leader, and every entry committed before its election is applied here.
    active: bool = False
    commit_index: int = 0
    applied_index: int = 0
    reachable: frozenset[int] = frozenset()
    # What connected peers said of themselves.
    peers: tuple[PeerSaid, ...] = ()
    # Last index of the own log, at the time of this status.
    last_log_index: int = 0
    # Why this controller neither votes nor stands, "" when it does.
    not_voting_reason: str = ""


QuorumEvent = Applied | Reset | Proposal | QuorumStatus
