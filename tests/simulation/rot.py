"""Bits that a storage node's disk forgets: of one batch, on one node, in some of the seeds.

The batch is committed, and its topic has `min.insync.replicas` 2 and durability `fsync`: another disk has
it, or had it when it was committed. The node is killed or loses power meanwhile, so that what it reads
afterwards comes from its disk. From then on somebody reads the batch from time to time, until the node
has found out and mended itself.

Only bytes of records flip. The checker reads headers to know what a log holds; that no bit of a header goes
unnoticed is shown by `tests/unit/storage_node/log/test_bit_rot.py`.
Draws from a generator of its own: other seeds stay what they were.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from penstock_core.config.topic import TopicConfig
from penstock_core.errors import PenstockError
from penstock_core.ids import TopicPartition
from penstock_kafka.records.batch import HEADER_BYTES, BatchInfo, is_crc_valid, iter_batches
from penstock_storage_node.log import ReadData, ReadJob, checkpoints
from penstock_storage_node.log.fs import read_file
from simulation.hosts import Host
from simulation.settings import RUN_US
from support.simulated_fs import SimulatedFile

if TYPE_CHECKING:
    from simulation.world import World

S = 1_000_000
SEEDS_WITH = 0.25
LOOK_US = 400_000


class LogRot:
    """At most one flipped bit in a run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(world.seed * 7919 + 17)
        self._host: Host | None = None
        self._key: TopicPartition | None = None
        self._base = -1
        self._is_mended = True
        self.is_wanted = self._rng.random() < SEEDS_WITH or world.settings.log_rot
        """Whether a bit flips in this run, if one can."""

    def start(self) -> None:
        if self.is_wanted:
            self._later(self._rng.uniform(8, 50) * S, self._flip)

    def why_not_mended(self) -> str:
        """What is left of it, "" when nothing is."""
        return "" if self._is_mended else f"a flipped bit in batch {self._base} of {self._key}"

    def _later(self, delay_us: float, call: Any) -> None:
        self._world.scheduler.after(int(delay_us), call)

    def _flip(self) -> None:
        world, rng = self._world, self._rng
        if world.scheduler.now_us >= RUN_US:
            return
        if world.log_life.why_not_done():  # a disk was lost: another copy may be the last one
            self._later(S, self._flip)
            return
        hosts = [h for h in world.hosts if h.kind == "n" and h.is_running and h.process.manager is not None]
        found = [(h, *one) for h in hosts for one in self._batches(h)]
        if not found:
            self._later(2 * S, self._flip)
            return
        host, key, path, info = rng.choice(found)
        world.say("FAULT", f"bit rot on {host.name}: batch {info.base_offset} in {path}")
        if rng.random() < 0.5:
            host.kill()
        else:
            host.cut_power()
        file = host.fs._find(path)
        assert isinstance(file, SimulatedFile)
        at = info.position + rng.randrange(HEADER_BYTES, info.size_bytes)
        file.data[at] ^= 1 << rng.randrange(8)
        file.synced = bytes(file.data)
        file.pending.clear()
        world.injected["bit rot in a node's log"] += 1
        self._host, self._key, self._base, self._is_mended = host, key, info.base_offset, False
        host.start_later(int(rng.random() ** 2 * 4 * S))
        self._later(rng.random() * 6 * S, self._look)

    def _batches(self, host: Host) -> list[tuple[TopicPartition, str, BatchInfo]]:
        """Committed batches below the recovery point, in files that are wholly on the disk.

        Above it a start can't tell a forgotten bit from a write that a crash tore, and cuts there; if that
        was the last of the ISR, it cuts what was acknowledged. Nobody can do better who has one checksum.
        """
        checker = self._world.checker
        image = checker.images[max(checker.images)]
        found: list[tuple[TopicPartition, str, BatchInfo]] = []
        manager = host.process.manager
        # What the file says: a full disk may have kept the last ones from it.
        name = f"{manager.directory._root}/{checkpoints.RECOVERY_POINT_FILE}"
        try:
            checkpointed = checkpoints.decode_offsets(read_file(host.fs, name), name)
        except FileNotFoundError:
            return found
        for key, partition in manager.registry.partitions.items():
            topic = image.topics.get(key.topic_id)
            truth = checker.truths.get(key)
            if topic is None or truth is None or truth.excused or not truth.is_fsync:
                continue
            if TopicConfig.from_config(image.config("topic", topic.name), 3).min_insync_replicas < 2:
                continue
            end = min(truth.end, checkpointed.get((topic.name, key.partition), 0))
            for segment in partition.log.segments:
                try:
                    file = host.fs._find(segment.path)
                except FileNotFoundError:
                    continue
                if not isinstance(file, SimulatedFile) or bytes(file.data) != file.synced:
                    continue
                for info in iter_batches(read_file(host.fs, segment.path)):
                    is_read = info.base_offset >= partition.log.log_start_offset and info.next_offset <= end
                    if is_read and info.record_count:
                        found.append((key, segment.path, info))
        return found

    def _look(self) -> None:
        """Somebody reads the batch."""
        host = self._host
        assert host is not None and self._key is not None
        if self._world.scheduler.is_stopped:
            return
        if host.is_running and host.process.manager is not None:
            manager = host.process.manager
            if manager.health.failed:
                self._world.counts["damaged logs given up"] += 1
                host.kill()
                host.start_later(int(self._rng.random() * S))
            elif self._key in manager.registry.partitions:
                partition = manager.registry.partitions[self._key]
                host.process.loop.call_soon(self._read, partition)
            elif self._key not in self._world.partitions() or self._is_moved_away(host):
                self._is_mended = True
        if not self._is_mended:
            self._later(LOOK_US, self._look)

    def _is_moved_away(self, host: Host) -> bool:
        """Its replica is none any more, and what took its place was in sync before."""
        assert self._key is not None
        images = self._world.checker.images
        state = images[max(images)].partition(*self._key)
        return state is not None and host.number not in state.replicas

    def _read(self, partition: Any) -> None:
        log = partition.log
        if log.log_start_offset > self._base:
            self._is_mended = True
            return
        if log.log_end_offset <= self._base:
            return
        try:
            found = partition.read(self._base, 1, log.log_end_offset)
        except PenstockError:
            return
        if isinstance(found, ReadJob):
            partition.start_read(found, lambda data, error: self._on_read(data) if error is None else None)
        else:
            self._on_read(found)

    def _on_read(self, data: ReadData) -> None:
        if data.size_bytes and data.base_offset > self._base:
            self._is_mended = True  # compaction took it, there or on the leader that this node has it from
        elif data.size_bytes and data.base_offset == self._base:
            # Behind one without a record comes what follows it: each has a CRC of its own (seed 932).
            found = b"".join(data.buffers)
            for info in iter_batches(found):
                if not is_crc_valid(found[info.position : info.position + info.size_bytes]):
                    self._world.checker.fail(
                        "no reader gets wrong bytes", f"batch {info.base_offset} of {self._key}"
                    )
            self._is_mended = True
