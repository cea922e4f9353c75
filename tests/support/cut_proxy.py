"""A TCP proxy in a thread that can be cut: nothing goes through, and nothing is refused either."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType


class CutProxy:
    """From a port of its own to `target`. Use as a context manager."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cut proxy")
        self._open = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    def __enter__(self) -> CutProxy:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(
        self, _kind: type | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self) -> None:
        """From now on bytes wait."""
        self._loop.call_soon_threadsafe(self._open.clear)

    def mend(self) -> None:
        """They go on."""
        self._loop.call_soon_threadsafe(self._open.set)

    async def _start(self) -> None:
        self._open.set()
        self._server = await asyncio.start_server(self._came, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        # A server of asyncio's that is closed forgets whom it has accepted and not yet told of.
        for listening in self._server.sockets:
            self._loop.remove_reader(listening.fileno())
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(others)
        self._server.close()
        # What was aborted is closed in the loop's next turn, and this loop has no other one.
        await asyncio.sleep(0)

    def _came(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._take(reader, writer))
        self._tasks.add(task)

        def ended(_: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            # Closed in an orderly way it would stay open until somebody takes what is unsent.
            writer.transport.abort()

        task.add_done_callback(ended)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far: asyncio.StreamWriter | None = None
        carried: list[asyncio.Task[None]] = []
        try:
            far_reader, far = await asyncio.open_connection(*self._target)
            carried += [
                asyncio.create_task(self._carry(reader, far)),
                asyncio.create_task(self._carry(far_reader, writer)),
            ]
            await asyncio.wait(carried)
        except OSError:
            pass
        finally:
            for task in carried:
                task.cancel()
            if far is not None:
                far.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
            writer.close()
