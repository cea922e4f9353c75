"""Certificates that are let in no more, as the newest metadata have them.

One object per process. What lets anybody in by a certificate asks it, and hears of changes, so that what is open
already ends as well. Read from any thread: a change puts another map in the place of the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from penstock_core.metadata.security import RefusedCertificate
from penstock_core.security.serial_number import serial_of_pem
from penstock_core.security.subject import BadSubject


class RefusedCertificates:
    """Those of the newest metadata; none before there are any."""

    def __init__(self) -> None:
        self._refused: Mapping[str, RefusedCertificate] = {}
        self._callbacks: list[Callable[[], None]] = []

    @property
    def any(self) -> bool:
        """Whether there is one at all."""
        return bool(self._refused)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call it after each change, on the event loop."""
        self._callbacks.append(callback)

    def take(self, refused: Mapping[str, RefusedCertificate]) -> None:
        """Those of newer metadata."""
        if refused is self._refused:
            return
        self._refused = refused
        for callback in self._callbacks:
            callback()

    def fault(self, serial: str) -> str:
        """Why the certificate with that serial number is let in no more; "" when it is."""
        refused = self._refused.get(serial)
        if refused is None:
            return ""
        why = f" ({refused.reason})" if refused.reason else ""
        return f"certificate {serial} is refused{why}; issue another one"


@lru_cache(maxsize=1024)
def serial_in_pem(certificate: bytes) -> str:
    """The serial number of a verified certificate in PEM; "" of what cannot be read."""
    try:
        return serial_of_pem(certificate)
    except BadSubject:
        return ""
