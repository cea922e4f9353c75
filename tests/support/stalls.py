"""A controller that measures how long it holds up its own event loop and its own Raft tick.

    python -m support.stalls FILE CONTROLLER-ARGUMENTS...

Processor time of the thread is counted, not time of day, so that a loaded machine changes
nothing: what is found is the longest piece of work that nobody else could get between.
FILE is replaced at SIGUSR2 with JSON {"loop_ms": .., "loop_in": .., "tick_ms": ..,
"snapshot_ms": ..} since the last time. On the threads that write and check snapshots the
time between two rests counts.
"""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any


class Longest:
    """The longest pieces of work so far."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}
        self.what: dict[str, str] = {}

    def note(self, kind: str, ms: float, what: str = "") -> None:
        if ms > self.ms.get(kind, 0.0):
            self.ms[kind] = ms
            self.what[kind] = what

    def write(self, path: Path) -> None:
        found: dict[str, Any] = {f"{kind}_ms": round(ms, 3) for kind, ms in self.ms.items()}
        found |= {f"{kind}_in": what for kind, what in self.what.items() if what}
        self.__init__()  # type: ignore[misc]
        scratch = path.with_suffix(".tmp")
        scratch.write_text(json.dumps(found))
        scratch.replace(path)


LONGEST = Longest()


def watch_loop() -> None:
    """Measure each callback of asyncio's own loop; uvloop cannot be looked into."""
    sys.modules["uvloop"] = None  # type: ignore[assignment]
    run = asyncio.events.Handle._run

    def measured(handle: Any) -> None:
        began = time.thread_time()
        run(handle)
        took_ms = (time.thread_time() - began) * 1000
        if took_ms > LONGEST.ms.get("loop", 0.0):
            LONGEST.note("loop", took_ms, repr(handle)[:300])

    setattr(asyncio.events.Handle, "_run", measured)  # noqa: B010 - a private name


def watch_tick() -> None:
    from penstock_controller.quorum import raft, snapshot

    tick = raft.RaftNode.tick

    def measured(node: Any) -> None:
        began = time.thread_time()
        tick(node)
        LONGEST.note("tick", (time.thread_time() - began) * 1000)

    setattr(raft.RaftNode, "tick", measured)  # noqa: B010 - it stays a method

    class Slicer(snapshot.Slicer):
        began = 0.0

        def breathe(self) -> None:
            before = time.thread_time()
            if self.began:
                LONGEST.note("snapshot", (before - self.began) * 1000)
            rests_at = self._ends_at
            super().breathe()
            if self._ends_at != rests_at or not self.began:
                self.began = time.thread_time()

    snapshot.Slicer = Slicer  # type: ignore[misc]


def watch_collector() -> None:
    """How long collections of the oldest generation take: they strike any of the others."""
    began = [0.0]

    def note(phase: str, info: dict[str, int]) -> None:
        if info["generation"] < 2:
            return
        if phase == "start":
            began[0] = time.thread_time()
        else:
            LONGEST.note("collector", (time.thread_time() - began[0]) * 1000)

    gc.callbacks.append(note)


def main() -> int:
    path = Path(sys.argv[1])
    watch_loop()
    watch_tick()
    watch_collector()
    signal.signal(signal.SIGUSR2, lambda *_: LONGEST.write(path))
    from penstock_controller.__main__ import main as controller

    sys.argv = ["penstock-controller", *sys.argv[2:]]
    return controller()


if __name__ == "__main__":
    sys.exit(main())
