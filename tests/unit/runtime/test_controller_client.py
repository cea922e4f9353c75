"""Finding the active controller, across elections, death and silence."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock_core.errors import ErrorCode, PenstockError
from penstock_frontend.producer_ids import ProducerIdAllocator
from penstock_proto.v1 import controller_pb2 as pb
from penstock_runtime import controller_client
from penstock_runtime.controller_client import ControllerClient
from penstock_runtime.grpc_tools import ChannelPool
from support.waiting import eventually
from unit.runtime.fake_controllers import Cluster, FakeController, controllers

Run = Callable[[Coroutine[Any, Any, Any]], Any]
ALLOCATE = pb.AllocateProducerIdsRequest(owner="test")
AGES_MS = 3_600_000
"""A wait that no test sees the end of."""


class Pauses(random.Random):
    """The client's randomness; remembers the longest that each of its pauses could have been."""

    def __init__(self) -> None:
        super().__init__()
        self.most_ms: list[float] = []

    def uniform(self, a: float, b: float) -> float:
        self.most_ms.append(b)
        return super().uniform(a, b)


class Clock:
    """Stands still until the test moves it."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller that is merely slow, on a busy machine, is never taken for silent."""
    monkeypatch.setattr(controller_client, "_ASK_TIMEOUT_MS", AGES_MS)
    monkeypatch.setattr(controller_client, "_ASK_GRACE_MS", AGES_MS)


@asynccontextmanager
async def client_of(
    count: int = 3, **options: Any
) -> AsyncIterator[tuple[ControllerClient, Cluster, list[FakeController]]]:
    async with controllers(count) as (cluster, members):
        channels = ChannelPool()
        addresses = [f"{m.controller_id}@{m.endpoint.address}" for m in members]
        try:
            yield ControllerClient(addresses, "test", channels, **options), cluster, members
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


