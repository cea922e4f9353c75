"""Calls to whichever controller is active.

Theory. A caller wants one thing: its call done before a deadline, across an election.
So the client keeps a guess at the active controller, tries it, and on failure asks all
controllers at once who is active (`DescribeQuorum`, answered by any). A dead controller
costs nothing (refused at once, and it is asked in parallel with the others), a silent
one at most `_ASK_TIMEOUT_MS`. Between rounds it waits 20-200 ms, jittered.

A call that is out at a controller which has gone silent is watched: every second the
others are asked, and it moves when they agree on another active controller.

Terms. The highest term in which some controller said that it was the active one is kept
(`heard_term`); one of a lower term that still believes it is the active one (it was paused,
say, while another was elected) is not listened to.

Warts. A call may have been carried out although its attempt failed, so a retried
CreateTopics can answer TOPIC_ALREADY_EXISTS for its own doing, as with Kafka.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio

from penstock_core.errors import ErrorCode, PenstockError
from penstock_proto.v1 import controller_pb2 as pb
from penstock_proto.v1 import controller_pb2_grpc
from penstock_runtime.grpc_tools import CHANNEL_CLOSED, ChannelPool, was_cut_off
from penstock_runtime.lifecycle import monotonic_ms
from penstock_runtime.security.methods import CONTROLLER
from penstock_runtime.settings import parse_member

ACTIVE_CONTROLLER_KEY = "penstock-active-controller"
"""Trailing metadata key in which a controller names the active one."""

_ASK_TIMEOUT_MS = 500
_ASK_GRACE_MS = 100
_WATCH_INTERVAL_MS = 1_000
_ATTEMPT_SILENT_MS = 5_000
_SHORT_SESSION_MS = 1_000
_BACKOFF_MIN_MS = 20
_BACKOFF_MAX_MS = 200

# Statuses after which another try may succeed. CANCELLED and UNKNOWN come from servers
# that stop in the middle of a call.
_RETRIABLE = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)
_CODES = {
    grpc.StatusCode.INVALID_ARGUMENT: ErrorCode.INVALID_REQUEST,
    grpc.StatusCode.UNIMPLEMENTED: ErrorCode.UNSUPPORTED_VERSION,
    grpc.StatusCode.PERMISSION_DENIED: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    grpc.StatusCode.FAILED_PRECONDITION: ErrorCode.INVALID_REQUEST,
}

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


class ControllerClient:
    """The controllers as one. `addresses` are `[ID@]host:port`; `owner` is for logs.

    Lives on one event loop. Channels belong to the caller's pool.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        owner: str,
        channels: ChannelPool,
        *,
        clock_ms: Callable[[], int] = monotonic_ms,
        rng: random.Random | None = None,
    ) -> None:
        if not addresses:
            raise PenstockError(
                ErrorCode.INVALID_REQUEST, "no controller is known; set controllers = host:port"
            )
        self.addresses = [str(parse_member(a)[1]) for a in addresses]
        self.owner = owner
        self._channels = channels
        self.clock_ms = clock_ms
        """The process's, also for those who call by this."""
        self._rng = rng or random.Random()  # noqa: S311 - jitter
        self._active: str | None = None
        self.heard_term = 0
        """Highest term of an active controller so far; orders of a lower one are stale."""
        self._sessions: dict[str, tuple[int, int]] = {}
        """By method: when a session was last opened, and how many before it were short."""
        self._stubs: dict[str, tuple[grpc.aio.Channel, Any]] = {}
        self._rng.shuffle(self.addresses)

    @property
    def active_address(self) -> str | None:
        """The controller that was active when last heard of."""
        return self._active

    def note_term(self, term: int) -> bool:
        """An active controller spoke in `term`; False when it is deposed, and not to be obeyed.

        0 is that of a controller which does not say.
        """
        self.heard_term = max(self.heard_term, term)
        return term >= self.heard_term or term == 0

    def addresses_by_preference(self) -> list[str]:
        """All controllers, the active one first."""
        return sorted(self.addresses, key=lambda a: a != self._active)

    def forget_active(self, address: str | None = None) -> None:
        """Note that `address` (None: whichever) failed as the active controller."""
        if address is None or address == self._active:
            self._active = None

    async def call(self, method: str, request: Any, timeout_ms: int = 15_000) -> Any:
        """Call `method` of the active controller; its response, which may carry an Error.

        Retries until `timeout_ms` has passed, then raises REQUEST_TIMED_OUT with the last
        reason that a controller gave. A status that a retry cannot mend raises at once.
        """
        deadline_ms = self.clock_ms() + timeout_ms
        reason = nobody = "no controller answers"
        failures = 0
        while (left_ms := deadline_ms - self.clock_ms()) > 0:
            address = self._active or await self._find_active(left_ms, failures)
            if address is not None:
                try:
                    response = await self._attempt(address, method, request, deadline_ms)
                except grpc.aio.AioRpcError as e:
                    if e.code() not in _RETRIABLE:
                        raise _as_penstock_error(method, e) from None
                    # The last try is cut off by our own deadline: what an earlier one was told says more.
                    if e.code() != grpc.StatusCode.DEADLINE_EXCEEDED or reason == nobody:
                        reason = f"controller {address}: {e.details() or e.code().name}"
                    self._learn_from(address, e)
                except _Silent:
                    reason = f"controller {address} is silent"
                    self.forget_active(address)
                else:
                    if not _is_not_controller(response):
                        return response
                    reason = f"controller {address} is not the active one"
                    self.forget_active(address)
            # After the first failure the next try is at once: a successor may be there already.
            if failures > 0:
                await self._pause(failures, deadline_ms)
            failures += 1
        raise PenstockError(
            ErrorCode.REQUEST_TIMED_OUT, f"{method} was not answered within {timeout_ms} ms: {reason}"
        )

    async def session(self, method: str, timeout_ms: int = 15_000) -> ControllerStream[Any, Any]:
        """Open the stream `method` to the active controller.

        Raises REQUEST_TIMED_OUT when none is found within `timeout_ms`.
        """
        deadline_ms = self.clock_ms() + timeout_ms
        # Sessions that end as soon as they are open must not make a loop that spins.
        opened_ms, quick = self._sessions.get(method, (-_SHORT_SESSION_MS, 0))
        quick = quick + 1 if self.clock_ms() - opened_ms < _SHORT_SESSION_MS else 0
        if quick:
            await self._pause(quick, deadline_ms)
        failures = 0
        while (left_ms := deadline_ms - self.clock_ms()) > 0:
            # Asked every time: a stream that opens to a deposed controller fails only later.
            address = await self._find_active(left_ms, failures)
            if address is not None:
                self._sessions[method] = (self.clock_ms(), quick)
                return ControllerStream(self, address, method, getattr(self._stub(address), method)())
            await self._pause(failures, deadline_ms)
            failures += 1
        raise PenstockError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"no active controller within {timeout_ms} ms among {', '.join(self.addresses)}",
        )

    async def ask_each(self, method: str, request: Any, timeout_s: float) -> list[Any]:
        """The answers of all controllers that give one in time, the active one or not."""

        async def ask(address: str) -> Any:
            try:
                return await getattr(self.stub(address), method)(request, timeout=timeout_s)
            except grpc.aio.AioRpcError:
                return None

        answers = await asyncio.gather(*(ask(address) for address in self.addresses))
        return [answer for answer in answers if answer is not None]

    def stub(self, address: str) -> Any:
        """The Controller stub (asynchronous) for one controller."""
        return self._stub(address)

    def _stub(self, address: str) -> Any:
        # Making a stub takes longer than a call. A channel that was dropped is not the one it was made of.
        channel = self._channels.get(address, CONTROLLER)
        known = self._stubs.get(address)
        if known is None or known[0] is not channel:
            stub: Any = controller_pb2_grpc.ControllerStub(channel)
            known = self._stubs[address] = channel, stub
        return known[1]

    async def _attempt(self, address: str, method: str, request: Any, deadline_ms: int) -> Any:
        """One try at one controller, given up when it is silent and no longer active."""
        started_ms = self.clock_ms()
        call = getattr(self._stub(address), method)(request, timeout=(deadline_ms - started_ms) / 1000)
        answer: asyncio.Future[Any] = asyncio.ensure_future(_await_call(call))
        try:
            while True:
                done, _ = await asyncio.wait([answer], timeout=_WATCH_INTERVAL_MS / 1000)
                if done:
                    return answer.result()
                active = await self._find_active(_ASK_TIMEOUT_MS, 0, keep=address)
                silent = self.clock_ms() - started_ms >= _ATTEMPT_SILENT_MS
                if active != address and (active is not None or silent) and not answer.done():
                    raise _Silent
        finally:
            if not answer.done():
                answer.cancel()
                await asyncio.wait([answer])
            if not answer.cancelled():
                answer.exception()

    def _learn_from(self, address: str, error: grpc.aio.AioRpcError) -> None:
        self.forget_active(address)
        trailing: Any = error.trailing_metadata() or ()
        for key, named in trailing:
            # Only an address of our own settings: elsewhere it may be known by another name.
            if key == ACTIVE_CONTROLLER_KEY and named in self.addresses and named != address:
                self._active = named

    async def _find_active(self, left_ms: int, failures: int, keep: str | None = None) -> str | None:
        """Ask every controller; the address of one that says it is active, else None.

        Of several the highest term wins among the answers that came with the first. With
        `keep` the guess is changed only if one says that it is active. Once some controller
        has answered, the others get a moment only: it is short at first, so that a silent
        one costs little, and doubles with `failures`, for controllers that are slow.
        """
        timeout_ms = min(left_ms, _ASK_TIMEOUT_MS << min(failures, 3))
        grace_ms = _ASK_GRACE_MS << min(failures, 5)
        asks = {asyncio.ensure_future(self._ask(a, timeout_ms)) for a in self.addresses}
        best: tuple[int, str] | None = None
        pending = asks
        try:
            answered = False
            while pending and best is None:
                done, pending = await asyncio.wait(
                    pending,
                    timeout=grace_ms / 1000 if answered else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not done:
                    break
                answers = [answer for answer in (ask.result() for ask in done) if answer is not None]
                answered = answered or bool(answers)
                best = max(((a[0], a[1]) for a in answers if a[2] and a[0] >= self.heard_term), default=None)
        finally:
            for ask in pending:
                ask.cancel()
            if pending:
                await asyncio.wait(pending)
        if best is not None:
            self._active = best[1]
            self.note_term(best[0])
        elif keep is None:
            self._active = None
        return None if best is None else best[1]

    async def _ask(self, address: str, timeout_ms: int) -> tuple[int, str, bool] | None:
        """(term, address, is it the active one), None when it does not answer."""
        try:
            quorum: pb.DescribeQuorumResponse = await self._stub(address).DescribeQuorum(
                pb.DescribeQuorumRequest(), timeout=timeout_ms / 1000
            )
        except grpc.aio.AioRpcError:
            return None
        active = quorum.active_controller_id
        return quorum.term, address, active >= 0 and active == quorum.controller_id

    async def _pause(self, failures: int, deadline_ms: int) -> None:
        most_ms = min(_BACKOFF_MAX_MS, _BACKOFF_MIN_MS * 2 ** min(failures, 8))
        pause_ms = self._rng.uniform(_BACKOFF_MIN_MS / 2, most_ms)
        await asyncio.sleep(max(0.0, min(pause_ms, deadline_ms - self.clock_ms())) / 1000)


class _Silent(Exception):
    """A controller keeps a call waiting and is not the active one any more."""


class ControllerStream(Generic[RequestT, ResponseT]):
    """A session with the active controller.

    `write` and `read` raise PenstockError NOT_CONTROLLER when the stream is over for any
    reason; then ask `ControllerClient.session` for a new one.
    """

    def __init__(self, client: ControllerClient, address: str, method: str, call: Any) -> None:
        self._client = client
        self._method = method
        self._call = call
        self.address = address

    async def write(self, request: RequestT) -> None:
        """Send one message."""
        try:
            await self._call.write(request)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as e:
            raise self._over(e) from None
        except asyncio.CancelledError as e:
            if not was_cut_off():
                raise
            raise self._over(e) from None

    async def read(self) -> ResponseT:
        """The next message."""
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError as e:
            raise self._over(e) from None
        except asyncio.CancelledError as e:
            if not was_cut_off():
                raise
            raise self._over(e) from None
        if message is grpc.aio.EOF:  # type: ignore[attr-defined]
            # A stream that ended well has its status still to give.
            raise self._over(None)
        response: ResponseT = message
        return response

    async def __aiter__(self) -> AsyncIterator[ResponseT]:
        while True:
            yield await self.read()

    async def done_writing(self) -> None:
        """No more messages will be sent; the controller may end the stream."""
        if not self._call.done():
            await self._call.done_writing()

    def close(self) -> None:
        """End the stream. Safe to call twice."""
        self._call.cancel()

    def _over(self, error: BaseException | None) -> PenstockError:
        detail = "ended by the controller"
        if isinstance(error, grpc.aio.AioRpcError):
            detail = error.details() or error.code().name
            self._client._learn_from(self.address, error)
        elif error is not None:
            detail = CHANNEL_CLOSED if isinstance(error, asyncio.CancelledError) else "already over"
            self._client.forget_active(self.address)
        else:
            self._client.forget_active(self.address)
        return PenstockError(ErrorCode.NOT_CONTROLLER, f"{self._method} with {self.address}: {detail}")


async def _await_call(call: Any) -> Any:
    try:
        return await call
    except asyncio.CancelledError:
        call.cancel()
        raise


def _is_not_controller(response: Any) -> bool:
    error = getattr(response, "error", None)
    return error is not None and error.code == ErrorCode.NOT_CONTROLLER


def _as_penstock_error(method: str, error: grpc.aio.AioRpcError) -> PenstockError:
    code = _CODES.get(error.code(), ErrorCode.UNKNOWN_SERVER_ERROR)
    return PenstockError(code, f"{method}: {error.details() or error.code().name}")
