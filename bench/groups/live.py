"""Many small groups that live: what memory and CPU time their coordinators need.

Every member has a connection of its own, heartbeats and commits as a client with default
settings does (every 3 s and every 5 s). A heartbeat that is answered with an error counts as
trouble: nothing happens that should end a generation.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from bench.groups import members as members
from bench.groups.cost import MEMBERS_PER_GROUP, settle_classic
from bench.groups.members import ClassicMember
from bench.groups.systems import System
from bench.groups.wire import Connection

FORMING_AT_ONCE: Final = 50
"""Groups that form at the same time."""


@dataclass
class LivePlan:
    """How many, how long."""

    groups: int = 1000
    seconds: float = 60.0
    heartbeat_s: float = 3.0
    commit_s: float = 5.0
    warm_up_s: float = 5.0


@dataclass
class Live:
    """What the processes needed. Memory in MB (10^6 bytes), CPU in cores."""

    system: str
    way: str
    groups: int
    members: int
    heartbeats: int
    commits: int
    errors: int
    before_mb: dict[str, float] = field(default_factory=dict)
    formed_mb: dict[str, float] = field(default_factory=dict)
    after_mb: dict[str, float] = field(default_factory=dict)
    cores: dict[str, float] = field(default_factory=dict)

    @property
    def node_mb(self) -> float:
        """The storage node that needs most."""
        return max(mb for name, mb in self.after_mb.items() if name.startswith("node-"))


async def measure_live(
    system: System, way: str, topic: str, plan: LivePlan, note: Callable[[str], None]
) -> Live:
    """Form the groups, let them live, look at the processes."""
    found = Live(system.name, way, plan.groups, 0, 0, 0, 0)
    names = [f"live-{way}-{n}" for n in range(plan.groups)]
    where = await members.find_coordinators(system.bootstraps[way], names)
    found.before_mb = system.rss_mb()
    everybody: list[ClassicMember] = []
    stop = asyncio.Event()
    lives: list[asyncio.Task[None]] = []
    try:
        for start in range(0, len(names), FORMING_AT_ONCE):
            some = await _form(names[start : start + FORMING_AT_ONCE], where, topic)
            everybody += some
            lives += [asyncio.create_task(_live(member, plan, stop, found)) for member in some]
            note(f"{system.name} {way}: {start + len(some) // MEMBERS_PER_GROUP} groups formed")
        found.members = len(everybody)
        found.formed_mb = system.rss_mb()
        await asyncio.sleep(plan.warm_up_s)
        before, beats, commits = system.cpu_s(), found.heartbeats, found.commits
        await asyncio.sleep(plan.seconds)
        found.cores = {name: (s - before[name]) / plan.seconds for name, s in system.cpu_s().items()}
        found.heartbeats -= beats
        found.commits -= commits
        found.after_mb = system.rss_mb()
        note(f"{system.name} {way}: {found.heartbeats} heartbeats and {found.commits} commits answered")
    finally:
        stop.set()
        for one in lives:
            one.cancel()
        ended = await asyncio.gather(*lives, return_exceptions=True)
        for member in everybody:
            member.connection.close()
    for outcome in ended:
        if isinstance(outcome, Exception):
            raise outcome
    return found


async def _form(names: Sequence[str], where: dict[str, tuple[int, str]], topic: str) -> list[ClassicMember]:
    some = [
        ClassicMember(await Connection.open(where[name][1]), name, topic, MEMBERS_PER_GROUP)
        for name in names
        for _ in range(MEMBERS_PER_GROUP)
    ]
    await settle_classic(some)
    return some


async def _live(member: ClassicMember, plan: LivePlan, stop: asyncio.Event, found: Live) -> None:
    """Heartbeats and commits until told to stop, out of step with the others."""
    loop = asyncio.get_running_loop()
    picker = random.Random(f"{member.group} {member.member_id}")
    commit = member.commit_frame([0])
    beat_at = loop.time() + picker.random() * plan.heartbeat_s
    commit_at = loop.time() + picker.random() * plan.commit_s
    while not stop.is_set():
        await asyncio.sleep(max(min(beat_at, commit_at) - loop.time(), 0))
        if commit_at <= beat_at:
            response = await member.connection.ask(commit)
            found.commits += 1
            found.errors += response[-5:-3] != b"\0\0"
            commit_at += plan.commit_s
        else:
            found.heartbeats += 1
            found.errors += await member.heartbeat() != 0
            beat_at += plan.heartbeat_s
