"""Attacks on the Raft port by somebody who has no credentials, against real controllers.

Whoever can open the port of a cluster without TLS may still disturb it: he can say that he is a controller.
What these tests promise is that he kills, banishes and poisons nobody, that what he did ends when he leaves, and
that he cannot keep the honest ones from finding each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_runtime.grpc_tools import ChannelPool
from support import raft_stranger as stranger
from support.controllers import Controllers
from support.raft_stranger import Crowd, Stranger

pytestmark = pytest.mark.timeout(600)

PATIENCE_S = 90
ABSENT = 3
"""The controller in whose name the stranger speaks: the one with the highest id, which dials the others."""


@pytest.fixture
def controllers(tmp_path: Path) -> Iterator[Controllers]:
    quorum = Controllers(tmp_path, 3, http_bind="127.0.0.1:0")
    quorum.start_all()
    yield quorum
    quorum.kill_all()


@pytest_asyncio.fixture
async def channels() -> AsyncIterator[ChannelPool]:
    pool = ChannelPool()
    yield pool
    await pool.close()


async def commit(controllers: Controllers, channels: ChannelPool) -> None:
    """A change of the metadata that a majority has to take."""
    request = api.AllocateProducerIdsRequest(owner="test")
    await controllers.client(channels).call("AllocateProducerIds", request, PATIENCE_S * 1000)


async def recorded(controllers: Controllers, channels: ChannelPool) -> dict[int, bytes]:
    """Every controller's data directory, once the metadata know them all."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            active = await controllers.active_id(channels)
            if active > 0:
                members = (await controllers.describe(channels, active)).members
                if all(m.directory_id and m.directory_id == m.connected_directory_id for m in members):
                    return {m.controller_id: m.directory_id for m in members}
            await asyncio.sleep(0.05)


async def all_work(controllers: Controllers, channels: ChannelPool) -> None:
    """Every controller is alive, and counts in a majority, also after a restart of all."""
    for controller_id, process in controllers.processes.items():
        assert process.poll() is None, controllers.log(controller_id)[-2000:]
    await commit(controllers, channels)
    controllers.kill_all()
    controllers.start_all()
    await recorded(controllers, channels)
    for leaves in range(1, controllers.count + 1):
        # With one away each of the others is needed.
        controllers.kill(leaves)
        await commit(controllers, channels)
        controllers.start(leaves)
        await recorded(controllers, channels)


def say(controllers: Controllers, to: int, directory_id: bytes, *frames: bytes) -> None:
    """Speak to one controller as ABSENT and go; what it answers is of no interest."""
    try:
        visitor = Stranger(controllers.raft_ports[to - 1])
    except ConnectionRefusedError:
        return  # it is dead, which the test will see
    try:
        if visitor.send(stranger.hello(ABSENT, to, directory_id=directory_id)) and visitor.send(*frames):
            visitor.is_closed_within(1.0)
    finally:
        visitor.close()


async def term_of(controllers: Controllers, channels: ChannelPool) -> int:
    return max([(await controllers.describe(channels, i)).term for i in controllers.processes])


async def test_no_term_that_somebody_says_ends_the_quorum(
    controllers: Controllers, channels: ChannelPool
) -> None:
    """85 bytes to each port: the next election had no number left, after a restart neither."""
    directories = await recorded(controllers, channels)
    terms = (2**61, 2**62, 2**64 - 1)
    for term in terms:
        for to in (1, 2, 3):
            await asyncio.to_thread(say, controllers, to, b"\xaa" * 16, stranger.term_notice(term))
    controllers.kill(ABSENT)
    for term in terms:
        for to in (1, 2):
            await asyncio.to_thread(say, controllers, to, directories[ABSENT], stranger.term_notice(term))
        assert await term_of(controllers, channels) < 2**33, term
    controllers.start(ABSENT)
    await all_work(controllers, channels)


async def test_a_strangers_directory_banishes_nobody(controllers: Controllers, channels: ChannelPool) -> None:
    """A hello that named another directory made the true one a former one, for ever."""
    await recorded(controllers, channels)
    for to in (1, 2):
        await asyncio.to_thread(say, controllers, to, b"\xaa" * 16)
    controllers.kill(ABSENT)
    for directory in (b"\xbb" * 16, b"\xcc" * 16):
        for to in (1, 2):
            await asyncio.to_thread(say, controllers, to, directory)
    controllers.start(ABSENT)
    await all_work(controllers, channels)


