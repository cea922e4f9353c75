"""gRPC servers and channels on both kinds of event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import grpc
import grpc.aio
import pytest

from penstock_core.addresses import is_loopback
from penstock_core.limits import GRPC_MESSAGE_BYTES_MAX
from penstock_proto.v1 import data_pb2, storage_pb2, storage_pb2_grpc
from penstock_runtime.addresses import StartupError, advertised_endpoint
from penstock_runtime.grpc_server import serve
from penstock_runtime.grpc_tools import ChannelPool, Probe, fail, probe
from penstock_runtime.http import HttpServer
from penstock_runtime.lifecycle import Lifecycle

Run = Callable[[Coroutine[Any, Any, Any]], Any]


class Storage(storage_pb2_grpc.StorageServicer):
    """Echoes relayed chunks."""

    async def Forward(self, requests: Any, context: Any) -> AsyncIterator[storage_pb2.ForwardResponse]:  # noqa: N802
        async for request in requests:
            yield storage_pb2.ForwardResponse(
                frames=[
                    storage_pb2.ForwardResponseFrame(request_id=f.request_id, chunk=f.chunk)
                    for f in request.frames
                ]
            )

    async def FetchRange(self, request: Any, context: Any) -> AsyncIterator[data_pb2.FetchRangeResponse]:  # noqa: N802
        await fail(context, grpc.StatusCode.NOT_FOUND, "no topic x; create it first")
        yield data_pb2.FetchRangeResponse()  # type: ignore[unreachable] # makes it a generator


def add(server: grpc.aio.Server) -> None:
    storage_pb2_grpc.add_StorageServicer_to_server(Storage(), server)  # type: ignore[abstract]


def test_streams_carry_messages_up_to_the_limit(run: Run) -> None:
    async def main() -> None:
        server, endpoint = await serve("127.0.0.1:0", add, allow_insecure_bind=False)
        channels = ChannelPool()
        stub: Any = storage_pb2_grpc.StorageStub(channels.get(endpoint.address, "storage-node"))
        assert channels.get(endpoint.address, "storage-node") is channels.get(
            endpoint.address, "storage-node"
        )
        assert channels.get(endpoint.address, "storage-node", "bulk") is not channels.get(
            endpoint.address, "storage-node"
        )
        call = stub.Forward()
        for size in (0, 1, 1 << 20, GRPC_MESSAGE_BYTES_MAX - 100):
            await call.write(
                storage_pb2.ForwardRequest(frames=[storage_pb2.ForwardFrame(request_id=5, chunk=bytes(size))])
            )
            assert len((await call.read()).frames[0].chunk) == size
        await call.done_writing()
        with pytest.raises(grpc.aio.AioRpcError) as e:
            async for _ in stub.FetchRange(data_pb2.FetchRangeRequest(topic="x")):
                pass
        assert (e.value.code(), e.value.details()) == (
            grpc.StatusCode.NOT_FOUND,
            "no topic x; create it first",
        )
        await channels.close()
        await server.stop(None)

    run(main())


def test_binding_refusals_name_the_thing_and_the_mend(run: Run) -> None:
    async def main() -> None:
        server, endpoint = await serve("localhost:0", add, allow_insecure_bind=False)
        for host in ("127.0.0.1", "localhost"):
            with pytest.raises(StartupError, match=f"grpc_bind = .*port {endpoint.port} is taken"):
                await serve(f"{host}:{endpoint.port}", add, allow_insecure_bind=False)
        await server.stop(None)
        for bind in ("0.0.0.0:0", "[::]:0", ":0", "192.0.2.1:0"):
            with pytest.raises(StartupError, match="allow_insecure_bind = true"):
                await serve(bind, add, allow_insecure_bind=False)
        with pytest.raises(StartupError, match="no address 192"):
            await serve("192.0.2.1:0", add, allow_insecure_bind=True)
        with pytest.raises(StartupError, match="does not resolve"):
            await serve("no.such.host.invalid:0", add, allow_insecure_bind=True)
        wide, endpoint = await serve("0.0.0.0:0", add, allow_insecure_bind=True)
        assert endpoint.port
        await wide.stop(None)

    run(main())


def test_a_channel_finds_a_restarted_server_soon(run: Run) -> None:
    """gRPC's own backoff would come to half a minute by the attempt with which this one ends."""
    attempts = 0

    def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        writer.close()

    async def main() -> None:
        nonlocal attempts
        attempts = 0
        server, endpoint = await serve("127.0.0.1:0", add, allow_insecure_bind=False)
        channels = ChannelPool()
        stub: Any = storage_pb2_grpc.StorageStub(channels.get(endpoint.address, "storage-node"))

        async def works() -> bool:
            call = stub.Forward()
            try:
                await call.write(storage_pb2.ForwardRequest(frames=[storage_pb2.ForwardFrame()]))
                return bool((await call.read()).frames)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                return False
            finally:
                call.cancel()

        assert await works()
        await server.stop(None)
        # Told at once, for nothing listens and nothing will.
        assert not await works()
        # Somebody answers now who is no gRPC server, so that the attempts can be counted.
        async with await asyncio.start_server(refuse, endpoint.host, endpoint.port):
            async with asyncio.timeout(30):
                while attempts < 8:
                    assert not await works()
                    await asyncio.sleep(0.005)
        server, _ = await serve(endpoint.address, add, allow_insecure_bind=False)
        async with asyncio.timeout(60):
            while not await works():  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        await channels.drop(endpoint.address)
        await channels.close()
        await server.stop(None)

    run(main())


