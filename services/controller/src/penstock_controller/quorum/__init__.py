"""The Raft quorum of the controllers: the only package that imports PySyncObj.

What the rest of the controller sees is `Quorum` and the plain data of `events`;
nothing of PySyncObj leaks out. The version is pinned exactly, because the quorum
hooks private names of it (see `pins`).
"""

from penstock_controller.quorum.events import (
    Applied,
    Outcome,
    Proposal,
    QuorumConfig,
    QuorumMeters,
    QuorumStatus,
    RaftPeer,
    Reset,
)
from penstock_controller.quorum.quorum import Quorum

__all__ = [
    "Applied",
    "Outcome",
    "Proposal",
    "Quorum",
    "QuorumConfig",
    "QuorumMeters",
    "QuorumStatus",
    "RaftPeer",
    "Reset",
]