def unknown_record() -> bytes:
    """A command with a record of a kind that no version has."""
    return pb.MetadataCommand(base_version=1).SerializeToString() + b"\x12\x05\xfa\xff\x03\x01x"


POISONS = {
    "an empty command": b"",
    "a command that is none": b"\x00\xff\xff\xff\xff",
    "a record of no version": b"\x00" + unknown_record(),
    "an entry of no kind": b"\x09x",
    "a pickle": b"\x03cos\nsystem\n.",
}


async def test_no_entry_poisons_the_log(controllers: Controllers, channels: ChannelPool) -> None:
    """As a leader of the next term, with an entry that is committed at once: whoever applied it ended."""
    directories = await recorded(controllers, channels)
    controllers.kill(ABSENT)
    for poison, command in POISONS.items():
        await commit(controllers, channels)  # the log's last entry is of this term, as what is sent says
        term = await term_of(controllers, channels) + 5
        for to in (1, 2):
            described = await controllers.describe(channels, to)
            last, last_term = described.last_log_index, described.term
            # The log may go on meanwhile: try the places around its end.
            for previous in range(last, last + 4):
                entries = [(command, previous + 1, term)]
                frames = stranger.append(
                    term, entries, previous=(previous, last_term), commit_index=previous + 1
                )
                await asyncio.to_thread(say, controllers, to, directories[ABSENT], frames)
        for to in (1, 2):
            assert controllers.processes[to].poll() is None, f"{poison}: {controllers.log(to)[-2000:]}"
    controllers.start(ABSENT)
    await all_work(controllers, channels)


async def test_no_index_or_count_ends_a_controller(controllers: Controllers, channels: ChannelPool) -> None:
    """Numbers out of all bounds, in each place that has one."""
    directories = await recorded(controllers, channels)
    controllers.kill(ABSENT)
    term = await term_of(controllers, channels)
    noop, most = b"\x01", 2**64 - 1
    for frames in (
        stranger.ack(term, most, reset=True, success=False),
        stranger.ack(term, most, reset=False, success=True),
        stranger.ack(term, 0, reset=True, success=False),
        stranger.append(term + 5, [], previous=(most, most), commit_index=most),
        stranger.append(term + 5, [(noop, 2, 1)], previous=(1, 0), commit_index=1, count=2**32 - 1),
        stranger.append(term + 5, [(noop, most, most)], previous=(1, 0), commit_index=1),
        stranger.append(term + 5, [(noop, 2, 1), (noop, 900, 1)], previous=(1, 0), commit_index=1),
        stranger.append(term + 5, [(noop, 2, 9), (noop, 3, 1)], previous=(1, 0), commit_index=1),
        stranger.frame(b""),
        stranger.frame(b"\xff" * 100),
        b"\x00" * 64,
        b"GET / HTTP/1.1\r\nHost: penstock\r\n\r\n",
    ):
        for to in (1, 2):
            await asyncio.to_thread(say, controllers, to, directories[ABSENT], frames)
            term = await term_of(controllers, channels)
    controllers.start(ABSENT)
    await all_work(controllers, channels)


async def test_what_is_committed_is_not_cut_off(controllers: Controllers, channels: ChannelPool) -> None:
    """A "leader" of a later term whose log parts from ours before its committed end is none."""
    directories = await recorded(controllers, channels)
    for _ in range(20):
        await commit(controllers, channels)
    controllers.kill(ABSENT)
    await commit(controllers, channels)
    before = {to: await controllers.describe(channels, to) for to in (1, 2)}
    term = await term_of(controllers, channels) + 5
    for to in (1, 2):
        frames = stranger.append(term, [(b"\x01", 2, term)], previous=(1, 0), commit_index=2)
        await asyncio.to_thread(say, controllers, to, directories[ABSENT], frames)
    await commit(controllers, channels)
    for to in (1, 2):
        assert (await controllers.describe(channels, to)).last_log_index >= before[to].commit_index
    controllers.start(ABSENT)
    await all_work(controllers, channels)


