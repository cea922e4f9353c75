"""The simulator on a few seeds: they hold, they replay to the same event, and it finds bugs.

In processes of their own, because a simulation patches shipped modules (see `patches`).
`make simulate SEEDS=2000` runs many, `make simulate-planted` plants every bug.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock_core.ids import NO_NODE, LeaderEpoch, NodeId, TopicId, TopicPartition
from penstock_core.metadata import PartitionImage
from simulation import report
from simulation.network import DEAD_AFTER_US, Network, NetworkProfile, Pipe
from simulation.patches import PATCHED, installed
from simulation.planted import BUGS, Bug
from simulation.producer import Producer
from simulation.scheduler import Scheduler
from simulation.world import World

TESTS = Path(__file__).parent.parent
SEEDS = 12


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "simulation", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"},
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_connection_keeps_its_order_through_blocks(seed: int) -> None:
    """What is under way when a block begins arrives before what is sent later."""
    scheduler = Scheduler(seed)
    network = Network(scheduler, NetworkProfile(loss_probability=0.1, slow_probability=0.2))
    pipe = Pipe(network, "a", "b")
    got: list[int] = []
    pipe.on_messages[1] = got.extend
    for number in range(300):
        scheduler.at(number * 500, pipe.send, 0, number)
    for begin_us in range(5_000, 150_000, 10_000):
        scheduler.at(begin_us, network.block, "a", "b")
        scheduler.at(begin_us + 4_000, network.unblock, "a", "b")
    scheduler.run(3_000_000)
    assert got == list(range(300))


def test_an_end_that_was_given_up_during_a_block_hears_of_it_afterwards() -> None:
    """Seed 10121: it did not, and whatever it sent arrived nowhere from then on."""
    scheduler = Scheduler(1)
    network = Network(scheduler, NetworkProfile())
    pipe = Pipe(network, "a", "b")
    ended: list[str] = []
    pipe.on_end[0] = ended.append
    gives_up_us = 2 * DEAD_AFTER_US
    # The server's end gets no answers, for the client is stopped; the client's own time begins with the block.
    scheduler.at(0, pipe.stall, 1)
    for source, target in (("a", "b"), ("b", "a")):
        scheduler.at(gives_up_us - 1_000_000, network.block, source, target)
        scheduler.at(gives_up_us + 500_000, network.unblock, source, target)
    scheduler.run(2 * gives_up_us)
    assert ended == ["reset by peer"]


def node_with(leader: int, leader_epoch: int) -> Any:
    """A running node whose metadata have that leader."""
    key = TopicPartition(TopicId(bytes(16)), 0)
    nodes = (NodeId(1), NodeId(2))
    state = PartitionImage(*key, nodes, nodes, NodeId(leader), LeaderEpoch(leader_epoch), leader_epoch)
    image = SimpleNamespace(partition=lambda *_: state)
    manager = SimpleNamespace(registry=SimpleNamespace(image=image))
    return SimpleNamespace(is_running=True, is_up=True, manager=manager)


def test_a_direct_client_goes_to_no_leader_that_it_knows_to_be_deposed() -> None:
    """As librdkafka and the Java client, which leave metadata of a lower leader epoch alone."""
    world = World(1)  # not run: only what its nodes' metadata say is asked for
    hosts = [host for host in world.hosts if host.kind == "n"][:2]
    producer = Producer(world, 1, -1, direct=True)
    producer.produce(TopicPartition(TopicId(bytes(16)), 0), 1)
    (queue,) = producer.partitions.values()

    def leader(*nodes: Any) -> int | None:
        for host, node in zip(hosts, nodes, strict=True):
            host.process = node
        return producer._leader(queue)

    assert leader(node_with(1, 3), node_with(2, 4)) == 1, "the first that is asked, as far as one knows"
    assert leader(None, node_with(2, 4)) == 2
    assert leader(node_with(1, 3), None) is None
    assert leader(node_with(1, 3), node_with(2, 4)) == 2
    assert leader(node_with(1, 3), node_with(NO_NODE, 5)) is None
    assert leader(node_with(1, 3), node_with(2, 4)) is None
    assert leader(node_with(1, 6), node_with(2, 4)) == 1


def test_a_run_replaces_names_of_libraries_alone() -> None:
    """Shipped code is handed what it takes from the world; a new module cannot be forgotten here."""
    owners = {getattr(owner, "__name__", "") for owner, *_ in PATCHED}
    assert not [name for name in owners if name.startswith("penstock")]
    assert len(PATCHED) < 10
    assert all(why for _, _, why, _ in PATCHED)


def test_who_asks_the_real_clock_or_the_system_for_chance_in_a_run_is_refused() -> None:
    before = time.monotonic, random.Random
    with installed(World(1)):
        for ask in (time.monotonic, time.time_ns, random.random, random.Random, uuid.uuid4):
            with pytest.raises(RuntimeError, match="inside a simulation: it would not replay"):
                ask()
        assert random.Random(7).random() == before[1](7).random(), "with a seed it is as it was"
    assert (time.monotonic, random.Random) == before
    assert uuid.uuid4() != uuid.uuid4()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_seed_that_never_ends_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def spin(_seed: int) -> None:
        while True:
            with contextlib.suppress(Exception):
                continue

    monkeypatch.setattr(report, "run_seed", spin)
    monkeypatch.setattr(report, "SEED_CPU_S_MAX", 0.2)
    result = report.run_one(7)
    assert not result.ok
    assert "SeedNeverEnds" in result.violation


@pytest.mark.timeout(900)
def test_seeds_hold() -> None:
    """The same seeds each time, `PENSTOCK_SIMULATION_FIRST` apart: a change is judged by what it changes.
    New ones are looked for by `make simulate`."""
    first = int(os.environ.get("PENSTOCK_SIMULATION_FIRST", "1"))
    print(f"PENSTOCK_SIMULATION_FIRST={first}")
    run = simulate("--first", str(first), "--seeds", str(SEEDS), "--json", "-", "--keep-going")
    assert run.returncode == 0, f"first seed {first}\n{run.stdout}\n{run.stderr}"
    totals = json.loads(run.stdout[run.stdout.index("\n{") :])
    assert totals["least_events"] >= 5_000
    assert totals["simulated_s"] >= 60 * SEEDS
    assert totals["counts"]["acked batches"] > SEEDS


@pytest.mark.timeout(600)
def test_a_seed_replays_to_the_same_event() -> None:
    seed = random.SystemRandom().randrange(1, 10**9)
    runs = [simulate("--seed", str(seed)) for _ in range(2)]
    for run in runs:
        # 2: the second run within the process differed from the first.
        assert run.returncode in (0, 1), f"seed {seed}\n{run.stdout}\n{run.stderr}"
    assert runs[0].stdout == runs[1].stdout, f"seed {seed}"


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "bug",
    [
        "acked-at-append",
        "watermark-off-by-one",
        "fence-only-leaders",
        "keys-taken-for-one",
        "deletion-answered-early",
        "zombie-generation-accepted",
        "node-asks-nobody",
        "removed-before-in-sync",
        "steps-not-read",
    ],
)
def test_planted_bug_is_found(bug: str) -> None:
    # One process: most are found in the first seed, and another test runs beside this one.
    run = simulate("--planted", bug, "--most", "20", "--jobs", "1")
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: str(bug.name))
def test_a_planted_bug_replaces_something_that_is_there(bug: Bug) -> None:
    """Otherwise a move or a new name would take the bug out in silence."""
    missing = [f"{owner}: {name}" for owner, name, _ in bug.patches() if not hasattr(owner, name)]
    assert missing == []
