"""A descriptor of one's own that is there when no other is left."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator


class SpareDescriptor:
    """Duplicates take it, one after another."""

    def __init__(self) -> None:
        """Raises OSError when there is none."""
        self._blank = os.open(os.devnull, os.O_RDONLY)
        try:
            self._own = os.dup(self._blank)
        except OSError:
            os.close(self._blank)
            raise

    @contextlib.contextmanager
    def of(self, descriptor: int) -> Iterator[socket.socket]:
        """A socket of our own on what is a socket, for a moment. Raises OSError when it is gone."""
        os.dup2(descriptor, self._own, inheritable=False)
        try:
            # Not asked for its family: this one has room for the names of all, and each name says whose it is.
            s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=self._own)
            try:
                yield s
            finally:
                s.detach()
        finally:
            os.dup2(self._blank, self._own, inheritable=False)

    def close(self) -> None:
        """Give it back."""
        os.close(self._own)
        os.close(self._blank)
