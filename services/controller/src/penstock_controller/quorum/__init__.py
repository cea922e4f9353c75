"""The Raft quorum of the controllers: the only package that imports PySyncObj.

What the rest of the controller sees is `Quorum` and the plain data of `events`;
nothing of PySyncObj leaks out. The version is pinned exactly, because the quorum
hooks private names of it (see `pins`).
"""

import socket

# PySyncObj puts a function for Windows in the place of socket.inet_ntop, on every system; where
# roles share a process (one-process mode, tests) it would break everybody's.
_inet_functions = (socket.inet_pton, socket.inet_ntop)
import pysyncobj.win_inet_pton  # noqa: E402

socket.inet_pton, socket.inet_ntop = _inet_functions
del pysyncobj

from penstock_controller.quorum.events import (  # noqa: E402
    Applied,
    Outcome,
    Proposal,
    QuorumConfig,
    QuorumMeters,
    QuorumStatus,
    RaftPeer,
    Reset,
)
from penstock_controller.quorum.quorum import Quorum  # noqa: E402

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
