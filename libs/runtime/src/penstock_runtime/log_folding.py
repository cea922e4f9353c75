"""Which log lines are written: one of an event and its subject in a second; the rest are counted. Pure.

A fault that comes a thousand times a second is one fault. What is not written is counted, and the next line of its
kind carries `repeated=N`: it stands for N, itself among them. When none comes, the last one that was held back is
written with that number, so that a number is never lost. Lines of level DEBUG are for whoever wants to see all of
them, and are not folded.

A subject is one of our own things that an event is about, a node say: losing three nodes at once is three lines. So is
the state that something of ours has come to: to become the active controller is no repetition of not being it. What
clients say (names, addresses, reasons) tells no lines apart, or a client could write as many as it likes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

FOLD_S: Final = 1.0
SUBJECTS: Final = (
    *("role", "id", "node", "gateway", "controller", "operation", "name", "task", "listener"),
    *("active", "state", "phase"),
)
CONSTANT: Final = "_event"
"""A field that names the event where a line's text is written for people and varies; JSON has the text as `message`."""
KINDS_MAX: Final = 1_000
"""Events and subjects followed at a time; beyond them an event's subjects are not told apart."""
LINES_KEPT: Final = 2_000
LEVELS: Final = ("debug", "info", "warning", "error", "critical")

Line = dict[str, Any]


@dataclass(slots=True)
class _Kind:
    """Lines of one event and subject within a second."""

    until_s: float
    held: int = 0
    last: Line | None = None


class LogFolding:
    """Of one process. Times in s of any clock that does not go back."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[object, ...], _Kind] = {}
        self._due_s = float("inf")

    def admit(self, line: Line, now_s: float) -> bool:
        """Whether to write that line now; it is given `repeated` where others were held back before it."""
        if line.get("level") == "debug":
            return True
        # What a library says has values in its text: its form is what repeats.
        event = line.get(CONSTANT, "") if "logger" in line else line.get("event")
        key = (line.get("level"), event, *(str(line.get(name, "")) for name in SUBJECTS))
        kind = self._kinds.get(key)
        if kind is None and len(self._kinds) >= KINDS_MAX:
            key = key[:2]
            kind = self._kinds.get(key)
        if kind is None or (now_s >= kind.until_s and not kind.held):
            self._begin(key, now_s)
            return True
        if now_s >= kind.until_s:
            line["repeated"] = kind.held + 1
            self._begin(key, now_s)
            return True
        kind.held += 1
        kind.last = dict(line)
        self._due_s = min(self._due_s, kind.until_s)
        return False

    def _begin(self, key: tuple[object, ...], now_s: float) -> None:
        self._kinds[key] = _Kind(now_s + FOLD_S)
        self._due_s = min(self._due_s, now_s + FOLD_S)

    def due(self, now_s: float) -> list[Line]:
        """What was held back and has waited for its second: to be written now. Cheap while nothing is due."""
        if now_s < self._due_s:
            return []
        return self._take(now_s)

    def rest(self) -> list[Line]:
        """All that is held back: the process ends."""
        return self._take(float("inf"))

    def _take(self, now_s: float) -> list[Line]:
        lines: list[Line] = []
        for key, kind in list(self._kinds.items()):
            if now_s < kind.until_s:
                continue
            if kind.last is not None:
                lines.append(kind.last | {"repeated": kind.held})
                kind.held, kind.last, kind.until_s = 0, None, now_s + FOLD_S
            else:
                del self._kinds[key]
        self._due_s = min((kind.until_s for kind in self._kinds.values()), default=float("inf"))
        return lines


class LogMemory:
    """The last lines of a process as they were written, and how many there were."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._counts = dict.fromkeys(LEVELS, 0)

    def count(self, level: str) -> None:
        """A line was logged, whether it is written or folded."""
        if level in self._counts:
            self._counts[level] += 1

    def keep(self, line: str) -> None:
        """A line was written."""
        self._lines.append(line)

    @property
    def counts(self) -> Mapping[str, int]:
        """Lines by level since the start."""
        return self._counts

    @property
    def lines(self) -> list[str]:
        """The last LINES_KEPT, oldest first."""
        return list(self._lines)


__all__ = ["CONSTANT", "FOLD_S", "KINDS_MAX", "LINES_KEPT", "LogFolding", "LogMemory"]
