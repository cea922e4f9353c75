"""What one heartbeat and one commit cost: CPU time of the processes that serve it.

Members of a few groups, all of one coordinator, send at a fixed rate. What the cluster uses while
the same members are silent, measured before and after, is taken off. Rounds alternate between
the kinds of requests, so that what else the machine does falls on all of them.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from bench.groups import members as members
from bench.groups.members import ClassicMember, ModernMember
from bench.groups.systems import System
from bench.groups.wire import Connection, Frame

from penstock_core.errors import ErrorCode
from penstock_kafka.wire.primitives import INT16

KINDS: Final = ("heartbeat", "consumer-heartbeat", "commit")
MEMBERS_PER_GROUP: Final = 3
CANDIDATES: Final = 200
"""Names tried until enough groups have the same coordinator."""
_COMMIT_ERROR_AT: Final = -5
"""Where the last partition's error code is: before the ends of partition, topic and response."""


@dataclass
class CostPlan:
    """How much is sent, and how fast."""

    groups: int = 10
    rate_per_s: int = 300
    seconds: float = 10.0
    rounds: int = 3
    rest_s: float = 3.0
    """How long groups are still before they count as at rest: some brokers assign a second late."""
    warm_up_s: float = 1.0


@dataclass
class Cost:
    """CPU ms per request: medians of the rounds, by who spent it."""

    system: str
    way: str
    kind: str
    requests: int
    coordinator_ms: float
    gateway_ms: float
    others_ms: float
    """The other nodes (replicas of a commit) and the controllers."""
    rounds_ms: list[float] = field(default_factory=list)
    """Gateway and coordinator together, each round."""

    @property
    def target_ms(self) -> float:
        """Gateway and coordinator node together."""
        return statistics.median(self.rounds_ms)

    @property
    def best_ms(self) -> float:
        """The round that others disturbed least: on a shared core the same work takes more CPU time."""
        return min(self.rounds_ms)


Send = Callable[[], Awaitable[int]]


def sender(connection: Connection, frame: Frame, error_at: int) -> Send:
    """Sends one request, returns its error code."""

    async def send() -> int:
        response = await connection.ask(frame)
        at = error_at if error_at >= 0 else len(response) + error_at
        code: int = INT16.unpack_from(response, at)[0]
        return code

    return send


async def measure_costs(
    system: System, way: str, topic: str, plan: CostPlan, note: Callable[[str], None]
) -> list[Cost]:
    """All kinds through one way in; the topic has a partition for each member of a group."""
    node, address, classic, modern = await _choose_groups(system.bootstraps[way], plan.groups, f"cost-{way}")
    connections: list[Connection] = []
    try:
        senders = await _form(
            system.bootstraps[way], address, topic, (classic, modern), connections, plan.rest_s
        )
        for kind in KINDS:
            await _drive(senders[kind], plan.rate_per_s, plan.warm_up_s)
        found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
        counts = dict.fromkeys(KINDS, 0)
        for number in range(plan.rounds):
            await _touch(senders)
            idle = await _use(system, asyncio.sleep(plan.seconds))
            for kind in KINDS:
                await _touch(senders)
                before = system.cpu_s()
                count = await _drive(senders[kind], plan.rate_per_s, plan.seconds)
                after = system.cpu_s()
                counts[kind] += count
                found[kind].append(
                    {name: 1000 * (after[name] - before[name] - idle[name]) / max(count, 1) for name in after}
                )
                note(f"{system.name} {way}: round {number + 1} of {plan.rounds}, {kind}: {count} sent")
    finally:
        for connection in connections:
            connection.close()
    return [_summary(system.name, way, kind, counts[kind], found[kind], f"node-{node}") for kind in KINDS]


def _summary(
    system: str, way: str, kind: str, count: int, rounds: Sequence[dict[str, float]], coordinator: str
) -> Cost:
    gateways = [sum(v for name, v in one.items() if name.startswith("gateway")) for one in rounds]
    at_coordinator = [one[coordinator] for one in rounds]
    others = [sum(one.values()) - g - c for one, g, c in zip(rounds, gateways, at_coordinator, strict=True)]
    return Cost(
        system,
        way,
        kind,
        count,
        statistics.median(at_coordinator),
        statistics.median(gateways) if way == "proxy" else 0.0,
        statistics.median(others),
        [c + (g if way == "proxy" else 0) for g, c in zip(gateways, at_coordinator, strict=True)],
    )


