"""`penstock produce --receipt`: which gateway is asked, and what is said when it is none, or is lost.

The gateway here is a gRPC server with the native API's own stubs; the command is a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock import receipts
from penstock.cli import gateways
from penstock.errors import CommandError, ExitCode
from penstock.local.cluster import LocalCluster
from penstock_kafka.wire.metadata import cluster_id_text
from penstock_proto.v1 import gateway_pb2, gateway_pb2_grpc
from support.partial_gateway import PartialGateway

CLUSTER_ID = bytes(range(16))
PROCESS_TIMEOUT_S = 120.0


class Gateway(PartialGateway):
    """Acknowledges every batch; or, as `lost`, ends the stream with the first one; or, as `mute`, goes silent."""

    def __init__(self, *, lost: bool = False, mute: bool = False) -> None:
        self._lost = lost
        self._mute = mute
        self.batches = 0

    def Describe(self, request: Any, context: Any) -> Any:  # noqa: N802 - the API's names
        return gateway_pb2.DescribeResponse(cluster_id=CLUSTER_ID)

    def Produce(self, request_iterator: Iterator[Any], context: Any) -> Iterator[Any]:  # noqa: N802
        for request in request_iterator:
            if self._lost:
                context.abort(grpc.StatusCode.UNAVAILABLE, "gone\nfor good")
            if self._mute:
                ended = threading.Event()
                context.add_callback(ended.set)
                ended.wait()
            answer = gateway_pb2.ProduceResponse(request_id=request.request_id, base_offset=self.batches)
            answer.receipt.held_by.extend([1, 2])
            answer.receipt.flushed_by.extend([1])
            self.batches += 1
            yield answer

    def ListOffsets(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError

    def Authenticate(self, request_iterator: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError

    def FetchRange(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError


@contextmanager
def serving(gateway: Gateway, port: int = 0) -> Iterator[str]:
    server = grpc.server(futures.ThreadPoolExecutor(4))
    gateway_pb2_grpc.add_GatewayServicer_to_server(gateway, server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield f"127.0.0.1:{bound}"
    finally:
        server.stop(None).wait()


def produce(directory: Path, *words: str, stdin: Any = subprocess.PIPE) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.main", "produce", "t", "--receipt", *words],
        cwd=directory,
        env=environment,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_lines_get_receipts(tmp_path: Path) -> None:
    with serving(Gateway()) as address, produce(tmp_path, "--json", "--gateway", address) as command:
        out, error = command.communicate("one\ntwo\n", PROCESS_TIMEOUT_S)
    assert (command.returncode, error) == (ExitCode.OK, "")
    receipt = json.loads(out)
    assert (receipt["base_offset"], receipt["records"], receipt["held_by"]) == (0, 2, [1, 2])


def test_a_gateway_that_is_lost_ends_the_command_though_lines_are_still_to_come(tmp_path: Path) -> None:
    """The thread that reads them is in the middle of a read then, and must not be waited for."""
    with serving(Gateway(lost=True)) as address, produce(tmp_path, "--gateway", address) as command:
        assert command.stdin is not None
        assert command.stdout is not None
        assert command.stderr is not None
        command.stdin.write("line\n" * 500)  # a whole batch
        command.stdin.flush()
        assert command.wait(PROCESS_TIMEOUT_S) == ExitCode.UNREACHABLE
        error = command.stderr.read()
        assert command.stdout.read() == ""
    assert error.count("\n") == 1, error
    assert address in error
    assert "gone for good" in error
    assert "may be written or not" in error
    assert "is --gateway right?" in error


def test_a_gateway_that_falls_silent_is_given_up_after_the_timeout(tmp_path: Path) -> None:
    with (
        serving(Gateway(mute=True)) as address,
        produce(tmp_path, "--gateway", address, "--timeout", "1") as command,
    ):
        _, error = command.communicate("line\n", PROCESS_TIMEOUT_S)
    assert command.returncode == ExitCode.UNREACHABLE
    assert error.count("\n") == 1, error
    assert f"gateway {address} acknowledged nothing for " in error
    assert "may be written or not" in error


def test_patience_ends_with_the_last_receipt_that_is_too_old_and_only_while_batches_are_out() -> None:
    patience = receipts.Patience(10)
    assert not patience.is_over(1_000)  # a slow source: nothing was sent yet
    patience.sent(1_000)
    patience.sent(1_009)
    assert not patience.is_over(1_010)
    assert patience.is_over(1_010.1)
    patience.answered()
    assert not patience.is_over(5_000)  # whoever takes the receipts is slow
    patience.resumed(1_011)
    assert not patience.is_over(1_021)
    assert patience.is_over(1_021.1)
    patience.answered()
    patience.resumed(1_021)
    assert not patience.is_over(9_000)
    patience.sent(9_000)
    assert not patience.is_over(9_010)
    assert patience.is_over(9_010.1)


def test_a_bad_line_is_told_and_not_taken_for_a_lost_gateway(tmp_path: Path) -> None:
    with serving(Gateway()) as address, produce(tmp_path, "-K", "|", "--gateway", address) as command:
        _, error = command.communicate("a|b\nno separator\n", PROCESS_TIMEOUT_S)
    assert command.returncode == ExitCode.FAILED
    assert "line 2 has no separator '|'" in error
    assert error.count("\n") == 1


def test_the_next_gateway_is_asked_when_the_first_is_dead(tmp_path: Path) -> None:
    gateway = Gateway()
    with serving(gateway) as address:
        with serving(Gateway()) as dead:
            pass
        with produce(tmp_path, "--gateway", f"{dead},{address}") as command:
            _, error = command.communicate("one\n", PROCESS_TIMEOUT_S)
    assert (command.returncode, error) == (ExitCode.OK, "")
    assert gateway.batches == 1


def test_the_gateway_of_the_running_local_cluster_is_found(fake_cluster: LocalCluster) -> None:
    gateway = Gateway()
    with (
        serving(gateway, fake_cluster.state.member("gateway-1").ports["grpc"]),
        produce(fake_cluster.directory.parent, "--dir", str(fake_cluster.directory)) as command,
    ):
        _, error = command.communicate("one\n", PROCESS_TIMEOUT_S)
    assert (command.returncode, error) == (ExitCode.OK, "")
    assert gateway.batches == 1


def test_a_local_cluster_whose_gateways_are_dead_is_not_asked_but_named(
    fake_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_cluster.kill("gateway-1")
    with serving(Gateway(), fake_cluster.state.member("gateway-1").ports["grpc"]):
        with serving(Gateway()) as other:
            monkeypatch.setattr(gateways, "GATEWAY_DEFAULT", other)
            assert gateways.find_gateway(None, None, fake_cluster.directory) == other
        with pytest.raises(CommandError) as told:
            gateways.find_gateway(None, None, fake_cluster.directory)
    assert (
        f"no gateway of the cluster in {fake_cluster.directory} runs: `penstock local" in told.value.message
    )
    assert f"{other}: connection refused" in told.value.message
    assert told.value.exit_code == ExitCode.UNREACHABLE


def test_the_clusters_id_is_compared_as_kafka_clients_are_told_it() -> None:
    with serving(Gateway()) as address:
        assert gateways.cluster_id_at(address) == cluster_id_text(CLUSTER_ID)


def test_a_balancer_that_chose_a_gateway_which_has_just_gone_is_asked_again() -> None:
    class JustGone(Gateway):
        asked = 0

        def Describe(self, request: Any, context: Any) -> Any:  # noqa: N802 - the API's names
            self.asked += 1
            if self.asked < 3:
                context.abort(grpc.StatusCode.UNAVAILABLE, "no server is there")
            return super().Describe(request, context)

    with serving(JustGone()) as address:
        assert gateways.cluster_id_at(address) == cluster_id_text(CLUSTER_ID)
