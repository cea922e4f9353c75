"""gRPC between roles with certificates: who is let in, what is said of it, and new files while calls are open."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import select
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
import structlog

import penstock_proto.v1
from penstock_core.metadata.security import RefusedCertificate
from penstock_core.security.audit import Event
from penstock_proto.v1 import (
    admin_pb2,
    common_pb2,
    controller_pb2,
    controller_pb2_grpc,
    gateway_pb2,
    storage_pb2,
)
from penstock_runtime import grpc_tools
from penstock_runtime.audit import Audit
from penstock_runtime.grpc_server import serve
from penstock_runtime.grpc_tools import ChannelPool
from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.security.callers import caller, gateway_fault, node_fault
from penstock_runtime.security.diagnosis import find_fault
from penstock_runtime.security.methods import CLIENT_SERVICES, METHOD_ROLES
from penstock_runtime.security.role_guard import RoleGuard
from penstock_runtime.security.tls_files import TlsFiles
from security.http2 import DATA, END_STREAM, Caller, call_headers, http2_frame
from support.certificates import DOMAIN, ClusterCa

PATIENCE_S = 30


@pytest.fixture(scope="module")
def ca() -> ClusterCa:
    return ClusterCa()


def files_of(ca: ClusterCa, directory: Path, role: str, name: str = "*") -> TlsFiles:
    return ca.files(directory, role, name)


class Echo(controller_pb2_grpc.ControllerServicer):
    """Says who called, by each kind of method."""

    on_watch: Callable[[], None] | None = None

    async def RegisterNode(self, request: Any, context: Any) -> Any:  # noqa: N802
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, node_fault(request.node_id))

    async def CreateTopics(self, request: Any, context: Any) -> Any:  # noqa: N802
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "what is no refusal")

    async def DescribeQuorum(self, request: Any, context: Any) -> Any:  # noqa: N802
        return controller_pb2.DescribeQuorumResponse(active_address=str(caller()))

    async def NodeSession(self, requests: Any, context: Any) -> Any:  # noqa: N802
        async for beat in requests:
            yield controller_pb2.NodeHeartbeatReply(
                error=common_pb2.Error(message=f"{caller()}|{node_fault(beat.node_id)}"),
                metadata_version=beat.node_id,
            )

    async def WatchMetadata(self, request: Any, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        if self.on_watch is not None:
            asyncio.get_running_loop().call_soon(self.on_watch)
        await context.write(controller_pb2.WatchMetadataResponse())
        if self.on_watch is not None:
            await asyncio.Event().wait()


Port = Callable[..., Any]


@pytest_asyncio.fixture
async def port() -> AsyncIterator[Port]:
    async with contextlib.AsyncExitStack() as stack:

        async def start(tls: TlsFiles | None, echo: Echo | None = None) -> str:
            server, endpoint = await serve(
                "127.0.0.1:0",
                lambda s: controller_pb2_grpc.add_ControllerServicer_to_server(
                    echo or Echo(),  # type: ignore[abstract]
                    s,
                ),
                allow_insecure_bind=False,
                tls=tls,
            )
            stack.push_async_callback(server.stop, None)
            return endpoint.address

        yield start


@contextlib.asynccontextmanager
async def stub(address: str, tls: TlsFiles | None, role: str = "controller") -> AsyncIterator[Any]:
    pool = ChannelPool(tls=tls)
    stub: Any = controller_pb2_grpc.ControllerStub(pool.get(address, role))
    try:
        yield stub
    finally:
        await pool.close()


async def describe(to: Any) -> Any:
    return await to.DescribeQuorum(controller_pb2.DescribeQuorumRequest(), timeout=PATIENCE_S)


def test_every_method_has_a_row_and_every_row_a_method() -> None:
    found = set()
    for module in (controller_pb2, storage_pb2, gateway_pb2, admin_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            if service.full_name not in CLIENT_SERVICES:
                found |= {f"/{service.full_name}/{method.name}" for method in service.methods}
    assert found == METHOD_ROLES.keys()
    with_services = {
        p.stem
        for p in Path(penstock_proto.v1.__path__[0]).glob("*_pb2_grpc.py")
        if "def add_" in p.read_text()
    }
    assert with_services == {
        "controller_pb2_grpc",
        "storage_pb2_grpc",
        "gateway_pb2_grpc",
        "admin_pb2_grpc",
    }


async def test_the_handler_knows_who_calls(port: Port, tmp_path: Path, ca: ClusterCa) -> None:
    address = await port(files_of(ca, tmp_path / "c", "controller", "1"))
    async with stub(address, files_of(ca, tmp_path / "n", "storage-node", "node-7")) as node:
        assert (await describe(node)).active_address == f"spiffe://{DOMAIN}/storage-node/node-7"
        session = node.NodeSession()
        await session.write(controller_pb2.NodeHeartbeat(node_id=7))
        assert (await session.read()).error.message == f"spiffe://{DOMAIN}/storage-node/node-7|"
        await session.write(controller_pb2.NodeHeartbeat(node_id=8))
        assert "not of node 8; issue one with the name node-8" in (await session.read()).error.message
        await session.done_writing()
        watch = node.WatchMetadata(controller_pb2.WatchMetadataRequest())
        assert len([event async for event in watch]) == 1


async def refusal(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def test_what_is_not_for_its_role_is_refused_by_name(port: Port, tmp_path: Path, ca: ClusterCa) -> None:
    address = await port(files_of(ca, tmp_path / "c", "controller", "1"))
    async with stub(address, files_of(ca, tmp_path / "g", "gateway")) as gateway:
        await describe(gateway)
        error = await refusal(gateway.NodeSession().read())
        assert error.code() is grpc.StatusCode.PERMISSION_DENIED
        assert error.details() == (
            f"NodeSession is for storage-node, and this is spiffe://{DOMAIN}/gateway/*"
        )
        error = await refusal(gateway.ReplaceController(controller_pb2.ReplaceControllerRequest()))
        assert error.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_refusals_reach_the_audit_log(port: Port, tmp_path: Path, ca: ClusterCa) -> None:
    life = Lifecycle("controller")
    life.make_current()
    audit = Told()
    life.shared["penstock_audit"] = audit
    address = await port(files_of(ca, tmp_path / "c", "controller", "1"))
    async with stub(address, files_of(ca, tmp_path / "n", "storage-node", "node-7")) as node:
        await refusal(node.RegisterGateway(controller_pb2.RegisterGatewayRequest()))
        await refusal(node.RegisterNode(controller_pb2.RegisterNodeRequest(node_id=8)))
        await refusal(node.CreateTopics(controller_pb2.CreateTopicsRequest()))
    first, second = audit.events
    assert (first["event"], first["api"]) == ("refused", "RegisterGateway")
    assert first["principal"] == second["principal"] == f"spiffe://{DOMAIN}/storage-node/node-7"
    assert str(first["reason"]).startswith("RegisterGateway is for gateway")
    assert (second["api"], "not of node 8" in str(second["reason"])) == ("RegisterNode", True)


class Told(Audit):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []

    def tell(self, event: Event, more: object = None) -> None:
        self.events.append(event)


async def test_a_method_without_a_row_is_for_nobody(tmp_path: Path) -> None:
    guard = RoleGuard("a.test")
    for names in ([], [b"spiffe://a.test/admin/x", b"spiffe://a.test/admin/y"], [b"spiffe://a.test/king/x"]):
        assert "names no role" in guard.refusal("/any", {"peer_spiffe_id": names})[1]
    admin = {"peer_spiffe_id": [b"spiffe://a.test/admin/x"]}
    assert "New is for nobody" in guard.refusal("/penstock.v1.Controller/New", admin)[1]
    assert guard.refusal("/penstock.v1.Controller/DescribeQuorum", admin)[1] == ""
    other = {"peer_spiffe_id": [b"spiffe://b.test/admin/x"]}
    assert "of another cluster" in guard.refusal("/penstock.v1.Controller/DescribeQuorum", other)[1]


def resumed(certificate: bytes, session_reused: bytes = b"true") -> dict[str, list[bytes]]:
    return {
        "peer_spiffe_id": [b"spiffe://a.test/admin/x"],
        "x509_pem_cert": [certificate],
        "ssl_session_reused": [session_reused],
    }


def test_who_resumes_a_session_after_the_end_of_the_certificate_is_refused(
    tmp_path: Path, ca: ClusterCa
) -> None:
    """OpenSSL remembers sessions of TLS 1.2 by their id, and does not look at the certificate again."""
    table = ca.issue(tmp_path, "admin", "x", good_for=datetime.timedelta(days=1))
    certificate = Path(table["cert"]).read_bytes()
    now_s = time.time()
    guard = RoleGuard("a.test", wall_s=lambda: now_s)
    method = "/penstock.v1.Controller/DescribeQuorum"
    assert guard.refusal(method, resumed(certificate))[1] == ""
    now_s += 86_500
    assert "its certificate has ended" in guard.refusal(method, resumed(certificate))[1]
    # Connections that began with the certificate itself stay.
    assert guard.refusal(method, resumed(certificate, b"false"))[1] == ""
    assert "its certificate has ended" in guard.refusal(method, resumed(b"what cannot be read"))[1]


async def test_nobody_resumes_a_session_at_a_port_of_a_role(
    tmp_path: Path, ca: ClusterCa, port: Port
) -> None:
    address = await port(files_of(ca, tmp_path / "controller", "controller", "1"))
    table = ca.issue(tmp_path / "node", "storage-node", "node-7")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(table["ca"])
    context.load_cert_chain(table["cert"], table["key"])
    context.set_alpn_protocols(["h2"])
    said: list[list[bytes]] = []
    refusal = RoleGuard.refusal

    def looks(self: RoleGuard, method: str, properties: Any) -> Any:
        said.append(list(properties["ssl_session_reused"]))
        return refusal(self, method, properties)

    def call(session: ssl.SSLSession | None) -> ssl.SSLSession | None:
        with (
            socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), PATIENCE_S) as raw,
            context.wrap_socket(raw, session=session) as made,
        ):
            caller = Caller(made)
            block = call_headers("/penstock.v1.Controller/DescribeQuorum", tls=True)
            caller.begin(block, 1)
            made.sendall(http2_frame(DATA, END_STREAM, 1, bytes(5)))
            while caller.left:
                assert select.select([made], [], [], PATIENCE_S)[0], "the call is not ended"
                caller.look()
            assert caller.is_open
            return made.session

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RoleGuard, "refusal", looks)
        session = await asyncio.to_thread(call, None)
        await asyncio.to_thread(call, session)
    assert len(said) >= 2
    assert all(each == [b"false"] for each in said)


async def test_without_a_certificate_nobody_is_asked(port: Port) -> None:
    address = await port(None)
    async with stub(address, None) as anybody:
        assert (await describe(anybody)).active_address == "None"
    assert (node_fault(7), gateway_fault("g")) == ("", "")


@pytest.mark.parametrize(
    ("server", "client", "said"),
    [
        (
            lambda ca, d: None,
            lambda ca, d: files_of(ca, d, "gateway"),
            "it speaks no TLS; give it a certificate by [tls]",
        ),
        (
            lambda ca, d: files_of(ca, d, "controller", "1"),
            lambda ca, d: files_of(ClusterCa(), d, "gateway"),
            "its certificate is refused",
        ),
        (
            lambda ca, d: files_of(ca, d, "storage-node", "1"),
            lambda ca, d: files_of(ca, d, "gateway"),
            f"its certificate is that of spiffe://{DOMAIN}/storage-node/1, not of a controller of {DOMAIN}",
        ),
    ],
    ids=["plain", "another CA", "another role"],
)
async def test_the_caller_says_why_there_is_no_connection(
    port: Port, tmp_path: Path, ca: ClusterCa, server: Any, client: Any, said: str
) -> None:
    address = await port(server(ca, tmp_path / "s"))
    with structlog.testing.capture_logs() as lines:
        async with stub(address, client(ca, tmp_path / "c")) as caller:
            error = await refusal(describe(caller))
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            async with asyncio.timeout(PATIENCE_S):
                while not any(said in line["event"] for line in lines):  # noqa: ASYNC110 - a log line
                    await asyncio.sleep(0.05)
    assert any(f"no TLS connection with the controller at {address}: " in line["event"] for line in lines)


async def test_a_certificate_that_has_run_out_is_named_as_such(
    port: Port, tmp_path: Path, ca: ClusterCa
) -> None:
    address = await port(files_of(ca, tmp_path / "s", "controller", "1"))
    client = files_of(ca, tmp_path / "c", "gateway")
    # As if it had run out since it was loaded.
    ca.issue(tmp_path / "c", "gateway", "*", good_for=-datetime.timedelta(minutes=1))
    fault = await asyncio.to_thread(find_fault, address, client, "controller")
    assert fault.startswith("it refuses this process's certificate; look whether tls.cert here has run out")
    good = files_of(ca, tmp_path / "g", "gateway")
    assert await asyncio.to_thread(find_fault, address, good, "controller") == ""
    assert await asyncio.to_thread(find_fault, "127.0.0.1:1", good, "controller") == ""


async def test_new_files_serve_new_calls_and_leave_open_ones_alone(
    port: Port, tmp_path: Path, ca: ClusterCa, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_tools, "TLS_IDLE_S", 1.0)
    here, there = tmp_path / "s", tmp_path / "c"
    server = files_of(ca, here, "controller", "1")
    client = files_of(ca, there, "storage-node")
    address = await port(server)
    pool = ChannelPool(tls=client)
    first = pool.get(address, "controller")
    node: Any = controller_pb2_grpc.ControllerStub(first)
    session = node.NodeSession()
    await session.write(controller_pb2.NodeHeartbeat(node_id=1))
    assert (await session.read()).metadata_version == 1
    # Both CAs are known while one follows the other; then only the new one is.
    after = ClusterCa()
    both = ca.pem + after.pem
    for directory, files in ((here, server), (there, client)):
        (directory / "ca.pem").write_bytes(both)
        assert files.reload()
    after.issue(here, "controller", "1")
    after.issue(there, "storage-node", "*")
    assert server.reload()
    assert client.reload()
    second = pool.get(address, "controller")
    assert second is not first
    assert second is pool.get(address, "controller")
    # The old CA is gone: this is a handshake with the new certificates.
    newer: Any = controller_pb2_grpc.ControllerStub(second)
    await describe(newer)
    await session.write(controller_pb2.NodeHeartbeat(node_id=2))
    assert (await session.read()).metadata_version == 2
    await asyncio.sleep(2.5)  # longer than an idle channel lives: the stream keeps it
    assert pool.old_count == 1
    await session.write(controller_pb2.NodeHeartbeat(node_id=3))
    assert (await session.read()).metadata_version == 3
    await session.done_writing()
    assert await session.read() is grpc.aio.EOF  # type: ignore[attr-defined]
    async with asyncio.timeout(PATIENCE_S):
        while pool.old_count:  # noqa: ASYNC110 - a channel tells nobody that it is idle
            await asyncio.sleep(0.1)
    await describe(newer)
    await pool.close()


async def test_a_refused_certificate_opens_nothing_and_ends_what_it_opened(
    ca: ClusterCa, tmp_path: Path, port: Port
) -> None:
    server_files = files_of(ca, tmp_path / "controller", "controller", "1")
    address = await port(server_files)
    stolen, good = files_of(ca, tmp_path / "a", "storage-node"), files_of(ca, tmp_path / "b", "storage-node")
    pools = [ChannelPool(tls=files) for files in (stolen, good)]
    try:
        stubs: list[Any] = [
            controller_pb2_grpc.ControllerStub(pool.get(address, "controller")) for pool in pools
        ]
        sessions = [stub.NodeSession() for stub in stubs]
        for session in sessions:
            await session.write(controller_pb2.NodeHeartbeat(node_id=1))
            assert (await session.read()).metadata_version == 1
        server_files.refused.take({stolen.own_serial: RefusedCertificate("laptop was lost", 0)})
        for call in (sessions[0].read(), stubs[0].DescribeQuorum(controller_pb2.DescribeQuorumRequest())):
            with pytest.raises(grpc.aio.AioRpcError, match="laptop was lost") as caught:
                await asyncio.wait_for(call, PATIENCE_S)
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        await sessions[1].write(controller_pb2.NodeHeartbeat(node_id=2))
        assert (await sessions[1].read()).metadata_version == 2
        sessions[1].cancel()
        server_files.refused.take({})
        assert await stubs[0].DescribeQuorum(controller_pb2.DescribeQuorumRequest())
    finally:
        for pool in pools:
            await pool.close()


async def test_a_stream_ends_that_is_refused_while_its_first_answer_is_on_its_way(
    ca: ClusterCa, tmp_path: Path, port: Port
) -> None:
    """gRPC sent the head a second time with the status then, which fails: the caller waited for ever."""
    server_files = files_of(ca, tmp_path / "controller", "controller", "1")
    stolen = files_of(ca, tmp_path / "a", "storage-node")
    echo = Echo()  # type: ignore[abstract]
    echo.on_watch = lambda: server_files.refused.take(
        {stolen.own_serial: RefusedCertificate("laptop was lost", 0)}
    )
    address = await port(server_files, echo)
    async with stub(address, stolen) as calls, asyncio.timeout(PATIENCE_S):
        with pytest.raises(grpc.aio.AioRpcError, match="laptop was lost") as caught:
            async for _ in calls.WatchMetadata(controller_pb2.WatchMetadataRequest()):
                pass
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
