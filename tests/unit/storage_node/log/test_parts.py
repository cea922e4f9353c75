"""Parts of the log on their own: producers, epochs, checkpoint files, indexes, descriptors."""

from __future__ import annotations

import errno
import os
import random
import resource
import struct
import threading
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock_core.errors import ErrorCode, PenstockError
from penstock_kafka.records.batch import BatchInfo, read_header
from penstock_kafka.records.crc import crc32c
from penstock_kafka.records.markers import Marker
from penstock_storage_node.log import checkpoints
from penstock_storage_node.log.epochs import LeaderEpochs
from penstock_storage_node.log.fs import FileSystem, read_file, write_file_atomically, write_fully
from penstock_storage_node.log.index import (
    IndexHeads,
    OffsetIndex,
    TimeIndex,
    decode_offset_entries,
    decode_time_entries,
    encode_offset_entries,
)
from penstock_storage_node.log.producer_state import (
    PRODUCER_IDLE_MAX_MS,
    CorruptSnapshot,
    ProducerState,
)
from unit.storage_node.log.log_model import NOW_MS, make_batch, new_disk

MAX_SEQUENCE = 2**31 - 1


def info(sequence: int, count: int = 1, *, producer_id: int = 5, epoch: int = 0) -> BatchInfo:
    return read_header(make_batch(count, producer=(producer_id, epoch, sequence)))


def state_after(*batches: BatchInfo, now_ms: int = NOW_MS) -> ProducerState:
    state, offset = ProducerState(), 100
    for batch in batches:
        assert state.check(batch, "t-0") is None
        state.update(batch, offset, now_ms)
        offset += batch.record_count
    return state


def code_of(state: ProducerState, batch: BatchInfo) -> int:
    with pytest.raises(PenstockError) as caught:
        state.check(batch, "t-0")
    return int(caught.value.code)


