"""How long a large group takes to come to rest after the last member has joined.

Classic: a member joins a stable group, all others hear of it by their next heartbeat and join
again; the clock starts when the last JoinGroup was sent and stops with the last SyncGroup answer.
Consumer (KIP-848): members only heartbeat, so the clock runs from the newcomer's first heartbeat until
every partition has an owner again and all members are in the same epoch; that takes a few
heartbeats (give up, hand over), so it depends on the interval, which is `heartbeat_ms` here.
`cold`: all members join an empty group at once; of the classic protocol that holds the wait for more members
(group.initial.rebalance.delay.ms, INITIAL_DELAY_MS here).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.groups import members as members
from bench.groups.cost import settle_classic
from bench.groups.members import ClassicMember, ModernMember
from bench.groups.systems import System
from bench.groups.wire import Connection

from penstock_core.errors import ErrorCode


@dataclass
class RebalancePlan:
    """How large, how often."""

    members: int = 100
    partitions: int = 1000
    rounds: int = 5
    heartbeat_ms: int = 500


@dataclass
class Rebalance:
    """Seconds of each round: after the last join, and since the newcomer appeared."""

    system: str
    way: str
    protocol: str
    after_last_join_s: list[float] = field(default_factory=list)
    since_newcomer_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    """CPU seconds of all processes together."""


async def measure_rebalance(
    system: System, way: str, topic: str, plan: RebalancePlan, note: Callable[[str], None]
) -> list[Rebalance]:
    """Both protocols through one way in."""
    found = []
    for measure in (_classic, _consumer):
        found += await measure(system, way, topic, plan, note)
    return found


async def _connect(system: System, way: str, group: str, count: int) -> list[Connection]:
    where = await members.find_coordinators(system.bootstraps[way], [group])
    return [await Connection.open(where[group][1]) for _ in range(count)]


# -- classic ------------------------------------------------------------------------------------


async def _classic(
    system: System, way: str, topic: str, plan: RebalancePlan, note: Callable[[str], None]
) -> list[Rebalance]:
    group = f"rebalance-classic-{way}"
    cold, found = Rebalance(system.name, way, "classic, cold"), Rebalance(system.name, way, "classic")
    connections = await _connect(system, way, group, plan.members)
    try:
        crowd = [ClassicMember(c, group, topic, plan.partitions) for c in connections]
        newcomer = crowd[-1]
        for number in range(plan.rounds):
            cpu_s = sum(system.cpu_s().values())
            begin = time.perf_counter()
            await settle_classic(crowd)
            _note(cold, system, crowd, begin, cpu_s)
            note(f"{system.name} {way}: classic cold start {number + 1}: {cold.after_last_join_s[-1]:.2f} s")
            await newcomer.leave()
            await asyncio.gather(*(_rejoin(member, plan.heartbeat_ms) for member in crowd[:-1]))
            cpu_s = sum(system.cpu_s().values())
            begin = time.perf_counter()
            others = [asyncio.create_task(_rejoin(member, plan.heartbeat_ms)) for member in crowd[:-1]]
            await newcomer.join_and_sync()
            await asyncio.gather(*others)
            _note(found, system, crowd, begin, cpu_s)
            note(f"{system.name} {way}: classic rebalance {number + 1}: {found.after_last_join_s[-1]:.2f} s")
            await asyncio.gather(*(member.leave() for member in crowd))
    finally:
        for connection in connections:
            connection.close()
    return [cold, found]


def _note(
    found: Rebalance, system: System, crowd: Sequence[ClassicMember], begin: float, cpu_s: float
) -> None:
    end = time.perf_counter()
    found.after_last_join_s.append(end - max(member.join_sent_s for member in crowd))
    found.since_newcomer_s.append(end - begin)
    found.cpu_s.append(sum(system.cpu_s().values()) - cpu_s)
    _check_generation(crowd)


async def _rejoin(member: ClassicMember, heartbeat_ms: int) -> None:
    """Heartbeat until there is a rebalance, then go through it."""
    deadline = time.monotonic() + members.REST_TIMEOUT_S
    while (code := await member.heartbeat()) != ErrorCode.REBALANCE_IN_PROGRESS:
        members.check("Heartbeat", code)
        if time.monotonic() > deadline:
            raise members.Refused(f"no rebalance within {members.REST_TIMEOUT_S:.0f} s")
        await asyncio.sleep(heartbeat_ms / 1000)
    await member.join_and_sync()


def _check_generation(crowd: Sequence[ClassicMember]) -> None:
    if len({member.generation for member in crowd}) != 1 or not all(member.assignment for member in crowd):
        raise members.Refused("members ended in different generations")


# -- consumer -----------------------------------------------------------------------------------


async def _consumer(
    system: System, way: str, topic: str, plan: RebalancePlan, note: Callable[[str], None]
) -> list[Rebalance]:
    group = f"rebalance-consumer-{way}"
    topic_id = await members.topic_id(system.bootstraps[way], topic)
    cold, warm = Rebalance(system.name, way, "consumer, cold"), Rebalance(system.name, way, "consumer")
    connections = await _connect(system, way, group, plan.members)
    try:
        for number in range(plan.rounds):
            crowd = [ModernMember(c, group, topic, topic_id) for c in connections]
            await _all_join(system, crowd, plan, cold)
            note(f"{system.name} {way}: cold start {number + 1}: {cold.after_last_join_s[-1]:.2f} s")
            await crowd[-1].leave()
            await _rest(crowd[:-1], plan)
            cpu_s = sum(system.cpu_s().values())
            begin = time.perf_counter()
            await crowd[-1].join()
            end = await _rest(crowd, plan)
            warm.since_newcomer_s.append(end - begin)
            warm.after_last_join_s.append(end - begin)
            warm.cpu_s.append(sum(system.cpu_s().values()) - cpu_s)
            note(f"{system.name} {way}: consumer rebalance {number + 1}: {end - begin:.2f} s")
            await asyncio.gather(*(member.leave() for member in crowd))
    finally:
        for connection in connections:
            connection.close()
    return [cold, warm]


async def _all_join(
    system: System, crowd: Sequence[ModernMember], plan: RebalancePlan, found: Rebalance
) -> None:
    cpu_s = sum(system.cpu_s().values())
    begin = time.perf_counter()
    joins = [asyncio.create_task(member.join()) for member in crowd]
    await asyncio.sleep(0)  # every task runs to its first wait, which is for the answer
    last = time.perf_counter()
    await asyncio.gather(*joins)
    end = await _rest(crowd, plan)
    found.after_last_join_s.append(end - last)
    found.since_newcomer_s.append(end - begin)
    found.cpu_s.append(sum(system.cpu_s().values()) - cpu_s)


async def _rest(crowd: Sequence[ModernMember], plan: RebalancePlan) -> float:
    """Heartbeat until nothing moves any more; when the last change was heard of."""
    deadline = time.monotonic() + members.REST_TIMEOUT_S
    stop = asyncio.Event()
    beating = [
        asyncio.create_task(_beat(member, plan.heartbeat_ms / 1000, index / len(crowd), stop))
        for index, member in enumerate(crowd)
    ]
    try:
        while not members.settled(crowd, plan.partitions):
            if time.monotonic() > deadline:
                owned = sum(len(member.owned) for member in crowd)
                raise members.Refused(
                    f"not at rest after {members.REST_TIMEOUT_S:.0f} s, {owned} partitions owned"
                )
            for one in beating:
                if one.done():
                    one.result()
            await asyncio.sleep(0.005)
        return max(member.changed_s for member in crowd)
    finally:
        stop.set()
        await asyncio.gather(*beating)


async def _beat(member: ModernMember, interval_s: float, phase: float, stop: asyncio.Event) -> None:
    """Heartbeats out of step with the others."""
    wait_s = interval_s * phase
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), wait_s)
            return
        await member.heartbeat()
        wait_s = interval_s
