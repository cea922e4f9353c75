"""Ctrl-C while a C library calls back into Python.

An exception raised inside a callback of confluent-kafka can come out of it as a
SystemError. `one_interrupt` turns whatever follows a Ctrl-C back into KeyboardInterrupt.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def one_interrupt() -> Iterator[None]:
    """Within it, SIGINT and SIGTERM end the block with KeyboardInterrupt, and nothing else."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = False

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        nonlocal seen
        seen = True
        raise KeyboardInterrupt

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except SystemError as error:
        if not seen:
            raise
        raise KeyboardInterrupt from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
