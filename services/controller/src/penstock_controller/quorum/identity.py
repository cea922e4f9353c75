"""Which data directory each peer had, so that one that lost its disk is known as such.

A controller whose directory was wiped could vote a leader in that lacks acknowledged
entries. Peers therefore remember directories: the newcomer learns from their hello
that it is one, and neither votes nor stands until its log has caught up (`raft`). It
says "joined" from then on, and the peers remember the new directory.

In a new cluster nobody remembers anything, so everybody may vote at once.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from penstock_controller.quorum.files import DamagedFile, replace_durably

_log = logging.getLogger(__name__)

PEERS_FILE = "raft-peers.json"
_NOBODY = bytes(16)


class PeerMemory:
    """Directory ids by controller id, on disk; and whether we are a full member."""

    def __init__(self, directory: Path, directory_id: bytes) -> None:
        self._path = directory / PEERS_FILE
        self._directory_id = directory_id
        self.joined = False
        self.joining = False
        """A peer remembers another directory of ours: no votes until we caught up."""
        self._directories: dict[int, bytes] = {}
        if self._path.exists():
            try:
                data = json.loads(self._path.read_text())
                self.joined = bool(data["joined"])
                self._directories = {int(k): bytes.fromhex(v) for k, v in data["directories"].items()}
            except (ValueError, KeyError, AttributeError) as error:
                raise DamagedFile(f"{self._path}: damaged; wipe the directory to join anew") from error

    def directory_of(self, peer_id: int) -> bytes:
        return self._directories.get(peer_id, _NOBODY)

    def on_hello(self, peer_id: int, directory_id: bytes, joined: bool, remembered: bytes) -> None:
        known = self._directories.get(peer_id)
        if known is None or (known != directory_id and joined):
            self._directories[peer_id] = directory_id
            self._store()
        elif known != directory_id:
            _log.warning("controller %d has a new data directory; it votes once it has caught up", peer_id)
        if not self.joined and not self.joining and remembered not in (_NOBODY, self._directory_id):
            _log.warning("this controller lost its data directory; it votes once it has caught up")
            self.joining = True

    def mark_joined(self) -> None:
        self.joined, self.joining = True, False
        self._store()

    def _store(self) -> None:
        data = {
            "joined": self.joined,
            "directories": {str(k): v.hex() for k, v in sorted(self._directories.items())},
        }
        replace_durably(self._path, [json.dumps(data).encode()])
