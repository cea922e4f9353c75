"""The proxy of the tests leaves nothing open: what it left was blamed on whichever test ran when it was collected."""

from __future__ import annotations

import gc
import socket
import threading
import warnings

import pytest

from support.cut_proxy import CutProxy

ROUNDS = 40


def test_who_comes_while_it_ends_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[BaseException | None] = []
    monkeypatch.setattr("sys.unraisablehook", lambda raised: left.append(raised.exc_value))
    with socket.create_server(("127.0.0.1", 0), backlog=1_000) as target, warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        for _ in range(ROUNDS):
            _flooded(target.getsockname())
            gc.collect()
    assert left == []


def _flooded(target: tuple[str, int]) -> None:
    came: list[socket.socket] = []
    enough, over = threading.Event(), threading.Event()

    def come(port: int) -> None:
        while not over.is_set():
            try:
                # Who knocks while it ends is not heard, and need not wait long for that.
                came.append(socket.create_connection(("127.0.0.1", port), 0.1 if enough.is_set() else 10))
            except OSError:
                break
            if len(came) == 5:
                enough.set()

    with CutProxy(target) as proxy:
        coming = threading.Thread(target=come, args=(proxy.port,))
        coming.start()
        assert enough.wait(10)
    over.set()
    coming.join()
    for each in came:
        each.close()
