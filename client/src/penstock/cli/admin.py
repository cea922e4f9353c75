"""Plans and operations, asked of a gateway by gRPC (proto/penstock/v1/admin.proto); errors in plain words.

A gateway that is lost is left for another one of the same cluster: what only looks is asked again there. What changes
something is asked once, because it may have been done though no answer came.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from penstock.cli.client_files import client_file_of, own_connector
from penstock.cli.gateways import find_gateway
from penstock.cli.kafka import bootstrap_option, connector_of
from penstock.cli.local_gateways import directory_of
from penstock.connector import PLAINTEXT, Connector
from penstock.errors import CommandError, ExitCode
from penstock.native import NativeGateway, open_gateway
from penstock.text import harmless

if TYPE_CHECKING:
    from penstock_proto.v1 import gateway_pb2, operations_pb2

Command = TypeVar("Command", bound=Callable[..., Any])

LOOK_TIMEOUT_S: Final = 15.0
CHANGE_TIMEOUT_S: Final = 20.0
PLAN_TIMEOUT_S: Final = 40.0
DELETE_TIMEOUT_S: Final = 65.0
"""Each longer than the gateway's own, so that it can say what is wrong."""
_NEEDED: Final = ("grpc", "penstock_core.operation_documents", "penstock_proto.v1.operations_pb2")

_gateway_alone = click.option(
    "--gateway",
    envvar="PENSTOCK_GATEWAY",
    metavar="HOST:PORT[,...]",
    help="gRPC address of one or more gateways. Also PENSTOCK_GATEWAY. By default one of the cluster at "
    "--bootstrap if that is given, else of the local cluster in --dir, else 127.0.0.1:9094.",
)


def gateway_option(command: Command) -> Command:
    """`--gateway`, and the options that stand in for it."""
    return bootstrap_option(_gateway_alone(command))


