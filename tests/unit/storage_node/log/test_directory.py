"""LogDirectory: identity, lock, checkpoints, setting aside, deletion, crash safety."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from penstock_core.config.topic import TopicConfig
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import TopicId
from penstock_kafka.records.batch import PREFIX_BYTES, stamp
from penstock_storage_node.log import DirectoryPorts, FileSystem, LogDirectory
from penstock_storage_node.log.directory import DirectoryLocked
from penstock_storage_node.log.fs import remove_tree
from support.simulated_fs import SimulatedCrash, SimulatedFileSystem, keep_random, keep_synced
from unit.storage_node.log.log_model import (
    NOW_MS,
    ROOT,
    TOPIC_ID,
    append,
    make_batch,
    new_disk,
    new_log,
    open_directory,
    reopen,
    run_job,
)

CLUSTER = bytes(range(16, 32))
OTHER_ID = TopicId(bytes(16))
SETTINGS = TopicConfig()


def test_identity_is_made_once_and_checked() -> None:
    fs = new_disk()
    directory = open_directory(fs)
    assert directory.is_new
    assert not directory.was_clean
    assert (directory.cluster_id, directory.node_id) == (b"", -1)
    directory_id = directory.directory_id
    assert len(directory_id) == 16
    directory.set_identity(cluster_id=CLUSTER, node_id=3)
    directory.set_identity(cluster_id=CLUSTER, node_id=3)
    directory.close(clean=True)
    again = open_directory(fs.crash(keep_synced, keep_names=lambda count: 0))
    assert not again.is_new
    assert again.was_clean
    assert (again.cluster_id, again.node_id, again.directory_id) == (CLUSTER, 3, directory_id)
    with pytest.raises(PenstockError, match="belongs to cluster") as caught:
        again.set_identity(cluster_id=bytes(16), node_id=3)
    assert caught.value.code is ErrorCode.INCONSISTENT_CLUSTER_ID
    with pytest.raises(PenstockError, match="belongs to node 3"):
        again.set_identity(cluster_id=CLUSTER, node_id=4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version=2\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAA\n", "format 2"),
        ("version=1\n", "corrupt"),
        ("version=x\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAA\n", "corrupt"),
        ("version=1\ndirectory.id=short\n", "corrupt"),
        ("rubbish\n", "corrupt"),
        ("\xff\n", "corrupt"),
    ],
)
def test_a_directory_that_is_not_ours_is_refused(text: str, message: str) -> None:
    fs = new_disk()
    open_directory(fs).close(clean=False)
    fd = fs.create("/data/meta.properties")
    fs.pwritev(fd, [text.encode("latin-1")], 0)
    for _ in range(2):  # and the lock is free again
        with pytest.raises(PenstockError, match=message) as caught:
            open_directory(fs)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert "\n" not in caught.value.message


def test_one_process_at_a_time(tmp_path: Path) -> None:
    first = LogDirectory.open(DirectoryPorts(FileSystem(), lambda: NOW_MS), tmp_path / "a" / "b")
    with pytest.raises(DirectoryLocked, match="in use by another process"):
        LogDirectory.open(DirectoryPorts(FileSystem(), lambda: NOW_MS), tmp_path / "a" / "b")
    first.close(clean=False)
    LogDirectory.open(DirectoryPorts(FileSystem(), lambda: NOW_MS), tmp_path / "a" / "b").close(clean=False)


def test_slots_are_claimed_in_order() -> None:
    fs = new_disk()
    held = [LogDirectory.claim_slot(DirectoryPorts(fs, lambda: NOW_MS), ROOT) for _ in range(3)]
    assert [slot.path.name for slot in held] == ["slot-0", "slot-1", "slot-2"]
    identity = held[1].directory_id
    held[1].close(clean=True)
    again = LogDirectory.claim_slot(DirectoryPorts(fs, lambda: NOW_MS), ROOT)
    assert (again.path.name, again.directory_id, again.was_clean) == ("slot-1", identity, True)


def test_an_unusable_path_is_one_line() -> None:
    fs = new_disk()
    fs.fail_on = lambda call, path: OSError(errno.EACCES, "permission denied")
    with pytest.raises(PenstockError, match="can't be used"):
        open_directory(fs)


def test_a_topic_made_anew_does_not_meet_old_data() -> None:
    fs = new_disk()
    directory = open_directory(fs)
    log = directory.create_log("t", 0, TOPIC_ID, SETTINGS)
    for _ in range(9):
        append(log, make_batch())
    run_job(log)
    directory.offsets.write([(log, 9)])
    log.close(clean=False)
    fresh = directory.create_log("t", 0, OTHER_ID, SETTINGS)
    assert (fresh.log_end_offset, fresh.topic_id) == (0, OTHER_ID)
    strays = [name for name in fs.list_directory("/data") if name.endswith("-stray")]
    assert len(strays) == 1
    assert fs.exists(f"/data/{strays[0]}/00000000000000000000.log")
    (found,) = directory.scan()
    assert found.topic_id == OTHER_ID
    assert (found.checkpointed.recovery_point or 0, found.high_watermark) == (0, 0)
    # The same id again opens what is there.
    append(fresh, make_batch())
    run_job(fresh)
    fresh.close(clean=False)
    assert directory.create_log("t", 0, OTHER_ID, SETTINGS).log_end_offset == 1


def test_deletion_frees_the_name_at_once_and_survives_a_crash() -> None:
    fs = new_disk()
    directory = open_directory(fs)
    log = directory.create_log("t", 0, TOPIC_ID, SETTINGS)
    append(log, make_batch())
    run_job(log)
    directory.offsets.write([(log, 1)])
    remove = directory.delete_log(log)
    assert not fs.exists("/data/t-0")
    (left,) = [name for name in fs.list_directory("/data") if name.endswith("-delete")]
    disk = fs.crash(keep_synced, keep_names=lambda count: 0)
    after = open_directory(disk)
    assert after.scan() == []
    assert disk.exists(f"/data/{left}")  # the node may serve before it is gone
    after.remove_leftovers()
    assert not disk.exists(f"/data/{left}")
    directory.create_log("t", 0, TOPIC_ID, SETTINGS)
    remove()
    assert not fs.exists(f"/data/{left}")
    assert [found.topic for found in directory.scan()] == ["t"]


def test_long_names_fit_a_file_name() -> None:
    fs = new_disk()
    directory = open_directory(fs)
    topic = "x" * 249
    log = directory.create_log(topic, 12345, TOPIC_ID, SETTINGS)
    directory.delete_log(log)
    assert max(len(name) for name in fs.list_directory("/data")) <= 255
    directory.create_log(topic, 12345, TOPIC_ID, SETTINGS)
    (found,) = directory.scan()
    assert (found.topic, found.partition) == (topic, 12345)


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "..", "a\x00b", "ä", "x" * 250])
def test_hostile_topic_names_reach_no_path(name: str) -> None:
    fs = new_disk()
    directory = open_directory(fs)
    fs.calls.clear()
    with pytest.raises(PenstockError) as caught:
        directory.create_log(name, 0, TOPIC_ID, SETTINGS)
    assert caught.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert fs.calls == []


def test_strangers_in_the_directory_are_left_alone() -> None:
    fs = new_disk()
    directory = open_directory(fs)
    for name in ("lost+found", "no-number-x", "-0", "t-007", "t-0.abc-stray"):
        fs.make_directory(f"/data/{name}")
    directory.create_log("a-b", 1, TOPIC_ID, SETTINGS)
    assert [(found.topic, found.partition) for found in directory.scan()] == [("a-b", 1)]
    assert fs.exists("/data/lost+found")


@pytest.mark.parametrize("damage", ["missing", "garbage"])
def test_a_partition_without_its_topic_id_is_set_aside(damage: str) -> None:
    fs = new_disk()
    directory = open_directory(fs)
    log = directory.create_log("t", 0, TOPIC_ID, SETTINGS)
    append(log, make_batch())
    run_job(log)
    fs.unlink("/data/t-0/partition.metadata")
    if damage == "garbage":
        fs.pwritev(fs.create("/data/t-0/partition.metadata"), [b"version: 0\ntopic_id: ?"], 0)
    assert directory.scan() == []
    assert any(name.endswith("-stray") for name in fs.list_directory("/data"))


@pytest.mark.parametrize("countdown", range(14))
def test_a_crash_while_a_partition_is_made(countdown: int) -> None:
    for seed in range(5):
        fs = new_disk(seed)
        directory = open_directory(fs)
        fs.crash_countdown = countdown
        made = False
        try:
            directory.create_log("t", 0, TOPIC_ID, SETTINGS)
            made = True
        except SimulatedCrash:
            pass
        rng = random.Random(seed)
        disk = fs.crash(keep_random(rng), keep_names=lambda count: rng.randint(0, count))  # noqa: B023
        again = open_directory(disk)
        found = again.scan()
        if made:
            assert len(found) == 1
        log = again.create_log("t", 0, TOPIC_ID, SETTINGS)
        append(log, make_batch())
        run_job(log)
        _, last = reopen(disk.crash(keep_synced, keep_names=lambda count: 0))
        assert last.log_end_offset == 1


def test_checkpoints_merge_and_survive() -> None:
    fs = new_disk()
    directory = open_directory(fs)
    logs = [directory.create_log("t", partition, TOPIC_ID, SETTINGS) for partition in range(3)]
    for number, log in enumerate(logs):
        for _ in range(number + 2):
            append(log, make_batch())
        run_job(log)
    logs[2].raise_log_start(1)
    directory.offsets.write([(log, log.log_end_offset - 1) for log in logs])
    append(logs[0], make_batch())
    run_job(logs[0])
    directory.offsets.write([(logs[0], 99)])
    disk = fs.crash(keep_synced, keep_names=lambda count: 0)
    again = open_directory(disk)
    rows = [
        (f.partition, f.checkpointed.recovery_point, f.high_watermark, f.checkpointed.log_start_offset)
        for f in again.scan()
    ]
    assert rows == [(0, 3, 3, None), (1, 3, 2, None), (2, 4, 3, 1)]
    log = again.open_log(again.scan()[2], SETTINGS)
    assert (log.log_start_offset, log.log_end_offset) == (1, 4)
    text = disk.pread(disk.open("/data/recovery-point-offset-checkpoint"), 1000, 0)
    assert text == b"0\n3\nt 0 3\nt 1 3\nt 2 4\n"


def test_a_mark_of_gaps_that_found_no_space_is_made_by_the_next_try() -> None:
    """Without it the next start takes the first gap for a lost write, and cuts what was acknowledged."""
    fs = new_disk()
    directory, log = new_log(fs)
    for offset in (0, 10):  # what lay between was compacted away at the leader
        batch = make_batch()
        sent = bytes(stamp(offset, 1, batch)) + batch[PREFIX_BYTES:]
        log.append_as_follower(sent, 1, base_offset=log.log_end_offset)
    fs.fail_on = lambda call, path: OSError(errno.ENOSPC, "full") if "cleaner-offset" in path else None
    with pytest.raises(OSError, match="full"):
        run_job(log)
    assert not directory.offsets.is_marked_compacted(log)
    fs.fail_on = lambda call, path: None
    assert run_job(log, retry=True)
    assert log.flushed_offset == 11
    _, again = reopen(fs.crash(keep_synced, keep_names=lambda count: 0))
    assert again.log_end_offset == 11


def test_damaged_checkpoints_mean_a_longer_scan_only() -> None:
    fs = new_disk()
    directory = open_directory(fs)
    log = directory.create_log("t", 0, TOPIC_ID, SETTINGS)
    for _ in range(9):
        append(log, make_batch())
    run_job(log)
    directory.offsets.write([(log, 9)])
    disk = fs.crash()
    disk.pwritev(disk.create("/data/recovery-point-offset-checkpoint"), [b"0\n7\nt 0"], 0)
    again = open_directory(disk)
    (found,) = again.scan()
    assert found.checkpointed.recovery_point is None
    assert again.open_log(found, SETTINGS).log_end_offset == 9


def test_damage_shows_at_every_start_until_the_controllers_know() -> None:
    fs = new_disk()
    directory, log = new_log(fs)
    directory.reported()
    append(log, make_batch(10))
    append(log, make_batch(10))
    run_job(log)
    directory.offsets.write([(log, 0)])
    fd = fs.open(f"{log.directory}/00000000000000000000.log")
    fs.ftruncate(fd, 100)
    fs.fdatasync(fd)
    for start in range(4):
        fs = fs.crash(keep_synced)
        directory = open_directory(fs)
        (found,) = directory.scan()
        log = directory.open_log(found, SETTINGS)
        assert (log.flush_point > log.log_end_offset) == (start < 3), start
        assert directory.has_unreported
        if start == 2:
            directory.reported()
            assert not directory.has_unreported


@pytest.mark.parametrize("loss", ["the directory", "the topic's id"])
def test_a_log_that_is_gone_is_missed_until_the_controllers_know(loss: str) -> None:
    fs = new_disk()
    directory, log = new_log(fs)
    other = directory.create_log("deleted", 0, OTHER_ID, SETTINGS)
    empty = directory.create_log("empty", 0, OTHER_ID, SETTINGS)
    for each in (log, other):
        append(each, make_batch(10))
        run_job(each)
    directory.delete_log(other)()
    for each in (log, empty):
        each.close(clean=True)
    directory.offsets.write([(log, 10), (empty, 0)])
    directory.close(clean=True)
    assert scanned_anew(fs).missing == []
    key = (log.topic, log.partition)
    if loss == "the directory":
        remove_tree(fs, str(log.directory))
    else:
        fs.pwritev(fs.open(f"{log.directory}/partition.metadata"), [b"x"], 0)
    remove_tree(fs, str(empty.directory))  # nothing was acknowledged there
    for _ in range(2):
        directory = scanned_anew(fs)
        assert directory.was_clean
        assert directory.missing == [key]
    directory.reported()
    assert scanned_anew(fs).missing == []


def test_a_log_made_anew_keeps_its_rows_when_its_node_registers_again() -> None:
    """A node does so whenever the controllers no longer know its epoch: that its log was gone once is told by then."""
    fs = new_disk()
    directory, log = new_log(fs)
    append(log, make_batch(10))
    run_job(log)
    log.close(clean=True)
    directory.offsets.write([(log, 10)])
    directory.close(clean=True)
    remove_tree(fs, str(log.directory))
    directory = open_directory(fs)
    directory.scan()
    directory.reported()
    log = directory.create_log("t", 0, TOPIC_ID, SETTINGS)
    append(log, make_batch(10))
    run_job(log)
    log.raise_log_start(4)
    directory.offsets.write([(log, 10)])
    directory.reported()
    told = directory.offsets.of((log.topic, log.partition), is_clean=False)
    assert (told.recovery_point, told.log_start_offset) == (10, 4)


def scanned_anew(fs: SimulatedFileSystem) -> LogDirectory:
    directory = open_directory(fs)
    directory.scan()
    directory.close(clean=True)
    return directory


def test_a_clean_stop_hides_nothing_after_an_unclean_start() -> None:
    fs = new_disk()
    directory = open_directory(fs)
    assert not directory.has_unreported, "a new directory has lost nothing"
    directory.close(clean=True)
    clean = open_directory(fs)
    assert not clean.has_unreported
    unclean = open_directory(fs.crash(keep_synced))
    assert unclean.has_unreported
    unclean.reported()
    assert not unclean.has_unreported
