"""The replicated state machine: committed bytes in, immutable images out. Never raises.

A command counts only when its base version is the current one, so a late or doubled
proposal changes nothing. Whatever a controller cannot read (a record kind of a newer
version) stops it before it can diverge from the others.

A large command comes as a run of entries (docs/decisions/0014): each part is replayed on
the side as it is applied, and the last one makes the whole count as one version. Any
other entry in between, a no-op included, drops what lies on the side; that is decided by
the log alone, hence alike everywhere. While something lies there no snapshot may begin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from google.protobuf.message import DecodeError

from penstock_controller.quorum.events import Applied, Outcome
from penstock_core.errors import InvariantBroken
from penstock_core.failpoints import hit
from penstock_core.metadata import ImageBuilder, MetadataImage
from penstock_core.metadata.image import NewerLevel
from penstock_core.metadata.levels import level_of
from penstock_proto.v1 import metadata_pb2 as pb


class _Staged(NamedTuple):
    """The parts of a large command so far."""

    command_id: int
    builder: ImageBuilder
    records: list[pb.MetadataRecord]
    next_part: int
    # Of the first part.
    causes: tuple[pb.Cause, ...]


class Machine:
    """Holds the image; belongs to the tick thread, though the image may be read anywhere."""

    def __init__(
        self,
        image: MetadataImage,
        emit: Callable[[Applied], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self.image = image
        self.broken = False
        self.entry_index = 0
        """Where in the log stands what is applied, for errors."""
        self.fell_at = 0
        """Where in the log the level fell; what stands up to there, a build of the lower level cannot read."""
        self._staged: _Staged | None = None
        self._emit = emit
        self._on_fatal = on_fatal

    @property
    def is_between_parts(self) -> bool:
        """Whether the image lacks applied entries that may still come to count."""
        return self._staged is not None

    def reset(self, image: MetadataImage) -> None:
        """Go on from a snapshot."""
        self._staged = None
        self.image = image

    def interrupt(self) -> None:
        """An entry that is no command was applied."""
        self._staged = None

    def apply(self, data: bytes) -> Outcome:
        """Apply one committed command, or one part of it."""
        if self.broken:
            return Outcome.UNKNOWN
        staged, self._staged = self._staged, None
        try:
            command = pb.MetadataCommand.FromString(data)
        except DecodeError:
            return self._break("is a command that this version cannot read; upgrade this controller")
        records = list(command.records)
        if any(record.WhichOneof("record") is None for record in records):
            return self._break("holds a record of a newer version; upgrade this controller")
        if command.base_version != self.image.version:
            return Outcome.STALE
        if command.part == 0:
            if not records:
                return Outcome.STALE
            staged = _Staged(command.command_id, ImageBuilder(self.image), [], 0, tuple(command.causes))
        elif staged is None or staged.command_id != command.command_id or staged.next_part != command.part:
            return Outcome.STALE
        return self._take(staged, records, command)

    def _take(
        self, staged: _Staged, records: list[pb.MetadataRecord], command: pb.MetadataCommand
    ) -> Outcome:
        try:
            for record in records:
                staged.builder.replay(record)
        except NewerLevel as error:
            return self._break(f"is of a newer build: {error}")
        except InvariantBroken as error:
            # Every controller comes to the same end here, so refusing keeps them alike.
            return self._break(
                f"cannot be applied to version {self.image.version} ({error}); upgrade this controller, or restore "
                "the data directories of all controllers as they were before that entry"
            )
        staged.records.extend(records)
        if command.more:
            self._staged = staged._replace(next_part=staged.next_part + 1)
            return Outcome.STAGED
        image = staged.builder.finish(self.image.version + 1)
        hit("controller.apply.before")
        if level_of(image) < level_of(self.image):
            self.fell_at = self.entry_index
        self.image = image
        hit("controller.apply.after")
        self._emit(
            Applied(
                image,
                staged.records,
                command.command_id,
                staged.builder.leader_changes,
                staged.causes,
                command.time_ms,
            )
        )
        return Outcome.APPLIED

    def _break(self, message: str) -> Outcome:
        self.broken = True
        self._on_fatal(InvariantBroken(f"entry {self.entry_index} of the Raft log {message}"))
        return Outcome.UNKNOWN
