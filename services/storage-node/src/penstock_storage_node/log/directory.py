"""A data directory: its identity, its lock, its checkpoints, and the partitions in it.

  .lock                    held while a process uses the directory
  meta.properties          node id, cluster id, directory id (16 random bytes, made once)
  .kafka_cleanshutdown     there only between a clean stop and the next start
  *-checkpoint             offsets by partition, see `offset_files`
  <topic>-<partition>/     one log each, with the topic's id in partition.metadata
  *.<uuid>-delete          deleted, to be removed
  *.<ms>.<uuid>-stray      set aside: other topic id, or unreadable; see `strays`
  retired                  its node was removed: it never holds a role again; see `slots`

All methods block: they belong in the disk pool. `open_log`, `create_log` and `delete_log` may run beside one another in
several threads, and what `offsets` does.

What an unclean stop may have cost, the controllers must hear, who would else let this node
lead what it lost. The disk shows it (no clean-shutdown file, a log that ends below its
recovery point, or one with a recovery point that is not there), and goes on showing it until
they know: see `reported`.
"""

from __future__ import annotations

import errno
import json
import re
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from penstock_core.config.topic import TopicConfig
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.failpoints import hit
from penstock_core.ids import TopicId
from penstock_core.topics import check_topic_name
from penstock_storage_node.log import checkpoints, set_aside_ends, slots, strays
from penstock_storage_node.log.fs import (
    FileSystem,
    read_file,
    remove_tree,
    unlink_if_exists,
    write_file_atomically,
)
from penstock_storage_node.log.jobs import FULL_ERRORS
from penstock_storage_node.log.log import PartitionLog
from penstock_storage_node.log.offset_files import OffsetFiles, PartitionKey
from penstock_storage_node.log.ports import Checkpointed, LogPorts
from penstock_storage_node.log.state import LogIdentity

_PARTITION_NAME = re.compile(r"(.+)-(0|[1-9][0-9]{0,8})\Z")


class DirectoryLocked(PenstockError):
    """Another process holds the directory."""


@dataclass(frozen=True, slots=True)
class DirectoryPorts:
    """The world outside of a data directory."""

    fs: FileSystem
    clock_ms: Callable[[], int]
    """Wall clock, ms since 1970."""
    new_uuid: Callable[[], uuid.UUID] = uuid.uuid4
    """For the directory's id, and for names that are in nobody's way."""
    log_class: type[PartitionLog] = PartitionLog
    steady_ms: Callable[[], int] | None = None
    """A clock that nobody sets; None where the wall clock is such a one."""


@dataclass(frozen=True, slots=True)
class PartitionDirectory:
    """One `<topic>-<partition>` directory as found at start."""

    identity: LogIdentity
    path: Path
    checkpointed: Checkpointed

    @property
    def topic(self) -> str:
        return self.identity.topic

    @property
    def partition(self) -> int:
        return self.identity.partition

    @property
    def topic_id(self) -> TopicId:
        return self.identity.topic_id

    @property
    def high_watermark(self) -> int:
        """Checkpointed, 0 when none."""
        return self.checkpointed.high_watermark


