"""One `Forward` stream: (client connection, storage node).

Opened on demand, kept while the client's connection lives. It waits for the channel to
be connected before anything counts as sent: what was queued for a node that cannot be
reached is known not to be written. Bytes go by without generated classes (`penstock_proto.fast`).

A stream never reopens: `stream_ended` tells the client's relay, which decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import grpc
import grpc.aio

from penstock_core.errors import InvariantBroken
from penstock_core.failpoints import hit
from penstock_core.limits import FORWARD_CHUNK_BYTES_MAX
from penstock_proto.fast.forward import InFrame, OutFrame, pack, there_message, unpack
from penstock_proto.fast.primitives import MalformedMessage
from penstock_proto.v1 import storage_pb2 as pb
from penstock_runtime.grpc_tools import CHANNEL_CLOSED, was_cut_off

METHOD = "/penstock.v1.Storage/Forward"


class Owner(Protocol):
    """Whom a stream serves."""

    def stream_ready(self, stream: NodeStream) -> None:
        """The node is connected: frames may be taken."""

    def take_frames(self, stream: NodeStream) -> Sequence[OutFrame]:
        """The next frames to send, none when nothing waits."""

    def take_answers(self, stream: NodeStream, frames: list[InFrame]) -> None:
        """Parts of responses."""

    def is_there(self) -> bool:
        """Whether the client still is."""

    def stream_ended(self, stream: NodeStream, reason: str) -> None:
        """The stream is over; never called after `close`."""


class NodeStream:
    """Sends what its owner has for one node and hands back what comes."""

    def __init__(
        self,
        owner: Owner,
        channel: grpc.aio.Channel,
        opening: pb.ForwardOpen,
        delay_s: float,
        on_bug: Callable[[BaseException], None],
    ) -> None:
        self.node_id = opening.node_id
        self._owner = owner
        self._channel = channel
        self._opening = pb.ForwardRequest(open=opening).SerializeToString()
        self._on_bug = on_bug
        self._wake = asyncio.Event()
        self._there: list[int] = []
        """Questions of the node whether the client is still there, which it is."""
        self._call: Any = None
        self._reader: asyncio.Task[None] | None = None
        self._closed = False
        self._reason = ""
        self._task = asyncio.create_task(self._run(delay_s), name=f"forward to node {self.node_id}")

    def wake(self) -> None:
        """There may be frames to take."""
        self._wake.set()

    def close(self) -> None:
        """End the stream without a word to the owner."""
        self._closed = True
        self._cancel()

    def _cancel(self) -> None:
        if self._call is not None:
            self._call.cancel()
        self._task.cancel()

    async def _run(self, delay_s: float) -> None:
        try:
            if delay_s:
                await asyncio.sleep(delay_s)
            await self._connect()
            await self._send()
        except asyncio.CancelledError:
            if not self._closed and not self._reason:
                if not was_cut_off():
                    raise
                self._reason = CHANNEL_CLOSED
        except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError) as e:
            self._reason = self._reason or _why(e)
        except Exception as e:
            self._on_bug(e)
            self._reason = "failed"
        finally:
            if self._call is not None:
                self._call.cancel()
            if self._reader is not None:
                self._reader.cancel()
        if not self._closed:
            self._owner.stream_ended(self, self._reason)

    async def _connect(self) -> None:
        channel = self._channel
        state = channel.get_state(try_to_connect=True)
        while state is not grpc.ChannelConnectivity.READY:
            await channel.wait_for_state_change(state)
            state = channel.get_state(try_to_connect=True)
        opened: Any = channel.stream_stream(METHOD, None, None)  # bytes as they are
        self._call = opened()
        await self._call.write(self._opening)
        self._reader = asyncio.create_task(self._receive(), name=f"forward from node {self.node_id}")

    async def _send(self) -> None:
        self._owner.stream_ready(self)
        write = self._call.write
        while True:
            self._wake.clear()
            if self._there:
                numbers, self._there = self._there, []
                await write(there_message(numbers))
            frames = self._owner.take_frames(self)
            if not frames:
                await self._wake.wait()
                continue
            hit("gateway.forward.before_send")
            for message in pack(frames, FORWARD_CHUNK_BYTES_MAX):
                await write(message)
            hit("gateway.forward.after_send")

    async def _receive(self) -> None:
        """Ends the whole stream when there is nothing more to come."""
        read = self._call.read
        try:
            while (message := await read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
                self._take(unpack(message))
            self._reason = self._reason or "ended by the node"
        except grpc.aio.AioRpcError as e:
            self._reason = self._reason or _why(e)
        except asyncio.CancelledError:
            if not was_cut_off():
                return
            self._reason = self._reason or CHANNEL_CLOSED
        except (InvariantBroken, MalformedMessage) as e:
            self._reason = str(e)
        except Exception as e:
            self._on_bug(e)
            self._reason = "failed"
        self._task.cancel()

    def _take(self, frames: list[InFrame]) -> None:
        asks = [frame.request_id for frame in frames if frame.asks]
        if asks:
            frames = [frame for frame in frames if not frame.asks]
            if self._owner.is_there():
                self._there += asks
                self._wake.set()
        if frames:
            self._owner.take_answers(self, frames)


def _why(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details() or ''}".strip()[:200]
    return CHANNEL_CLOSED if isinstance(error, grpc.aio.UsageError) else "already over"
