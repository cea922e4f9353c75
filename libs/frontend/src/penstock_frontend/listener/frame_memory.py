"""Memory of a listener for requests that are on their way in or not answered yet.

Pure. Counted is what is held, in the steps in which buffers grow, never what a client announced. One address
holds at most a quarter, so that the rest is there for others. A frame that has begun must be able to end,
else frames that wait for each other's memory wait for ever: one frame of an address may go on beyond its
quarter, and one of all beyond the whole.
"""

from __future__ import annotations

ADDRESS_SHARE = 4
"""One address has at most 1/4."""
EASY_BYTES = 16 * 1024 * 1024
"""What an address may hold before its frames begin with the smallest buffers."""


class FrameMemory:
    """Bytes held, in all and by address."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self._share_bytes = bytes_max // ADDRESS_SHARE
        self._easy_bytes = min(bytes_max // 8, EASY_BYTES)
        self._by_address: dict[str, int] = {}
        self._beyond: dict[str, object] = {}
        """The one frame of an address that may go on beyond its share, by address."""
        self._beyond_all: object | None = None

    def is_easy(self, address: str) -> bool:
        """It holds little: its next frame may have a buffer that is good for speed."""
        return self._by_address.get(address, 0) < self._easy_bytes

    def charge(self, address: str, size: int, *, force: bool = False) -> bool:
        """Count `size` bytes; False when there is no room, never with `force`."""
        held = self._by_address.get(address, 0)
        if not force and not self._has_room(held, size):
            return False
        self.held_bytes += size
        self._by_address[address] = held + size
        return True

    def _has_room(self, held: int, size: int) -> bool:
        return (not self.held_bytes or self.held_bytes + size <= self.bytes_max) and (
            not held or held + size <= self._share_bytes
        )

    def grow(self, address: str, size: int, frame: object) -> bool:
        """As `charge`, for a frame that has begun: `frame` says which, and may be the one that goes beyond."""
        held = self._by_address.get(address, 0)
        if self._beyond_all is not frame and not self._has_room(held, size):
            if held + size > self._share_bytes and self._beyond.setdefault(address, frame) is not frame:
                return False
            if self.held_bytes + size > self.bytes_max:
                if self._beyond_all is not None:
                    return False
                self._beyond_all = frame
        self.held_bytes += size
        self._by_address[address] = held + size
        return True

    def ended(self, address: str, frame: object) -> None:
        """A frame has come whole, or its client is gone: another one may go beyond."""
        if self._beyond and self._beyond.get(address) is frame:
            del self._beyond[address]
        if self._beyond_all is frame:
            self._beyond_all = None

    def release(self, address: str, size: int) -> None:
        """The opposite of `charge` and `grow`."""
        self.held_bytes -= size
        left = self._by_address.get(address, 0) - size
        if left > 0:
            self._by_address[address] = left
        else:
            self._by_address.pop(address, None)
