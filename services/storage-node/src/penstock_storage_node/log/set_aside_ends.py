"""What a log that was set aside holds, told without opening it: which topic, from where to where, of which epoch.

Only heads of batches are read, and only of the last segment that has one. A batch that is cut short does not count, as
recovery would cut it off; checksums are looked at when the log is opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock_core.errors import PenstockError
from penstock_core.ids import TopicId
from penstock_kafka.records.batch import read_header
from penstock_storage_node.log import checkpoints, strays
from penstock_storage_node.log.epochs import NO_EPOCH
from penstock_storage_node.log.fs import FileSystem, read_file

_HEAD_BYTES: Final = 61
_LOG: Final = ".log"


@dataclass(frozen=True, slots=True)
class SetAside:
    """One log that was set aside."""

    directory: str
    topic_id: TopicId
    topic: str
    partition: int
    last_epoch: int
    """Of its last batch, -1 when it has none."""
    start_offset: int
    end_offset: int
    size_bytes: int
    set_aside_ms: int


def find(fs: FileSystem, root: str, known: dict[str, SetAside | None]) -> list[SetAside]:
    """(pool) The logs that were set aside in a data directory. `known` remembers them by name. Raises OSError.

    Those whose name was cut, or that are no log any more, are not among them: nobody can tell whose they were.
    """
    names = [name for name in fs.list_directory(root) if name.endswith("-stray")]
    for gone in known.keys() - set(names):
        del known[gone]
    for name in names:
        if name not in known:
            known[name] = _look(fs, root, name)
    return [each for name in names if (each := known[name]) is not None]


def _look(fs: FileSystem, root: str, name: str) -> SetAside | None:
    stray = strays.parse(name)
    if stray is None:
        return None
    topic, _, partition = stray.of.rpartition("-")
    path = f"{root}/{name}"
    if not topic or not partition.isdecimal() or len(name) >= strays.FILE_NAME_BYTES_MAX:
        return None
    try:
        topic_id = checkpoints.decode_partition_metadata(
            read_file(fs, f"{path}/{checkpoints.PARTITION_METADATA_FILE}")
        )
        segments = sorted(each for each in fs.list_directory(path) if each.endswith(_LOG))
        start = int(segments[0].removesuffix(_LOG)) if segments else 0
        epoch, end = NO_EPOCH, start
        for segment in reversed(segments):
            epoch, end = _end_of(fs, f"{path}/{segment}", int(segment.removesuffix(_LOG)))
            if epoch != NO_EPOCH:
                break
        size = sum(fs.path_size(f"{path}/{segment}") for segment in segments)
    except (PenstockError, OSError, ValueError):
        return None
    return SetAside(
        name, TopicId(topic_id), topic, int(partition), epoch, start, end, size, stray.set_aside_ms or 0
    )


def _end_of(fs: FileSystem, path: str, base_offset: int) -> tuple[int, int]:
    """Epoch of the last whole batch of a segment and the offset after it; (-1, its base) when it has none."""
    fd = fs.open(path)
    try:
        size, at = fs.size(fd), 0
        epoch, end = NO_EPOCH, base_offset
        while at + _HEAD_BYTES <= size:
            info = read_header(fs.pread(fd, _HEAD_BYTES, at))
            if info.size_bytes < _HEAD_BYTES or at + info.size_bytes > size or info.base_offset < end:
                break
            epoch, end = info.leader_epoch, info.next_offset
            at += info.size_bytes
        return epoch, end
    finally:
        fs.close(fd)


__all__ = ["SetAside", "find"]