def test_probe_tells_dead_from_silent(run: Run) -> None:
    async def main() -> None:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
            assert await probe("127.0.0.1", port, 60_000) is Probe.REFUSED
            s.listen()
            assert await probe("127.0.0.1", port, 60_000) is Probe.ALIVE
        assert await probe("no.such.host.invalid", 1, 500) is Probe.SILENT

    run(main())


def test_loopback_and_advertised() -> None:
    from penstock_core.metadata.image import Endpoint

    assert all(is_loopback(h) for h in ("localhost", "127.0.0.1", "127.9.9.9", "::1"))
    assert not any(is_loopback(h) for h in ("0.0.0.0", "", "10.0.0.1", "localhost.evil.org", "::"))
    bound = Endpoint("", "127.0.0.1", 5)
    assert advertised_endpoint("auto", bound, "A") == Endpoint("A", "127.0.0.1", 5)
    assert advertised_endpoint("h:0", bound) == Endpoint("", "h", 5)
    assert advertised_endpoint("auto", Endpoint("", "0.0.0.0", 5)).host == socket.gethostname()


def test_http_says_why_it_is_not_ready_and_hides_errors(run: Run) -> None:
    async def main() -> None:
        from aiohttp import ClientSession, web

        async def broken(_: web.Request) -> web.Response:
            raise ValueError("secret")

        life = Lifecycle("test")
        http = HttpServer("127.0.0.1:0", life, [web.get("/v1/broken", broken)])
        endpoint = await http.start()
        async with ClientSession(f"http://{endpoint.address}") as session:
            async with session.get("/readyz") as r:
                assert (r.status, await r.text()) == (503, "starting\n")
            life.set_ready()
            async with session.get("/readyz") as r:
                assert r.status == 200
            async with session.get("/v1/broken") as r:
                assert r.status == 500
                assert "secret" not in await r.text()
            async with session.get("/nothing") as r:
                assert r.status == 404
            async with session.get("/metrics") as r:
                text = await r.text()
                assert "penstock_build_info{" in text
                assert "penstock_unhandled_errors_total 1.0" in text
        await http.stop()
        await http.stop()
        none = HttpServer("", life)
        assert (await none.start()).port == 0
        await none.stop()

    run(main())
