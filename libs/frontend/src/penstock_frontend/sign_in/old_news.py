"""What may still be done by a process that hears of no controller.

Users, rights and refused certificates come with the metadata. Whoever is cut off does not hear that one of them is
gone, so what it knows counts for a while only: after `sign_in_ms` nobody new comes in, after `rights_ms`
nobody is served. Connections are closed then rather than refused by a code: clients take that as a reason to try
another gateway, while "not authorized" would end them.
"""

from __future__ import annotations

from collections.abc import Callable


class OldNews:
    """The two limits. Times in ms."""

    def __init__(self, age_ms: Callable[[], int], sign_in_ms: int, rights_ms: int) -> None:
        """`age_ms` says how old the metadata may be."""
        self._age_ms = age_ms
        self._sign_in_ms, self._rights_ms = sign_in_ms, rights_ms

    def keeps_out(self) -> str:
        """Why nobody new is let in; "" when they are."""
        return self._beyond(min(self._sign_in_ms, self._rights_ms), "sign_in_stale_ms")

    def ends(self, grace_ms: int = 0) -> str:
        """Why nobody is served; "" when they are."""
        return self._beyond(self._rights_ms + grace_ms, "rights_stale_ms")

    def _beyond(self, limit_ms: int, setting: str) -> str:
        age_ms = self._age_ms()
        if age_ms <= limit_ms:
            return ""
        return f"no controller was heard of for more than {setting} = {limit_ms}, and users and rights may have changed"
