"""Which work on one log may run beside which: a plain state machine, with a table that can be printed.

    .venv/bin/python -m penstock_storage_node.replica.log_access

Work on a log runs in the disk pool. `Partition` asks here, runs what may run, and tells when it is done.

  * WRITE    what is staged, as one job; what is staged meanwhile goes with the next one (group commit)
  * FLUSH    of a log that does not flush with each write
  * ALONE    cut, close or delete: nothing else touches the log meanwhile, and the partition serves nothing
  * SWAP     exchange files of closed segments: alone as well, but the partition serves on, and reads wait
  * READ     for a client or a follower: it hears that the role changes rather than wait for a cut
  * LOOK     any other look at files, which waits for swaps only. It may run beside a cut: whoever looks
             compares `PartitionLog.cut_count` before and after, or gets nothing that counts

ALONE and SWAP run in the order in which they were asked for, once nothing else is out; from then on
nothing else starts before they are done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import Enum

from penstock_core.errors import InvariantBroken


class Work(Enum):
    WRITE = "write"
    FLUSH = "flush"
    ALONE = "alone"
    SWAP = "swap"
    READ = "read"
    LOOK = "look"


class Verdict(Enum):
    RUN = "run"
    QUEUE = "queue"
    """Later, by itself: what is staged stays so; ALONE and SWAP stand in line; LOOK waits for the swap's end."""
    REFUSE = "refuse"
    """Not now: a flush comes again by time or with the next write, a client elsewhere."""


class LogAccess:
    """Of one log. Lives on the event loop."""

    __slots__ = ("_line", "alone", "is_closed", "is_flushing", "is_writing", "looking")

    def __init__(self) -> None:
        self.is_writing = False
        self.is_flushing = False
        self.looking = 0
        """Reads and looks that are out."""
        self.alone: Work | None = None
        """ALONE or SWAP, while one runs."""
        self.is_closed = False
        """The partition is on its way out: only what ends it may still run."""
        self._line: deque[Work] = deque()

    def ask(self, work: Work) -> Verdict:
        """What becomes of `work` now."""
        if work is Work.WRITE:
            return Verdict.RUN if self.may_write else Verdict.QUEUE
        if work is Work.FLUSH:
            blocked = self.is_flushing or self.alone is not None or self._line or self.is_closed
            return Verdict.REFUSE if blocked else Verdict.RUN
        if work is Work.READ:
            if self.is_closed or self.is_busy:
                return Verdict.REFUSE
            return Verdict.QUEUE if self.is_swap_near else Verdict.RUN
        if work is Work.LOOK:
            return Verdict.QUEUE if self.is_swap_near else Verdict.RUN
        return Verdict.RUN if not self._line and self._is_free else Verdict.QUEUE

    @property
    def may_write(self) -> bool:
        """Asked in every pass in which something was staged."""
        return not (self.is_writing or self.alone is not None or self._line or self.is_closed)

    @property
    def _is_free(self) -> bool:
        return not (self.is_writing or self.is_flushing or self.looking or self.alone is not None)

    @property
    def is_busy(self) -> bool:
        """True while the log belongs to a cut or its like, or one waits."""
        return self.alone is Work.ALONE or Work.ALONE in self._line

    @property
    def is_swap_near(self) -> bool:
        """True while a swap runs or waits."""
        return self.alone is Work.SWAP or Work.SWAP in self._line

    @property
    def has_waiting(self) -> bool:
        """Whether something stands in line for the log."""
        return bool(self._line)

    # -- what runs ----------------------------------------------------------------

    def stand_in_line(self, work: Work) -> None:
        """ALONE or SWAP: `next_alone` says when."""
        if work not in (Work.ALONE, Work.SWAP):
            raise InvariantBroken(f"{work} does not stand in line")
        self._line.append(work)

    def next_alone(self) -> Work | None:
        """The head of the line, if it may run now; it counts as running then."""
        if not self._line or not self._is_free:
            return None
        self.alone = self._line.popleft()
        return self.alone

    def end_alone(self) -> None:
        """What ran alone is done."""
        if self.alone is None:
            raise InvariantBroken("nothing ran alone")
        self.alone = None

    def validate(self) -> None:
        """Raises InvariantBroken when something is out beside what runs alone. (A look may begin
        while a cut runs; a read may not.)"""
        if self.alone is not None and (self.is_writing or self.is_flushing):
            raise InvariantBroken(f"{self.alone.value} runs beside a write or a flush")
        if self.alone is Work.SWAP and self.looking:
            raise InvariantBroken(f"{self.looking} looks are out while files are swapped")


def situations() -> Iterator[tuple[str, LogAccess]]:
    """Every state that makes a difference, with words for it."""
    yield "idle", LogAccess()
    writing = LogAccess()
    writing.is_writing = True
    yield "a write is out", writing
    flushing = LogAccess()
    flushing.is_flushing = True
    yield "a flush is out", flushing
    reading = LogAccess()
    reading.looking = 1
    yield "a read is out", reading
    for work, name in ((Work.ALONE, "a cut"), (Work.SWAP, "a swap")):
        waits = LogAccess()
        waits.is_writing = True
        waits.stand_in_line(work)
        yield f"{name} waits for a write", waits
        runs = LogAccess()
        runs.stand_in_line(work)
        runs.next_alone()
        yield f"{name} runs", runs
    closed = LogAccess()
    closed.is_closed = True
    yield "closed", closed


def table() -> str:
    """Work and situation, as Markdown."""
    rows = ["| | " + " | ".join(work.value for work in Work) + " |", "|---" * (len(Work) + 1) + "|"]
    for name, access in situations():
        rows.append(f"| {name} | " + " | ".join(access.ask(work).value for work in Work) + " |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
