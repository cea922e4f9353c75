"""The two directions of a stream end in the right order."""

from __future__ import annotations

import asyncio

import pytest

from penstock_storage_node.rpc.bidirectional import run_both_ways


class Wire:
    """A writer that is in the middle of a message until `passed` is set."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.passed = asyncio.Event()
        self.ending = False
        self.sent = 0
        self.cut_off = False

    def stop(self) -> None:
        self.ending = True
        asyncio.get_running_loop().call_soon(self.passed.set)

    async def write(self) -> None:
        while not self.ending:
            self.begun.set()
            try:
                await self.passed.wait()
            except asyncio.CancelledError:
                self.cut_off = True
                raise
            self.sent += 1


async def test_peer_ends_and_the_message_under_way_is_finished() -> None:
    wire = Wire()

    async def read() -> None:
        await asyncio.sleep(0)

    await run_both_ways(read(), wire.write(), wire.stop)
    assert (wire.sent, wire.cut_off) == (1, False)


async def test_error_of_the_reader_comes_out_after_the_writer_has_ended() -> None:
    wire = Wire()

    async def read() -> None:
        raise ValueError("bad frame")

    with pytest.raises(ValueError, match="bad frame"):
        await run_both_ways(read(), wire.write(), wire.stop)
    assert (wire.sent, wire.cut_off) == (1, False)


async def test_cancelled_call_cancels_both() -> None:
    wire = Wire()
    call = asyncio.ensure_future(run_both_ways(asyncio.Event().wait(), wire.write(), wire.stop))  # type: ignore[arg-type]
    await wire.begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert wire.cut_off
