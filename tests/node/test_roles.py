"""Leadership that has to wait for the log: what comes of it when the role is over by then.

A cut of the log may hang for seconds on a slow disk, while leaders come and go. Simulator seed
3077: a node noted the start of a leader epoch after that epoch had ended. The batches of an
earlier epoch that it replicated next stood below the wrong one, and when it led for real its
followers, whose logs were right, had to cut committed records.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from node.harness import KEY, MiniCluster, MiniNode, eventually
from penstock_storage_node.replica.partition import Partition
from penstock_storage_node.replication.following import Truncation


class Hang:
    """A log whose disk hangs: a cut that its leader asked for, at its very end, waits."""

    def __init__(self, node: MiniNode) -> None:
        self._over = threading.Event()
        partition = node.partition
        partition.exclusive(self._over.wait)
        node.manager.roles.truncate(partition, Truncation(partition.log.log_end_offset))

    def end(self) -> None:
        self._over.set()


class Watcher:
    """Counts the leaderships that begin."""

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def on_lead(self, partition: Partition) -> None:
        self.epochs.append(partition.replica.leader_epoch)

    def on_stop(self, partition: Partition) -> None: ...


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[MiniCluster]:
    made = await MiniCluster(tmp_path).start(2)
    made.make_topic(isr=(1, 2), min_insync_replicas="1")
    await eventually(lambda: all(KEY in n.manager.registry.partitions for n in made.nodes.values()))
    await eventually(lambda: made.nodes[1].partition.replica.leadership is not None)
    yield made
    await made.stop()


async def test_an_epoch_that_is_over_is_not_noted(cluster: MiniCluster) -> None:
    one, two = cluster.nodes[1], cluster.nodes[2]
    assert (await one.produce(b"both have it")).error == 0
    cluster.elect(1, (1,), only=[1])
    await eventually(lambda: one.partition.replica.leadership is not None)
    assert (await one.produce(b"of epoch 1")).error == 0
    with ExitStack() as stack:
        hang = Hang(two)
        stack.callback(hang.end)
        cluster.elect(2, (2,), only=[2])
        assert two.partition.replica.leader_epoch == 2
        assert two.partition.replica.leadership is None
        cluster.elect(1, (1,))
    await eventually(lambda: two.partition.log.written_offset == 2)
    assert two.partition.log.epoch_entries()[:2] == [(0, 0), (1, 1)]
    cluster.set_isr(1, 2)
    await eventually(lambda: one.partition.replica.leadership is not None)
    assert (await one.produce(b"of epoch 3")).error == 0
    await eventually(lambda: two.partition.replica.high_watermark == 3)
    assert two.partition.log.epoch_entries() == [(0, 0), (1, 1), (3, 2)]

    cluster.elect(2, (1, 2))
    await eventually(lambda: two.partition.replica.leadership is not None)
    assert (await two.produce(b"of epoch 4")).error == 0
    await eventually(lambda: one.partition.replica.high_watermark == 4)
    assert one.metrics.truncations == 0
    assert not two.manager.health.failed


async def test_only_the_newest_leadership_begins_and_once(cluster: MiniCluster) -> None:
    two, watcher = cluster.nodes[2], Watcher()
    two.manager.roles.watchers.append(watcher)
    with ExitStack() as stack:
        hang = Hang(two)
        stack.callback(hang.end)
        cluster.elect(2, (1, 2))
        cluster.elect(1, (1, 2))
        cluster.elect(2, (1, 2))
    await eventually(lambda: two.partition.replica.leadership is not None)
    leadership = two.partition.replica.leadership
    assert (await two.produce(b"both have it")).error == 0
    assert two.partition.replica.leadership is leadership
    assert watcher.epochs == [3]
    assert two.partition.log.epoch_entries() == [(3, 0)]
