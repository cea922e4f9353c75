"""The audit log of a process: who signed in or did not, who was denied what, who changed what.

Whoever has something to tell asks `audit_of(lifecycle)` and calls `tell`, from any thread. That only puts it in a
queue: a thread of the audit log makes lines of it and writes them. The queue is bounded; what finds it full is
counted, and a line says how many, once there is room. Nobody waits for the audit log, so a full disk stops no client;
the process's log says so, and `penstock_audit_lost_total` counts.

Without an `audit_log` everything is counted and nothing written: no thread, no file.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock_core.security.audit import CHANGE, LOST, Event, Sums, line, shortened, sums_of
from penstock_runtime.addresses import StartupError
from penstock_runtime.audit_file import STDERR, FileSink, Sink, StderrSink
from penstock_runtime.lifecycle import Lifecycle, monotonic_ms
from penstock_runtime.logs import Log, error_fields
from penstock_runtime.settings import RoleSettings

WAITING_MAX: Final = 20_000
"""Events in line."""
_BATCH_BYTES: Final = 64 * 1024
_LOOK_S: Final = 1.0
_RETRY_S: Final = 1.0
_CLOSE_S: Final = 1.5
_SHARED: Final = "penstock_audit"


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


Expand = Callable[[], Iterable[Event]]
"""Makes events, later and in another thread."""
More = Callable[[], Event]


class Audit(Collector):
    """Counts what is told. That of a process without an audit log."""

    writes = False
    """Whether anything is written: who has to work for an event may ask first."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        """By event and outcome."""
        self.lost = 0
        self._counting = threading.Lock()

    def tell(self, event: Event, more: More | None = None) -> None:
        """Something that anybody may cause as often as he likes: it may be summed up. `more` is asked for
        what else belongs into its line, if it gets one."""
        with self._counting:
            self.counts[str(event["event"]), str(event.get("outcome", ""))] += 1

    def tell_changes(self, expand: Expand) -> None:
        """Changes by one call; each is a line. `expand` makes them in the audit log's thread."""
        del expand
        with self._counting:
            self.counts[CHANGE, ""] += 1

    def collect(self) -> Iterable[Metric]:
        """Samples for Prometheus."""
        events = CounterMetricFamily(
            "penstock_audit_events", "Events of the audit log, written or not.", labels=["event", "outcome"]
        )
        for labels, count in list(self.counts.items()):
            events.add_metric(labels, count)
        yield events
        yield CounterMetricFamily(
            "penstock_audit_lost", "Events that the audit log had no room for.", value=self.lost
        )


