"""The controller's data directory: lock, identity, cluster.

`meta.properties` names the format version, this controller and its directory, and the
cluster once it is known. A directory of another controller, another cluster or a newer
format is refused, never mended in silence.
"""

from __future__ import annotations

import fcntl
import uuid
from pathlib import Path

from penstock_controller.quorum.files import REAL_FILES
from penstock_runtime.addresses import StartupError

META_FILE = "meta.properties"
LOCK_FILE = ".lock"
FORMAT_VERSION = 1
_ROLE = "controller"


class DataDirectory:
    """An opened and locked data directory. Blocking calls; small files."""

    def __init__(self, path: Path, controller_id: int) -> None:
        """Raises StartupError, naming the directory and the mend."""
        self.path = path
        self._controller_id = controller_id
        try:
            REAL_FILES.make_directory(path)
            self._lock = (path / LOCK_FILE).open("a")
        except OSError as error:
            raise StartupError(
                f"data_dir = {path}: {error.strerror}; give a directory that can be written"
            ) from None
        try:
            self._open()
        except BaseException:
            self._lock.close()
            raise

    def _open(self) -> None:
        path = self.path
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StartupError(
                f"data_dir = {path} is used by a running process; stop it or give another directory"
            ) from None
        self._properties = self._read()
        self.directory_id = self._check()
        if not self._properties:
            self._properties = {
                "version": str(FORMAT_VERSION),
                "role": _ROLE,
                "controller.id": str(self._controller_id),
                "directory.id": self.directory_id.hex(),
            }
            self._write()

    @property
    def cluster_id(self) -> bytes:
        """The cluster that the directory belongs to; empty while unknown."""
        return bytes.fromhex(self._properties.get("cluster.id", ""))

    def join_cluster(self, cluster_id: bytes) -> None:
        """Bind the directory to the cluster. Raises StartupError when it is another's."""
        if self.cluster_id == cluster_id:
            return
        if self.cluster_id:
            raise StartupError(
                f"data_dir = {self.path} belongs to cluster {self.cluster_id.hex()}, the quorum is that of "
                f"{cluster_id.hex()}; check raft_peers, or give an empty directory"
            )
        self._properties["cluster.id"] = cluster_id.hex()
        self._write()

    def close(self) -> None:
        """Give the lock back."""
        self._lock.close()

    def _read(self) -> dict[str, str]:
        path = self.path / META_FILE
        try:
            lines = path.read_text().splitlines()
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError):
            raise StartupError(f"{path} cannot be read; restore it or give an empty data_dir") from None
        pairs = (line.partition("=") for line in lines if line.strip() and not line.startswith("#"))
        return {key.strip(): value.strip() for key, _, value in pairs}

    def _check(self) -> bytes:
        found = self._properties
        if not found:
            return uuid.uuid4().bytes
        where = self.path / META_FILE
        if found.get("version") != str(FORMAT_VERSION):
            raise StartupError(
                f"{where}: format version {found.get('version')}, this build reads {FORMAT_VERSION}; "
                "start the version that wrote it"
            )
        if found.get("role") != _ROLE:
            raise StartupError(
                f"{where} is that of a {found.get('role', 'storage node')}; give another data_dir"
            )
        if found.get("controller.id") != str(self._controller_id):
            raise StartupError(
                f"{where} is that of controller {found.get('controller.id')}, not {self._controller_id}; "
                "set controller_id to it or give another data_dir"
            )
        try:
            directory_id = bytes.fromhex(found["directory.id"])
            bytes.fromhex(found.get("cluster.id", ""))
        except (KeyError, ValueError):
            directory_id = b""
        if len(directory_id) != 16:
            raise StartupError(f"{where} is damaged; restore it or give an empty data_dir")
        return directory_id

    def _write(self) -> None:
        text = "".join(f"{key}={value}\n" for key, value in self._properties.items())
        REAL_FILES.replace_durably(self.path / META_FILE, [text.encode()])
