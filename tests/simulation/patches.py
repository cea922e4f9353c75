"""Names of shipped modules that lead to the simulation while a run goes on.

Only names that stand for the outside world (`os`, `time`, `random`, `socket`, threads, gRPC's
server and channels), and classes that `checked` observes. Each is put back at the end. The
patches are process-wide, so simulations run in processes of their own.
"""

from __future__ import annotations

import asyncio
import os
import random
import time as real_time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pysyncobj.journal
import pysyncobj.pickle
import pysyncobj.syncobj

import penstock_gateway.relay.relay
import penstock_storage_node.groups.host
import penstock_storage_node.log.directory
import penstock_storage_node.replica.background
import penstock_storage_node.replica.compactor
import penstock_storage_node.replica.manager
import penstock_storage_node.replica.partition
import penstock_storage_node.role
import penstock_storage_node.rpc.forward
from simulation.ordered import OrderedSet
from simulation.raft_net import SimPipeNotifier

if TYPE_CHECKING:
    from simulation.process import Process
    from simulation.world import World

_world: World | None = None


def the_world() -> World:
    """The run that goes on in this process."""
    assert _world is not None
    return _world


def the_process() -> Process:
    """Whose code runs now."""
    process = the_world().current
    assert process is not None
    return process


def _monotonic() -> float:
    # Of all names the one that is asked most.
    loop = _world.current.loop  # type: ignore[union-attr]
    return (loop.scheduler.now_us + loop._base_us) / 1_000_000


def _table(world: World) -> list[tuple[Any, str, Any]]:
    table: list[tuple[Any, str, Any]] = [
        (pysyncobj.syncobj, "createPoller", lambda _: the_process().poller),  # type: ignore[attr-defined]
        (pysyncobj.syncobj, "PipeNotifier", SimPipeNotifier),
        (pysyncobj.syncobj, "monotonicTime", _monotonic),
        (pysyncobj.syncobj, "random", world.rng),
        (pysyncobj.syncobj, "os", world.sim_os),
        # `install_hooks` changes these; they are put back with the rest.
        (pysyncobj.syncobj, "createJournal", pysyncobj.syncobj.createJournal),
        (pysyncobj.syncobj, "Serializer", pysyncobj.syncobj.Serializer),
        (pysyncobj.pickle, "loads", pysyncobj.pickle.loads),
        (pysyncobj.pickle, "load", pysyncobj.pickle.load),
        (pysyncobj.journal, "loads", pysyncobj.journal.loads),
        # A weak reference to every task, for `all_tasks`, which nobody calls: it takes as long as the rest.
        (asyncio.tasks._all_tasks, "add", lambda _: None),  # type: ignore[attr-defined]
        # Looks at nothing that is due, many thousand times a run. Groups have theirs where there are any; the
        # others are still short beside what they look after (sessions, lags, requests' deadlines).
        (penstock_storage_node.groups.host, "TICK_MS", 2_000),
        (penstock_storage_node.replica.background, "TICK_MS", 200),
        (penstock_gateway.relay.relay, "TICK_MS", 100),
        (penstock_storage_node.replica.partition, "set", OrderedSet),
        (penstock_storage_node.rpc.forward, "set", OrderedSet),
        (penstock_gateway.relay.relay, "set", OrderedSet),
    ]
    if world.groups is not None:
        table += world.groups.patches()
    # Whoever asks the real world during a run would not replay.
    for module, names in (
        (real_time, ("monotonic", "monotonic_ns", "time", "time_ns", "sleep")),
        (random, ("random", "uniform", "randrange", "choice", "shuffle")),
        (os, ("urandom",)),
    ):
        table += [(module, name, _forbidden(f"{module.__name__}.{name}")) for name in names]
    return table


def _forbidden(name: str) -> Callable[..., Any]:
    def refuse(*_: object, **__: object) -> Any:
        raise RuntimeError(f"{name} was called inside a simulation: it would not replay")

    return refuse


_MISSING = object()


@contextmanager
def installed(world: World) -> Iterator[None]:
    """Run the shipped code in `world`."""
    global _world
    _world = world
    saved: list[tuple[Any, str, Any]] = []
    try:
        for module, name, value in _table(world):
            # Of the module itself: `set` is a builtin that some get a name of their own for.
            saved.append((module, name, vars(module).get(name, _MISSING)))
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in reversed(saved):
            if value is _MISSING:
                delattr(module, name)
            else:
                setattr(module, name, value)
        _world = None
