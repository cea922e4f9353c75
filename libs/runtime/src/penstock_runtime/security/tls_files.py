"""Files that change while a process runs: new contexts for new connections.

A certificate is replaced by writing its files anew, at any moment and in any order. Every two seconds they are
looked at by time, size and inode; when any has changed new contexts are built beside the event loop, and take the
place of the old ones only if everything loads and belongs together. Otherwise the old ones stay in use, and a line
says why, once for each fault. Connections that are open are not touched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from penstock_runtime.addresses import StartupError
from penstock_runtime.security.role_tls import RoleContexts, RoleTls, load_contexts

WATCH_S = 2.0

_Stamp = tuple[tuple[int, int, int] | None, ...]


class TlsFiles:
    """The newest contexts of a role that were good. `current` may be read from any thread."""

    def __init__(
        self, tls: RoleTls, role: str, *, load: Callable[[RoleTls, str], RoleContexts] = load_contexts
    ) -> None:
        """Load them. Raises StartupError."""
        self._tls, self._role, self._load = tls, role, load
        self._stamp = self._look()
        self.current = load(tls, role)
        self.fault = ""
        """Why the files as they are now are not in use; "" when they are."""

    @property
    def settings(self) -> RoleTls:
        """Where the files are."""
        return self._tls

    @property
    def cert(self) -> Path:
        """The certificate's file."""
        return self._tls.cert

    def reload(self) -> bool:
        """Look at the files, and take them if they are new and good: True then. Blocks; call it off the loop."""
        stamp = self._look()
        if stamp == self._stamp:
            return False
        try:
            contexts = self._load(self._tls, self._role)
            fault = ""
        except StartupError as error:
            fault = str(error)
        if self._look() != stamp:
            # Written while they were read: the next look takes them.
            return False
        self._stamp, self.fault = stamp, fault
        if fault:
            return False
        if contexts.identity != self.current.identity:
            self.fault = (
                f"tls.cert = {self._tls.cert} is now that of {contexts.identity}, this process is "
                f"{self.current.identity}; restart it with a certificate of its own"
            )
            return False
        self.current = contexts
        return True

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
        return tuple(self._stamp_of(path) for path in self._tls.paths())

    @staticmethod
    def _stamp_of(path: Path) -> tuple[int, int, int] | None:
        try:
            found = path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
