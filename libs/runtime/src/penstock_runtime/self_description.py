"""What a process tells of itself to who looks for a fault: settings, last log lines, stacks, directory, metrics.

Nothing in it is a secret: settings come as they are printed, stacks name places and no values, of files there are names
and sizes. Whoever asks is known and has the right to (a gateway asks, for an operator).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path, PurePath
from types import FrameType
from typing import Any, Final

from prometheus_client import generate_latest

from penstock_proto.v1 import operations_pb2 as pb
from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.logs import last_lines

PARTS: Final = ("settings", "log", "stacks", "directory", "metrics")
PIECE_BYTES: Final = 256 * 1024
FILES_MAX: Final = 20_000
TASKS_MAX: Final = 10_000
_TASKS_AT_ONCE: Final = 50
_FRAMES_MAX: Final = 40


class SelfDescription:
    """Of one role."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self.more: dict[str, Callable[[], str]] = {}
        """Parts that only this role has."""

    async def describe(
        self, request: pb.DescribeProcessRequest, context: object = None
    ) -> AsyncIterator[pb.DescribeProcessResponse]:
        """The handler of DescribeProcess: parts that are asked for and that there are, in pieces."""
        del context
        for part in request.parts or (*PARTS, *self.more):
            data = (await self._tell(part)).encode(errors="replace")
            for start in range(0, len(data), PIECE_BYTES):
                yield pb.DescribeProcessResponse(part=part, data=data[start : start + PIECE_BYTES])

    async def _tell(self, part: str) -> str:
        if part == "settings":
            return json.dumps(self._lifecycle.settings, indent=1, default=str)
        if part == "log":
            return "".join(f"{line}\n" for line in last_lines())
        if part == "stacks":
            return await stacks()
        if part == "directory":
            directory = self._lifecycle.directory
            return "" if directory is None else await asyncio.to_thread(listing, directory)
        if part == "metrics":
            return generate_latest(self._lifecycle.registry).decode()
        return self.more[part]() if part in self.more else ""


def listing(directory: Path) -> str:
    """One line for each file and directory below: bytes, time of its last change in ms since 1970, path. Directories
    have the sum of what is in them. At most FILES_MAX files have a line; sums count all."""
    rows: list[tuple[str, int, int]] = []
    sums: dict[str, int] = {}
    changed: dict[str, int] = {}
    left_out = 0
    for here, names, files in os.walk(directory):
        names.sort()
        at = os.path.relpath(here, directory)
        size = 0
        changed[at] = _changed_ms(here)
        for name in sorted(files):
            try:
                found = Path(here, name).lstat()
            except OSError:
                continue  # it went meanwhile
            size += found.st_size
            if len(rows) < FILES_MAX:
                path = name if at == "." else f"{at}/{name}"
                rows.append((path, found.st_size, found.st_mtime_ns // 1_000_000))
            else:
                left_out += 1
        for above in _upwards(at):
            sums[above] = sums.get(above, 0) + size
    rows += [("." if at == "." else f"{at}/", sums.get(at, 0), changed[at]) for at in changed]
    lines = [f"{size}\t{changed_ms}\t{path}" for path, size, changed_ms in sorted(rows)]
    if left_out:
        lines.append(f"and {left_out} more files")
    return "".join(f"{line}\n" for line in lines)


def _changed_ms(path: str) -> int:
    try:
        return Path(path).stat().st_mtime_ns // 1_000_000
    except OSError:
        return 0


def _upwards(path: str) -> Iterable[str]:
    """The path and all that it is in, as they are named in a listing."""
    while path and path != ".":
        yield path
        path = path.rpartition("/")[0]
    yield "."


async def stacks() -> str:
    """Where each thread and each task of the loop is: file, line and function, innermost last. Tasks that stand at the
    same place are told together."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    out = []
    for ident, frame in sys._current_frames().items():
        out.append(f"thread {names.get(ident, ident)}\n{_lines(_of_thread(frame))}")
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    same: dict[tuple[str, ...], list[str]] = {}
    for number, task in enumerate(tasks[:TASKS_MAX]):
        same.setdefault(_of_task(task), []).append(task.get_name())
        if number % _TASKS_AT_ONCE == _TASKS_AT_ONCE - 1:
            await asyncio.sleep(0)
    for places, who in same.items():
        more = f" and {len(who) - 5} more" if len(who) > 5 else ""
        out.append(f"{len(who)} task(s): {', '.join(who[:5])}{more}\n{_lines(places)}")
    if len(tasks) > TASKS_MAX:
        out.append(f"and {len(tasks) - TASKS_MAX} more tasks\n")
    return "\n".join(out)


def _lines(places: tuple[str, ...]) -> str:
    return "".join(f"  {place}\n" for place in places)


def _of_thread(frame: FrameType | None) -> tuple[str, ...]:
    places: list[str] = []
    while frame is not None and len(places) < _FRAMES_MAX:
        places.append(_place(frame))
        frame = frame.f_back
    return tuple(reversed(places))


def _of_task(task: asyncio.Task[Any]) -> tuple[str, ...]:
    """Along what each coroutine waits for."""
    places: list[str] = []
    at: Any = task.get_coro()
    while at is not None and len(places) < _FRAMES_MAX:
        kind = next((kind for kind in ("cr", "gi", "ag") if hasattr(at, f"{kind}_frame")), None)
        if kind is None:
            break
        if (frame := getattr(at, f"{kind}_frame")) is not None:
            places.append(_place(frame))
        at = getattr(at, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")
    return tuple(places)


def _place(frame: FrameType) -> str:
    file = "/".join(PurePath(frame.f_code.co_filename).parts[-3:])
    return f"{file}:{frame.f_lineno} {frame.f_code.co_qualname}"


__all__ = ["FILES_MAX", "PARTS", "PIECE_BYTES", "SelfDescription", "listing", "stacks"]
