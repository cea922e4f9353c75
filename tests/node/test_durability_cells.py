"""Cells of docs/durability.md that speak of loss, and of memory: shown with whole nodes and disks that forget.

The test elects, so it can be as unlucky as it likes. A power cut leaves exactly what was flushed.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from node.harness import KEY, MiniCluster, MiniNode, eventually
from penstock_core.errors import ErrorCode
from penstock_core.ids import NodeId
from penstock_kafka.records.read import read_records
from penstock_storage_node.log import LogState
from support.simulated_fs import SimulatedFileSystem, keep_all, keep_synced
from unit.storage_node.log.log_model import read_all_batches

both = pytest.mark.parametrize("durability", ["fsync", "replicated"])


class Disks(MiniCluster):
    """Nodes whose disks the test may take away."""

    async def make(self, durability: str, isr: Sequence[int] = (1, 2, 3)) -> None:
        for number in (1, 2, 3):
            disk = SimulatedFileSystem(random.Random(number))
            # Nobody answers proposals here, so none is to be made.
            await self.start_node(number, fs=disk, lag_max_ms=3_600_000)
        self.make_topic(isr=isr, penstock_durability=durability, min_insync_replicas="2")
        await self.leads(1)
        await eventually(lambda: all(KEY in n.manager.registry.partitions for n in self.nodes.values()))

    async def leads(self, number: int) -> None:
        node = self.nodes[number]
        await eventually(lambda: KEY in node.manager.registry.partitions)
        await eventually(lambda: node.partition.replica.leadership is not None)

    async def end(self, *numbers: int, power: bool) -> dict[int, SimulatedFileSystem]:
        """All at once: their disks as the next start finds them."""
        disks = {}
        for number in numbers:
            fs = self.nodes[number].fs
            assert isinstance(fs, SimulatedFileSystem)
            disks[number] = fs.crash(
                keep_synced if power else keep_all, keep_names=lambda count: 0 if power else count
            )
        for number in numbers:
            await self.nodes.pop(number).stop(clean=False)
        return disks

    async def back(self, disks: dict[int, SimulatedFileSystem]) -> None:
        for number, disk in disks.items():
            await self.start_node(number, fs=disk, lag_max_ms=3_600_000)
        back = [self.nodes[number].manager.registry for number in disks]
        await eventually(lambda: all(KEY in registry.partitions for registry in back))

    async def stop(self) -> None:
        for node in self.nodes.values():
            await node.stop(clean=False)

    async def produced(self, number: int, value: bytes, *, acks: int) -> None:
        assert (await self.nodes[number].produce(value, acks=acks)).error == ErrorCode.NONE


def values(node: MiniNode) -> list[bytes | None]:
    """What the node's log holds."""
    return [r.value for batch in read_all_batches(node.partition.log) for r in read_records(batch)]


def failing_flush(call: str, path: str) -> OSError | None:
    return OSError(errno.EIO, "injected", path) if call == "fdatasync" else None


def working(_call: str, _path: str) -> OSError | None:
    return None


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Disks]:
    made = Disks(tmp_path)
    yield made
    await made.stop()


async def deposed_before_anybody_copied(cluster: Disks, durability: str) -> None:
    """Node 1 acknowledges a record with acks=1; nobody follows it any more, and it does not know that."""
    await cluster.make(durability)
    await cluster.produced(1, b"a", acks=-1)
    cluster.elect(2, [1, 2, 3], only=[2, 3])
    await cluster.leads(2)
    await cluster.produced(1, b"lost", acks=1)


@both
async def test_acks_1_goes_with_a_leader_that_died_before_a_follower_had_it(
    cluster: Disks, durability: str
) -> None:
    await deposed_before_anybody_copied(cluster, durability)
    disks = await cluster.end(1, power=False)
    cluster.set_isr(2, 3)
    await cluster.produced(2, b"b", acks=-1)
    assert values(cluster.nodes[2]) == [b"a", b"b"]
    await cluster.back(disks)
    await eventually(lambda: cluster.nodes[1].partition.log.log_end_offset == 2)
    await eventually(lambda: values(cluster.nodes[1]) == [b"a", b"b"])


@both
async def test_acks_1_of_a_leader_that_slept_or_was_cut_off_is_cut_off_its_log(
    cluster: Disks, durability: str
) -> None:
    await deposed_before_anybody_copied(cluster, durability)
    assert values(cluster.nodes[1]) == [b"a", b"lost"]
    # It wakes, and hears what has become of it.
    cluster.set_isr(1, 2, 3)
    await cluster.produced(2, b"b", acks=-1)
    await eventually(lambda: values(cluster.nodes[1]) == [b"a", b"b"])


@both
@pytest.mark.parametrize("again", [True, False])
async def test_acks_1_outlives_the_death_of_all_if_the_same_leader_comes_back(
    cluster: Disks, durability: str, again: bool
) -> None:
    await deposed_before_anybody_copied(cluster, durability)
    disks = await cluster.end(1, 2, 3, power=False)
    leader = 1 if again else 2
    cluster.elect(leader, [1, 2, 3])
    await cluster.back(disks)
    await cluster.leads(leader)
    assert values(cluster.nodes[leader]) == ([b"a", b"lost"] if again else [b"a"])


