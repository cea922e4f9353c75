"""One coroutine that turns waiting requests into commands, and commands into answers.

All requests that wait are generated one after another, each on the image that those
before it make, and proposed as one command. They are answered when it was committed and
applied here. A request that changes nothing is answered only after a committed no-op, so
a deposed controller cannot answer from an old image.

Commands go out one at a time: compare-and-set by version would refuse a second one
anyway, and requests that arrive meanwhile share the next.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock_controller.quorum import Outcome, Quorum
from penstock_controller.state.generation import Context, Defaults, Generated, NextCommand
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import NodeId
from penstock_core.metadata import MetadataImage
from penstock_proto.v1 import metadata_pb2 as pb

R = TypeVar("R")

REQUESTS_WAITING_MAX = 4096
"""Requests in the queue; more are refused, so a burst cannot fill memory."""
RECORDS_PER_COMMAND = 2000
"""A command takes no further request once it holds this many records."""
STALE_RETRIES_MAX = 10
COMMIT_TIMEOUT_MS = 10_000

Generator = Callable[[Context], Generated[R]]


class NotActive(Exception):
    """This controller is not the active one (any more); another will answer."""


@dataclass(slots=True, eq=False)
class _Waiting:
    generate: Generator[Any]
    future: asyncio.Future[Any]


class CommandWorker:
    """The queue of requests of the active controller, and its one proposer."""

    def __init__(
        self,
        quorum: Quorum,
        controller_id: int,
        defaults: Defaults,
        rng: random.Random,
        wall_clock_ms: Callable[[], int],
        alive: Callable[[NodeId], bool],
        on_commit_s: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.image = MetadataImage()
        """The newest image that the event loop has seen; set by the shell."""
        self.active = False
        self._quorum = quorum
        self._controller_id = controller_id
        self._defaults = defaults
        self.rng = rng
        self._wall_clock_ms = wall_clock_ms
        self._alive = alive
        self._on_commit_s = on_commit_s
        # Set after a command came out too large: its requests go one by one.
        self._one_by_one = 0
        self._queue: deque[_Waiting] = deque()
        self._wakeup = asyncio.Event()
        self._result: asyncio.Future[Outcome] | None = None

    async def submit(self, generate: Generator[R]) -> R:
        """The reply of `generate` once its records are committed and applied.

        Raises NotActive, or PenstockError when the queue is full or the request too large.
        """
        if not self.active:
            raise NotActive
        if len(self._queue) >= REQUESTS_WAITING_MAX:
            raise PenstockError(
                ErrorCode.REQUEST_TIMED_OUT, "the controller has too many requests waiting; try again"
            )
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._queue.append(_Waiting(generate, future))
        self._wakeup.set()
        return await future

    def set_active(self, active: bool) -> None:
        """Begin or end a term of activity; what waits at its end is refused."""
        self.active = active
        if not active:
            waiting, self._queue = self._queue, deque()
            _refuse(waiting)
            if self._result is not None and not self._result.done():
                self._result.set_result(Outcome.UNKNOWN)

    def proposal_ended(self, token: object, outcome: Outcome) -> None:
        """The quorum reports the end of a proposal."""
        if isinstance(token, asyncio.Future) and not token.done():
            token.set_result(outcome)

    async def run(self) -> None:
        """Serve for ever."""
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            stale = 0
            while self._queue:
                outcome = await self._one_command()
                stale = stale + 1 if outcome is Outcome.STALE else 0
                if stale > STALE_RETRIES_MAX:
                    waiting, self._queue = self._queue, deque()
                    _refuse(waiting)

    async def _one_command(self) -> Outcome:
        image = self.image
        batch, records = self._generate(image)
        if not batch:
            return Outcome.APPLIED
        loop = asyncio.get_running_loop()
        started = loop.time()
        result: asyncio.Future[Outcome] = loop.create_future()
        self._result = result
        try:
            if records:
                command = pb.MetadataCommand(
                    base_version=image.version,
                    records=records,
                    controller_id=self._controller_id,
                    time_ms=self._wall_clock_ms(),
                    command_id=self.rng.getrandbits(64),
                )
                self._quorum.propose(command.SerializeToString(), result)
            else:
                self._quorum.barrier(result)
            async with asyncio.timeout(COMMIT_TIMEOUT_MS / 1000):
                outcome = await result
            self._on_commit_s(loop.time() - started)
        except TimeoutError:
            outcome = Outcome.UNKNOWN
        except PenstockError as error:
            # Too large for a command.
            if len(batch) == 1:
                _set_exception(batch[0][0], error)
            else:
                self._one_by_one = len(batch)
                self._queue.extendleft(waiting for waiting, _ in reversed(batch))
            return Outcome.APPLIED
        finally:
            self._result = None
        self._answer(batch, outcome, image.version + 1 if records else image.version)
        return outcome

    def _generate(self, image: MetadataImage) -> tuple[list[tuple[_Waiting, Any]], list[pb.MetadataRecord]]:
        context = Context(image, self.rng, self._defaults, self._alive)
        batch: list[tuple[_Waiting, Any]] = []
        records: list[pb.MetadataRecord] = []
        while self._queue and len(records) < RECORDS_PER_COMMAND:
            if self._one_by_one and batch:
                break
            waiting = self._queue.popleft()
            if waiting.future.done():
                continue
            try:
                generated = waiting.generate(context)
                context = context.after(generated.records)
            except NextCommand:
                self._queue.appendleft(waiting)
                break
            except PenstockError as error:
                _set_exception(waiting, error)
                continue
            batch.append((waiting, generated.reply))
            records += generated.records
        self._one_by_one = max(0, self._one_by_one - 1)
        return batch, records

    def _answer(self, batch: list[tuple[_Waiting, Any]], outcome: Outcome, version: int) -> None:
        if outcome is Outcome.STALE:
            # Another controller's late command came between: generate anew on the new image.
            self._queue.extendleft(waiting for waiting, _ in reversed(batch))
            return
        for waiting, reply in batch:
            if outcome is Outcome.UNKNOWN:
                _set_exception(waiting, NotActive())
            elif not waiting.future.done():
                if "version" in getattr(getattr(reply, "DESCRIPTOR", None), "fields_by_name", ()):
                    reply.version = version
                waiting.future.set_result(reply)


def _set_exception(waiting: _Waiting, error: Exception) -> None:
    if not waiting.future.done():
        waiting.future.set_exception(error)


def _refuse(waiting: deque[_Waiting]) -> None:
    for each in waiting:
        _set_exception(each, NotActive())