class LogDirectory:
    """An open data directory. Made by `open` or `claim_slot`."""

    def __init__(self, ports: DirectoryPorts, path: Path, lock_fd: int) -> None:
        self.path = path
        self.ports = ports
        self.node_id = -1
        self.slot = -1
        """N of slot-N; -1 of a directory that was opened by its path."""
        self.cluster_id = b""
        self.directory_id = b""
        self.is_new = False
        self.retired_by = 0
        """The operation that removed its node; 0 of a directory that is in use."""
        self.leftovers: list[str] = []
        """Directories of deleted logs that the last process didn't get round to removing."""
        self.missing: list[PartitionKey] = []
        """Something of theirs was flushed once, and `scan` has found no log of theirs that can be used. None once the
        controllers know."""
        self.was_clean = False
        self._fs = ports.fs
        self._root = str(path)
        self._lock_fd = lock_fd
        self._mutex = threading.Lock()
        self.offsets = OffsetFiles(ports.fs, str(path))
        self._is_reported = False
        self._ends_of_damaged: dict[PartitionKey, int] = {}
        self._set_aside_of: set[str] = set()
        """Names of logs that were set aside, and perhaps are gone; whole once the directory was listed."""
        self._has_listed_set_aside = False

    # ------------------------------------------------------------------ opening

    @classmethod
    def open(cls, ports: DirectoryPorts, path: Path) -> LogDirectory:
        """Make the directory if missing, lock it, read who it belongs to and how it was left.

        Raises DirectoryLocked, or PenstockError naming what is wrong and its mend.
        """
        fs, root = ports.fs, str(path)
        try:
            if not fs.exists(root):
                _make_directories(fs, path)
            lock_fd = fs.lock(f"{root}/{checkpoints.LOCK_FILE}")
        except BlockingIOError:
            raise DirectoryLocked(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"data directory {root} is in use by another process: stop that one or choose another directory",
            ) from None
        except OSError as error:
            raise PenstockError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"data directory {root} can't be used ({error.strerror}): check path, owner and space",
            ) from error
        directory = cls(ports, path, lock_fd)
        try:
            directory._load()
        except BaseException:
            fs.close(lock_fd)
            raise
        return directory

    @classmethod
    def claim_slot(cls, ports: DirectoryPorts, slots_dir: Path, *, node_id: int = -1) -> LogDirectory:
        """At the start of a process: the lowest live slot that nobody holds (of this node, where `node_id` is one),
        else the lowest that is new or retired. The latter is emptied, and has another directory id then."""
        directory = cls.claim_live_slot(ports, slots_dir, node_id=node_id)
        if directory is not None:
            return directory
        for number in range(slots.SLOTS_MAX):
            try:
                directory = cls.open(ports, slots_dir / slots.name_of(number))
            except DirectoryLocked:
                continue
            if directory.is_live and node_id > 0 and directory.node_id != node_id:
                directory.close(clean=directory.was_clean)  # another node's; as it was found
                continue
            directory.slot = number
            if directory.retired_by:
                try:
                    directory.begin_anew()
                except BaseException:
                    directory.close(clean=False)
                    raise
            return directory
        raise PenstockError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"all {slots.SLOTS_MAX} slots under {slots_dir} are in use"
        )

    @classmethod
    def claim_live_slot(
        cls, ports: DirectoryPorts, slots_dir: Path, *, node_id: int = -1
    ) -> LogDirectory | None:
        """Open the lowest slot that has an identity, is not retired, and that nobody holds; None when there is none."""
        for number, name in slots.found(ports.fs, str(slots_dir)):
            if not slots.is_live(ports.fs, f"{slots_dir}/{name}"):
                continue
            try:
                directory = cls.open(ports, slots_dir / name)
            except DirectoryLocked:
                continue
            # It may have been retired between the look and the lock.
            if not directory.is_live or (node_id > 0 and directory.node_id != node_id):
                directory.close(clean=directory.was_clean)
                continue
            hit("slot.claim")
            directory.slot = number
            return directory
        return None

    @property
    def is_live(self) -> bool:
        """Whether it is a node's: one has registered with it, and was not removed."""
        return self.node_id > 0 and not self.retired_by

    def _load(self) -> None:
        fs, root = self._fs, self._root
        self._load_identity()
        self.retired_by = slots.retired_by(fs, root)
        marker = f"{root}/{checkpoints.CLEAN_SHUTDOWN_FILE}"
        self.was_clean = fs.exists(marker)
        if self.was_clean:
            fs.unlink(marker)
            fs.sync_directory(root)
        self.offsets.load()

    def _load_identity(self) -> None:
        path = f"{self._root}/{checkpoints.META_PROPERTIES_FILE}"
        try:
            values = checkpoints.decode_properties(read_file(self._fs, path))
        except FileNotFoundError:
            self.is_new = True
            self.directory_id = self.ports.new_uuid().bytes
            self._save_identity()
            return
        except ValueError as error:
            raise PenstockError(ErrorCode.KAFKA_STORAGE_ERROR, f"{path} is corrupt: {error}") from error
        try:
            version = int(values["version"])
            self.directory_id = checkpoints.decode_uuid(values["directory.id"])
            self.cluster_id = checkpoints.decode_uuid(values["cluster.id"]) if "cluster.id" in values else b""
            self.node_id = int(values.get("node.id", "-1"))
        except (KeyError, ValueError) as error:
            raise PenstockError(ErrorCode.KAFKA_STORAGE_ERROR, f"{path} is corrupt: {error!r}") from error
        if version > checkpoints.META_VERSION:
            raise PenstockError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"data directory {self._root} has format {version}, this version reads up to "
                f"{checkpoints.META_VERSION}: start the newer version that wrote it",
            )

    def _save_identity(self) -> None:
        values = {"version": str(checkpoints.META_VERSION)}
        if self.cluster_id:
            values["cluster.id"] = checkpoints.encode_uuid(self.cluster_id)
        if self.node_id >= 0:
            values["node.id"] = str(self.node_id)
        values["directory.id"] = checkpoints.encode_uuid(self.directory_id)
        path = f"{self._root}/{checkpoints.META_PROPERTIES_FILE}"
        write_file_atomically(self._fs, path, checkpoints.encode_properties(values))

    def set_identity(self, *, cluster_id: bytes, node_id: int) -> None:
        """Take cluster (16 bytes) and node id at first start; later, check that they are still the same.

        Raises INCONSISTENT_CLUSTER_ID or KAFKA_STORAGE_ERROR (another node's directory).
        """
        if self.cluster_id and self.cluster_id != cluster_id:
            raise PenstockError(
                ErrorCode.INCONSISTENT_CLUSTER_ID,
                f"data directory {self._root} belongs to cluster {checkpoints.encode_uuid(self.cluster_id)}, "
                f"not {checkpoints.encode_uuid(cluster_id)}: point to the right one or use an empty directory",
            )
        if self.node_id >= 0 and self.node_id != node_id:
            raise PenstockError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"data directory {self._root} belongs to node {self.node_id}, not {node_id}",
            )
        if (self.cluster_id, self.node_id) != (cluster_id, node_id):
            self.cluster_id, self.node_id = cluster_id, node_id
            self._save_identity()

    # ------------------------------------------------------------------ the end of a node

    def mark_retired(self, operation_id: int) -> None:
        """Note, durably, that the node of this directory was removed: from now on it is nobody's. Raises OSError."""
        hit("node.retire.before_mark")
        values = {"operation": str(operation_id)}
        path = f"{self._root}/{checkpoints.RETIRED_FILE}"
        write_file_atomically(self._fs, path, checkpoints.encode_properties(values))
        self.retired_by = operation_id

    def drop_logs(self, is_known: Callable[[TopicId], bool]) -> tuple[int, int]:
        """What a removed node does with the logs that it has left: those of topics that are known go, for the
        operation has seen to their copies; of the others nobody knows, so they are set aside and stay.

        Returns how many of each. No log may be open. Raises OSError.
        """
        dropped = kept = 0
        for each in self.scan():
            if is_known(each.topic_id):
                self.offsets.forget((each.topic, each.partition))
                self.leftovers.append(self._rename_away(str(each.path), "delete"))
                dropped += 1
            else:
                self.set_aside(each, "its topic is not known")
                kept += 1
        self.remove_leftovers()
        return dropped, kept

    def begin_anew(self) -> None:
        """Empty a retired directory and make it a new one, with an id that was never refused. Raises OSError.

        Strays stay: what they hold nobody may know of any more.
        """
        for each in self.scan():
            self.set_aside(each, "left by a removed node")
        self.remove_leftovers()
        self.offsets.remove()
        self.cluster_id, self.node_id = b"", -1
        self.directory_id = self.ports.new_uuid().bytes
        self.is_new, self.was_clean = True, False
        self._save_identity()
        # The mark goes last: after a crash before it the directory is retired still, under whichever id.
        unlink_if_exists(self._fs, f"{self._root}/{checkpoints.RETIRED_FILE}")
        self._fs.sync_directory(self._root)
        self.retired_by = 0

    # ------------------------------------------------------------------ partitions

    def scan(self) -> list[PartitionDirectory]:
        """The partitions found. Unreadable ones are set aside, deleted ones go to `leftovers`; see `missing` too."""
        found: list[PartitionDirectory] = []
        for name in self._fs.list_directory(self._root):
            path = f"{self._root}/{name}"
            if not self._fs.is_directory(path):
                continue
            if name.endswith("-delete"):
                self.leftovers.append(path)
                continue
            match = _PARTITION_NAME.match(name)
            if match is None:
                continue
            try:
                check_topic_name(match[1])
            except PenstockError:
                continue
            partition = self._read_partition(match[1], int(match[2]), path)
            if partition is not None:
                found.append(partition)
        there = {(each.topic, each.partition) for each in found}
        self.missing = [key for key in self.offsets.flushed() if key not in there]
        return found

    def remove_leftovers(self) -> None:
        """Remove what `scan` has found of deleted logs; as long as it takes. Raises OSError."""
        while self.leftovers:
            remove_tree(self._fs, self.leftovers[-1])
            self.leftovers.pop()

    def _read_partition(self, topic: str, partition: int, path: str) -> PartitionDirectory | None:
        key = (topic, partition)
        try:
            data = read_file(self._fs, f"{path}/{checkpoints.PARTITION_METADATA_FILE}")
            topic_id = TopicId(checkpoints.decode_partition_metadata(data))
        except (FileNotFoundError, PenstockError):
            if not any(name.endswith(".log") for name in self._fs.list_directory(path)):
                remove_tree(self._fs, path)  # the process ended while it made it
            else:
                self._rename_away(path, "stray")
            return None
        checkpointed = self.offsets.of(key, is_clean=self.was_clean)
        return PartitionDirectory(LogIdentity(topic, partition, topic_id), Path(path), checkpointed)

    def _ports(self, key: PartitionKey) -> LogPorts:
        return LogPorts(self._fs, self.ports.clock_ms, self.offsets.port(key), self.ports.steady_ms)

    def open_log(self, found: PartitionDirectory, settings: TopicConfig) -> PartitionLog:
        """Open a partition that `scan` found. Raises PenstockError(KAFKA_STORAGE_ERROR)."""
        key = (found.topic, found.partition)
        try:
            log = self.ports.log_class.open(
                self._ports(key), found.path, settings, found.identity, found.checkpointed
            )
        except OSError as error:
            raise PenstockError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"log {found.path} can't be opened: {error}"
            ) from error
        self.offsets.cap_cleaned(key, log.log_end_offset)
        if log.log_end_offset < log.flush_point:
            if self._is_reported:
                self.offsets.lower(key, log.log_end_offset)
            else:
                with self._mutex:
                    self._ends_of_damaged[key] = log.log_end_offset
        return log

    @property
    def has_unreported(self) -> bool:
        """Whether a clean stop would hide what the controllers have not heard of."""
        was_unclean = not self.was_clean and not self.is_new
        return not self._is_reported and (was_unclean or bool(self._ends_of_damaged))

    def reported(self) -> None:
        """The controllers know how the last process left this directory, and what it lacks."""
        self._is_reported = True
        for key, end in self._ends_of_damaged.items():
            self.offsets.lower(key, end)
        self._ends_of_damaged.clear()
        # Once: a log that was made since has rows of its own by then.
        missing, self.missing = self.missing, []
        for key in missing:
            self.offsets.lower(key, 0)

    def create_log(
        self, topic: str, partition: int, topic_id: TopicId, settings: TopicConfig
    ) -> PartitionLog:
        """A new, empty log. A directory of that name is in the way only if it's another topic's: set aside."""
        check_topic_name(topic)
        fs, key = self._fs, (topic, partition)
        path = f"{self._root}/{topic}-{partition}"
        if fs.exists(path):
            old = self._read_partition(topic, partition, path)
            if old is not None and old.topic_id == topic_id:
                # How the last process stopped says nothing of it: it was not in its place then, or was left half-way
                # by this one.
                unknown = replace(old.checkpointed, is_clean=False)
                return self.open_log(replace(old, checkpointed=unknown), settings)
            if old is not None:
                self.set_aside(old, "another topic id")
        self.offsets.forget(key)
        if settings.is_compacted:
            self.offsets.mark_compacted(topic, partition)
        fs.make_directory(path)
        hit("log.directory.after_make")
        metadata = checkpoints.encode_partition_metadata(topic_id)
        write_file_atomically(fs, f"{path}/{checkpoints.PARTITION_METADATA_FILE}", metadata)
        fs.sync_directory(self._root)
        hit("log.directory.after_metadata")
        identity = LogIdentity(topic, partition, topic_id)
        return self.ports.log_class.create(self._ports(key), Path(path), settings, identity)

    def set_aside(self, found: PartitionDirectory, reason: str) -> Path:
        """Rename to `<name>.<now>.<uuid>-stray`, where nobody looks but a person; returns the new path.

        `reason` is for the caller's log line.
        """
        del reason
        self.offsets.forget((found.topic, found.partition))
        return Path(self._rename_away(str(found.path), "stray"))

    def park(self, log: PartitionLog, high_watermark: int) -> tuple[PartitionDirectory, PartitionLog]:
        """Take a log out of use and keep it where it is, as `scan` and `open_log` would have found it.

        No job of the log may be out. Raises OSError and PenstockError; then the directory is as it was.
        """
        log.close(clean=True)
        self.offsets.write([(log, high_watermark)])
        self.offsets.let_go(log)  # what its successor notes counts
        found = self._read_partition(log.topic, log.partition, str(log.directory))
        if found is None:
            raise PenstockError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"log {log.directory} can't be opened: its topic id is gone"
            )
        found = replace(found, checkpointed=replace(found.checkpointed, is_clean=True))
        return found, self.open_log(found, TopicConfig())

    def take_back(self, topic: str, partition: int, topic_id: TopicId) -> bool:
        """Give a log that was set aside its name again, the one of this topic id that has most; False if none is there.

        To be called where `create_log` follows, which opens it then: all of it is scanned. Raises OSError.
        """
        path = f"{self._root}/{topic}-{partition}"
        if f"{topic}-{partition}" not in self._names_set_aside() or self._fs.exists(path):
            return False
        ours = [
            each
            for each in set_aside_ends.find(self._fs, self._root, {})
            if (each.topic_id, each.topic, each.partition) == (topic_id, topic, partition)
        ]
        if not ours:
            return False
        best = max(ours, key=lambda each: (each.last_epoch, each.end_offset))
        # It may have been compacted: what was noted of that is gone since it was set aside.
        self.offsets.mark_compacted(topic, partition)
        self._fs.rename(f"{self._root}/{best.directory}", path)
        self._fs.sync_directory(self._root)
        return True

    def _names_set_aside(self) -> set[str]:
        # Where thousands of logs are made, to list the directory for each would take as long as all the rest.
        if not self._has_listed_set_aside:
            for name in self._fs.list_directory(self._root):
                if (stray := strays.parse(name)) is not None:
                    self._set_aside_of.add(stray.of)
            self._has_listed_set_aside = True
        return self._set_aside_of

    def delete_log(self, log: PartitionLog) -> Callable[[], None]:
        """Close a log and rename its directory; its name is free on return.

        The function returned removes the files. No job of the log may be out.
        """
        log.close(clean=False)
        self.offsets.let_go(log)
        try:
            self.offsets.forget((log.topic, log.partition))
        except OSError as error:
            if error.errno not in FULL_ERRORS:
                raise
            # Deleting must free space on a full disk. A new log of that name forgets first.
        path = self._rename_away(str(log.directory), "delete")
        hit("log.delete.after_rename")
        return lambda: remove_tree(self._fs, path)

    def _rename_away(self, path: str, suffix: str) -> str:
        stamp_ms = self.ports.clock_ms() if suffix == "stray" else None
        name = path.rpartition("/")[2]
        away = strays.away_name(name, suffix, stamp_ms=stamp_ms, new_uuid=self.ports.new_uuid)
        target = f"{self._root}/{away}"
        if suffix == "stray":
            self._set_aside_of.add(name)
        self._fs.rename(path, target)
        self._fs.sync_directory(self._root)
        return target

    @property
    def fs(self) -> FileSystem:
        """The disk that the directory is on."""
        return self._fs

    def close(self, *, clean: bool) -> None:
        """Free the lock. `clean`: all logs were closed cleanly and checkpointed; the next start trusts them."""
        if clean:
            marker = f"{self._root}/{checkpoints.CLEAN_SHUTDOWN_FILE}"
            data = json.dumps({"version": 0, "brokerEpoch": -1}, separators=(",", ":")).encode("ascii")
            write_file_atomically(self._fs, marker, data)
        self._fs.files.close_all()
        self._fs.close(self._lock_fd)


def _make_directories(fs: FileSystem, path: Path) -> None:
    missing: list[Path] = []
    current = path
    while not fs.exists(str(current)):
        missing.append(current)
        current = current.parent
    for directory in reversed(missing):
        try:
            fs.make_directory(str(directory))
        except OSError as error:
            if error.errno != errno.EEXIST:  # another process of the same node pool made it
                raise
        fs.sync_directory(str(directory.parent))
