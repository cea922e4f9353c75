"""Planted bugs, second part: guards against stale orders, damaged files and failed flushes, each off.

For `planted`, which says what such a bug is and has the list.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import penstock_controller.quorum.journal as journal_module
import penstock_controller.state.partitions as partitions_module
from penstock_controller.quorum import journal_format, snapshot_format
from penstock_controller.quorum.machine import Machine
from penstock_proto.fast import pieces as pieces_module
from penstock_proto.fast.pieces import Piece
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_runtime.controller_client import ControllerClient
from penstock_storage_node.disk.group_flush import GroupFlush
from penstock_storage_node.log import reading as reading_module
from penstock_storage_node.log import recovery as recovery_module
from penstock_storage_node.log import state as log_state_module
from penstock_storage_node.log.jobs import FlushJob, WriteJob
from penstock_storage_node.replica import manager as manager_module
from penstock_storage_node.replica.partition import Partition
from penstock_storage_node.replication import receiver as receiver_module
from penstock_storage_node.replication import sender as sender_module
from penstock_storage_node.replication.leadership import Leadership
from simulation.settings import Settings

Patch = tuple[Any, str, Any]


def stale_controllers_obeyed() -> list[Patch]:
    """Terms are neither remembered nor compared."""
    return [(ControllerClient, "note_term", lambda _client, _term: True)]


def long_reigns(settings: Settings) -> None:
    """A controller that is cut off from the others, not from the nodes, takes long to see that it is deposed."""
    settings.fallback_silences = 20.0
    settings.favoured = ("controllers apart", "controllers apart", "node killed", "host cut off")
    settings.fault_interval_us = 600_000


def base_version_ignored() -> list[Patch]:
    """Decision 0001 off."""
    apply = Machine.apply

    def any_base(machine: Any, data: bytes) -> Any:
        command = pb.MetadataCommand.FromString(data)
        command.base_version = machine.image.version
        return apply(machine, command.SerializeToString())

    return [(Machine, "apply", any_base)]


def impatient(settings: Settings) -> None:
    """Callers give up on commands that are on their way still."""
    settings.commit_timeout_ms = 15
    settings.focus("quorum")


class _AnyChecksum:
    """An integer that equals every other."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, _other: object) -> bool:
        return True

    def __ne__(self, _other: object) -> bool:
        return False


class _NoChecksums:
    """`zlib` for readers: every checksum is right."""

    @staticmethod
    def crc32(_data: object, _start: object = 0) -> _AnyChecksum:
        return _AnyChecksum()


def pieces_not_compared() -> list[Patch]:
    """Pieces overtake one another, and a batch is put together of what comes and never compared."""

    class AnyPieces:
        def __init__(self, _most_bytes: int) -> None:
            self.buffer = bytearray()

        def add(self, piece: Piece) -> bytearray | None:
            self.buffer += piece.data
            return self.buffer if len(self.buffer) >= piece.total_bytes else None

    def out_of_order(buffers: Any, most_bytes: int) -> Any:
        pieces = list(pieces_module.cut(buffers, most_bytes))
        if len(pieces) > 3:
            pieces[-2:] = reversed(pieces[-2:])
        return iter(pieces)

    return [
        (sender_module, "cut", out_of_order),
        (receiver_module, "Assembly", AnyPieces),
        (log_state_module, "crc32c", _NoChecksums.crc32),
    ]


def many_pieces(settings: Settings) -> None:
    """Batches go in pieces."""
    settings.pieces = True


def _unchecked(module: Any, name: str) -> Patch:
    read = getattr(module, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        module.zlib, saved = _NoChecksums, module.zlib
        try:
            return read(*args, **kwargs)
        finally:
            module.zlib = saved

    return (module, name, call)


def damaged_journal_loaded() -> list[Patch]:
    """Journal, and term and vote, are taken as they are."""
    return [
        _unchecked(journal_format, "_read_head"),
        _unchecked(journal_format, "_read_block"),
        _unchecked(journal_module, "_read_meta"),
    ]


def damaged_snapshot_loaded() -> list[Patch]:
    """So is a snapshot."""

    def chunks(data: bytes, name: str, mend: str, breathe: Any) -> list[memoryview]:
        del name, mend
        bodies, offset, view = [], 12, memoryview(data)
        while offset + 8 <= len(data) and (length := int.from_bytes(data[offset : offset + 4], "little")):
            bodies.append(view[offset + 8 : offset + 8 + length])
            offset += 8 + length
            breathe()
        return bodies

    return [(snapshot_format, "_chunks", chunks)]


def rotting(settings: Settings) -> None:
    """One bit of a controller's files flips now and then."""
    settings.snapshot_every = 20
    settings.favoured = ("bit rot in a controller's files",)


def failed_flush_retried() -> list[Patch]:
    """As if clean: the second attempt finds no dirty page, and the kernel says that all is well."""

    def forgiving(call: Callable[[Any], None]) -> Callable[[Any], None]:
        def run(job: Any) -> None:
            try:
                call(job)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise

        return run

    return [
        (WriteJob, "sync", forgiving(WriteJob.sync)),
        (FlushJob, "run", forgiving(FlushJob.run)),
        (GroupFlush, "sync", forgiving(GroupFlush.sync)),
    ]


def failing_flushes(settings: Settings) -> None:
    """Disks answer EIO, one or two at a time."""
    settings.favoured = ("disk broken (EIO)",)
    settings.fault_interval_us = 600_000


def elr_forgotten() -> list[Patch]:
    """KIP-966 off: whoever leaves an ISR that falls below its minimum is no candidate."""
    return [(partitions_module, "_eligible", lambda *_: [])]


def elr_takes_anybody() -> list[Patch]:
    """Every replica counts as one that left last."""

    def anybody(old: Any, target: Any, lost: Any, rules: Any) -> list[Any]:
        if len(target) >= rules.effective_min_isr(old):
            return []
        return [n for n in old.replicas if n not in target and n not in lost]

    return [(partitions_module, "_eligible", anybody)]


def acked_below_min_isr() -> list[Patch]:
    """What the ELR rests on: below the minimum nothing is acknowledged, nor does the watermark move."""
    return [(Leadership, "under_min_isr", property(lambda _: False))]


def one_left(settings: Settings) -> None:
    """Nodes go and come, mostly with one or two of three up."""
    settings.favoured = ("node killed", "host cut off", "node power cut")
    settings.fault_interval_us = 600_000


def bits_not_compared() -> list[Patch]:
    """Reads hand out what the disk gives."""

    def all_right(_segment: Any, batches: Any, _position: int, next_offset: int, **_: Any) -> tuple[int, int]:
        return len(batches), next_offset

    return [(reading_module, "_check", all_right)]


def damage_not_marked() -> list[Patch]:
    """The next start does not know that it has to read old data."""
    return [(manager_module, "mark_damaged", lambda *_: None)]


def damage_not_reported() -> list[Patch]:
    """What was cut below the recovery point counts as never promised."""
    recover = recovery_module.recover

    def forgetful(*args: Any, **kwargs: Any) -> Any:
        found = recover(*args, **kwargs)
        found.flush_point = min(found.flush_point, found.log_end_offset)
        return found

    return [(recovery_module, "recover", forgetful)]


def forgetting_disks(settings: Settings) -> None:
    """Each seed has a flipped bit in old data, and nodes often die."""
    settings.log_rot = True
    settings.favoured = ("node killed", "node ended (SIGTERM)")


def staged_bytes_leak() -> list[Patch]:
    """The share of a deleted log is never closed."""
    return [(Partition, "forget_staged", lambda _: None)]
