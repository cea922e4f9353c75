"""Traces by OpenTelemetry, of a part of the requests and commands (`otel_sample_ratio`).

Of a process that traces nothing no module of OpenTelemetry is imported, and whoever has something to trace asks
`tracing_of` once, at its start, and finds None.

What is traced is timed anyway, so spans are told when they are over, from times by the process's clock (`Clocks.s`);
only what another process is to continue is begun before. Whoever begins a trace decides whether there is one; whoever
is told of one by a `traceparent` (W3C Trace Context) goes on with it, if it traces at all. Spans name APIs, nodes and
sizes, and nothing that a client wrote. They are sent by a thread of their own; what finds its queue full is dropped,
and no request waits.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from penstock_runtime.addresses import StartupError
from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.logs import Log
from penstock_runtime.settings import RoleSettings
from penstock_runtime.version import VERSION

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider

Attributes = Mapping[str, str | int | float | bool]
_SHARED: Final = "penstock_tracing"
_PATH: Final = "/v1/traces"
_CLOSE_S: Final = 1.5
"""For what is still to be sent at the end."""
_IDS: Final = ("controller_id", "node_id", "gateway_id")
_NS: Final = 1_000_000_000
_LOOK_S: Final = 0.000_05
_LOOKS_MAX: Final = 5


class Span:
    """A part of a trace. Times are in s, by the clock of its `Tracing`."""

    __slots__ = ("_span", "_tracer", "_zero_ns")

    def __init__(self, tracer: trace.Tracer, span: trace.Span, zero_ns: int) -> None:
        """`zero_ns`: when that clock was 0, since 1970."""
        self._tracer = tracer
        self._span = span
        self._zero_ns = zero_ns

    @property
    def traceparent(self) -> str:
        """What another process goes on with."""
        context = self._span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-01"

    def begin(self, name: str, at_s: float, attributes: Attributes | None = None) -> Span:
        """A part of it, to be ended."""
        from opentelemetry.trace import set_span_in_context

        within = set_span_in_context(self._span)
        span = self._tracer.start_span(name, within, attributes=attributes, start_time=self._ns(at_s))
        return Span(self._tracer, span, self._zero_ns)

    def tell(self, name: str, began_s: float, ended_s: float, attributes: Attributes | None = None) -> None:
        """A part of it that is over."""
        self.begin(name, began_s, attributes).end(ended_s)

    def end(self, at_s: float, problem: str = "") -> None:
        """It is over; `problem`: it went wrong, and how."""
        if problem:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_status(Status(StatusCode.ERROR, problem))
        self._span.end(self._ns(at_s))

    def _ns(self, at_s: float) -> int:
        return self._zero_ns + int(at_s * _NS)


class Tracing:
    """Begins traces, and goes on with those of others."""

    def __init__(
        self,
        provider: TracerProvider,
        ratio: float,
        chance: Callable[[], float] = random.random,
        clock_s: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`ratio`: part of what could be traced that is; `chance` gives numbers from 0 to 1; `clock_s` is what all
        times are by."""
        self._tracer = provider.get_tracer("penstock", VERSION)
        self._ratio = ratio
        self._chance = chance
        self._clock_s = clock_s
        self._wall_ns = wall_ns

    def begin(self, name: str, began_s: float, attributes: Attributes | None = None) -> Span | None:
        """A trace, if this one is to be traced."""
        return None if self._chance() >= self._ratio else self._start(name, None, began_s, attributes)

    def tell(self, name: str, began_s: float, ended_s: float, attributes: Attributes | None = None) -> None:
        """A trace of one part that is over, if this one is to be traced."""
        span = self.begin(name, began_s, attributes)
        if span is not None:
            span.end(ended_s)

    def follow(
        self, traceparent: str, name: str, began_s: float, attributes: Attributes | None = None
    ) -> Span | None:
        """A part of a trace that another process has begun; None when `traceparent` is none."""
        from opentelemetry.trace import get_current_span
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        within = TraceContextTextMapPropagator().extract({"traceparent": traceparent})
        if not get_current_span(within).get_span_context().is_valid:
            return None
        return self._start(name, within, began_s, attributes)

    def _start(
        self, name: str, within: Context | None, began_s: float, attributes: Attributes | None
    ) -> Span:
        zero_ns = self._zero_ns()
        started_ns = zero_ns + int(began_s * _NS)
        span = self._tracer.start_span(name, within, attributes=attributes, start_time=started_ns)
        return Span(self._tracer, span, zero_ns)

    def _zero_ns(self) -> int:
        """When the clock was 0, since 1970. Asked for each trace, since the wall clock may be set."""
        for _ in range(_LOOKS_MAX):
            before_s = self._clock_s()
            wall_ns = self._wall_ns()
            after_s = self._clock_s()
            if after_s - before_s < _LOOK_S:
                break  # nobody had the processor in between
        return wall_ns - int((before_s + after_s) / 2 * _NS)


def tracing_of(lifecycle: Lifecycle) -> Tracing | None:
    """That of a role, None where it traces nothing."""
    found = lifecycle.shared.get(_SHARED)
    return found if isinstance(found, Tracing) else None


def open_tracing(settings: RoleSettings, lifecycle: Lifecycle) -> None:
    """Begin it, if the settings say so, until the role's end. Raises StartupError."""
    if not settings.otel_sample_ratio:
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON
    except ImportError as error:
        raise StartupError(
            f"otel_sample_ratio = {settings.otel_sample_ratio} needs OpenTelemetry, which is not there ({error.name}):"
            f" pip install 'penstock-{lifecycle.name}[otel]', or set it to 0"
        ) from None
    logger = logging.getLogger("opentelemetry")
    logger.propagate = False
    handler = _ToLog(lifecycle.log)
    logger.addHandler(handler)
    about: dict[str, str | int] = {"service.name": f"penstock-{lifecycle.name}", "service.version": VERSION}
    who = next((value for name in _IDS if (value := getattr(settings, name, None)) not in (None, "")), None)
    if who is not None:
        about["service.instance.id"] = str(who)
    provider = TracerProvider(ALWAYS_ON, Resource.create(about), shutdown_on_exit=False)
    # Without an endpoint OpenTelemetry's own variables say where to.
    endpoint = settings.otel_endpoint.rstrip("/")
    provider.add_span_processor(
        BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{endpoint}{_PATH}" if endpoint else None))
    )
    lifecycle.shared[_SHARED] = Tracing(provider, settings.otel_sample_ratio)

    async def close() -> None:
        # An export tries again for 10 s, whatever bound it is given. It may go on until the process ends.
        sending = threading.Thread(target=provider.shutdown, name="last traces", daemon=True)
        sending.start()
        await asyncio.to_thread(sending.join, _CLOSE_S)
        if sending.is_alive():
            lifecycle.log.warning(
                "traces are not sent", reason="the last ones, before the end of this process"
            )
        logger.removeHandler(handler)

    lifecycle.at_end(close)


class _ToLog(logging.Handler):
    """What OpenTelemetry has to say (a collector that is not there) goes to the role's log."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.warning("traces are not sent", reason=record.getMessage()[:200])
