"""Running the two directions of a gRPC stream, and ending them in the right order.

A server may not send the status of a call while a message of it is under way: gRPC refuses the
second operation ("too many operations") and the call ends in an error that nobody caused. So when
the peer has ended its half, the writer is asked to stop and ends between two messages; it is
cancelled only together with the call, when no status is sent any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import grpc.aio


async def run_both_ways(
    read: Coroutine[Any, Any, None], write: Coroutine[Any, Any, None], stop_writing: Callable[[], None]
) -> None:
    """Run until one direction ends, then end the other; raises what either raised.

    `stop_writing` makes `write` return after the message that it is in. That the peer has gone
    (UsageError) is an ordinary end.
    """
    reader, writer = asyncio.ensure_future(read), asyncio.ensure_future(write)
    try:
        await asyncio.wait([reader, writer], return_when=asyncio.FIRST_COMPLETED)
        stop_writing()
        reader.cancel()
        await asyncio.wait([reader, writer])
    except asyncio.CancelledError:
        reader.cancel()
        writer.cancel()
        await asyncio.wait([reader, writer])
        raise
    for task in (reader, writer):
        if not task.cancelled() and (error := task.exception()) is not None:
            if isinstance(error, grpc.aio.UsageError):
                continue
            raise error
