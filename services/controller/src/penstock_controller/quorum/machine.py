"""The replicated state machine: committed bytes in, immutable images out. Never raises.

A command counts only when its base version is the current one, so a late or doubled
proposal changes nothing. Whatever a controller cannot read (a record kind of a newer
version) stops it before it can diverge from the others.
"""

from __future__ import annotations

from collections.abc import Callable

from google.protobuf.message import DecodeError

from penstock_controller.quorum.events import Applied, Outcome
from penstock_core.errors import InvariantBroken
from penstock_core.metadata import MetadataImage
from penstock_proto.v1 import metadata_pb2 as pb


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
        self._emit = emit
        self._on_fatal = on_fatal

    def apply(self, data: bytes) -> Outcome:
        """Apply one committed command."""
        if self.broken:
            return Outcome.UNKNOWN
        try:
            command = pb.MetadataCommand.FromString(data)
        except DecodeError:
            return self._break(
                "the Raft log holds a command that this version cannot read; upgrade this controller"
            )
        if any(record.WhichOneof("record") is None for record in command.records):
            return self._break("the Raft log holds a record of a newer version; upgrade this controller")
        if command.base_version != self.image.version or not command.records:
            return Outcome.STALE
        try:
            image = self.image.apply(command.records, self.image.version + 1)
        except InvariantBroken as error:
            # Every controller comes to the same end here, so refusing keeps them alike.
            return self._break(f"command after version {self.image.version} cannot be applied: {error}")
        self.image = image
        self._emit(Applied(image, list(command.records), command.command_id))
        return Outcome.APPLIED

    def _break(self, message: str) -> Outcome:
        self.broken = True
        self._on_fatal(InvariantBroken(message))
        return Outcome.UNKNOWN
