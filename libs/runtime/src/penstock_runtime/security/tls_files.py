"""Files that change while a process runs: new contexts for new connections.

A certificate is replaced by writing its files anew, at any moment and in any order. Every two seconds they are
looked at by time, size and inode; when any has changed new contexts are built beside the event loop, and take the
place of the old ones only if everything loads and belongs together. Otherwise the old ones stay in use, and a line
says why, once for each fault. Connections that are open are not touched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from penstock_runtime.addresses import StartupError
from penstock_runtime.security.refused import RefusedCertificates, serial_in_pem
from penstock_runtime.security.role_tls import RoleContexts, RoleTls, load_contexts

WATCH_S = 2.0

_Stamp = tuple[tuple[int, int, int] | None, ...]


T = TypeVar("T")


class WatchedFiles(Generic[T]):
    """What was made of files when they were last good. `current` may be read from any thread."""

    def __init__(self, paths: Sequence[Path], load: Callable[[], T]) -> None:
        """Load them; `load` raises StartupError for files that are not good, and so does this."""
        self._paths, self._load = tuple(paths), load
        self._stamp = self._look()
        self.current = load()
        self.fault = ""
        """Why the files as they are now are not in use; "" when they are."""

    def reload(self) -> bool:
        """Look at the files, and take them if they are new and good: True then. Blocks; call it off the loop."""
        stamp = self._look()
        if stamp == self._stamp:
            return False
        try:
            loaded = self._load()
            fault = ""
        except (StartupError, OSError, ValueError) as error:
            # Also what the loading did not foresee: whoever watches has to go on, else the role ends.
            fault = str(error)
        if self._look() != stamp:
            # Written while they were read: the next look takes them.
            return False
        self._stamp, self.fault = stamp, fault
        if fault:
            return False
        self.fault = self._misfit(loaded)
        if self.fault:
            return False
        self.current = loaded
        return True

    def _misfit(self, loaded: T) -> str:
        """Why what was loaded may not follow `current`; "" when it may."""
        del loaded
        return ""

    async def watch(self, on_reload: Callable[[], None], on_fault: Callable[[str], None]) -> None:
        """Look every WATCH_S, for ever."""
        told = ""
        while True:
            await asyncio.sleep(WATCH_S)
            if await asyncio.to_thread(self.reload):
                on_reload()
            if self.fault != told:
                told = self.fault
                if told:
                    on_fault(f"{told}; the certificate of before stays in use")

    def _look(self) -> _Stamp:
        return tuple(self._stamp_of(path) for path in self._paths)

    @staticmethod
    def _stamp_of(path: Path) -> tuple[int, int, int] | None:
        try:
            found = path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


class TlsFiles(WatchedFiles[RoleContexts]):
    """The newest contexts of a role."""

    def __init__(
        self, tls: RoleTls, role: str, *, load: Callable[[RoleTls, str], RoleContexts] = load_contexts
    ) -> None:
        """Load them. Raises StartupError."""
        self._tls = tls
        self.refused = RefusedCertificates()
        """Whose certificates count no more, with whoever connects by these files."""
        super().__init__(tls.paths(), lambda: load(tls, role))

    @property
    def settings(self) -> RoleTls:
        """Where the files are."""
        return self._tls

    @property
    def takes_plaintext(self) -> bool:
        """Whether others may come without TLS, for the time of a transition."""
        return self._tls.mode != "require"

    @property
    def dials_tls(self) -> bool:
        """Whether others are dialled by TLS."""
        return self._tls.mode != "allow"

    def refusal(self, serial: str) -> str:
        """Why a certificate with that serial number is let in no more; "" when it is. From any thread."""
        return self.refused.fault(serial)

    @property
    def own_serial(self) -> str:
        """The serial number of the certificate that is in use."""
        return serial_in_pem(self.current.cert)

    @property
    def cert(self) -> Path:
        """The certificate's file."""
        return self._tls.cert

    def _misfit(self, loaded: RoleContexts) -> str:
        if loaded.identity == self.current.identity:
            return ""
        return (
            f"tls.cert = {self._tls.cert} is now that of {loaded.identity}, this process is "
            f"{self.current.identity}; restart it with a certificate of its own"
        )
