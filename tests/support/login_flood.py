"""Logins with a wrong password, as many as one address can make; and how long somebody else's takes meanwhile.

`python -m support.login_flood PORT CA SOURCE COUNT` floods, in a process of its own that can be stopped and continued.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from penstock_core.security.scram import ScramMechanism
from support.sign_in import RawClient

HOST = "127.0.0.1"
TESTS = Path(__file__).resolve().parents[1]


async def sign_in(
    port: int, context: ssl.SSLContext, source: str, user: str, password: str
) -> tuple[float, int]:
    """Seconds from the TCP handshake to the last answer, and its code."""
    began_s = time.perf_counter()
    reader, writer = await asyncio.open_connection(
        HOST, port, ssl=context, server_hostname="localhost", local_addr=(source, 0)
    )
    try:
        answer = await RawClient(reader, writer).scram(user, password, ScramMechanism.SHA_512)
        return time.perf_counter() - began_s, answer.error_code
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def logins(port: int, ca: str, count: int, user: str, password: str) -> list[float]:
    """How long each of so many logins from this address took, in s; all succeed."""

    async def main() -> list[float]:
        context = ssl.create_default_context(cafile=ca)
        taken = []
        for _ in range(count):
            seconds, code = await sign_in(port, context, HOST, user, password)
            assert code == 0
            taken.append(seconds)
        return taken

    return asyncio.run(main())


class Flood:
    """The process; it begins paused."""

    def __init__(self, port: int, ca: str, source: str, count: int) -> None:
        self._process = subprocess.Popen(
            # What the flood itself computes is not to be measured.
            [
                "nice",
                "-n",
                "19",
                sys.executable,
                "-m",
                "support.login_flood",
                str(port),
                ca,
                source,
                str(count),
            ],
            env=os.environ | {"PYTHONPATH": str(TESTS)},
            stdin=subprocess.DEVNULL,
        )
        self.pause()

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def end(self) -> None:
        self._process.kill()
        self._process.wait(60)


@contextlib.contextmanager
def flood(port: int, ca: str, source: str = "127.0.0.2", count: int = 50) -> Iterator[Flood]:
    """`count` connections at a time from that address."""
    made = Flood(port, ca, source, count)
    try:
        yield made
    finally:
        made.end()


async def _flood(port: int, ca: str, source: str, count: int) -> None:
    context = ssl.create_default_context(cafile=ca)

    async def keep_trying() -> None:
        while True:
            try:
                await sign_in(port, context, source, "alice", "wrong")
            except (OSError, EOFError, AssertionError):
                await asyncio.sleep(0.001)

    await asyncio.gather(*(keep_trying() for _ in range(count)))


if __name__ == "__main__":
    asyncio.run(_flood(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])))
