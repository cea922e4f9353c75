"""The Raft quorum of the controllers: the only package that imports PySyncObj.

`admission`        who may stay on the Raft port, and who of two with one name
`append_filter`    what an append really changes in a follower's log
`commands`         what may stand in the Raft log
`events`           plain data that crosses from the tick thread to the event loop, and the quorum's settings
`files`            replacing files durably
`identity`         which data directory each peer had
`journal`          PySyncObj's journal on a durable, checksummed, append-only file
`journal_format`   the bytes of the Raft journal, and their exact recovery
`pysyncobj_pins`     the private names of PySyncObj 0.3.17 that the quorum hooks, checked before it starts
`machine`          the replicated state machine: committed bytes in, immutable images out
`messages`         Raft messages on the wire, in place of pickles
`peer_connection`  one TCP connection between two controllers
`peer_tls`         TLS inside a connection between two controllers
`prevote`          pre-vote: ask before disturbing
`quorum`           what the event loop sees: a tick thread, events out, proposals in
`raft`             PySyncObj's SyncObj, corrected from outside
`raft_port`        what a transport of the quorum asks of the node that it carries messages for
`snapshot`         snapshots on disk, in the place of PySyncObj's forking, pickling serializer
`snapshot_format`  the bytes of a snapshot file
`transport`        PySyncObj's transport over our own links, with the guards that the stock one lacks

What the rest of the controller sees is `Quorum` and the plain data of `events`;
nothing of PySyncObj leaks out. The version is pinned exactly, because the quorum
hooks private names of it (see `pysyncobj_pins`).
"""

import socket
import sys

# Two things that PySyncObj does to everybody in its process as it is imported. It puts a function for
# Windows in the place of socket.inet_ntop, on every system. And where `cryptography` is installed it loads it
# (9 MB), for a password between peers that isn't used: there is TLS for that here.
_inet_functions = (socket.inet_pton, socket.inet_ntop)
_has_cryptography = "cryptography" in sys.modules
if not _has_cryptography:
    sys.modules["cryptography"] = None  # type: ignore[assignment]
try:
    import pysyncobj.encryptor
    import pysyncobj.win_inet_pton
finally:
    if not _has_cryptography:
        del sys.modules["cryptography"]

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