@pytest.mark.parametrize("first", [b"", stranger.hello(3, 1)[:20]], ids=["silent", "half a hello"])
async def test_idle_sockets_shut_nobody_out(
    controllers: Controllers, channels: ChannelPool, first: bytes
) -> None:
    """The newest connection was refused while sixteen said nothing: now the oldest makes room."""
    await recorded(controllers, channels)
    controllers.kill(ABSENT)
    with Crowd(controllers.raft_ports[:2], first=first) as crowd:
        while crowd.opened < 100:  # noqa: ASYNC110 - another thread
            await asyncio.sleep(0.01)
        controllers.start(ABSENT)
        await recorded(controllers, channels)
        controllers.kill(2 if await controllers.active_id(channels) == 1 else 1)
        await commit(controllers, channels)


async def test_a_hello_is_heard_beside_many_silent_ones(
    controllers: Controllers, channels: ChannelPool
) -> None:
    """Sixteen were let in and the next refused."""
    directories = await recorded(controllers, channels)
    controllers.kill(ABSENT)
    silent = [Stranger(controllers.raft_ports[0]) for _ in range(60)]
    visitor = Stranger(controllers.raft_ports[0])
    visitor.send(stranger.hello(ABSENT, 1, directory_id=directories[ABSENT]))
    answer = await asyncio.to_thread(visitor.receive)
    assert answer is not None
    assert answer[0] == 1, "a hello in answer"
    for each in [*silent, visitor]:
        each.close()


async def test_whoever_is_slow_with_a_frame_is_closed(
    controllers: Controllers, channels: ChannelPool
) -> None:
    """Before its hello within seconds; after it a frame has to come as fast as any network brings it."""
    directories = await recorded(controllers, channels)
    controllers.kill(ABSENT)

    def drip(*first: bytes) -> float:
        """For how long a connection lives that adds a byte from time to time."""
        visitor = Stranger(controllers.raft_ports[0])
        started = time.monotonic()
        visitor.send(*first)
        visitor.socket.settimeout(0.3)
        while time.monotonic() - started < 30:
            if not visitor.send(b"x") or visitor.is_closed_within(0.3):
                break
        visitor.close()
        return time.monotonic() - started

    hello = stranger.hello(ABSENT, 1, directory_id=directories[ABSENT])
    announced = (8 * 1024 * 1024).to_bytes(4, "little") + bytes(4)
    assert await asyncio.to_thread(drip, hello[:30]) < 20
    assert await asyncio.to_thread(drip, hello, announced, bytes(100_000)) < 20
    controllers.start(ABSENT)
    await recorded(controllers, channels)


async def test_a_controllers_place_is_not_taken_by_one_that_it_dials_itself(
    controllers: Controllers, channels: ChannelPool
) -> None:
    """Controllers of higher ids dial those of lower ones: nobody comes in the name of a lower one."""
    directories = await recorded(controllers, channels)
    visitors = []
    for name in (1, 2):
        visitors.append(Stranger(controllers.raft_ports[2]))
        visitors[-1].send(stranger.hello(name, 3, directory_id=directories[name]))
        assert await asyncio.to_thread(visitors[-1].receive) is None, "closed, and without a hello in answer"
    await commit(controllers, channels)
    for each in visitors:
        each.close()


async def test_the_honest_one_of_two_with_one_name_comes_in(
    controllers: Controllers, channels: ChannelPool
) -> None:
    """A stranger sits in the place of a controller that was away; when that comes back it has its place again."""
    directories = await recorded(controllers, channels)
    controllers.kill(ABSENT)

    def sit(to: int, directory_id: bytes, ends: threading.Event) -> None:
        """Hold the place, alive by keepalives; closed, come again after a while."""
        while not ends.is_set():
            with contextlib.suppress(OSError):
                visitor = Stranger(controllers.raft_ports[to - 1])
                visitor.send(stranger.hello(ABSENT, to, directory_id=directory_id))
                while visitor.send(stranger.frame(b"\x02")) and not ends.wait(0.2):
                    pass
                visitor.close()
            ends.wait(5)

    for directory in (directories[ABSENT], b"\xaa" * 16):
        ends = threading.Event()
        sitting = [threading.Thread(target=sit, args=(to, directory, ends)) for to in (1, 2)]
        for each in sitting:
            each.start()
        try:
            await asyncio.sleep(1)  # not over a race: the stranger is to be there first
            controllers.start(ABSENT)
            controllers.kill(2)
            await commit(controllers, channels)
            controllers.start(2)
            await recorded(controllers, channels)
        finally:
            ends.set()
            for each in sitting:
                await asyncio.to_thread(each.join)
        controllers.kill(ABSENT)
