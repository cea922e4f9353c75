"""Regular expressions of subscriptions: RE2, as Kafka has them (KIP-848).

A member must not be able to hang its coordinator with `(a+)+b`: Python's own matcher backtracks,
RE2 takes time linear in the text and refuses what would cost more memory than allowed.
Patterns are matched against whole topic names.
"""

from __future__ import annotations

from typing import Final

import re2

PATTERN_LENGTH_MAX: Final = 1_024
MEMORY_BYTES_MAX: Final = 1 << 20
"""Of one compiled pattern; RE2 refuses what needs more."""

_OPTIONS: Final = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = MEMORY_BYTES_MAX


class BadRegex(ValueError):
    """The pattern cannot be used; says why."""


class TopicRegex:
    """A compiled pattern."""

    def __init__(self, pattern: str) -> None:
        """Raises BadRegex."""
        if len(pattern) > PATTERN_LENGTH_MAX:
            raise BadRegex(f"{len(pattern)} characters, the most is {PATTERN_LENGTH_MAX}")
        try:
            self._pattern = re2.compile(pattern, _OPTIONS)
        except UnicodeEncodeError:
            raise BadRegex("characters that UTF-8 does not have") from None
        except re2.error as e:
            why = e.args[0] if e.args else e
            raise BadRegex(why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)) from None

    def matches(self, text: str) -> bool:
        """Whether the whole of `text` matches."""
        return self._pattern.fullmatch(text) is not None
