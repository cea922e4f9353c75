"""How written jobs get flushed: each file by itself, or one `syncfs` for all that wait.

Rules
  * A job is acknowledged only after a flush that began when all of it was written.
  * One `syncfs` is out at a time. What is written meanwhile gathers for the next flush.
  * `syncfs` is used only where its word can be relied on, see `open_group_flush`; a job with a
    file on another filesystem is flushed by itself.
  * A `syncfs` that fails, fails every job that it was for; none of them is tried again.
  * One file by itself costs what it always did: it is flushed by the thread that wrote it.

Theory: a flush of one file waits for a commit of the filesystem's journal and for the disk's
own cache, whatever the size; a hundred of them wait a hundred times, in turns of as many threads
as there are. `syncfs` waits once. It also writes back whatever else is dirty there, of other
processes too, so `FlushCosts` goes by what either kind has cost lately.

Sources: syncfs(2); Linux commit 735e4ae5ba28 (5.8: errors of single files reach syncfs) and
"vfs: make sync_filesystem return errors from ->sync_fs" (5.17: so do those of the journal).
"""

from __future__ import annotations

import os
import platform
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from penstock_core.failpoints import hit
from penstock_storage_node.log import FileSystem, WriteJob

LINUX_MIN: Final = (5, 17)
FILESYSTEMS: Final = frozenset({"ext4", "xfs"})
"""Where one error sequence covers all files and a sync ends with a flush of the disk's cache.
Not overlayfs: the errors are counted on the filesystem below it."""

GROUP_JOBS_MIN: Final = 2
GROUP_ADVANTAGE: Final = 1.5
"""How many times cheaper a `syncfs` must be: both prices are rough, and it also takes the disk
from others."""
GROUP_JOBS_MAX: Final = 512
"""A flush begins when that many jobs are written, whatever else is on its way."""

FRESH_WEIGHT: Final = 0.2
FORGET: Final = 0.995
"""What the kind of flush that was passed over is thought to cost, each time: so a price that
somebody else's writing drove up, or that nobody has asked for in a while, is asked for again."""


class FlushCosts:
    """Which kind of flush is cheaper, by what they took lately. Not thread-safe."""

    def __init__(self, threads: int, *, file_s: float = 0.001, group_s: float = 0.002) -> None:
        self._threads = threads
        self.file_s = file_s
        """Lately, of one file by itself."""
        self.group_s = group_s
        """Lately, of one `syncfs`."""

    def prefers_group(self, jobs: int) -> bool:
        """Whether one `syncfs` is the cheaper way to flush that many jobs."""
        if jobs < GROUP_JOBS_MIN:
            return False
        if self.group_s * GROUP_ADVANTAGE < self.file_s * jobs / self._threads:
            self.file_s *= FORGET
            return True
        self.group_s *= FORGET
        return False

    def note_file(self, seconds: float) -> None:
        """A file took that long by itself."""
        self.file_s += (seconds - self.file_s) * FRESH_WEIGHT

    def note_group(self, seconds: float) -> None:
        """A `syncfs` took that long. A dear one counts in full: the next may be as dear."""
        dearer = seconds > self.group_s
        self.group_s = seconds if dearer else self.group_s + (seconds - self.group_s) * FRESH_WEIGHT


class GroupFlush:
    """`syncfs` on one filesystem. The descriptor stays open: errors are told from its opening on."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._fd = fs.open_directory(path)
        self._device = fs.device(self._fd)
        self.earlier_error = ""
        try:
            fs.sync_filesystem(self._fd)
        except OSError as error:
            # Of before this process wrote anything. What it stands on is checked by recovery.
            self.earlier_error = str(error)

    def covers(self, job: WriteJob) -> bool:
        """Whether all of a written job is on this filesystem."""
        return job.is_all_on(self._device)

    def sync(self) -> None:
        """Flush all that was written when this began. Raises OSError."""
        hit("log.flush.before_sync")
        self._fs.sync_filesystem(self._fd)
        hit("log.flush.after_sync")

    def close(self) -> None:
        """Give the descriptor back."""
        self._fs.close(self._fd)


def open_group_flush(fs: FileSystem, path: str) -> tuple[GroupFlush | None, str]:
    """A group flush for the filesystem that `path` is on, or None and why not."""
    release = re.match(r"(\d+)\.(\d+)", platform.release())
    if platform.system() != "Linux" or release is None or tuple(map(int, release.groups())) < LINUX_MIN:
        return None, f"{platform.system()} {platform.release()}: syncfs reports all errors since Linux 5.17"
    kind = filesystem_of(Path(path).stat().st_dev)
    if kind not in FILESYSTEMS:
        return None, f"filesystem {kind or 'unknown'}: used on {' and '.join(sorted(FILESYSTEMS))}"
    return GroupFlush(fs, path), ""


def filesystem_of(device: int, mounts: str = "/proc/self/mountinfo") -> str:
    """Type of a mounted filesystem by its device number, "" when not found (proc_pid_mountinfo(5))."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path(mounts).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        fields = line.split()
        if len(fields) > 6 and fields[2] == wanted and "-" in fields[6:]:
            return fields[fields.index("-", 6) + 1]
    return ""


class FlushBatcher:
    """Jobs on their way to a flush; decides who flushes what. Thread-safe, blocks nobody."""

    def __init__(self, threads: int) -> None:
        self.costs = FlushCosts(threads)
        self.group: GroupFlush | None = None
        self._lock = threading.Lock()
        self._unwritten = 0
        self._written: list[WriteJob] = []
        self._group_out = False

    @property
    def unflushed_count(self) -> int:
        """Jobs that were handed in and wait for their write or flush."""
        return self._unwritten + len(self._written)

    def on_handed_in(self) -> None:
        """A job waits to be written."""
        with self._lock:
            self._unwritten += 1

    def on_written(self, job: WriteJob) -> bool:
        """A job is written. True: the caller is to flush it by itself; else it waits for a group."""
        group = self.group
        grouped = group is not None and job.fsync and not job.must_sync_alone and group.covers(job)
        with self._lock:
            self._unwritten -= 1
            if not grouped:
                return True
            waiting = len(self._written) + self._unwritten + 1
            if not self._group_out and not self._written and not self.costs.prefers_group(waiting):
                return True
            self._written.append(job)
            return False

    def on_not_written(self) -> None:
        """A job failed before its flush."""
        with self._lock:
            self._unwritten -= 1

    def take(self) -> Sequence[WriteJob]:
        """Jobs that the caller is to flush together now, then call `on_flushed`; often none."""
        with self._lock:
            if self._group_out or not self._written:
                return ()
            if self._unwritten and len(self._written) < GROUP_JOBS_MAX:
                return ()  # whoever writes the last one takes them all
            jobs, self._written = self._written, []
            self._group_out = True
            return jobs

    def on_flushed(self) -> None:
        """The flush of what `take` gave has ended."""
        with self._lock:
            self._group_out = False

    def note(self, seconds: float, *, grouped: bool) -> None:
        """What a flush took."""
        with self._lock:
            (self.costs.note_group if grouped else self.costs.note_file)(seconds)
