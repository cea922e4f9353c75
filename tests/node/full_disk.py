"""A node on a small filesystem that is filled up and freed, again and again.

    python -m node.full_disk FOLDER

FOLDER is the root of a filesystem of a few MB that nobody else uses. `test_node_full_disk` runs
this on a tmpfs in a mount namespace of its own. Prints how it went; exits 1 when a promise is broken.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path

from node.harness import MiniCluster, MiniNode, eventually, make_batch
from penstock_core.errors import ErrorCode
from penstock_kafka.records.batch import iter_batches
from penstock_storage_node.log import LogState

ROUNDS_FREE_BYTES = (0, 4096, 8192, 16384, 40_000, 100_000, 300_000)
"""What is left when producing begins: so that data, indexes, snapshots, epochs and rolls meet the end."""
BATCH_BYTES = 6_000


def free_bytes(folder: Path) -> int:
    stats = os.statvfs(folder)
    return stats.f_bavail * stats.f_frsize


def fill(folder: Path, leave_bytes: int) -> Path:
    """A file that takes all space but that much."""
    ballast = folder / "ballast"
    with ballast.open("wb") as file:
        while (left := free_bytes(folder) - leave_bytes) > 0:
            file.write(bytes(min(left, 65_536)))
            file.flush()
    return ballast


async def produce_until_refused(node: MiniNode, acked: list[bytes], serial: int) -> int:
    """Whole batches until the first refusal; the waiting one may time out: written or not."""
    while True:
        value = b"%08d" % serial + bytes(BATCH_BYTES)
        serial += 1
        result = await node.produce_batch(make_batch(value), timeout_ms=300)
        if result.error == ErrorCode.NONE:
            acked.append(value[:8])
        elif result.error == ErrorCode.KAFKA_STORAGE_ERROR:
            return serial
        else:
            assert result.error == ErrorCode.REQUEST_TIMED_OUT, result


def state_of(node: MiniNode) -> LogState:
    """By a call, so that a type checker does not take an earlier state for today's."""
    return node.partition.log.state


def stored_serials(node: MiniNode) -> list[bytes]:
    found = []
    for path in sorted(node.partition.log.directory.glob("*.log")):
        data = path.read_bytes()
        for info in iter_batches(data):
            batch = data[info.position : info.position + info.size_bytes]
            at = batch.index(bytes(BATCH_BYTES))
            found.append(batch[at - 8 : at])
    return found


async def run(folder: Path) -> None:
    cluster = await MiniCluster(folder / "nodes").start(1, checkpoint_interval_ms=5_000)
    node = cluster.nodes[1]
    cluster.make_topic(isr=(1,), segment_bytes="65536", min_insync_replicas="1")
    await eventually(lambda: node.manager.registry.leading)
    acked: list[bytes] = []
    serial = 0
    for leave in ROUNDS_FREE_BYTES:
        ballast = fill(folder, leave)
        serial = await produce_until_refused(node, acked, serial)
        assert state_of(node) is LogState.FULL
        # Checkpoints fail meanwhile, and reading goes on.
        with contextlib.suppress(OSError):
            await node.pool.run(lambda: node.directory.offsets.write([(node.partition.log, 0)]))
        assert (await node.fetch(0)).error == ErrorCode.NONE
        assert not node.manager.health.failed
        ballast.unlink()
        await eventually(lambda: state_of(node) is LogState.OK)
        for _ in range(5):
            value = b"%08d" % serial + bytes(BATCH_BYTES)
            serial += 1
            result = await node.produce_batch(make_batch(value), timeout_ms=60_000)
            assert result.error == ErrorCode.NONE, result
            acked.append(value[:8])
        # Room for the next round.
        stored = stored_serials(node)
        assert stored == sorted(set(stored)), "order or a double"
        missing = set(acked) - set(stored)
        assert not missing, sorted(missing)
    segments = node.partition.log.segment_count
    before = stored_serials(node)
    await node.stop(clean=False)
    again = await MiniNode(1, node.path).start()
    [(_, log)] = again.manager._found.values()
    assert log.log_end_offset == len(before), (log.log_end_offset, len(before))
    assert log.segment_count == segments
    again.manager.take_unclaimed()
    log.close(clean=False)
    await again.stop(clean=False)
    print(f"rounds {len(ROUNDS_FREE_BYTES)}, acked {len(acked)}, stored {len(before)}, segments {segments}")


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1])))