async def test_acks_1_is_on_the_leaders_disk_in_fsync_mode(cluster: Disks) -> None:
    await deposed_before_anybody_copied(cluster, "fsync")
    disks = await cluster.end(1, 2, 3, power=True)
    cluster.elect(1, [1, 2, 3])
    await cluster.back(disks)
    await cluster.leads(1)
    assert values(cluster.nodes[1]) == [b"a", b"lost"]


@both
async def test_acks_1_goes_with_the_machine_of_a_leader_that_led_alone(
    cluster: Disks, durability: str
) -> None:
    await deposed_before_anybody_copied(cluster, durability)
    disks = await cluster.end(1, power=True)
    await cluster.produced(2, b"b", acks=1)
    await cluster.back(disks)
    await eventually(lambda: values(cluster.nodes[1]) == values(cluster.nodes[2]) == [b"a", b"b"])


@both
@pytest.mark.parametrize("fate", ["killed", "power cut", "disk lost"])
async def test_acks_all_outlives_one_machine_by_the_other_replicas(
    cluster: Disks, durability: str, fate: str
) -> None:
    """A replica that lacks it afterwards gets it from the others."""
    await cluster.make(durability)
    await cluster.produced(1, b"kept", acks=-1)
    disks = await cluster.end(1, power=fate == "power cut")
    if fate == "disk lost":
        disks = {1: SimulatedFileSystem(random.Random(4))}
    cluster.elect(2, [2, 3])
    await cluster.leads(2)
    assert values(cluster.nodes[2]) == [b"kept"]
    await cluster.back(disks)
    assert (await cluster.nodes[2].produce(b"more")).error == ErrorCode.NONE
    await eventually(lambda: cluster.nodes[1].partition.log.log_end_offset == 2)
    assert values(cluster.nodes[1]) == [b"kept", b"more"]


@both
async def test_acks_all_outlives_the_death_of_every_process(cluster: Disks, durability: str) -> None:
    await cluster.make(durability)
    await cluster.produced(1, b"kept", acks=-1)
    disks = await cluster.end(1, 2, 3, power=False)
    for leader in (1, 2, 3):
        cluster.elect(leader, [1, 2, 3])
    await cluster.back(disks)
    await cluster.leads(3)
    assert values(cluster.nodes[3]) == [b"kept"]


@both
async def test_acks_all_outlives_the_power_of_all_only_when_flushed(cluster: Disks, durability: str) -> None:
    await cluster.make(durability)
    await cluster.produced(1, b"acked", acks=-1)
    disks = await cluster.end(1, 2, 3, power=True)
    cluster.elect(2, [1, 2, 3])
    await cluster.back(disks)
    await cluster.leads(2)
    assert values(cluster.nodes[2]) == ([b"acked"] if durability == "fsync" else [])


@both
async def test_acks_1_is_not_given_for_a_flush_that_failed(cluster: Disks, durability: str) -> None:
    """Nothing but the write is waited for when acknowledged means written."""
    await cluster.make(durability)
    disk = cluster.nodes[1].fs
    assert isinstance(disk, SimulatedFileSystem)
    await cluster.produced(1, b"safe", acks=-1)
    disk.fail_on = failing_flush
    answer = await cluster.nodes[1].produce(b"a", acks=1)
    assert (answer.error == ErrorCode.NONE) == (durability == "replicated")
    await eventually(lambda: cluster.nodes[1].manager.health.failed == (durability == "fsync"))
    disk.fail_on = working


@both
@pytest.mark.parametrize("acks", [1, -1])
async def test_a_full_disk_refuses_and_then_goes_on(cluster: Disks, durability: str, acks: int) -> None:
    await cluster.make(durability)
    leader = cluster.nodes[1]
    disk = leader.fs
    assert isinstance(disk, SimulatedFileSystem)
    await cluster.produced(1, b"before", acks=acks)
    disk.space_bytes = 10
    waiting = asyncio.ensure_future(leader.produce(b"staged", acks=acks))
    await eventually(lambda: leader.partition.log.state is LogState.FULL)
    assert (await leader.produce(b"refused", acks=acks)).error == ErrorCode.KAFKA_STORAGE_ERROR
    assert not waiting.done()
    disk.space_bytes = None
    assert (await waiting).error == ErrorCode.NONE
    await cluster.produced(1, b"after", acks=acks)
    assert values(leader) == [b"before", b"staged", b"after"]


@both
@pytest.mark.parametrize("isr", [[1, 2], [1, 2, 3]])
async def test_acks_all_is_lost_with_the_two_disks_that_were_the_isr(
    cluster: Disks, durability: str, isr: list[int]
) -> None:
    """Two of three disks are gone for good: min.insync.replicas 2 promised no more than two copies."""
    await cluster.make(durability, isr=isr)
    if 3 not in isr:
        await cluster.nodes.pop(3).stop(clean=False)
        leadership = cluster.nodes[1].partition.replica.leadership
        assert leadership is not None
        # It may have caught up, and been proposed for the ISR, before it went.
        await eventually(lambda: not leadership.followers[NodeId(3)].heard)
        cluster.set_isr(*isr)
    await cluster.produced(1, b"acked", acks=-1)
    third = await cluster.end(3, power=False) if 3 in isr else {}
    await cluster.end(1, 2, power=False)
    cluster.elect(3, [3])
    await cluster.back(third or {3: SimulatedFileSystem(random.Random(3))})
    await cluster.leads(3)
    assert values(cluster.nodes[3]) == ([b"acked"] if 3 in isr else [])
