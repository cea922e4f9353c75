"""What is traced, and what it costs where nothing is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.settings import RoleSettings, StartupError, load_settings
from penstock_runtime.tracing import Tracing, open_tracing, tracing_of

NOW_S = 10.0
WALL_NS = 1_700_000_000_000_000_000
MISSING = """
import sys
sys.modules["opentelemetry.sdk.trace"] = None
from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.settings import RoleSettings, StartupError
from penstock_runtime.tracing import open_tracing
try:
    open_tracing(RoleSettings(otel_sample_ratio=0.1), Lifecycle("gateway"))
except StartupError as error:
    print(error.message)
"""
ROLES = """
import sys
import penstock_controller.role, penstock_gateway.role, penstock_storage_node.role
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""


class Rig:
    def __init__(self, ratio: float, chances: list[float] | None = None) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        drawn = iter(chances or [])
        self.tracing = Tracing(provider, ratio, lambda: next(drawn, 0.0), lambda: NOW_S, lambda: WALL_NS)

    def told(self) -> list[tuple[str, int, int]]:
        """Names, and when they began and ended, in ms after NOW_S."""
        return [
            (each.name, _ms(each.start_time), _ms(each.end_time))
            for each in self.exporter.get_finished_spans()
        ]


def _ms(time_ns: int | None) -> int:
    assert time_ns is not None
    return (time_ns - WALL_NS) // 1_000_000


def test_parts_are_told_by_the_caller_s_clock() -> None:
    rig = Rig(1)
    span = rig.tracing.begin("request", 9.5, {"penstock.api": "Produce"})
    assert span is not None
    hop = span.begin("relay", 10.25)
    span.tell("append", 9.75, 10.5)
    hop.end(11.0, "the node is gone")
    span.end(12.0)
    assert rig.told() == [("append", -250, 500), ("relay", 250, 1000), ("request", -500, 2000)]
    append, relay, request = rig.exporter.get_finished_spans()
    assert append.parent is not None and relay.parent is not None and request.parent is None
    assert append.parent.span_id == relay.parent.span_id == request.context.span_id
    assert (relay.status.is_ok, relay.status.description) == (False, "the node is gone")
    assert request.attributes == {"penstock.api": "Produce"}


def test_another_process_goes_on_with_a_trace_and_with_nothing_that_is_none() -> None:
    here, there = Rig(1), Rig(0)
    span = here.tracing.begin("request", 0.0)
    assert span is not None
    part = there.tracing.follow(span.traceparent, "node.handle", 3.0)
    assert part is not None, "whoever began it has decided"
    part.end(4.0)
    span.end(5.0)
    (handled,), (request,) = there.exporter.get_finished_spans(), here.exporter.get_finished_spans()
    assert handled.parent is not None
    assert handled.parent.span_id == request.context.span_id
    assert handled.context.trace_id == request.context.trace_id
    for bad in (
        "",
        "nonsense",
        "00-" + "0" * 32 + "-" + "0" * 16 + "-01",
        "\ufffd" * 55,
        span.traceparent[:-4],
    ):
        assert there.tracing.follow(bad, "node.handle", 0.0) is None


def test_a_part_of_what_could_be_is_traced() -> None:
    rig = Rig(0.25, [0.1, 0.25, 0.9, 0.2])
    for _ in range(4):
        rig.tracing.tell("command", 10.0, 10.5)
    assert rig.told() == [("command", 0, 500)] * 2


def test_by_default_nothing_is_traced_and_nothing_of_it_is_imported() -> None:
    lifecycle = Lifecycle("gateway")
    open_tracing(RoleSettings(), lifecycle)
    assert tracing_of(lifecycle) is None
    done = subprocess.run([sys.executable, "-c", ROLES], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_what_is_missing_or_wrong_is_told_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", MISSING], capture_output=True, text=True, check=True)
    assert done.stdout == (
        "otel_sample_ratio = 0.1 needs OpenTelemetry, which is not there (opentelemetry.sdk.trace):"
        " pip install 'penstock-gateway[otel]', or set it to 0\n"
    )
    for words, why in (
        (["--otel-sample-ratio", "1.5"], "less than or equal to 1"),
        (["--otel-endpoint", "collector:4318"], "'collector:4318' is no http://HOST:PORT"),
    ):
        with pytest.raises(StartupError) as refused:
            load_settings(RoleSettings, words, "gateway")
        assert words[0] in refused.value.message and why in refused.value.message