class Lost(CommandError):
    """No answer came: the gateway is gone, or has no active controller."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ExitCode.UNREACHABLE)


class UnknownThere(CommandError):
    """The gateway, or the controllers, are of a build that does not know what is asked."""


@dataclass(frozen=True)
class Where:
    """Which gateways are asked, and how a command comes in there."""

    gateways: str | None
    bootstrap: str | None
    directory: Path
    connector: Connector

    @classmethod
    def of(cls, ctx: click.Context, gateway: str | None, bootstrap: str) -> Where:
        """As the options of this command say."""
        chosen = client_file_of(ctx)
        file = chosen.connector.file if chosen is not None else None
        directory = directory_of(ctx)
        if chosen is not None:
            connector = chosen.connector
        elif gateway:
            connector = own_connector(directory, gateway) or PLAINTEXT
        else:
            connector = connector_of(bootstrap)
        named = ctx.get_parameter_source("bootstrap") is not ParameterSource.DEFAULT
        by_file = file is not None and bool(file.bootstrap)
        return cls(gateway, bootstrap if named or by_file else None, directory, connector)

    def find(self) -> str:
        """Address of a gateway that answers. Raises UNREACHABLE."""
        return find_gateway(self.gateways, self.bootstrap, self.directory, self.connector)


class Admin:
    """The service at whichever of some gateways answers. To be closed (`with`)."""

    def __init__(self, find: Callable[[], str], connector: Connector = PLAINTEXT) -> None:
        """`find`: address of a gateway that answers; may raise CommandError."""
        self._find = find
        self._connector = connector
        self._open = ExitStack()
        self._gateway: NativeGateway | None = None
        self.address = ""

    @classmethod
    def at(cls, where: Where) -> Admin:
        """Of those gateways."""
        return cls(where.find, where.connector)

    def __enter__(self) -> Admin:
        """Raises CommandError where what it takes is not installed."""
        try:
            for name in _NEEDED:
                import_module(name)
        except ImportError as error:
            raise CommandError(
                f"a gateway is asked by gRPC ({error.name} is not installed): pip install 'penstock[native]'"
            ) from None
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the gateway."""
        self._gateway = None
        self._open.close()

    def gateway(self) -> NativeGateway:
        """The gateway that is asked. Raises CommandError where none answers."""
        if self._gateway is None:
            self.address = self._find()
            self._gateway = self._open.enter_context(open_gateway(self.address, self._connector))
        return self._gateway

    def plan(self, request: operations_pb2.PlanRequest) -> operations_pb2.Plan:
        """What an operation would do."""
        found: operations_pb2.Plan = self._look("Plan", request, PLAN_TIMEOUT_S).plan
        return found

    def start(self, request: operations_pb2.StartOperationRequest) -> operations_pb2.StartOperationResponse:
        """Begin it; without an operation where a gate refused the plan. Raises Lost where it may have begun or not."""
        found: operations_pb2.StartOperationResponse = self._call("StartOperation", request, PLAN_TIMEOUT_S)
        by_a_gate = any(gate.blocking for gate in found.plan.gates) and not found.HasField("operation")
        if not by_a_gate:
            _checked(found)
        return found

    def control(
        self, request: operations_pb2.ControlOperationRequest
    ) -> operations_pb2.ControlOperationResponse:
        """Pause, resume, cancel or throttle one. Raises Lost where that may have been done or not."""
        found: operations_pb2.ControlOperationResponse = _checked(
            self._call("ControlOperation", request, CHANGE_TIMEOUT_S)
        )
        return found

    def execute(
        self, request: operations_pb2.ExecuteOperationRequest
    ) -> operations_pb2.ExecuteOperationResponse:
        """What to restart now; its error says why nothing, where that is so. May be asked again."""
        found: operations_pb2.ExecuteOperationResponse
        try:
            found = self._call("ExecuteOperation", request, LOOK_TIMEOUT_S)
        except Lost:
            found = self._call("ExecuteOperation", request, LOOK_TIMEOUT_S)
        return found

    def operations(self, *, ended: bool) -> list[operations_pb2.Operation]:
        """Newest first."""
        from penstock_proto.v1 import operations_pb2

        request = operations_pb2.DescribeOperationsRequest(ended=ended)
        return list(self._look("DescribeOperations", request, LOOK_TIMEOUT_S).operations)

    def operation(self, operation_id: int) -> operations_pb2.Operation:
        """One of them. Raises CommandError where there is none."""
        from penstock_proto.v1 import operations_pb2

        request = operations_pb2.DescribeOperationsRequest(operation_id=operation_id, ended=True)
        found: list[operations_pb2.Operation] = list(
            self._look("DescribeOperations", request, LOOK_TIMEOUT_S).operations
        )
        if found:
            return found[0]
        raise CommandError(f"there is no operation {operation_id}; see `penstock operation list --all`")

    def nodes(self) -> list[operations_pb2.NodeCondition]:
        """Storage nodes."""
        from penstock_proto.v1 import operations_pb2

        request = operations_pb2.DescribeNodesRequest()
        return list(self._look("DescribeNodes", request, LOOK_TIMEOUT_S).nodes)

    def strays(self, node_id: int) -> list[operations_pb2.Stray]:
        """Logs that a storage node has set aside."""
        from penstock_proto.v1 import operations_pb2

        request = operations_pb2.DescribeStraysRequest(node_id=node_id)
        return list(self._look("DescribeStrays", request, LOOK_TIMEOUT_S).strays)

    def delete_stray(self, node_id: int, name: str) -> int:
        """Delete one of them; the bytes freed. Raises Lost where it may be gone or not."""
        from penstock_proto.v1 import operations_pb2

        request = operations_pb2.DeleteStrayRequest(node_id=node_id, name=name)
        return int(_checked(self._call("DeleteStray", request, DELETE_TIMEOUT_S)).freed_bytes)

    def explain(self, request: operations_pb2.ExplainRequest) -> operations_pb2.ExplainResponse:
        """What is now and how it came to that. Raises CommandError where there is no such thing."""
        found: operations_pb2.ExplainResponse = self._look("Explain", request, LOOK_TIMEOUT_S)
        return found

    def check(self) -> operations_pb2.CheckClusterResponse:
        """What is not as it should be."""
        from penstock_proto.v1 import operations_pb2

        request = operations_pb2.CheckClusterRequest()
        found: operations_pb2.CheckClusterResponse = self._look("CheckCluster", request, LOOK_TIMEOUT_S)
        return found

    def capacity(self) -> operations_pb2.DescribeCapacityResponse:
        """Room, growth and load of storage nodes."""
        from penstock_proto.v1 import operations_pb2

        request = operations_pb2.DescribeCapacityRequest()
        found: operations_pb2.DescribeCapacityResponse = self._look(
            "DescribeCapacity", request, LOOK_TIMEOUT_S
        )
        return found

    def cluster(self) -> gateway_pb2.DescribeResponse:
        """Nodes, and the topics that the user may describe."""
        from penstock_proto.v1 import gateway_pb2

        request = gateway_pb2.DescribeRequest(all_topics=True)
        found: gateway_pb2.DescribeResponse
        try:
            found = self._call("Describe", request, LOOK_TIMEOUT_S)
        except Lost:
            found = self._call("Describe", request, LOOK_TIMEOUT_S)
        return found

    def ask(self, method: str, request: Any, timeout_s: float) -> Any:
        """What the service answers, its error included; asked once. Raises CommandError where nobody can be asked."""
        return self._call(method, request, timeout_s)

    def problem(self, error: Any) -> CommandError:
        """What the end of a call means for people."""
        return self._problem(error)

    def _look(self, method: str, request: Any, timeout_s: float) -> Any:
        try:
            return _checked(self._call(method, request, timeout_s))
        except Lost:
            return _checked(self._call(method, request, timeout_s))

    def _call(self, method: str, request: Any, timeout_s: float) -> Any:
        gateway = self.gateway()
        import grpc

        shown: Any = ()
        for is_last in (False, True):
            try:
                shown = gateway.metadata()
                stub = gateway.stub if method == "Describe" else gateway.admin
                return getattr(stub, method)(request, timeout=timeout_s, metadata=shown)
            except grpc.RpcError as error:
                stale = error.code() is grpc.StatusCode.UNAUTHENTICATED and shown
                if is_last or not (stale and gateway.account and gateway.account.refused(shown)):
                    raise self._problem(error) from None
        raise AssertionError("the last try returns or raises")

    def _problem(self, error: Any) -> CommandError:
        """What a status means for people."""
        code, gateway = error.code().name, f"gateway {self.address}"
        details = harmless(" ".join((error.details() or code).split()))
        if code == "UNIMPLEMENTED":
            if not details.startswith("the controllers"):
                details = (
                    "its build is older than this command's and knows no operations; install a newer one"
                )
            return UnknownThere(f"{gateway}: {details}")
        if code in ("PERMISSION_DENIED", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "INTERNAL"):
            return CommandError(f"{gateway}: {details}")
        if code == "UNAUTHENTICATED":
            return CommandError(f"{gateway} does not take the user: {details}", ExitCode.UNREACHABLE)
        self.close()
        return Lost(f"{gateway} does not answer: {details}")


def _checked(response: Any) -> Any:
    """The response, unless it says that there is no such thing."""
    if response.error.code:
        raise CommandError(harmless(response.error.message) or f"Kafka's error {response.error.code}")
    return response
