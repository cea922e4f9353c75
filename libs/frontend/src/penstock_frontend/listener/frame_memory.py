"""Memory of a listener for requests that are on their way in or not answered yet.

Pure. Counted is what is held, in the steps in which buffers grow, never what a client announced. One address
holds at most a quarter, so that the rest is there for others. A frame that has begun must be able to end,
else frames that wait for each other's memory wait for ever: one frame of an address may go on beyond its
quarter, and one of all beyond the whole.
"""

from __future__ import annotations

from collections import Counter

ADDRESS_SHARE = 4
"""One address has at most 1/4."""


class FrameMemory:
    """Bytes held, in all and by address."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self._by_address: Counter[str] = Counter()
        self._beyond: dict[str, object] = {}
        """The one frame of an address that may go on beyond its share, by address."""
        self._beyond_all: object | None = None

    def charge(self, address: str, size: int, *, force: bool = False) -> bool:
        """Count `size` bytes; False when there is no room, never with `force`."""
        if not force and not (self._room(size) and self._room_of(address, size)):
            return False
        self.held_bytes += size
        self._by_address[address] += size
        return True

    def grow(self, address: str, size: int, frame: object) -> bool:
        """As `charge`, for a frame that has begun: `frame` says which, and may be the one that goes beyond."""
        if self._beyond_all is not frame:
            if not self._room_of(address, size) and self._beyond.setdefault(address, frame) is not frame:
                return False
            if not self._room(size):
                if self._beyond_all is not None:
                    return False
                self._beyond_all = frame
        self.held_bytes += size
        self._by_address[address] += size
        return True

    def ended(self, address: str, frame: object) -> None:
        """A frame has come whole, or its client is gone: another one may go beyond."""
        if self._beyond.get(address) is frame:
            del self._beyond[address]
        if self._beyond_all is frame:
            self._beyond_all = None

    def release(self, address: str, size: int) -> None:
        """The opposite of `charge` and `grow`."""
        self.held_bytes -= size
        left = self._by_address[address] - size
        if left > 0:
            self._by_address[address] = left
        else:
            del self._by_address[address]

    def _room(self, size: int) -> bool:
        return not self.held_bytes or self.held_bytes + size <= self.bytes_max

    def _room_of(self, address: str, size: int) -> bool:
        held = self._by_address.get(address, 0)
        return not held or held + size <= self.bytes_max // ADDRESS_SHARE