def test_sequences_wrap_at_the_largest_int() -> None:
    state = state_after(info(MAX_SEQUENCE - 1, 2))
    assert state.check(info(0), "t-0") is None
    assert code_of(state, info(1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    across = state_after(info(MAX_SEQUENCE - 1, 4))
    assert across.check(info(2), "t-0") is None
    assert across.check(info(MAX_SEQUENCE - 1, 4), "t-0") == (100, 103)
    loaded = ProducerState()
    loaded.load_snapshot(across.encode_snapshot(), NOW_MS)
    assert loaded.check(info(MAX_SEQUENCE - 1, 4), "t-0") == (100, 103)


def test_five_batches_are_remembered() -> None:
    state = state_after(*(info(n * 2, 2) for n in range(7)))
    for number in range(2, 7):
        assert state.check(info(number * 2, 2), "t-0") == (100 + number * 2, 101 + number * 2)
    for number in range(2):
        assert code_of(state, info(number * 2, 2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code_of(state, info(12, 1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER  # same start, other end


def test_unknown_producers_begin_anywhere_and_epochs_at_zero() -> None:
    state = state_after(info(77))
    assert code_of(state, info(77, epoch=1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert state.check(info(0, epoch=1), "t-0") is None
    state.update(info(0, epoch=1), 200, NOW_MS)
    assert code_of(state, info(78, epoch=0)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert state.check(info(0, epoch=1), "t-0") == (200, 200)


def test_idle_producers_expire_by_our_clock() -> None:
    state = state_after(info(0), info(0, producer_id=6), now_ms=NOW_MS)
    state.update(info(1), 300, NOW_MS + 10)
    state.expire(NOW_MS + PRODUCER_IDLE_MAX_MS)
    assert len(state) == 1
    assert state.get(5) is not None


def test_snapshot_has_kafkas_form() -> None:
    state = state_after(info(0, 3), info(3, 2))
    data = state.encode_snapshot()
    entry = struct.pack(">qhiqiqiq", 5, 0, 4, 104, 1, NOW_MS + 1, -1, -1)
    body = struct.pack(">i", 1) + entry
    assert data == struct.pack(">hI", 1, crc32c(body)) + body
    assert ProducerState().encode_snapshot() == struct.pack(">hIi", 1, crc32c(bytes(4)), 0)


def test_every_damage_to_a_snapshot_is_found() -> None:
    data = state_after(info(0, 3), info(0, producer_id=9)).encode_snapshot()
    for position in range(len(data)):
        for broken in (data[:position], data[:position] + bytes([data[position] ^ 4]) + data[position + 1 :]):
            with pytest.raises(CorruptSnapshot):
                ProducerState().load_snapshot(broken, NOW_MS)


def test_a_transaction_marker_ends_the_transaction() -> None:
    batch = info(0, 2)
    batch.attributes |= 0x10
    state = ProducerState()
    state.update(batch, 50, NOW_MS)
    entry = state.get(5)
    assert entry is not None
    assert entry.transaction_first_offset == 50
    state.expire(NOW_MS + 2 * PRODUCER_IDLE_MAX_MS)
    assert len(state) == 1
    marker = info(0, 1, epoch=1)
    marker.attributes |= 0x30
    state.replay(marker, NOW_MS, Marker(True, 4))
    assert (entry.transaction_first_offset, entry.coordinator_epoch, entry.epoch) == (-1, 4, 1)
    assert state.check(info(0, 1, epoch=1), "t-0") is None


def test_epoch_cache_follows_kafkas_rules() -> None:
    epochs = LeaderEpochs([(1, 0), (4, 10), (5, 30)])
    assert not epochs.is_dirty
    assert [epochs.end_offset_for(e, 40) for e in (0, 1, 2, 3, 4, 5, 6, -1)] == [
        (0, 0),
        (1, 10),
        (1, 10),
        (1, 10),
        (4, 30),
        (5, 40),
        (-1, -1),
        (-1, -1),
    ]
    assert [epochs.epoch_at(o) for o in (0, 9, 10, 29, 30, 99)] == [1, 1, 4, 4, 5, 5]
    epochs.assign(7, 30)  # nothing was written in epoch 5
    assert epochs.entries == [(1, 0), (4, 10), (7, 30)]
    epochs.assign(7, 35)
    assert epochs.entries[-1] == (7, 30)
    epochs.truncate_from_end(30)
    assert epochs.entries == [(1, 0), (4, 10)]
    epochs.truncate_from_start(5)
    assert epochs.entries == [(1, 5), (4, 10)]
    epochs.truncate_from_start(10)
    assert epochs.entries == [(4, 10)]
    assert epochs.is_dirty


def test_epoch_cache_against_a_list() -> None:
    rng = random.Random(7)
    for _ in range(200):
        epochs, offsets, epoch = LeaderEpochs(), list[int](), 0
        for _ in range(rng.randrange(40)):
            if rng.random() < 0.2:
                epoch += rng.randint(1, 3)
                epochs.assign(epoch, len(offsets))
            elif rng.random() < 0.2:
                cut = rng.randint(0, len(offsets))
                del offsets[cut:]
                epochs.truncate_from_end(cut)
                epoch += 1
                epochs.assign(epoch, len(offsets))
            else:
                if epochs.latest < epoch:
                    epochs.assign(epoch, len(offsets))
                offsets.append(epoch)
        for offset, wanted in enumerate(offsets):
            assert epochs.epoch_at(offset) == wanted


def test_checkpoint_files_have_kafkas_form() -> None:
    assert checkpoints.encode_epochs([(0, 0), (3, 17)]) == b"0\n2\n0 0\n3 17\n"
    assert checkpoints.decode_epochs(b"0\n2\n0 0\n3 17\n") == [(0, 0), (3, 17)]
    offsets = {("a.b", 0): 5, ("c", 11): 2**62}
    assert checkpoints.decode_offsets(checkpoints.encode_offsets(offsets), "x") == offsets
    topic_id = bytes(range(16))
    text = checkpoints.encode_partition_metadata(topic_id)
    assert text == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
    assert checkpoints.decode_partition_metadata(text) == topic_id
    properties = b"#\n#Mon Jan 01 00:00:00 UTC 2024\nnode.id=1\nversion=1\ncluster.id=a\\=b\n"
    assert checkpoints.decode_properties(properties) == {"node.id": "1", "version": "1", "cluster.id": "a=b"}


@pytest.mark.parametrize(
    "data", [b"", b"0", b"x\n0\n", b"1\n0\n", b"0\n2\n0 0\n", b"0\n1\n0\n", b"0\n1\n\xff 1\n"]
)
def test_damaged_checkpoints_are_refused(data: bytes) -> None:
    with pytest.raises(PenstockError) as caught:
        checkpoints.decode_epochs(data)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_offset_index_finds_by_offset_and_position() -> None:
    index = OffsetIndex("/i", 1000, IndexHeads())
    for number in range(1, 11):
        index.append(1000 + number * 10, number * 100)
    assert index.floor_offset(1009) == (-1, 0)
    assert index.floor_offset(1010) == (1010, 100)
    assert index.floor_offset(1057) == (1050, 500)
    assert index.floor_offset(9999) == (1100, 1000)
    assert index.below(550, 9999) == (1050, 500)
    assert index.below(550, 1040) == (1030, 300)
    assert index.below(50, 9999) == (-1, 0)
    head = decode_offset_entries(encode_offset_entries(*index.tail))
    assert (list(head.offsets), list(head.positions)) == (
        list(index.tail.offsets),
        list(index.tail.positions),
    )


def test_time_index_saves_in_parts() -> None:
    index = TimeIndex("/t", 50)
    for timestamp, offset in ((5, 51), (5, 52), (4, 53), (9, 54), (12, 60)):
        index.append(timestamp, offset)
    assert index.count == 3
    first, data = index.unsaved(2)
    assert (first, decode_time_entries(data)) == (0, [(5, 1), (9, 4)])
    index.mark_saved(2)
    index.append(13, 61)
    assert index.unsaved(4) == (2, struct.pack(">qiqi", 12, 10, 13, 11))
    assert decode_time_entries(struct.pack(">qiqiqi", 1, 1, 2, 2, 2, 3) + b"xx") == [(1, 1), (2, 2)]


def test_write_fully_survives_short_writes_and_many_buffers() -> None:
    fs = new_disk(3)
    fs.short_write_chance = 0.7
    buffers = [bytes([i % 256]) * (i % 7) for i in range(5000)]
    fd = fs.create("/x")
    assert write_fully(fs, fd, buffers, 10) == 10 + sum(map(len, buffers))
    assert fs.pread(fd, 1 << 20, 10) == b"".join(buffers)


def test_real_files(tmp_path: Path) -> None:
    fs = FileSystem(open_files_max=3)
    path = f"{tmp_path}/file"
    fd = fs.create(path)
    buffers = [memoryview(bytes([i % 251]) * 3) for i in range(3000)]
    write_fully(fs, fd, buffers, 0)
    fs.fdatasync(fd)
    fs.close(fd)
    whole = b"".join(buffers)
    assert read_file(fs, path) == whole
    file = fs.files.pin(path)
    buffer = bytearray(100)
    try:
        assert fs.preadv_nowait(file.fd, buffer, 500) == 100
        assert buffer == whole[500:600]
    except BlockingIOError:  # a filesystem without RWF_NOWAIT: the pool reads
        pass
    fs.files.unpin(file)
    write_file_atomically(fs, path, b"new")
    fs.files.forget(path)
    assert read_file(fs, path) == b"new"
    assert fs.list_directory(str(tmp_path)) == ["file"]


def test_descriptors_in_use_are_never_closed() -> None:
    fs = new_disk()
    fs.files._max = 2
    for number in range(8):
        fs.close(fs.create(f"/f{number}"))
    pinned = [fs.files.pin(f"/f{number}") for number in range(5)]
    assert all(fs.size(file.fd) == 0 for file in pinned)
    assert fs.files.pin("/f0") is pinned[0]
    fs.files.unpin(pinned[0])
    fs.files.forget("/f4")
    assert fs.size(pinned[4].fd) == 0
    for file in pinned:
        fs.files.unpin(file)
    assert fs.open_count <= 2
    with pytest.raises(OSError, match="closed") as caught:
        fs.size(pinned[4].fd)
    assert caught.value.errno == errno.EBADF


def test_descriptors_are_shared_between_threads(tmp_path: Path) -> None:
    fs = FileSystem(open_files_max=3)
    for number in range(10):
        fd = fs.create(f"{tmp_path}/f{number}")
        fs.pwritev(fd, [bytes([number]) * 10], 0)
        fs.close(fd)
    failures: list[str] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(500):
            number = rng.randrange(10)
            file = fs.files.pin(f"{tmp_path}/f{number}")
            if fs.pread(file.fd, 10, 0) != bytes([number]) * 10:
                failures.append(file.path)
            fs.files.unpin(file)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(fs.files) <= 3


def test_index_arrays_are_four_bytes_wide() -> None:
    assert array("I").itemsize == 4


def test_where_clients_have_all_descriptors_the_cached_ones_make_room(tmp_path: Path) -> None:
    """The disk would count as failed otherwise, and the node give up all that it leads until it is started anew."""
    fs = FileSystem()
    paths = [f"{tmp_path}/{number}" for number in range(20)]
    for path in paths:
        fs.close(fs.create(path))
    used, idle = fs.files.pin(paths[0]), [fs.files.pin(path) for path in paths[1:]]
    for file in idle:
        fs.files.unpin(file)
    taken: list[int] = []

    def take(one: Callable[[int], int], count: int) -> None:
        for number in range(count):
            taken.append(one(number))

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (idle[-1].fd + 30, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            take(lambda _: os.dup(used.fd), 1 << 30)
        write_file_atomically(fs, f"{tmp_path}/checkpoint", b"0")
        take(lambda number: fs.create(f"{tmp_path}/new-{number}"), 15)
        assert len(fs.list_directory(str(tmp_path))) == 20 + 1 + 15
        assert fs.files.pin_if_open(paths[0]) is used, "one that is in use stays"
        with pytest.raises(OSError, match="Too many open files"):
            take(lambda number: fs.create(f"{tmp_path}/newer-{number}"), 15)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)
        fs.files.close_all()
