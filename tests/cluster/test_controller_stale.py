"""A leader that was stopped while another was elected: when it wakes, nobody obeys or believes it."""

from __future__ import annotations

import asyncio
import signal
import socket
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import pytest_asyncio

from penstock_core.errors import PenstockError
from penstock_core.ids import NodeId
from penstock_core.limits import FEATURE_LEVEL
from penstock_proto.v1 import common_pb2 as common
from penstock_proto.v1 import controller_pb2 as api
from penstock_runtime.controller_client import ControllerClient
from penstock_runtime.grpc_tools import ChannelPool
from penstock_runtime.lifecycle import monotonic_ms
from penstock_runtime.metadata_client import MetadataClient
from support.controllers import Controllers

PATIENCE_S = 120
SESSION_TIMEOUT_MS = 20_000
"""Longer than a loaded machine may hold up a heartbeat; the stopped leader sees a longer silence."""


@pytest.fixture
def controllers(tmp_path: Path) -> Iterator[Controllers]:
    quorum = Controllers(tmp_path, 3, node_session_timeout_ms=SESSION_TIMEOUT_MS)
    quorum.start_all()
    yield quorum
    for process in quorum.processes.values():
        process.send_signal(signal.SIGCONT)
    quorum.kill_all()


@pytest_asyncio.fixture
async def channels() -> AsyncIterator[ChannelPool]:
    pool = ChannelPool()
    yield pool
    await pool.close()


async def active_of(
    controllers: Controllers, channels: ChannelPool, among: set[int]
) -> api.DescribeQuorumResponse:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            for controller_id in among:
                seen = await controllers.describe(channels, controller_id)
                if seen.active_controller_id == controller_id:
                    return seen
            await asyncio.sleep(0.05)


class Node:
    """Keeps a session wherever the active controller is, as the storage node does."""

    def __init__(self, client: ControllerClient) -> None:
        self.client = client
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.node_epoch = -1
        self.orders: list[tuple[int, bool]] = []
        """Term and `fenced` of every reply that was obeyed."""

    async def register(self) -> None:
        request = api.RegisterNodeRequest(
            node_id=1,
            directory_id=uuid.uuid4().bytes,
            clean_shutdown=True,
            process=common.ProcessInfo(feature_level=FEATURE_LEVEL),
            grpc=common.Endpoint(host="127.0.0.1", port=self.listener.getsockname()[1]),
        )
        reply = await self.client.call("RegisterNode", request, PATIENCE_S * 1000)
        assert not reply.error.code
        assert reply.controller_term > 0
        self.node_epoch = reply.node_epoch

    def beat(self) -> api.NodeHeartbeat:
        return api.NodeHeartbeat(node_id=1, node_epoch=self.node_epoch, metadata_version=1 << 40)

    async def live(self) -> None:
        while True:
            with suppress(PenstockError, TimeoutError):
                stream: Any = await self.client.session("NodeSession")
                try:
                    while True:
                        await stream.write(self.beat())
                        async with asyncio.timeout(2):
                            reply = await stream.read()
                        if not self.client.note_term(reply.controller_term):
                            break
                        assert not reply.error.code
                        self.orders.append((reply.controller_term, reply.fenced))
                        await asyncio.sleep(0.1)
                finally:
                    stream.close()


@pytest.mark.timeout(600)
async def test_a_stopped_leader_that_wakes_is_not_obeyed(
    controllers: Controllers, channels: ChannelPool
) -> None:
    old = (await active_of(controllers, channels, {1, 2, 3})).controller_id
    others = {1, 2, 3} - {old}
    node = Node(controllers.client(channels))
    await node.register()
    session = asyncio.create_task(node.live())
    metadata = MetadataClient(controllers.client(channels), "test", monotonic_ms)
    following = asyncio.create_task(metadata.run())
    old_stub = controllers.client(channels).stub(f"127.0.0.1:{controllers.grpc_ports[old - 1]}")
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not node.orders or node.orders[-1][1]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        for _ in range(3):
            await wake_up(controllers, channels, node, old, old_stub, others)
            # Whoever leads now is stopped next.
            old = (await active_of(controllers, channels, {1, 2, 3})).controller_id
            others = {1, 2, 3} - {old}
            old_stub = controllers.client(channels).stub(f"127.0.0.1:{controllers.grpc_ports[old - 1]}")
        # Terms of what was obeyed only ever grew, and nobody fenced a node that kept its session.
        terms = [term for term, _ in node.orders]
        assert terms == sorted(terms)
        first_up = next(i for i, (_, fenced) in enumerate(node.orders) if not fenced)
        assert not any(fenced for _, fenced in node.orders[first_up:])
        assert metadata.image.nodes[NodeId(1)].node_epoch == node.node_epoch
    finally:
        for task in (session, following):
            task.cancel()
        await asyncio.wait([session, following])
        node.listener.close()


async def wake_up(
    controllers: Controllers,
    channels: ChannelPool,
    node: Node,
    old: int,
    old_stub: Any,
    others: set[int],
) -> None:
    old_term = (await controllers.describe(channels, old)).term
    stopped_ms = monotonic_ms()
    controllers.processes[old].send_signal(signal.SIGSTOP)
    successor = await active_of(controllers, channels, others)
    assert successor.term > old_term
    async with asyncio.timeout(PATIENCE_S):
        while not node.orders or node.orders[-1][0] < successor.term:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    # Something that the sleeper does not know of.
    await node.client.call("AllocateProducerIds", api.AllocateProducerIdsRequest(), PATIENCE_S * 1000)
    newest = (await active_of(controllers, channels, others)).version
    slept_ms = monotonic_ms() - stopped_ms
    controllers.processes[old].send_signal(signal.SIGCONT)

    # Its metadata are either those of the new term, or old by its own word.
    with suppress(grpc.aio.AioRpcError):
        async for message in old_stub.WatchMetadata(
            api.WatchMetadataRequest(feature_level=FEATURE_LEVEL), timeout=PATIENCE_S
        ):
            if message.WhichOneof("event") != "keepalive":
                continue
            said = message.keepalive
            assert said.controller_term >= successor.term or said.leader_contact_age_ms >= slept_ms - 1_000
            if said.version >= newest:
                break
    # Its word as a leader: refused by who has heard of the successor.
    with suppress(grpc.aio.AioRpcError):
        stream = old_stub.NodeSession(timeout=PATIENCE_S)
        await stream.write(node.beat())
        reply = await stream.read()
        if reply is not grpc.aio.EOF:  # type: ignore[attr-defined]
            assert reply.controller_term < successor.term or not reply.fenced
        stream.cancel()
    async with asyncio.timeout(PATIENCE_S):
        while True:
            seen = await controllers.describe(channels, old)
            if seen.term >= successor.term and seen.version >= newest:
                break
            await asyncio.sleep(0.05)
