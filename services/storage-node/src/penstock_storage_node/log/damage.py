"""Data that the disk gave back wrong, told as an error."""

from __future__ import annotations

from penstock_core.errors import ErrorCode, PenstockError
from penstock_storage_node.log.segment import Segment


class DamagedData(PenstockError):
    """What the disk gave back is not what was written. KAFKA_STORAGE_ERROR, as others may have it."""

    def __init__(self, segment: Segment, position: int) -> None:
        super().__init__(
            ErrorCode.KAFKA_STORAGE_ERROR, f"{segment.path} is damaged at or after byte {position}"
        )
        self.base_offset = segment.base_offset
        """Of the segment."""
        self.is_from_disk = position < segment.found_bytes
        """Else this process wrote it itself and it never left the page cache: no fault of the disk."""


__all__ = ["DamagedData"]
