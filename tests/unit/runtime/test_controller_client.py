"""Finding the active controller, across elections, death and silence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock_core.errors import ErrorCode, PenstockError
from penstock_proto.v1 import controller_pb2 as pb
from penstock_runtime.controller_client import ControllerClient
from penstock_runtime.grpc_tools import ChannelPool
from penstock_runtime.producer_ids import ProducerIdAllocator
from unit.runtime.fake_controllers import Cluster, FakeController, controllers

Run = Callable[[Coroutine[Any, Any, Any]], Any]
ALLOCATE = pb.AllocateProducerIdsRequest(owner="test")


@asynccontextmanager
async def client_of(
    count: int = 3,
) -> AsyncIterator[tuple[ControllerClient, Cluster, list[FakeController]]]:
    async with controllers(count) as (cluster, members):
        channels = ChannelPool()
        addresses = [f"{m.controller_id}@{m.endpoint.address}" for m in members]
        try:
            yield ControllerClient(addresses, "test", channels), cluster, members
        finally:
            await channels.close()


def test_a_call_reaches_the_active_controller_and_follows_it(run: Run) -> None:
    async def main() -> None:
        async with client_of() as (client, cluster, members):
            first = await client.call("AllocateProducerIds", ALLOCATE)
            assert first.count == 1000
            assert members[0].calls == ["AllocateProducerIds"]
            assert client.addresses_by_preference()[0] == members[0].endpoint.address
            cluster.active, cluster.term = 2, 2
            await client.call("AllocateProducerIds", ALLOCATE)
            assert members[1].calls[-1] == "AllocateProducerIds"
            members[1].hint = False
            cluster.active, cluster.term = 3, 3
            await client.call("AllocateProducerIds", ALLOCATE)
            assert members[2].calls == ["AllocateProducerIds"]

    run(main())


def test_a_dead_active_controller_costs_little(run: Run) -> None:
    async def main() -> None:
        async with client_of() as (client, cluster, members):
            await client.call("AllocateProducerIds", ALLOCATE)
            await members[0].kill()
            cluster.active, cluster.term = 3, 2
            started = time.monotonic()
            await client.call("AllocateProducerIds", ALLOCATE)
            assert time.monotonic() - started < 0.5

    run(main())


def test_a_silent_active_controller_costs_a_bounded_time(run: Run) -> None:
    async def main() -> None:
        async with client_of() as (client, cluster, members):
            await client.call("AllocateProducerIds", ALLOCATE)
            members[0].silent = True
            waiting = asyncio.create_task(client.call("AllocateProducerIds", ALLOCATE))
            await asyncio.sleep(0.3)
            cluster.active, cluster.term = 2, 2
            started = time.monotonic()
            await waiting
            assert time.monotonic() - started < 2

    run(main())


def test_a_slow_call_at_the_active_controller_is_left_alone(run: Run) -> None:
    async def main() -> None:
        async with client_of() as (client, _, members):
            original = members[0].AllocateProducerIds
            calls = 0

            async def slow(request: Any, context: Any) -> Any:
                nonlocal calls
                calls += 1
                await asyncio.sleep(2.5)
                return await original(request, context)

            members[0].AllocateProducerIds = slow  # type: ignore[method-assign]
            await members[0].kill()
            await members[0].start(members[0].endpoint.address)
            await client.call("AllocateProducerIds", ALLOCATE)
            assert calls == 1

    run(main())


def test_no_controller_in_time_is_a_timeout_that_says_why(run: Run) -> None:
    async def main() -> None:
        async with client_of() as (client, cluster, _):
            cluster.active = -1
            started = time.monotonic()
            with pytest.raises(PenstockError, match="within 600 ms") as e:
                await client.call("AllocateProducerIds", ALLOCATE, timeout_ms=600)
            assert e.value.code == ErrorCode.REQUEST_TIMED_OUT
            assert 0.5 < time.monotonic() - started < 1.5
            with pytest.raises(PenstockError, match="no active controller within 300 ms"):
                await client.session("NodeSession", timeout_ms=300)

    run(main())


def test_an_election_under_way_is_waited_out(run: Run) -> None:
    async def main() -> None:
        async with client_of() as (client, cluster, _):
            cluster.active = -1
            waiting = asyncio.create_task(client.call("AllocateProducerIds", ALLOCATE))
            await asyncio.sleep(0.5)
            cluster.active = 2
            started = time.monotonic()
            await waiting
            assert time.monotonic() - started < 0.4

    run(main())


def test_a_refusal_that_no_retry_mends_raises_at_once(run: Run) -> None:
    async def main() -> None:
        async with client_of() as (client, _, _m):
            with pytest.raises(PenstockError) as e:
                await client.call("AlterConfigs", pb.AlterConfigsRequest(), timeout_ms=5000)
            assert e.value.code == ErrorCode.UNSUPPORTED_VERSION

    run(main())


def test_a_session_ends_with_its_controller_and_can_be_opened_anew(run: Run) -> None:
    async def main() -> None:
        async with client_of() as (client, cluster, members):
            stream = await client.session("NodeSession")
            await stream.write(pb.NodeHeartbeat(node_id=1))
            assert not (await stream.read()).fenced
            await members[0].kill()
            cluster.active, cluster.term = 2, 2
            with pytest.raises(PenstockError) as e:
                await stream.read()
            assert e.value.code == ErrorCode.NOT_CONTROLLER
            with pytest.raises(PenstockError):
                await stream.write(pb.NodeHeartbeat(node_id=1))
            stream = await client.session("NodeSession")
            assert stream.address == members[1].endpoint.address
            await stream.write(pb.NodeHeartbeat(node_id=2))
            assert (await stream.read()).fenced
            await stream.done_writing()
            with pytest.raises(PenstockError, match="ended by the controller"):
                await stream.read()
            stream.close()

    run(main())


def test_sessions_that_end_at_once_are_not_opened_in_a_spin(run: Run) -> None:
    async def main() -> None:
        async with client_of(1) as (client, _, _m):
            opened = 0
            deadline = time.monotonic() + 1
            while time.monotonic() < deadline:
                (await client.session("NodeSession")).close()
                opened += 1
            assert 3 < opened < 40

    run(main())


def test_a_cancelled_call_leaves_nothing_behind(run: Run) -> None:
    async def main() -> None:
        async with client_of() as (client, _, members):
            members[0].silent = True
            client._active = members[0].endpoint.address
            waiting = asyncio.create_task(client.call("AllocateProducerIds", ALLOCATE))
            await asyncio.sleep(0.1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            ours = ("ControllerClient", "_await_call")
            assert not [t for t in asyncio.all_tasks() if any(name in repr(t) for name in ours)]

    run(main())


def test_producer_ids_are_given_once_each(run: Run) -> None:
    async def main() -> None:
        async with client_of(1) as (client, _, members):
            ids = ProducerIdAllocator(client, "test")
            given = await asyncio.gather(*(ids.allocate() for _ in range(50)))
            given += [await ids.allocate() for _ in range(2500)]
            assert len(set(given)) == 2550
            assert min(given) >= 1000
            assert len(members[0].calls) in (3, 4)
            other = ProducerIdAllocator(client, "restarted")
            assert await other.allocate() not in given
            await members[0].kill()
            given += [await ids.allocate() for _ in range(400)]
            assert len(set(given)) == 2950

            async def use_up() -> None:
                for _ in range(2000):
                    await ids.allocate(timeout_ms=200)

            with pytest.raises(PenstockError) as e:
                await use_up()
            assert e.value.code == ErrorCode.REQUEST_TIMED_OUT
            await ids.close()

    run(main())
