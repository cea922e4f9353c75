"""Names that lead to the simulation while a run goes on, and names that refuse.

Shipped code takes clocks, chance, disk and network in constructors (`NodePorts`, `GatewayPorts`,
`ControllerPorts`); each process of the simulation hands in its own. What is replaced here belongs to
libraries that can be given nothing (`PATCHED`, each with its reason). All is put back at the end. It is
process-wide all the same, so simulations run in processes of their own.

Whoever asks the real clock or the system's chance during a run gets an error: the run would not replay.
That is how a port that somebody forgot is found. It does not see a function that a module has taken by
itself (`from time import monotonic`); an import contract keeps `time` out of the rooms that are simulated.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pysyncobj.syncobj

from simulation.raft_net import SimPipeNotifier

if TYPE_CHECKING:
    from simulation.process import Process
    from simulation.world import World

PATCHED: tuple[tuple[Any, str, str, Callable[[World], Any]], ...] = (
    (
        pysyncobj.syncobj,
        "createPoller",
        "SyncObj makes its poller itself, of a kind that it knows by name",
        lambda world: lambda _kind: _running(world).poller,  # type: ignore[attr-defined]
    ),
    (
        pysyncobj.syncobj,
        "PipeNotifier",
        "SyncObj makes it itself, of a real pipe",
        lambda _: SimPipeNotifier,
    ),
    (
        pysyncobj.syncobj,
        "monotonicTime",
        "SyncObj's tick asks it, whatever clock `RaftNode` has",
        lambda world: lambda: _monotonic_s(world),
    ),
    (
        pysyncobj.syncobj,
        "random",
        "SyncObj spreads its election timeouts by it",
        lambda world: world.rng,
    ),
    (
        pysyncobj.syncobj,
        "os",
        "SyncObj looks whether there is a snapshot before it asks the store that it was given",
        lambda world: world.sim_os,
    ),
    (
        asyncio.tasks._all_tasks,  # type: ignore[attr-defined]
        "add",
        "a weak reference to every task, for `all_tasks`, which nobody calls: it takes as long as the rest",
        lambda _: lambda _task: None,
    ),
)
"""Owner, name, why it cannot be handed in, and what it is in a run."""


class _Seeded(random.Random):
    """`random.Random`, which seeds itself from the system when it is given no seed."""

    def __init__(self, seed: Any = None) -> None:
        if seed is None:
            _refuse("random.Random()")
        super().__init__(seed)


def _refuse(name: str) -> None:
    raise RuntimeError(f"{name} was called inside a simulation: it would not replay")


def _refusal(name: str) -> Callable[..., None]:
    return lambda *_, **__: _refuse(name)


REFUSED: tuple[tuple[Any, str, Any], ...] = (
    *(
        (module, name, _refusal(f"{module.__name__}.{name}"))
        for module, names in (
            (
                time,
                ("monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns", "sleep"),
            ),
            (random, ("random", "uniform", "randrange", "randint", "choice", "shuffle", "getrandbits")),
            (random, ("_urandom",)),
            (os, ("urandom",)),
        )
        for name in names
    ),
    (random, "Random", _Seeded),
)


def _running(world: World) -> Process:
    """Whose code runs now."""
    assert world.current is not None
    return world.current


def _monotonic_s(world: World) -> float:
    # Of all names the one that is asked most.
    loop = world.current.loop  # type: ignore[union-attr]
    return (loop.scheduler.now_us + loop._base_us) / 1_000_000


_MISSING = object()


@contextmanager
def installed(world: World) -> Iterator[None]:
    """Run the shipped code in `world`."""
    saved: list[tuple[Any, str, Any]] = []
    try:
        for owner, name, value in (*((o, n, make(world)) for o, n, _, make in PATCHED), *REFUSED):
            # Of the owner itself: `add` is its class's.
            saved.append((owner, name, vars(owner).get(name, _MISSING)))
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(saved):
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
