"""Whoever can open a socket to a Raft port: frames made by hand, so that no encoder's guard holds them back.

The layouts are those of `penstock_controller.quorum.messages`, written down a second time on purpose.
"""

from __future__ import annotations

import socket
import struct
import threading
import zlib

HOST = "127.0.0.1"
APPEND, SNAPSHOT, ACK, NOTICE = 5, 6, 7, 11


def frame(payload: bytes) -> bytes:
    """A payload as the Raft port takes it."""
    return struct.pack("<II", len(payload), zlib.crc32(payload)) + payload


def hello(
    sender: int,
    to: int,
    *,
    joined: bool = True,
    directory_id: bytes = b"\xaa" * 16,
    remembered: bytes = bytes(16),
    cluster_id: bytes = bytes(16),
) -> bytes:
    """The frame that opens a link."""
    ids = directory_id, remembered, cluster_id
    return frame(struct.pack("<BHiiB16s16s16s", 1, 1, sender, to, joined, *ids))


def term_notice(term: int) -> bytes:
    """The 9 bytes that say "I am at a later term"."""
    return frame(struct.pack("<BQ", NOTICE, term))


def append(
    term: int,
    entries: list[tuple[bytes, int, int]],
    *,
    previous: tuple[int, int],
    commit_index: int,
    count: int | None = None,
) -> bytes:
    """Entries (command, index, term) behind `previous` (index, term), as a leader sends them."""
    head = struct.pack(
        "<BQQQQI", APPEND, term, commit_index, *previous, len(entries) if count is None else count
    )
    parts = [struct.pack("<QQI", index, t, len(command)) + command for command, index, t in entries]
    return frame(b"".join([head, *parts]))


def ack(term: int, next_index: int, *, reset: bool, success: bool) -> bytes:
    """A follower's word on how far its log goes."""
    return frame(struct.pack("<BQQBB", ACK, term, next_index, reset, success))


class Stranger:
    """One connection to a Raft port."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection((HOST, port), timeout=20)
        self._received = b""

    def send(self, *frames: bytes) -> bool:
        """Send frames; False when the other side has closed."""
        try:
            self.socket.sendall(b"".join(frames))
        except OSError:
            return False
        return True

    def receive(self) -> bytes | None:
        """The next frame's payload; None when the other side closed."""
        while True:
            if len(self._received) >= 8:
                length = struct.unpack_from("<I", self._received)[0]
                if len(self._received) >= 8 + length:
                    payload = self._received[8 : 8 + length]
                    self._received = self._received[8 + length :]
                    return payload
            try:
                data = self.socket.recv(65536)
            except ConnectionError:
                return None
            if not data:
                return None
            self._received += data

    def is_closed_within(self, seconds: float) -> bool:
        """Whether the other side closes, whatever it says before."""
        self.socket.settimeout(seconds)
        try:
            while self.receive() is not None:
                pass
        except (TimeoutError, BlockingIOError):
            return False
        finally:
            self.socket.settimeout(20)
        return True

    def close(self) -> None:
        self.socket.close()


class Crowd:
    """Keeps many connections to ports, and opens new ones wherever one was closed."""

    def __init__(self, ports: list[int], *, first: bytes = b"", count: int = 100) -> None:
        self._ports, self._first, self._count = ports, first, count
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.opened = 0

    def __enter__(self) -> Crowd:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        held: dict[int, list[Stranger]] = {port: [] for port in self._ports}
        while not self._ends.is_set():
            for port, visitors in held.items():
                for each in [v for v in visitors if v.is_closed_within(0)]:
                    each.close()
                    visitors.remove(each)
                while len(visitors) < self._count:
                    try:
                        visitors.append(Stranger(port))
                    except OSError:
                        break
                    visitors[-1].send(self._first)
                    self.opened += 1
        for visitors in held.values():
            for each in visitors:
                each.close()