async def _choose_groups(bootstrap: str, count: int, prefix: str) -> tuple[int, str, list[str], list[str]]:
    names = [f"{prefix}-{n}" for n in range(CANDIDATES)]
    found = await members.find_coordinators(bootstrap, names)
    by_node: dict[int, list[str]] = {}
    for name, (node, _) in found.items():
        by_node.setdefault(node, []).append(name)
    node, mine = max(by_node.items(), key=lambda item: len(item[1]))
    if len(mine) < 2 * count:
        raise SystemExit(f"node {node} coordinates {len(mine)} of {CANDIDATES} groups: use fewer groups")
    return node, found[mine[0]][1], mine[:count], mine[count : 2 * count]


async def _form(
    bootstrap: str,
    address: str,
    topic: str,
    names: tuple[Sequence[str], Sequence[str]],
    connections: list[Connection],
    rest_s: float,
) -> dict[str, list[Send]]:
    """Stable groups of both kinds, (classic, modern) names; what each member sends."""
    topic_id = await members.topic_id(bootstrap, topic)
    senders: dict[str, list[Send]] = {kind: [] for kind in KINDS}
    joined: list[ClassicMember] = []
    beating: list[ModernMember] = []
    for is_modern, groups in enumerate(names):
        for group in groups:
            for _ in range(MEMBERS_PER_GROUP):
                connections.append(await Connection.open(address))
                if is_modern:
                    beating.append(ModernMember(connections[-1], group, topic, topic_id))
                else:
                    joined.append(ClassicMember(connections[-1], group, topic, MEMBERS_PER_GROUP))
    await settle_classic(joined)
    await asyncio.gather(*(member.join() for member in beating))
    await asyncio.gather(
        *(
            _settle_modern(beating[n : n + MEMBERS_PER_GROUP], rest_s)
            for n in range(0, len(beating), MEMBERS_PER_GROUP)
        )
    )
    for number, member in enumerate(joined):
        assert member.beat_frame is not None
        senders["heartbeat"].append(sender(member.connection, member.beat_frame, member.beat_frame.error_at))
        frame = member.commit_frame([number % MEMBERS_PER_GROUP])
        senders["commit"].append(sender(member.connection, frame, _COMMIT_ERROR_AT))
    for one in beating:
        frame = one.frame()
        senders["consumer-heartbeat"].append(sender(one.connection, frame, frame.error_at))
    return senders


async def _settle_modern(crowd: Sequence[ModernMember], rest_s: float) -> None:
    """Heartbeat until a group was at rest for a while: some brokers make assignments a second late."""
    deadline = time.monotonic() + members.REST_TIMEOUT_S
    rest_since_s: float | None = None
    while rest_since_s is None or time.monotonic() - rest_since_s < rest_s:
        if time.monotonic() > deadline:
            raise members.Refused(f"{crowd[0].group} does not come to rest")
        await asyncio.gather(*(member.heartbeat() for member in crowd))
        if not members.settled(crowd, MEMBERS_PER_GROUP):
            rest_since_s = None
        elif rest_since_s is None:
            rest_since_s = time.monotonic()
        await asyncio.sleep(0.1)


async def settle_classic(joined: Sequence[ClassicMember]) -> None:
    """Join, and join again as long as anybody is told to."""
    await asyncio.gather(*(member.join_and_sync() for member in joined))
    while True:
        codes = await asyncio.gather(*(member.heartbeat() for member in joined))
        late = [m for m, code in zip(joined, codes, strict=True) if code == ErrorCode.REBALANCE_IN_PROGRESS]
        if not late:
            break
        await asyncio.gather(*(member.join_and_sync() for member in late))


async def _use(system: System, meanwhile: Awaitable[object]) -> dict[str, float]:
    """CPU seconds used while something goes on."""
    before = system.cpu_s()
    await meanwhile
    return {name: after - before[name] for name, after in system.cpu_s().items()}


async def _touch(senders: dict[str, list[Send]]) -> None:
    """A heartbeat of everybody: whoever is silent for a whole session is out."""
    for kind in ("heartbeat", "consumer-heartbeat"):
        for code in await asyncio.gather(*(send() for send in senders[kind])):
            members.check("a heartbeat", code)


async def _drive(senders: Sequence[Send], rate_per_s: int, seconds: float) -> int:
    """Have members send in turn, spread over time; each has at most one request under way. How many were sent."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    pause_s = len(senders) / rate_per_s

    async def play(index: int, send: Send) -> int:
        count = 0
        at = begin + index / rate_per_s
        while at < begin + seconds:
            await asyncio.sleep(at - loop.time())
            members.check("a request of the load", await send())
            count += 1
            at = max(at + pause_s, loop.time())
        return count

    counts = sum(await asyncio.gather(*(play(index, send) for index, send in enumerate(senders))))
    # The window is the same as that of the idle cluster, however late the last answer came.
    await asyncio.sleep(begin + seconds - loop.time())
    return counts