def test_a_dead_active_controller_costs_no_wait(
    run: Run, patient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Any wait of the client's own would be an age.
    for name in ("_WATCH_INTERVAL_MS", "_BACKOFF_MIN_MS", "_BACKOFF_MAX_MS"):
        monkeypatch.setattr(controller_client, name, AGES_MS)

    async def main() -> None:
        async with client_of() as (client, cluster, members):
            await client.call("AllocateProducerIds", ALLOCATE)
            await members[0].kill()
            cluster.active, cluster.term = 3, 2
            await client.call("AllocateProducerIds", ALLOCATE, AGES_MS)
            assert members[2].calls == ["AllocateProducerIds"]

    run(main())


def test_a_silent_active_controller_is_left_for_its_successor(run: Run) -> None:
    async def main() -> None:
        async with client_of() as (client, cluster, members):
            await client.call("AllocateProducerIds", ALLOCATE)
            members[0].silent = True
            waiting = asyncio.create_task(client.call("AllocateProducerIds", ALLOCATE, AGES_MS))
            await eventually(lambda: len(members[0].calls) >= 2, "the call at the silent controller")
            cluster.active, cluster.term = 2, 2
            await waiting
            assert members[1].calls == ["AllocateProducerIds"]

    run(main())


def test_a_slow_call_at_the_active_controller_is_left_alone(
    run: Run, patient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_client, "_WATCH_INTERVAL_MS", 20)
    monkeypatch.setattr(controller_client, "_ATTEMPT_SILENT_MS", 0)

    async def main() -> None:
        async with client_of() as (client, _, members):
            original = members[0].AllocateProducerIds
            calls = 0

            async def slow(request: Any, context: Any) -> Any:
                nonlocal calls
                calls += 1
                # The others were asked about it several times, and left it where it was.
                begun = members[0].asked
                await eventually(lambda: members[0].asked >= begun + 3, "questions who is active")
                return await original(request, context)

            members[0].AllocateProducerIds = slow  # type: ignore[method-assign]
            await members[0].kill()
            await members[0].start(members[0].endpoint.address)
            await client.call("AllocateProducerIds", ALLOCATE)
            assert calls == 1

    run(main())


def test_no_controller_in_time_is_a_timeout_that_says_why(run: Run) -> None:
    clock = Clock()

    async def main() -> None:
        async with client_of(clock_ms=clock) as (client, cluster, members):

            async def given_up_after(timeout_ms: int, call: Coroutine[Any, Any, Any]) -> PenstockError:
                """It tries for as long as it was told, and no longer."""
                waiting = asyncio.create_task(call)
                for passed_ms in (0, timeout_ms - 1_000):
                    clock.now_ms += passed_ms
                    asked = members[1].asked
                    await eventually(lambda: members[1].asked >= asked + 3, "more tries")  # noqa: B023
                    assert not waiting.done()
                clock.now_ms += 1_000
                with pytest.raises(PenstockError) as e:
                    await waiting
                return e.value

            cluster.active = -1
            error = await given_up_after(60_000, client.call("AllocateProducerIds", ALLOCATE, 60_000))
            assert error.code == ErrorCode.REQUEST_TIMED_OUT
            assert "within 60000 ms" in error.message
            error = await given_up_after(30_000, client.session("NodeSession", 30_000))
            assert error.code == ErrorCode.REQUEST_TIMED_OUT
            assert "no active controller within 30000 ms" in error.message

    run(main())


def test_what_a_controller_said_is_told_though_the_last_try_was_cut_off(run: Run) -> None:
    """By the deadline of the call, which says nothing about why."""
    clock = Clock()

    async def main() -> None:
        async with client_of(clock_ms=clock) as (client, _, members):
            active = members[0]
            active.refusal = "is founding the cluster; try again"
            waiting = asyncio.create_task(client.call("AllocateProducerIds", ALLOCATE, 60_000))
            await eventually(lambda: len(active.calls) >= 2, "a try that was refused, and another")
            active.refusal, active.stuck = "", True
            clock.now_ms += 59_900
            tries = len(active.calls)
            await eventually(lambda: len(active.calls) > tries, "a try that has a moment left")
            clock.now_ms += 100
            with pytest.raises(PenstockError, match="is founding the cluster; try again") as e:
                await waiting
            assert e.value.code == ErrorCode.REQUEST_TIMED_OUT

    run(main())


def test_an_election_under_way_is_waited_out(run: Run, patient: None) -> None:
    pauses = Pauses()

    async def main() -> None:
        pauses.most_ms.clear()
        async with client_of(rng=pauses) as (client, cluster, members):
            cluster.active = -1
            waiting = asyncio.create_task(client.call("AllocateProducerIds", ALLOCATE, AGES_MS))
            await eventually(lambda: members[1].asked >= 6, "several rounds of asking")
            cluster.active = 2
            before = len(pauses.most_ms)
            await waiting
            # The round under way may have come too early, the next one finds it.
            assert before >= 3
            assert len(pauses.most_ms) <= before + 1
            assert max(pauses.most_ms) <= 200

    run(main())


def test_a_refusal_that_no_retry_mends_raises_at_once(run: Run) -> None:
    async def main() -> None:
        async with client_of() as (client, _, _m):
            with pytest.raises(PenstockError) as e:
                await client.call("AlterConfigs", pb.AlterConfigsRequest(), timeout_ms=60_000)
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


def test_a_session_whose_channel_is_closed_is_over(run: Run) -> None:
    """gRPC says cancelled, which ends whoever waits without a word: see `ChannelPool` on old certificates."""

    async def main() -> None:
        async with client_of() as (client, _, members):
            stream = await client.session("NodeSession")
            await stream.write(pb.NodeHeartbeat(node_id=1))
            assert not (await stream.read()).fenced
            reading = asyncio.create_task(stream.read())
            await asyncio.sleep(0)
            await client._channels.drop(members[0].endpoint.address)
            await asyncio.wait([reading])
            assert not reading.cancelled()
            with pytest.raises(PenstockError, match="channel was closed") as e:
                await reading
            assert e.value.code == ErrorCode.NOT_CONTROLLER
            again = await client.session("NodeSession")
            reading = asyncio.create_task(again.read())
            await asyncio.sleep(0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            again.close()

    run(main())


def test_sessions_that_end_at_once_are_not_opened_in_a_spin(run: Run, patient: None) -> None:
    pauses, clock = Pauses(), Clock()

    async def main() -> None:
        pauses.most_ms.clear()
        async with client_of(1, rng=pauses, clock_ms=clock) as (client, _, _m):
            for _ in range(6):
                (await client.session("NodeSession")).close()
            assert pauses.most_ms == [40, 80, 160, 200, 200]
            # One that held for a second owes nothing.
            clock.now_ms += 1_000
            (await client.session("NodeSession")).close()
            assert len(pauses.most_ms) == 5

    run(main())


def test_a_cancelled_call_leaves_nothing_behind(run: Run) -> None:
    async def main() -> None:
        async with client_of() as (client, _, members):
            members[0].silent = True
            client._active = members[0].endpoint.address
            waiting = asyncio.create_task(client.call("AllocateProducerIds", ALLOCATE))
            await eventually(lambda: members[0].calls, "the call at the silent controller")
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
