"""What was set aside and is proved superfluous goes after its time, by a clock that may be wrong; nothing else does."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator

import pytest

from penstock_core.config.topic import TopicConfig
from penstock_core.errors import PenstockError
from penstock_core.ids import NodeId, TopicId
from penstock_core.metadata.image import MetadataImage, PartitionImage, TopicImage
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_runtime.lifecycle import Lifecycle
from penstock_storage_node.disk.health import DiskHealth
from penstock_storage_node.disk.pool import DiskPool
from penstock_storage_node.log import LogDirectory
from penstock_storage_node.log.checkpoints import encode_partition_metadata
from penstock_storage_node.log.fs import write_file_atomically
from penstock_storage_node.log.strays import away_name
from penstock_storage_node.replica.stray_proof import judge
from penstock_storage_node.replica.strays import REMOVALS_MAX, StrayJanitor
from support.simulated_fs import SimulatedFileSystem
from unit.storage_node.log.log_model import NOW_MS, ROOT, TOPIC_ID, new_disk, open_directory

DAY_MS = 24 * 60 * 60 * 1000
WEEK_MS = 7 * DAY_MS
NODE = NodeId(3)
OTHER_ID = TopicId(b"o" * 16)


def image_of(
    replicas: tuple[int, ...], isr: tuple[int, ...], leader: int = 1, recovering: bool = False
) -> MetadataImage:
    """One in which topic `t` has one partition."""
    partition = PartitionImage.from_pb(
        pb.PartitionRecord(
            topic_id=TOPIC_ID, partition=0, replicas=replicas, isr=isr, leader=leader, recovering=recovering
        )
    )
    topic = TopicImage(TOPIC_ID, "t", {0: partition})
    return MetadataImage(topics={TOPIC_ID: topic})


class Rig:
    """A data directory, its clocks, and a process that comes and goes."""

    def __init__(self) -> None:
        self.fs: SimulatedFileSystem = new_disk()
        self.directory: LogDirectory = open_directory(self.fs)
        self.pool = DiskPool(1)
        self.wall_ms = NOW_MS
        self.up_ms = 0
        self.image = image_of(replicas=(1, 2), isr=(1, 2))
        self.lifecycle = Lifecycle("test")

    def pass_time(self, ms: int) -> None:
        self.wall_ms += ms
        self.up_ms += ms

    def start(self, retention_ms: int = WEEK_MS) -> StrayJanitor:
        self.health = DiskHealth(self.lifecycle, lambda: self.up_ms)
        return StrayJanitor(
            self.directory,
            self.pool,
            self.lifecycle,
            self.health,
            retention_ms=retention_ms,
            wall_ms=lambda: self.wall_ms,
            monotonic_ms=lambda: self.up_ms,
            judge=lambda of: judge(self.image, NODE, of),
        )

    def add(self, topic: str, set_aside_ms: int, topic_id: TopicId | None = TOPIC_ID) -> str:
        path = f"{ROOT}/{away_name(f'{topic}-0', 'stray', stamp_ms=set_aside_ms)}"
        self.fs.make_directory(path)
        if topic_id is not None:
            write_file_atomically(self.fs, f"{path}/partition.metadata", encode_partition_metadata(topic_id))
        self.fs.close(self.fs.create(f"{path}/00000000000000000000.log"))
        return path


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    yield made
    made.pool.stop()


async def test_it_goes_when_its_time_is_over_and_a_restart_does_not_begin_it_anew(rig: Rig) -> None:
    path = rig.add("t", NOW_MS)
    first = rig.start()
    rig.pass_time(WEEK_MS // 2)
    await first.look()
    assert first.count == 1
    second = rig.start()
    rig.pass_time(WEEK_MS // 2 - 1)
    await second.look()
    assert rig.fs.exists(path)
    rig.pass_time(1)
    await second.look()
    assert not rig.fs.exists(path)
    assert second.count == 0


async def test_a_clock_that_steps_ahead_removes_nothing_early(rig: Rig) -> None:
    path = rig.add("t", NOW_MS)
    janitor = rig.start()
    rig.wall_ms += 365 * DAY_MS
    await janitor.look()
    assert rig.fs.exists(path)
    rig.wall_ms -= 2 * 365 * DAY_MS
    rig.pass_time(WEEK_MS)
    await janitor.look()
    assert rig.fs.exists(path), "set aside in the future, as this clock has it"
    rig.wall_ms = NOW_MS + WEEK_MS
    await janitor.look()
    assert not rig.fs.exists(path)


async def test_minus_one_keeps_all_and_counts_them(rig: Rig) -> None:
    paths = [rig.add(f"t{i}", NOW_MS - 100 * WEEK_MS) for i in range(3)]
    janitor = rig.start(retention_ms=-1)
    await janitor.look()
    assert janitor.count == 3
    assert all(rig.fs.exists(path) for path in paths)


async def test_what_strays_take_is_known_until_they_go(rig: Rig) -> None:
    metadata = len(encode_partition_metadata(TOPIC_ID))
    for name, set_aside_ms, size in (
        ("old", NOW_MS - 2 * WEEK_MS, 1_000 - metadata),
        ("new", NOW_MS, 300 - metadata),
    ):
        fd = rig.fs.open(f"{rig.add(name, set_aside_ms)}/00000000000000000000.log")
        rig.fs.pwritev(fd, [bytes(size)], 0)
        rig.fs.close(fd)
    keeping, removing = rig.start(retention_ms=-1), rig.start()
    await keeping.look()
    assert (keeping.count, keeping.size_bytes) == (2, 1_300)
    await removing.look()
    assert (removing.count, removing.size_bytes) == (1, 300)


async def test_only_strays_go_and_not_too_many_in_one_look(rig: Rig) -> None:
    for number in range(REMOVALS_MAX + 3):
        rig.add(f"t{number}", NOW_MS - 2 * WEEK_MS)
    others = [f"{ROOT}/{name}" for name in ("t-0", "backup-stray", "lost+found", f"t-0.{'a' * 32}-delete")]
    for path in others:
        rig.fs.make_directory(path)
    janitor = rig.start()
    await janitor.look()
    assert janitor.count == 3
    await janitor.look()
    assert janitor.count == 0
    assert all(rig.fs.exists(path) for path in others)


async def test_a_removal_that_fails_is_tried_again_and_a_dying_disk_ends_the_node(rig: Rig) -> None:
    path = rig.add("t", NOW_MS - 2 * WEEK_MS)
    janitor = rig.start()
    error = errno.EACCES
    rig.fs.fail_on = lambda call, _path: OSError(error, "no") if call == "unlink" else None
    await janitor.look()
    assert (janitor.count, rig.health.failed) == (1, False)
    error = errno.EIO
    await janitor.look()
    assert rig.health.failed
    rig.fs.fail_on = lambda call, _path: None
    await janitor.look()
    assert rig.fs.exists(path), "nothing is changed on a failed disk"
    await rig.start().look()
    assert not rig.fs.exists(path)


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (MetadataImage(), "no topic with the id"),
        (image_of((1, 2), (1,)), "not every replica of t-0 is in sync"),
        (image_of((1, 2), (1, 2), leader=-1), "not every replica of t-0 is in sync"),
        (image_of((1, 2), (1, 2), recovering=True), "not every replica of t-0 is in sync"),
        (image_of((1, 3), (1, 3)), "this node is a replica of t-0"),
    ],
)
async def test_what_is_not_proved_superfluous_stays_for_ever(
    rig: Rig, image: MetadataImage, words: str
) -> None:
    path = rig.add("t", NOW_MS - 100 * WEEK_MS)
    rig.image = image
    janitor = rig.start(retention_ms=0)
    await janitor.look()
    assert rig.fs.exists(path)
    (found,) = await janitor.describe()
    assert not found.verdict.is_superfluous
    assert words in janitor.why(found)
    rig.image = image_of((1, 2), (1, 2))
    await janitor.look()
    assert not rig.fs.exists(path), "once it is proved, it goes"


async def test_one_that_does_not_say_what_it_is_stays(rig: Rig) -> None:
    paths = [rig.add("t", NOW_MS - WEEK_MS, None), rig.add("t", NOW_MS - WEEK_MS, OTHER_ID)]
    janitor = rig.start(retention_ms=0)
    await janitor.look()
    assert all(rig.fs.exists(path) for path in paths)
    assert (janitor.count, [each.verdict.topic for each in await janitor.describe()]) == (2, ["", ""])


async def test_a_person_deletes_any_stray_and_nothing_else(rig: Rig) -> None:
    path = rig.add("t", NOW_MS, None)
    name = path.rpartition("/")[2]
    rig.directory.create_log("kept", 0, TOPIC_ID, TopicConfig()).close(clean=True)
    janitor = rig.start(retention_ms=-1)
    await janitor.look()
    for bad in ("kept-0", "absent", f"../{ROOT.name}/{name}", f"x-0.{NOW_MS}.{'a' * 32}-stray", "", "."):
        with pytest.raises(PenstockError, match="has no log"):
            await janitor.delete(bad, "User:a")
    assert rig.fs.exists(path)
    assert await janitor.delete(name, "User:a") == 0
    assert not rig.fs.exists(path)
    assert janitor.count == 0
    assert rig.fs.exists(f"{ROOT}/kept-0")
