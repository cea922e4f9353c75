"""The audit log's lines: what is in one, and what is summed up when there are too many.

Events that anybody can cause as often as he likes (logins, denials, connections that are refused) are written one by
one up to `LINES_PER_S` a second, each kind and outcome for itself: a flood of failed logins does not hide one that
succeeded. Beyond that they are counted by what they have in common, and each second's counts are lines of their
own. So nothing is left out, and a flood does not push everything else out of the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from penstock_core.text import harmless

LINES_PER_S: Final = 100
SUMS_MAX: Final = 100
ACCESS_SUMS_MAX: Final = 1_000
"""Different counts of one second; what is beyond is counted together."""
TEXT_LENGTH_MAX: Final = 1_000

LOGIN: Final = "login"
DENIED: Final = "denied"
REFUSED: Final = "refused"
"""A connection or a call that did not come as far as to be denied something."""
CHANGE: Final = "change"
ACCESS: Final = "access"
LOST: Final = "lost"
"""Lines that could not be written."""
EVENTS: Final = (LOGIN, DENIED, REFUSED, CHANGE, ACCESS, LOST)

_IN_COMMON: Final = (
    "event",
    "outcome",
    "principal",
    "address",
    "listener",
    "mechanism",
    "api",
    "operation",
    "type",
)
_ACCESS_IN_COMMON: Final = (*_IN_COMMON, "resource")
_OTHERS: Final = ("event", "outcome")

Event = Mapping[str, object]
"""A line to be: `event` is one of EVENTS. Values are text or numbers; what is None or "" is left out."""
_Key = tuple[tuple[str, object], ...]


class Sums:
    """Which events get a line of their own. Times are a monotonic clock's milliseconds."""

    def __init__(
        self,
        lines_per_s: int = LINES_PER_S,
        in_common: Sequence[str] = _IN_COMMON,
        sums_max: int = SUMS_MAX,
    ) -> None:
        self._lines_per_s = lines_per_s
        self._in_common = tuple(in_common)
        self._sums_max = sums_max
        self._began_ms = 0
        self._lines = 0
        self._counts: dict[_Key, int] = {}

    def admit(self, event: Event, now_ms: int) -> bool:
        """Whether it gets a line; if not it is counted."""
        if now_ms - self._began_ms >= 1_000 and not self._counts:
            self._began_ms, self._lines = now_ms, 0
        if self._lines < self._lines_per_s:
            self._lines += 1
            return True
        self._count(event)
        return False

    def _count(self, event: Event) -> None:
        key: _Key = tuple((name, event[name]) for name in self._in_common if event.get(name))
        if key not in self._counts and len(self._counts) >= self._sums_max:
            key = tuple((name, event[name]) for name in _OTHERS if event.get(name))
        self._counts[key] = self._counts.get(key, 0) + 1

    @property
    def pending(self) -> bool:
        """Whether anything is counted."""
        return bool(self._counts)

    def due(self, now_ms: int, *, at_once: bool = False) -> list[dict[str, object]]:
        """The lines of counts whose second is over."""
        if not self._counts or (now_ms - self._began_ms < 1_000 and not at_once):
            return []
        counts, self._counts = self._counts, {}
        self._began_ms, self._lines = now_ms, 0
        return [{**dict(key), "count": count} for key, count in counts.items()]


def sums_of(event: str) -> Sums:
    """Those of one kind of event. Who accessed what has no lines of its own."""
    return Sums(0, _ACCESS_IN_COMMON, ACCESS_SUMS_MAX) if event == ACCESS else Sums()


def shortened(event: Event) -> Event:
    """The event without what its line would not show: others' words may be as long as a request."""
    for value in event.values():
        if isinstance(value, str) and len(value) > TEXT_LENGTH_MAX + 1:
            break
    else:
        return event
    return {n: v[: TEXT_LENGTH_MAX + 1] if isinstance(v, str) else v for n, v in event.items()}


def line(event: Event, process: str, time_ms: int) -> str:
    """The event as a line of JSON, without its end. `time_ms` is since 1970. What others said does nothing in it."""
    said: dict[str, object] = {"time": _iso(time_ms), "process": process}
    for name, value in event.items():
        if value is None or value == "":
            continue
        if isinstance(value, str):
            value = harmless(value)
            if len(value) > TEXT_LENGTH_MAX:
                value = value[:TEXT_LENGTH_MAX] + "..."
        said[name] = value
    return json.dumps(said, ensure_ascii=False, separators=(",", ":"))


def _iso(time_ms: int) -> str:
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time_ms % 1000:03d}Z"
