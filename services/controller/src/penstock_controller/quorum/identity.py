"""Which data directory each peer had, so that one that lost its disk is known as such.

A controller whose directory was wiped could vote a leader in that lacks acknowledged
entries. Peers therefore remember directories: the newcomer learns from their hello
that it is one, and neither votes nor stands until the quorum has admitted its directory
(`penstock controller replace`, a ControllerRecord in the log) and its own log has
reached that record, and so all that was acknowledged before it. It says "joined" from
then on, and the peers remember the new directory.

A directory that another one has followed never comes back: it may have missed entries
that were acknowledged with the help of its successor.

In a new cluster nobody remembers anything, so everybody may vote at once.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from penstock_controller.quorum.files import REAL_FILES, DamagedFile, Files

_log = logging.getLogger(__name__)

PEERS_FILE = "raft-peers.json"
_NOBODY = bytes(16)


class PeerMemory:
    """Directory ids by controller id, on disk; and whether we are a full member."""

    def __init__(self, directory: Path, directory_id: bytes, files: Files = REAL_FILES) -> None:
        self._files = files
        self._path = directory / PEERS_FILE
        self._directory_id = directory_id
        self.joined = False
        self.joining = False
        """A peer remembers another directory of ours: no votes until we caught up."""
        self._directories: dict[int, bytes] = {}
        self._former: dict[int, set[bytes]] = {}
        if self._path.exists():
            try:
                data = json.loads(self._path.read_text())
                self.joined = bool(data["joined"])
                self._directories = {int(k): bytes.fromhex(v) for k, v in data["directories"].items()}
                self._former = {
                    int(k): {bytes.fromhex(v) for v in values} for k, values in data.get("former", {}).items()
                }
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise DamagedFile(f"{self._path}: damaged; wipe the directory to join anew") from error

    def directory_of(self, peer_id: int) -> bytes:
        return self._directories.get(peer_id, _NOBODY)

    def is_former(self, peer_id: int, directory_id: bytes) -> bool:
        """Whether the peer comes with a directory that was replaced by a later one."""
        return directory_id in self._former.get(peer_id, ())

    def on_hello(self, peer_id: int, directory_id: bytes, joined: bool, remembered: bytes) -> None:
        known = self._directories.get(peer_id)
        if known is None or (known != directory_id and joined):
            if known is not None:
                self._former.setdefault(peer_id, set()).add(known)
            self._directories[peer_id] = directory_id
            self._store()
        elif known != directory_id:
            _log.warning(
                "controller %d has a new data directory and does not vote; "
                "`penstock controller replace %d` admits it",
                peer_id,
                peer_id,
            )
        if not self.joined and not self.joining and remembered not in (_NOBODY, self._directory_id):
            _log.warning("this controller lost its data directory; it does not vote until it is admitted")
            self.joining = True

    def mark_joined(self) -> None:
        self.joined, self.joining = True, False
        self._store()

    def _store(self) -> None:
        data = {
            "joined": self.joined,
            "directories": {str(k): v.hex() for k, v in sorted(self._directories.items())},
            "former": {str(k): sorted(v.hex() for v in values) for k, values in sorted(self._former.items())},
        }
        self._files.replace_durably(self._path, [json.dumps(data).encode()])
