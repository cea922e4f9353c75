"""Which data directory each controller has, so that one that lost its disk is known as such.

A controller whose directory was wiped could vote a leader in that lacks acknowledged
entries. The log therefore names each controller's directory (ControllerRecord). One with
another directory neither votes nor stands until the quorum has admitted that
(`penstock controller replace`, a further record) and its own log has reached the record,
and so all that was acknowledged before it.

What the log said is kept here too, since a restarted controller knows its log only up to its
snapshot until it hears a leader. Only the log counts: whoever can open a connection can say that a
controller has a new directory, and that it has joined. While the log names none, in a new cluster,
the first directory that a peer comes with is remembered, so that one that is lost in these moments is
missed as well; in a new cluster nobody remembers anything, so everybody may vote at once.

A directory that another one has followed in the log never comes back: it may have missed entries
that were acknowledged with the help of its successor.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

from penstock_controller.quorum.files import REAL_FILES, DamagedFile, Files

_log = logging.getLogger(__name__)

PEERS_FILE = "raft-peers.json"
_NOBODY = bytes(16)


class PeerMemory:
    """Directory ids by controller id, on disk; and whether we are a full member."""

    def __init__(
        self, directory: Path, controller_id: int, directory_id: bytes, files: Files = REAL_FILES
    ) -> None:
        """Raises DamagedFile."""
        self._files = files
        self._path = directory / PEERS_FILE
        self._controller_id = controller_id
        self._directory_id = directory_id
        self.joined = False
        self._directories: dict[int, bytes] = {}
        self._recorded: set[int] = set()
        """Whose directory is the one that the log named; that of others is the first that they came with."""
        self._former: dict[int, set[bytes]] = {}
        self._remembered_by: dict[int, bytes] = {}
        """Which directory of ours each peer remembers, by its last hello."""
        self._told: set[tuple[int, bytes]] = set()
        self._seen: Mapping[int, bytes] | None = None
        if self._path.exists():
            try:
                data = json.loads(self._path.read_text())
                self.joined = bool(data["joined"])
                self._directories = {int(k): bytes.fromhex(v) for k, v in data["directories"].items()}
                self._recorded = {int(k) for k in data.get("recorded", [])}
                self._former = {
                    int(k): {bytes.fromhex(v) for v in values} for k, values in data.get("former", {}).items()
                }
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise DamagedFile(f"{self._path}: damaged; wipe the directory to join anew") from error

    @property
    def joining(self) -> bool:
        """Whether a peer remembers another directory of ours, and the log has not admitted this one."""
        if self.joined or self._controller_id in self._recorded:
            return False
        return any(d not in (_NOBODY, self._directory_id) for d in self._remembered_by.values())

    def directory_of(self, controller_id: int) -> bytes:
        """The directory with which a controller is a member; 16 zeros while none is known."""
        return self._directories.get(controller_id, _NOBODY)

    @property
    def own(self) -> bytes:
        """The directory that the log names for this controller; 16 zeros while it names none."""
        return self.directory_of(self._controller_id) if self._controller_id in self._recorded else _NOBODY

    def is_former(self, peer_id: int, directory_id: bytes) -> bool:
        """Whether the peer comes with a directory that was replaced by a later one."""
        return directory_id in self._former.get(peer_id, ())

    def on_records(self, controllers: Mapping[int, bytes]) -> None:
        """What the log names now, as far as it is applied here.

        After a restart that may be less than what was applied before: a snapshot. A directory that has a successor
        says so; it is not taken again.
        """
        if controllers is self._seen:
            return
        self._seen = controllers
        changed = False
        for controller_id, directory_id in controllers.items():
            known = self._directories.get(controller_id)
            is_recorded = controller_id in self._recorded
            if is_recorded and (known == directory_id or self.is_former(controller_id, directory_id)):
                continue
            former = self._former.setdefault(controller_id, set())
            # Files of before hold directories here that hellos alone had pushed out.
            former.discard(directory_id)
            if is_recorded and known is not None:
                former.add(known)
            self._directories[controller_id] = directory_id
            self._recorded.add(controller_id)
            changed = True
        if changed:
            self._store()

    def on_hello(self, peer_id: int, directory_id: bytes, remembered: bytes) -> None:
        """What a peer says of itself and remembers of us."""
        known = self._directories.get(peer_id)
        if known is None:
            self._directories[peer_id] = directory_id
            if self.joined:
                # Before, nothing depends on it yet: what a stranger said in a new cluster ends with a restart.
                self._store()
        elif known != directory_id and (peer_id, directory_id) not in self._told and len(self._told) < 100:
            self._told.add((peer_id, directory_id))
            _log.warning(
                "controller %d has a new data directory and does not vote; "
                "`penstock controller replace %d` admits it",
                peer_id,
                peer_id,
            )
        was_joining = self.joining
        self._remembered_by[peer_id] = remembered
        if self.joining and not was_joining:
            _log.warning("this controller lost its data directory; it does not vote until it is admitted")

    def mark_joined(self) -> None:
        """Everything up to our admission is applied here."""
        self.joined = True
        self._store()

    def _store(self) -> None:
        data = {
            "joined": self.joined,
            "directories": {str(k): v.hex() for k, v in sorted(self._directories.items())},
            "recorded": sorted(self._recorded),
            "former": {str(k): sorted(v.hex() for v in values) for k, values in sorted(self._former.items())},
        }
        self._files.replace_durably(self._path, [json.dumps(data).encode()])
