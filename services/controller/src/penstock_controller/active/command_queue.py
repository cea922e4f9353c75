"""One coroutine that turns waiting requests into commands, and commands into answers.

All requests that wait are generated one after another, each on the image that those
before it make, and proposed as one command. They are answered when it was committed and
applied here. A request that changes nothing is answered only after a committed no-op, so
a deposed controller cannot answer from an old image.

Commands go out one at a time: compare-and-set by version would refuse a second one
anyway, and requests that arrive meanwhile share the next.

A request that touches very many partitions (fencing a node of 100,000) gives its records
one at a time. They are taken in slices of about a millisecond and proposed as the parts
of one command, which the last part makes count (docs/decisions/0014).
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

from penstock_controller.quorum import Outcome, Quorum
from penstock_controller.state.causes import bounded
from penstock_controller.state.generation import Context, Defaults, Generated, NextCommand
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.failpoints import hit
from penstock_core.ids import NodeId
from penstock_core.metadata import MetadataImage
from penstock_core.metadata.levels import require_records
from penstock_proto.v1 import metadata_pb2 as pb

R = TypeVar("R")

REQUESTS_WAITING_MAX = 4096
"""Requests in the queue; more are refused, so a burst cannot fill memory."""
RECORDS_PER_COMMAND = 2000
"""A command takes no further request once it holds this many records."""
PART_RECORDS = 100
"""Records of one part of a larger command: well under a millisecond to replay."""
PARTS_MAX = 20_000
PARTS_WAITING_MAX = 16
"""Parts proposed and not yet applied."""
SLICE_MS = 1
_SCAN_WORTH = 20
"""A pause between records counts as so many of them in the first look."""
STALE_RETRIES_MAX = 10
COMMIT_TIMEOUT_MS = 10_000

Generator = Callable[[Context], Generated[R]]


class NotActive(Exception):
    """This controller is not the active one (any more); another will answer."""


@dataclass(slots=True, eq=False)
class _Waiting:
    generate: Generator[Any]
    future: asyncio.Future[Any]


class CommandQueue:
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
        commit_timeout_ms: int = COMMIT_TIMEOUT_MS,
    ) -> None:
        self.image = MetadataImage()
        """The newest image that the event loop has seen; set by the shell."""
        self.active = False
        self.is_low: Callable[[NodeId], bool] = lambda _: False
        """Whether little of a node's disk is free; set by who hears of it."""
        self._quorum = quorum
        self._controller_id = controller_id
        self._defaults = defaults
        self.rng = rng
        self._wall_clock_ms = wall_clock_ms
        self._alive = alive
        self._on_commit_s = on_commit_s
        self._commit_timeout_ms = commit_timeout_ms
        # Set after a command came out too large: its requests go one by one.
        self._one_by_one = 0
        self._queue: deque[_Waiting] = deque()
        self._wakeup = asyncio.Event()
        self._result: asyncio.Future[Outcome] | None = None

    @property
    def waiting_count(self) -> int:
        """Requests that wait to become part of a command."""
        return len(self._queue)

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
        batch, records, further, why = self._generate(image)
        if not batch:
            return Outcome.APPLIED
        loop = asyncio.get_running_loop()
        started = loop.time()
        result: asyncio.Future[Outcome] = loop.create_future()
        self._result = result
        try:
            if further is not None or len(records) > RECORDS_PER_COMMAND:
                outcome = await self._propose_parts(image, records, further or iter(()), why, result)
            elif records:
                self._propose(self._command(image, records, why), result)
                outcome = await _within(self._commit_timeout_ms, result)
            else:
                self._quorum.barrier(result)
                outcome = await _within(self._commit_timeout_ms, result)
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
        # Records may all be yet to come when the first ones are looked at: a scan of many partitions comes before.
        changes = bool(records) or further is not None
        self._answer(batch, outcome, image.version + 1 if changes else image.version)
        return outcome

    def _command(
        self, image: MetadataImage, records: list[pb.MetadataRecord], why: list[pb.Cause]
    ) -> pb.MetadataCommand:
        return pb.MetadataCommand(
            base_version=image.version,
            records=records,
            controller_id=self._controller_id,
            time_ms=self._wall_clock_ms(),
            command_id=self.rng.getrandbits(64),
            causes=bounded(why),
        )

    def _propose(self, command: pb.MetadataCommand, result: asyncio.Future[Outcome]) -> None:
        hit("controller.command.before_propose")
        self._quorum.propose(command.SerializeToString(), result)

    async def _propose_parts(
        self,
        image: MetadataImage,
        records: list[pb.MetadataRecord],
        further: Iterator[pb.MetadataRecord | None],
        why: list[pb.Cause],
        result: asyncio.Future[Outcome],
    ) -> Outcome:
        """Propose in parts; `result` is that of the last one, or of the end of our activity."""
        loop = asyncio.get_running_loop()
        base = self._command(image, [], why)
        waiting: deque[asyncio.Future[Outcome]] = deque()
        part: list[pb.MetadataRecord] = []
        slice_end = loop.time() + SLICE_MS / 1000
        for record in chain(records, further):
            if len(part) == PART_RECORDS:
                token: asyncio.Future[Outcome] = loop.create_future()
                waiting.append(token)
                base.more = True
                self._propose_part(base, part, token)
                # The first part tells why, for all.
                del base.causes[:]
                part = []
                base.part += 1
                if base.part >= PARTS_MAX:
                    raise PenstockError(
                        ErrorCode.POLICY_VIOLATION,
                        f"request makes more than {PARTS_MAX * PART_RECORDS} metadata records; split it",
                    )
            if record is not None:
                part.append(record)
            while len(waiting) >= PARTS_WAITING_MAX:
                await _within(self._commit_timeout_ms, waiting[0], result)
                if result.done():
                    return result.result()
                if (outcome := waiting.popleft().result()) is not Outcome.STAGED:
                    return outcome
            if loop.time() >= slice_end:
                await asyncio.sleep(0)
                if result.done():
                    return result.result()
                slice_end = loop.time() + SLICE_MS / 1000
        base.more = False
        self._propose_part(base, part, result)
        return await _within(self._commit_timeout_ms, result)

    def _propose_part(
        self,
        base: pb.MetadataCommand,
        records: list[pb.MetadataRecord],
        token: asyncio.Future[Outcome],
    ) -> None:
        command = pb.MetadataCommand()
        command.CopyFrom(base)
        command.records.extend(records)
        self._propose(command, token)

    def _generate(
        self, image: MetadataImage
    ) -> tuple[
        list[tuple[_Waiting, Any]],
        list[pb.MetadataRecord],
        Iterator[pb.MetadataRecord | None] | None,
        list[pb.Cause],
    ]:
        """(requests with their replies, records, records still to be made, why)."""
        context = Context(image, self.rng, self._defaults, self._alive, self._wall_clock_ms(), self.is_low)
        batch: list[tuple[_Waiting, Any]] = []
        records: list[pb.MetadataRecord] = []
        made: list[pb.MetadataRecord] = []
        why: list[pb.Cause] = []
        further: Iterator[pb.MetadataRecord | None] | None = None
        while self._queue and len(records) < RECORDS_PER_COMMAND and further is None:
            if self._one_by_one and batch:
                break
            waiting = self._queue.popleft()
            if waiting.future.done():
                continue
            try:
                # What the one before made; not done for the last one, which may be large.
                context, made = context.after(made), []
                generated = waiting.generate(context)
                more, further = _look_ahead(generated.further)
                require_records(image, generated.records)
                made = [*generated.records, *more]
            except NextCommand:
                self._queue.appendleft(waiting)
                break
            except PenstockError as error:
                _set_exception(waiting, error)
                continue
            batch.append((waiting, generated.reply))
            records += made
            if made or further is not None:
                why += generated.causes
        self._one_by_one = max(0, self._one_by_one - 1)
        return batch, records, further, why

    def _answer(self, batch: list[tuple[_Waiting, Any]], outcome: Outcome, version: int) -> None:
        if outcome is Outcome.STALE:
            # Another controller's late command came between: generate anew on the new image.
            self._queue.extendleft(waiting for waiting, _ in reversed(batch))
            return
        hit("controller.answer.before")
        for waiting, reply in batch:
            if outcome is Outcome.UNKNOWN:
                _set_exception(waiting, NotActive())
            elif not waiting.future.done():
                if "version" in getattr(getattr(reply, "DESCRIPTOR", None), "fields_by_name", ()):
                    reply.version = version
                waiting.future.set_result(reply)


async def _within(timeout_ms: int, *futures: asyncio.Future[Outcome]) -> Outcome:
    """The result of the first future that ends. Raises TimeoutError."""
    done, _ = await asyncio.wait(futures, timeout=timeout_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
    if not done:
        raise TimeoutError
    return next(iter(done)).result()


def _look_ahead(
    further: Iterator[pb.MetadataRecord | None] | None,
) -> tuple[list[pb.MetadataRecord], Iterator[pb.MetadataRecord | None] | None]:
    """The first records at once: most requests have few, and then others can share the command."""
    first: list[pb.MetadataRecord] = []
    if further is None:
        return first, None
    passed = 0
    for record in further:
        if record is None:
            passed += 1
        else:
            first.append(record)
        if len(first) + passed * _SCAN_WORTH >= PART_RECORDS:
            return first, further
    return first, None


def _set_exception(waiting: _Waiting, error: Exception) -> None:
    if not waiting.future.done():
        waiting.future.set_exception(error)


def _refuse(waiting: deque[_Waiting]) -> None:
    for each in waiting:
        _set_exception(each, NotActive())
