"""Logs that lose records on purpose, and nodes that lose their disk: in a part of the seeds.

  compaction   a topic `keyed`, whose keys are written again and again, and deleted
  retention    a topic `aged`, of small retention.ms or retention.bytes
  deletion     clients that send DeleteRecords for it
  disk loss    a storage node's disk is replaced by an empty one

All of it draws from a generator of its own, so that other seeds stay what they were.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from penstock_core.errors import ErrorCode
from penstock_core.ids import NO_NODE, NodeId, TopicPartition
from penstock_core.metadata.image import MetadataImage
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.frames import request_header
from simulation.hosts import Host
from simulation.log_checks import AGED, KEYED
from simulation.producer import Producer
from simulation.settings import RUN_US

if TYPE_CHECKING:
    from simulation.world import World

S = 1_000_000
SEEDS_WITH = 1 / 3
SWAP_CRASH_CHANCE = 0.02
SWAP_CHANGES_MAX = 20
"""Changes of the disk that a swap of a few segments makes."""

DELETE_VERSION = 2
ALL = ("compaction", "retention", "deletion", "disk loss")


class LogLife:
    """See the module. Part of every run, idle in most."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.rng = random.Random(f"{world.seed}-log")
        self.node_settings: dict[str, Any] = {}
        """Of storage nodes, beside what all seeds have."""
        self.features: frozenset[str] = frozenset()
        self._wiped: Host | None = None
        self._old_directory = b""
        self._number = 0
        self.producers: dict[str, Producer] = {}
        """By topic. Each has one of its own: whoever is answered a gap raises its epoch for all its topics."""
        self._draw()

    def _draw(self) -> None:
        rng, wanted = self.rng, set(self._world.settings.log_life)
        is_drawn = rng.random() < SEEDS_WITH
        if is_drawn and not wanted:
            wanted = {
                name for name, chance in zip(ALL, (0.6, 0.6, 0.6, 0.35), strict=True) if rng.random() < chance
            }
        if "deletion" in wanted:
            wanted.add("retention")
        self.features = frozenset(wanted)
        if wanted:
            self.node_settings = {
                "compaction_interval_ms": rng.choice((300, 1_000, 2_500)),
                "compaction_map_bytes": rng.choice((24 * 6, 24 * 40, 1 << 16)),
                "retention_check_interval_ms": rng.choice((400, 1_500)),
            }

    def start(self) -> None:
        rng, later = self.rng, self._later
        if "compaction" in self.features:
            configs = {
                "cleanup.policy": rng.choice(("compact", "compact", "compact,delete")),
                "segment.bytes": str(rng.choice((1024, 1024, 2048))),
                "index.interval.bytes": str(rng.choice((128, 512))),
                "segment.ms": str(rng.choice((2_000, 20_000))),
                "min.cleanable.dirty.ratio": str(rng.choice((0.01, 0.3))),
                "delete.retention.ms": str(rng.choice((200, 2_000, 10_000))),
                "min.compaction.lag.ms": str(rng.choice((0, 0, 1_000))),
            }
            if rng.random() < 0.3:
                configs["max.compaction.lag.ms"] = "3000"
            if configs["cleanup.policy"] == "compact,delete":
                configs["retention.ms"] = str(rng.choice((10_000, 30_000)))
            later(S, self._make, KEYED, configs)
        if "retention" in self.features:
            configs = {
                "segment.bytes": str(rng.choice((1024, 2048))),
                "index.interval.bytes": str(rng.choice((128, 512))),
                "segment.ms": str(rng.choice((1_000, 5_000, 60_000))),
            }
            kind = rng.choice(("ms", "bytes", "both"))
            if kind != "bytes":
                configs["retention.ms"] = str(rng.choice((2_000, 6_000, 15_000)))
            if kind != "ms":
                configs["retention.bytes"] = str(rng.choice((1_500, 4_000)))
            later(S, self._make, AGED, configs)
        if "deletion" in self.features:
            later(rng.uniform(4, 8) * S, self._delete)
        if "disk loss" in self.features:
            later(rng.uniform(6, 40) * S, self._lose_disk)

    def _later(self, delay_us: float, call: Any, *args: Any) -> None:
        self._world.scheduler.after(int(delay_us), call, *args)

    def _make(self, name: str, configs: dict[str, str]) -> None:
        world, is_direct = self._world, self.rng.random() < 0.3
        self.producers[name] = Producer(world, 90 + len(self.producers), -1, direct=is_direct)
        world.workload._create(name, self.rng.choice((1, 1, 2)), configs)
        self._later(2 * S, self._produce, name)

    def _produce(self, name: str) -> None:
        """More than others get, so that segments fill."""
        world, rng = self._world, self.rng
        if world.scheduler.now_us >= RUN_US:
            return
        self._later(rng.expovariate(1) * 250_000 + 1, self._produce, name)
        if name not in world.workload.topics:
            return
        topic_id, count = world.workload.topics[name]
        producer = self.producers[name]
        if producer.left < 40:
            for _ in range(rng.choice((1, 1, 2))):
                producer.produce(TopicPartition(topic_id, rng.randrange(count)), rng.randint(1, 4))

    def before_swap(self, host: str) -> None:
        """Files of a log are about to be exchanged: one host in a while crashes in the middle of it."""
        world = self._world
        may_crash = world.scheduler.now_us < RUN_US and not world.is_calm
        if may_crash and self.rng.random() < SWAP_CRASH_CHANCE:
            world.injected["crash in a swap"] += 1
            world.host_of[host].fs.crash_countdown = self.rng.randrange(SWAP_CHANGES_MAX)

    # --- DeleteRecords

    def _delete(self) -> None:
        world, rng = self._world, self.rng
        if world.scheduler.now_us >= RUN_US - S:
            return
        self._later(rng.expovariate(1) * 2.5 * S + 1, self._delete)
        if AGED not in world.workload.topics:
            return
        topic_id, count = world.workload.topics[AGED]
        key = TopicPartition(topic_id, rng.randrange(count))
        state = world.partition_for(key, -1)
        if state is None or state.leader == NO_NODE:
            return
        connection = world.connect(self, int(state.leader))
        if connection is None:
            return
        truth = world.checker.truth(key)
        start = world.checker.logs.start_seen.get(key, 0)
        # -1 is the high watermark; what it comes to only the leader knows.
        offset = -1 if rng.random() < 0.1 else start + int(rng.random() ** 2 * max(truth.end - start, 0))
        self._number += 1
        schema = codec.request_type(ApiKey.DELETE_RECORDS, DELETE_VERSION)
        topic_type = codec.entity_type(
            ApiKey.DELETE_RECORDS, DELETE_VERSION, "DeleteRecordsTopic", request=True
        )
        item_type = codec.entity_type(
            ApiKey.DELETE_RECORDS, DELETE_VERSION, "DeleteRecordsPartition", request=True
        )
        item = codec.build(item_type, partition_index=key.partition, offset=offset)
        topic = codec.build(topic_type, name=AGED, partitions=(item,))
        request = codec.build(schema, topics=(topic,), timeout=rng.choice((500, 3_000)))
        frame = request_header(ApiKey.DELETE_RECORDS, DELETE_VERSION, self._number, "deleter")
        host = connection.process.name
        connection.send(
            frame + codec.encode_body(request),
            lambda data: self._on_deleted(key, host, offset, data, connection),
        )

    def _on_deleted(self, key: TopicPartition, host: str, offset: int, data: bytes, connection: Any) -> None:
        connection.close()
        _, response = codec.decode_response(ApiKey.DELETE_RECORDS, DELETE_VERSION, data)
        (result,) = response.topics[0].partitions
        world = self._world
        if result.error_code:
            world.errors[f"{ErrorCode(result.error_code).name} (DeleteRecords)"] += 1
            return
        world.say("deleter", f"{key.partition}: {result.low_watermark} is the low watermark, wanted {offset}")
        if result.low_watermark < offset:
            world.checker.fail(
                "deleted records stay deleted", f"{key}: {offset} was wanted, done is {result.low_watermark}"
            )
        if offset >= 0 and not world.checker.truth(key).excused:
            world.checker.logs.on_deleted(key, host, offset)

    def lost(self, _route: int, _connection: Any) -> None:
        """The connection broke: nobody knows what came of the request."""

    # --- readers

    def reset(self, offsets: dict[TopicPartition, int], key: TopicPartition) -> bool:
        """A reader was told that its offset is out of range: go on at the log's start, as
        auto.offset.reset=earliest does. False when no log start explains it."""
        offset = offsets.get(key, 0)
        if self._world.checker.logs.start_seen.get(key, 0) <= offset:
            return False
        self._world.counts["readers that retention overtook"] += 1
        for host in self._world.hosts:
            if host.kind == "n" and host.is_running and host.process.manager is not None:
                partition = host.process.manager.registry.partitions.get(key)
                if partition is not None and partition.log.leads:
                    offsets[key] = max(offset, partition.log.log_start_offset)
        return True

    # --- disks that are lost

    def _image(self) -> MetadataImage:
        images = self._world.checker.images
        return images[max(images)]

    def _lose_disk(self) -> None:
        world, rng = self._world, self.rng
        # A topic of min.insync.replicas=1 may have a last member that has lost its disk already.
        if world.scheduler.now_us >= RUN_US or "lone" in world.workload.topics:
            return
        hosts = [h for h in world.hosts if h.kind == "n" and h.is_powered and not h.disk_fault]
        hosts = [h for h in hosts if self.has_copies(h)]
        if not hosts or self.why_not_done() or world.rot.why_not_mended():
            self._later(S // 2, self._lose_disk)
            return
        host = rng.choice(hosts)
        world.say("FAULT", f"the disk of {host.name} is lost")
        world.injected["node disk lost"] += 1
        host.cut_power()
        host.replace_disk()
        world.checker.logs.on_wiped(host.name)
        self._wiped, self._old_directory = host, self._directory_of(host)
        host.start_later(int(rng.random() ** 2 * 5 * S))
        self._later(S // 2, self._look)
        if rng.random() < 0.5:
            self._later(rng.uniform(2, 20) * S, self._lose_disk)

    def _directory_of(self, host: Host) -> bytes:
        node = self._image().nodes.get(NodeId(host.number))
        return b"" if node is None else node.directory_id

    def has_copies(self, host: Host) -> bool:
        """Whether another disk has what this one has, as far as the controllers know."""
        for topic in self._image().topics.values():
            for state in topic.partitions.values():
                if host.number in state.replicas and not {*state.isr, *state.elr} - {host.number}:
                    return False
        return True

    def _look(self) -> None:
        """Until it is in every ISR again, no other disk is lost."""
        host = self._wiped
        assert host is not None
        states = [s for t in self._image().topics.values() for s in t.partitions.values()]
        is_known = self._directory_of(host) != self._old_directory
        if is_known and all(host.number in s.isr for s in states if host.number in s.replicas):
            self._world.counts["lost disks rebuilt"] += 1
            self._wiped = None
        else:
            self._later(S // 2, self._look)

    def why_not_done(self) -> str:
        """What is left of it, "" when nothing is."""
        return "" if self._wiped is None else f"{self._wiped.name} is not rebuilt"
