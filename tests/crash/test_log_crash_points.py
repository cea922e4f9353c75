"""A partition's files after a power cut at every call of roll, truncation, checkpoint, retention and close.

At each call the unsynced writes are cut short, zeroed, dropped one by one or kept one by
one (so in any order), and names too; the log that opens then is an exact prefix with all
that was promised, again after a second cut, and takes appends.
`tests/unit/storage_node/log/test_recovery.py` has the same for appends at every byte.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from penstock_core.config.topic import TopicConfig
from penstock_storage_node.log import Appended, PartitionLog
from support.simulated_fs import (
    Content,
    SimulatedCrash,
    SimulatedDirectory,
    SimulatedFile,
    SimulatedFileSystem,
    apply_ops,
    keep_all,
    keep_synced,
)
from unit.storage_node.log.log_model import (
    NOW_MS,
    Model,
    append,
    make_batch,
    new_disk,
    new_log,
    open_directory,
    read_all_batches,
    reopen,
    run_job,
)

SMALL = TopicConfig(segment_bytes=700, index_interval_bytes=150, retention_bytes=3000, retention_ms=-1)


@dataclass
class Story:
    """The script's progress: what the log may hold, and what it must."""

    model: Model = field(default_factory=Model)
    before: Model | None = None
    """While a truncation is under way: what was there."""
    floor: int = 0
    """Offsets below are promised."""
    oldest: int = 0
    """Retention may have removed what lies below."""

    def known(self) -> Model:
        return self.before or self.model


def add(log: PartitionLog, story: Story, batch: bytes, epoch: int) -> None:
    result = append(log, batch, epoch)
    assert isinstance(result, Appended)
    story.model.add(result.data)


def flush(log: PartitionLog, story: Story) -> None:
    run_job(log)
    story.floor = log.flushed_offset


def truncate(log: PartitionLog, story: Story, offset: int) -> None:
    model = story.model
    kept = max(end for end in (0, *(i.next_offset for i, _ in model.batches)) if end <= offset)
    story.before, story.floor = replace(model, batches=list(model.batches)), min(story.floor, kept)
    end = log.truncate_to(offset)
    model.cut(end)
    story.before = None


def script(fs: SimulatedFileSystem, story: Story) -> None:
    """Everything that changes files, with a promise here and there."""
    directory, log = new_log(fs, SMALL)
    for number in range(14):
        add(log, story, make_batch(1 + number % 3), epoch=number // 5)
        if number % 2:
            flush(log, story)
    flush(log, story)
    directory.offsets.write([(log, log.flushed_offset)])
    for _ in range(5):
        add(log, story, make_batch(2, value_bytes=60), epoch=3)
    # In the middle of a batch, some segments back, some of it not written.
    truncate(log, story, story.model.batches[9][0].last_offset)
    log.start_epoch(5)
    for number in range(8):
        add(log, story, make_batch(2, value_bytes=40 + number), epoch=5)
        flush(log, story)
    directory.offsets.write([(log, log.flushed_offset)])
    # Right at a batch's end, within the active segment.
    truncate(log, story, story.model.batches[-2][0].base_offset)
    add(log, story, make_batch(3), epoch=6)
    flush(log, story)
    for _ in range(8):
        add(log, story, make_batch(3, value_bytes=60), epoch=6)
        flush(log, story)
    work = log.delete_old_segments(log.flushed_offset, NOW_MS)
    assert work is not None
    story.oldest = log.log_start_offset
    work()
    directory.offsets.write([(log, log.flushed_offset)])
    log.close(clean=True)
    directory.offsets.write([(log, log.log_end_offset)])
    directory.close(clean=True)
    _, again = reopen(fs, SMALL)
    add(again, story, make_batch(2), epoch=7)
    flush(again, story)


def files(directory: SimulatedDirectory) -> Iterator[SimulatedFile]:
    for node in directory.names.values():
        if isinstance(node, SimulatedFile):
            yield node
        else:
            yield from files(node)


def fates(fs: SimulatedFileSystem, dice: random.Random) -> Iterator[Content]:
    """Ways in which the unsynced writes of this moment may have reached the disk."""
    yield keep_all
    yield keep_synced
    loose = [file for file in files(fs._root) if file.pending]
    for chosen in loose:
        count = len(chosen.pending)
        for number in {0, count - 1, dice.randrange(count)}:
            position, written = chosen.pending[number]
            torn = [(position, written[: dice.randint(0, len(written))])] if written else []
            ways = [
                apply_ops(chosen.synced, chosen.pending[:number] + torn),
                apply_ops(chosen.synced, [chosen.pending[number]]),
                apply_ops(chosen.synced, chosen.pending[:number] + chosen.pending[number + 1 :]),
            ]
            if written:
                whole = bytes(chosen.data)
                ways.append(whole[:position] + bytes(max(len(whole) - position, 0)))
            for way in ways:
                for rest in (keep_all, keep_synced):

                    def content(
                        path: str,
                        file: SimulatedFile,
                        chosen: SimulatedFile = chosen,
                        way: bytes = way,
                        rest: Content = rest,
                    ) -> bytes:
                        return way if file is chosen else rest(path, file)

                    yield content


def check(disk: SimulatedFileSystem, story: Story) -> PartitionLog | None:
    directory = open_directory(disk)
    found = directory.scan()
    if not found:
        assert story.floor == 0, "the log's directory is gone"
        return None
    log = directory.open_log(found[0], SMALL)
    known = story.known()
    assert story.floor <= log.log_end_offset <= known.end
    assert log.log_start_offset <= story.oldest
    first = log.log_start_offset
    stored = read_all_batches(log)
    assert stored == [
        data
        for info, data in known.batches
        if info.last_offset >= first and info.next_offset <= log.log_end_offset
    ]
    assert log.flushed_offset == log.log_end_offset
    return log


@pytest.mark.timeout(600)
def test_a_power_cut_at_every_call() -> None:
    whole = new_disk()
    script(whole, Story())
    calls = len(whole.calls)
    tried = 0
    for countdown in range(calls):
        dice = random.Random(countdown)
        fs, story = new_disk(countdown), Story()
        fs.crash_countdown = countdown
        with pytest.raises(SimulatedCrash):
            script(fs, story)
        for number, content in enumerate(fates(fs, dice)):
            keep = [0, None, dice.random()][number % 3]

            def names(count: int, keep: float | None = keep) -> int:
                return count if keep is None else round(count * keep)

            disk = fs.crash(content, keep_names=names)
            try:
                log = check(disk, story)
                tried += 1
                if log is not None and number % 4 == 0:
                    again = check(disk.crash(keep_synced, keep_names=lambda count: 0), story)
                    assert again is not None
                    assert again.log_end_offset == log.log_end_offset
                    after = Model(list(story.known().batches), story.known().end)
                    after.cut(again.log_end_offset)
                    result = append(again, make_batch(2), 9)
                    assert isinstance(result, Appended)
                    after.add(result.data)
                    run_job(again)
                    after.check(again)
                    tried += 1
            except BaseException:
                print(f"call {countdown} of {calls} ({whole.calls[countdown]}), fate {number}, names {keep}")
                raise
    print(f"{tried} power cuts at {calls} calls")
    assert tried > 2_500