class AuditLog(Audit):
    """One that writes. `start` it, `close` it."""

    writes = True

    def __init__(
        self,
        sink: Sink,
        process: Callable[[], str],
        log: Log,
        *,
        clock_ms: Callable[[], int] = monotonic_ms,
        wall_clock_ms: Callable[[], int] = _wall_ms,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        super().__init__()
        self._sink = sink
        self._process = process
        self._log = log
        self._clock_ms = clock_ms
        self._wall_clock_ms = wall_clock_ms
        self._waiting_max = waiting_max
        self._turn = threading.Condition()
        self._waiting: deque[tuple[int, Event | Expand]] = deque()
        self._sums: dict[tuple[object, object], Sums] = {}
        self._lost_untold = 0
        self._summing = False
        self._ends = False
        self._fault = ""
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def close(self) -> None:
        """Write what is in line, as far as a moment allows, and end."""
        with self._turn:
            self._ends = True
            self._turn.notify()
        self._thread.join(_CLOSE_S)

    # For those who tell

    def tell(self, event: Event, more: More | None = None) -> None:
        """See `Audit`."""
        super().tell(event)
        event = shortened(event)
        kind = event["event"], event.get("outcome")
        with self._turn:
            sums = self._sums.get(kind)
            if sums is None:
                sums = self._sums[kind] = sums_of(str(event["event"]))
            if sums.admit(event, self._clock_ms()):
                self._put(event if more is None else {**event, **more()})
            elif not self._summing:
                self._summing = True
                self._turn.notify()

    def tell_changes(self, expand: Expand) -> None:
        """See `Audit`."""
        super().tell_changes(expand)
        with self._turn:
            self._put(expand)

    def _put(self, what: Event | Expand) -> None:
        if len(self._waiting) >= self._waiting_max:
            self.lost += 1
            self._lost_untold += 1
            return
        self._waiting.append((self._wall_clock_ms(), what))
        if len(self._waiting) == 1:
            self._turn.notify()

    # The thread

    def _run(self) -> None:
        ends = False
        while not ends:
            with self._turn:
                if not self._waiting and not self._ends:
                    self._turn.wait(_LOOK_S if self._summing else None)
                ends = self._ends
                self._sum_up(at_once=ends)
                told, self._waiting = self._waiting, deque()
                lost, self._lost_untold = self._lost_untold, 0
            if lost:
                told.append((self._wall_clock_ms(), {"event": LOST, "count": lost}))
            self._write(told)
        self._sink.close()

    def _sum_up(self, *, at_once: bool) -> None:
        now_ms = self._clock_ms()
        for sums in self._sums.values():
            for event in sums.due(now_ms, at_once=at_once):
                self._waiting.append((self._wall_clock_ms(), event))
        self._summing = any(sums.pending for sums in self._sums.values())

    def _write(self, told: Iterable[tuple[int, Event | Expand]]) -> None:
        batch = bytearray()
        for time_ms, what in told:
            for each in self._lines(time_ms, what):
                batch += each
                if len(batch) >= _BATCH_BYTES:
                    self._write_out(bytes(batch))
                    batch.clear()
        self._write_out(bytes(batch))

    def _lines(self, time_ms: int, what: Event | Expand) -> Iterable[bytes]:
        """Its lines. What cannot be told is an error of ours, and no reason to tell nothing ever after."""
        try:
            for event in what() if callable(what) else (what,):
                yield line(event, self._process(), time_ms).encode("utf-8", "backslashreplace") + b"\n"
        except Exception as error:
            self.lost += 1
            self._log.error("an event of the audit log cannot be told", **error_fields(error))

    def _write_out(self, data: bytes) -> None:
        """Write all of it; while that cannot be done others wait in line, until there are too many of them."""
        while data:
            try:
                data = data[self._sink.write(data) :]
                self._fault = ""
            except OSError as error:
                reason = error.strerror or str(error)
                if reason != self._fault:
                    self._fault = reason
                    self._log.error(
                        "the audit log cannot be written; events wait, and are lost in the end", reason=reason
                    )
                with self._turn:
                    if self._ends:
                        self.lost += data.count(b"\n")
                        return
                    self._turn.wait_for(lambda: self._ends, _RETRY_S)


def audit_of(lifecycle: Lifecycle) -> Audit:
    """That of the process; one that only counts where none was opened."""
    found = lifecycle.shared.get(_SHARED)
    if not isinstance(found, Audit):
        found = Audit()
        _install(found, lifecycle)
    return found


def open_audit(settings: RoleSettings, lifecycle: Lifecycle) -> None:
    """Open that of a process, to be closed at its end. Raises StartupError."""
    where = settings.audit_log
    if where == "auto":
        where = STDERR if settings.knows_callers else ""
    if not where:
        return
    sink: Sink
    if where == STDERR:
        sink = StderrSink()
    else:
        try:
            sink = FileSink(Path(where), settings.audit_log_max_bytes, settings.audit_log_files)
        except OSError as error:
            raise StartupError(
                f"audit_log = {where}: {error.strerror or error}; name a file that this process may make and write"
            ) from None
    made = AuditLog(sink, lambda: lifecycle.name, lifecycle.log)
    _install(made, lifecycle)
    made.start()

    async def close() -> None:
        await asyncio.to_thread(made.close)

    lifecycle.at_end(close)


def _install(audit: Audit, lifecycle: Lifecycle) -> None:
    lifecycle.shared[_SHARED] = audit
    lifecycle.registry.register(audit)
