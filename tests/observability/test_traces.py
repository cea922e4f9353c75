"""Traces of a cluster of real processes, as an OTLP collector gets them: one record's way, command and step."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from penstock.cli.main import run
from penstock.local.plan import CONTROLLER, GATEWAY, NODE
from support.cluster import running_cluster
from support.kafka import create_topic, produce
from support.waiting import wait_for

pytestmark = pytest.mark.cluster
WAIT_S = 60.0


@dataclass
class Collector:
    """What was sent to it."""

    port: int = 0
    spans: list[tuple[str, Span]] = field(default_factory=list)
    """With the service's name."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def named(self, name: str) -> list[tuple[str, Span]]:
        return [(service, span) for service, span in list(self.spans) if span.name == name]

    def below(self, parent: Span) -> list[tuple[str, Span]]:
        return [
            (service, span) for service, span in list(self.spans) if span.parent_span_id == parent.span_id
        ]

    def wait_for(self, name: str, api: str = "", root: bool = False) -> tuple[str, Span]:
        found: list[tuple[str, Span]] = []

        def there() -> bool:
            found[:] = [
                (service, span)
                for service, span in self.named(name)
                if (not api or values(span)["penstock.api"] == api) and (not root or not span.parent_span_id)
            ]
            return bool(found)

        wait_for(there, f"a span {name} {api}", WAIT_S)
        return found[-1]


def values(span: Span) -> dict[str, str | int]:
    return {
        each.key: each.value.string_value if each.value.HasField("string_value") else each.value.int_value
        for each in span.attributes
    }


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                about = {each.key: each.value.string_value for each in resource.resource.attributes}
                for scope in resource.scope_spans:
                    collector.spans += [(about["service.name"], span) for span in scope.spans]
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.port = server.server_port
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


def check_begins_within(outer: Span, inner: Span) -> None:
    """Of two processes: each compares the machine's clocks by itself, and may see the end of what was sent later than
    the other one has it."""
    slack_ns = 1_000_000
    assert inner.trace_id == outer.trace_id
    assert outer.start_time_unix_nano - slack_ns <= inner.start_time_unix_nano
    assert inner.start_time_unix_nano <= outer.end_time_unix_nano + slack_ns


def check_within(outer: Span, inner: Span) -> None:
    assert inner.trace_id == outer.trace_id
    assert outer.start_time_unix_nano <= inner.start_time_unix_nano <= inner.end_time_unix_nano
    assert inner.end_time_unix_nano <= outer.end_time_unix_nano


def test_a_record_s_way_through_gateway_and_leader_is_one_trace(tmp_path: Path) -> None:
    with collecting() as collector:
        told = {"otel_sample_ratio": "1", "otel_endpoint": collector.url}
        settings = dict.fromkeys((CONTROLLER, NODE, GATEWAY), told)
        with running_cluster(tmp_path / "cluster", controllers=1, settings=settings) as cluster:
            create_topic(cluster.bootstrap, "traced", 1, 3)
            produce(cluster.bootstrap, "traced", 1)
            produced = collector.wait_for("gateway.request", "Produce")
            produce(cluster.direct_bootstrap, "traced", 1)
            direct = collector.wait_for("node.handle", "Produce", root=True)
            words = ["topic", "set-replication-factor", "traced", "2", "--yes", "--wait", "60"]
            assert run([*words, "--gateway", cluster.gateway]) == 0
            step = collector.wait_for("controller.operation_step")

        service, request = produced
        assert service == "penstock-gateway"
        assert not request.parent_span_id
        assert values(request)["penstock.request_bytes"]
        ((_, relay),) = collector.below(request)
        assert relay.name == "relay"
        check_within(request, relay)
        ((service, handled),) = collector.below(relay)
        assert (service, handled.name) == ("penstock-storage-node", "node.handle")
        assert values(handled)["penstock.api"] == "Produce"
        check_begins_within(relay, handled)
        parts = {span.name: span for _, span in collector.below(handled)}
        assert set(parts) == {"append", "flush", "replicate", "answer"}
        for part in parts.values():
            check_within(handled, part)
        assert parts["append"].end_time_unix_nano == parts["flush"].start_time_unix_nano
        assert parts["flush"].end_time_unix_nano == parts["replicate"].start_time_unix_nano
        assert parts["flush"].end_time_unix_nano > parts["flush"].start_time_unix_nano

        assert {span.name for _, span in collector.below(direct[1])} == {"append", "flush", "replicate"}
        assert step[0] == "penstock-controller"
        assert values(step[1])["penstock.operation_kind"] == "set-replication-factor"
        assert collector.named("controller.command")


def test_a_collector_that_is_gone_holds_nobody_up(
    tmp_path: Path,
) -> None:
    with collecting() as collector:
        url = collector.url
    # Nobody listens there any more.
    settings = {GATEWAY: {"otel_sample_ratio": "1", "otel_endpoint": url}}
    with running_cluster(tmp_path / "cluster", controllers=1, settings=settings) as cluster:
        create_topic(cluster.bootstrap, "traced", 1, 3)
        produce(cluster.bootstrap, "traced", 100)
        log = cluster.log_file("gateway-1")
        wait_for(lambda: "traces are not sent" in log.read_text(), "the log tells of it", WAIT_S)
        produce(cluster.bootstrap, "traced", 100)
    # Nor does it hold up the end of who has some left to send.
    lines = log.read_text().splitlines()
    assert not [line for line in lines if "closing failed" in line]
    assert "stopped" in lines[-1]
