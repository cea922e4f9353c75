"""Times and durations as people write them: of what is asked from a job."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from pyspark_penstock.errors import OptionError

_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_WORDS: Final = {
    "millisecond": "ms",
    "second": "s",
    "sec": "s",
    "minute": "m",
    "min": "m",
    "hour": "h",
    "day": "d",
    "week": "w",
}
_DURATION: Final = re.compile(r"(?P<count>\d{1,15})\s*(?P<unit>[a-z]+)")
_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999."""


def time_ms(name: str, text: str) -> int:
    """ms since 1970 of a time in ISO 8601 (UTC where it names no offset) or in ms. Raises OptionError."""
    wanted = f"{name} must be a time like 2026-11-26T14:00:00Z, or ms since 1970, not {text!r}"
    given = text.strip()
    if re.fullmatch(r"\d{1,18}", given, re.ASCII):
        found = int(given)
    else:
        try:
            read = datetime.fromisoformat(given)
        except ValueError:
            raise OptionError(wanted) from None
        read = read if read.tzinfo else read.replace(tzinfo=UTC)
        since = read - datetime(1970, 1, 1, tzinfo=UTC)
        found = (since.days * 86_400 + since.seconds) * 1_000 + since.microseconds // 1_000
    if not 0 <= found <= _MS_MAX:
        raise OptionError(wanted)
    return found


def duration_ms(name: str, text: str) -> int:
    """ms of a duration like `10m` or, as Spark writes it, `10 minutes`; above 0. Raises OptionError."""
    found = _DURATION.fullmatch(text.strip().lower())
    unit = None if found is None else found["unit"]
    if unit is not None and unit not in _UNITS_MS:
        unit = _WORDS.get(unit.removesuffix("s"))
    length = 0 if found is None or unit is None else int(found["count"]) * _UNITS_MS[unit]
    if not 0 < length <= _MS_MAX:
        raise OptionError(f"{name} must be a duration like 30s, 10m, 1h or 1d, not {text!r}")
    return length
