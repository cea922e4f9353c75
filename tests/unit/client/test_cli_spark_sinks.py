"""`penstock spark sink`: what a gateway tells of sinks, as a table and as JSON, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest

from penstock.cli.main import run
from penstock_proto.v1 import common_pb2, gateway_pb2, gateway_pb2_grpc, sinks_pb2

UNIT = sinks_pb2.SinkUnit(sink="copy", query="q-1", epoch=7)
STAGE = sinks_pb2.OpenStage(
    triple=sinks_pb2.StageTriple(transactional_id="copy-0-0-3", producer_id=77, producer_epoch=2),
    unit=sinks_pb2.SinkUnit(sink="copy", query="q-1", epoch=8),
    started_at_ms=-1,
)
COPY = sinks_pb2.SinkState(
    sink="copy",
    last=UNIT,
    decided_at_ms=1_700_000_000_000,
    ending_stages=1,
    rows=[
        sinks_pb2.UnitRows(topic="t", partition=0, rows=20),
        sinks_pb2.UnitRows(topic="t", partition=2, rows=3),
    ],
    open=[STAGE],
)
NEW = sinks_pb2.SinkState(sink="new")


Servicer: Any = gateway_pb2_grpc.GatewayServicer
"""The calls that a gateway of a test lacks are answered as not known."""


class Sinks(Servicer):  # type: ignore[misc]
    """A gateway that knows two sinks."""

    def __init__(self) -> None:
        self.errors: list[common_pb2.Error] = []

    def Describe(self, request: Any, context: Any) -> Any:  # noqa: N802
        return gateway_pb2.DescribeResponse(cluster_id=b"c" * 16)

    def DescribeSink(self, request: Any, context: Any) -> Any:  # noqa: N802
        if self.errors:
            return sinks_pb2.DescribeSinkResponse(error=self.errors.pop(0))
        return sinks_pb2.DescribeSinkResponse(sink=COPY if request.sink == "copy" else None)

    def ListSinks(self, request: Any, context: Any) -> Any:  # noqa: N802
        return sinks_pb2.ListSinksResponse(sinks=[NEW, COPY])


class Old(Servicer):  # type: ignore[misc]
    """A gateway of a build that knows none of it."""

    def Describe(self, request: Any, context: Any) -> Any:  # noqa: N802
        return gateway_pb2.DescribeResponse(cluster_id=b"c" * 16)


def serve(servicer: Any) -> Iterator[tuple[Any, str]]:
    server = grpc.server(futures.ThreadPoolExecutor(4))
    gateway_pb2_grpc.add_GatewayServicer_to_server(servicer, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield servicer, address
    server.stop(None)


@pytest.fixture
def gateway() -> Iterator[tuple[Any, str]]:
    yield from serve(Sinks())


def test_all_sinks(gateway: tuple[Any, str], capsys: pytest.CaptureFixture[str]) -> None:
    _, address = gateway
    assert run(["spark", "sink", "list", "--gateway", address]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["copy", "q-1", "7", "ending", "1"] in lines
    assert ["new", "-", "-", "open", "0"] in lines
    assert run(["spark", "sink", "list", "--gateway", address, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["sinks"]
    assert {(each["sink"], each["query_id"], each["epoch"], each["state"]) for each in found} == {
        ("copy", "q-1", 7, "ending"), ("new", None, None, "open"),
    }  # fmt: skip


def test_one_sink(gateway: tuple[Any, str], capsys: pytest.CaptureFixture[str]) -> None:
    sinks, address = gateway
    sinks.errors.append(common_pb2.Error(code=16, message="it has moved"))
    assert run(["spark", "sink", "describe", "copy", "--gateway", address, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "sink": "copy",
        "query_id": "q-1",
        "epoch": 7,
        "state": "ending",
        "decided_at_ms": 1_700_000_000_000,
        "once": False,
        "rows": [{"topic": "t", "partition": 0, "rows": 20}, {"topic": "t", "partition": 2, "rows": 3}],
        "open": [
            {
                "transactional_id": "copy-0-0-3",
                "producer_id": 77,
                "producer_epoch": 2,
                "query_id": "q-1",
                "epoch": 8,
                "started_at_ms": None,
            }
        ],
    }
    assert run(["spark", "sink", "describe", "copy", "--gateway", address]) == 0
    shown = capsys.readouterr().out
    for word in ("q-1", "ending", "2023-11-14 22:13:20Z", "23", "copy-0-0-3", "77, epoch 2"):
        assert word in shown


def test_what_is_refused_is_one_line(gateway: tuple[Any, str], capsys: pytest.CaptureFixture[str]) -> None:
    sinks, address = gateway
    assert run(["spark", "sink", "describe", "absent", "--gateway", address]) == 1
    assert "no sink 'absent' has decided anything" in capsys.readouterr().err
    sinks.errors.append(common_pb2.Error(code=53, message="User:bob may not describe it"))
    assert run(["spark", "sink", "describe", "copy", "--gateway", address]) == 1
    assert "sink 'copy': User:bob may not describe it" in capsys.readouterr().err
    for _, old in serve(Old()):
        assert run(["spark", "sink", "list", "--gateway", old]) == 1
        error = capsys.readouterr().err
        assert f"gateway {old} is of an older build" in error
        assert error.count("\n") == 1
