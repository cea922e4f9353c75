"""Answers that are passed on as they come: in order, counted, and what becomes of one whose rest does not come."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from penstock_core.errors import PenstockError
from penstock_frontend.listener.answers import Buffer
from penstock_gateway.kafka.handler import GatewayHandler
from penstock_gateway.relay.fetch import Fetch
from penstock_gateway.relay.passing import FIRST_BYTES_MIN, begin_passing
from penstock_gateway.relay.produce import Produce
from penstock_gateway.relay.request import Ending, Outcome, Part
from penstock_kafka.wire.fetch import (
    FetchPartition,
    FetchRequest,
    decode_fetch_response,
    encode_fetch_request,
)
from penstock_kafka.wire.frames import parse_request_header
from penstock_kafka.wire.produce import ProducePartition, ProduceSkim, encode_produce_request
from penstock_proto.fast.forward import InFrame
from support.listening import connected, listening, metric, read_response
from support.waiting import eventually
from unit.gateway.conftest import RelayRig
from unit.gateway.kafka.test_handler import cluster_apis

RECORDS = bytes(range(256)) * 2_000  # several parts of a scripted node's answer


class Taker:
    """A client that takes pieces."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self.pieces: list[bytes] = []
        self.outcome: Outcome | None = None

    def begin(self, total_bytes: int) -> None:
        assert not self.total_bytes
        self.total_bytes = total_bytes

    def add(self, piece: Buffer) -> None:
        assert self.outcome is None
        self.pieces.append(bytes(piece))

    @property
    def is_over(self) -> bool:
        return self.outcome is not None

    def finish(self, outcome: Outcome) -> None:
        assert self.outcome is None
        self.outcome = outcome


def fetch_frame(*partitions: int) -> bytes:
    wanted = [FetchPartition("t", None, p, -1, 0, -1, -1, 500) for p in partitions]
    return encode_fetch_request(12, 43, "me", FetchRequest(500, 1, 1_000, partitions=wanted))


def asked(*partitions: int) -> tuple[Fetch, Taker]:
    taker, frame = Taker(), fetch_frame(*partitions)
    request = Fetch(parse_request_header(frame), frame, taker.finish)
    request.pieces = taker
    return request, taker


def first(size: int, total: int, *, last: bool = False) -> InFrame:
    return InFrame(1, memoryview(bytes(size)), last, False, False, False, frame_bytes=total)


def more(size: int, *, last: bool = False, close: bool = False) -> InFrame:
    return InFrame(1, memoryview(bytes(size)), last, False, close, False)


def test_only_a_whole_fetch_that_goes_on_is_passed_on() -> None:
    request, _ = asked(0)
    whole, part = Part(request, [0], 1, True), Part(request, [0], 2, False)
    assert begin_passing(part, first(500, 1_000)) is None, "it is joined with others"
    assert begin_passing(whole, first(500, 500, last=True)) is None, "it is all there"
    assert begin_passing(whole, first(FIRST_BYTES_MIN - 1, 1_000)) is None, "its head may not be"
    assert begin_passing(whole, first(500, 0)) is None, "nobody said how long it is"
    assert begin_passing(whole, first(500, 400)) is None, "it is longer than was said"
    request.pieces = None
    assert begin_passing(whole, first(500, 1_000)) is None, "nobody takes it"


def test_the_bytes_are_those_that_were_announced() -> None:
    request, taker = asked(0)
    passed = begin_passing(Part(request, [0], 1, True), first(500, 1_000))
    assert passed is not None
    assert not passed.take(first(500, 1_000), 70)
    assert passed.until_ms == 70 + request.answer_ms, "a node that says nothing more counts as hung then"
    assert not passed.take(more(400), 80)
    assert passed.take(more(100, last=True), 90)
    assert (taker.total_bytes, [len(p) for p in taker.pieces]) == (1_000, [500, 400, 100])


@pytest.mark.parametrize(
    "bad", [more(501, last=True), more(501), more(499, last=True), more(500, close=True)]
)
def test_other_bytes_than_announced_are_an_error(bad: InFrame) -> None:
    request, taker = asked(0)
    passed = begin_passing(Part(request, [0], 1, True), first(500, 1_000))
    assert passed is not None
    passed.take(first(500, 1_000), 0)
    with pytest.raises(PenstockError, match="not of the length"):
        passed.take(bad, 0)
    assert len(taker.pieces) == 1


# -- over real streams ----------------------------------------------------------------------------


async def begun(rig: RelayRig) -> tuple[Any, Taker, asyncio.Event]:
    """A client that has got the first part of an answer of several, of which the node keeps the rest."""
    rig.nodes[1].logs["t", 0] = [RECORDS]
    rest = rig.nodes[1].rest = asyncio.Event()
    client = rig.client()
    request, taker = asked(0)
    client.submit(request)
    await eventually(lambda: taker.pieces, "the first part")
    assert taker.total_bytes > len(taker.pieces[0])
    assert not taker.is_over
    return client, taker, rest


async def test_the_first_part_is_with_the_client_before_the_node_has_sent_the_last(rig: RelayRig) -> None:
    client, taker, rest = await begun(rig)
    assert not client.idle, "its time has to be looked at"
    rest.set()
    await eventually(lambda: taker.is_over, "the end")
    assert taker.outcome == []
    answer = b"".join(taker.pieces)
    assert len(answer) == taker.total_bytes
    response = decode_fetch_response(answer, 12)
    assert response.correlation_id == 43
    assert [b"".join(r.records) for r in response.results] == [RECORDS]
    assert rig.metrics.to_clients_bytes == len(answer)
    assert client.idle


async def test_a_node_that_dies_half_way_ends_the_client(rig: RelayRig) -> None:
    _, taker, _ = await begun(rig)
    await rig.nodes[1].die()
    await eventually(lambda: taker.is_over, "the end")
    assert taker.outcome is Ending.CLOSE, "no other answer fits behind a part of one"
    assert not any(rig.metrics.moved.values())


async def test_a_node_that_is_fenced_half_way_ends_the_client(rig: RelayRig) -> None:
    _, taker, _ = await begun(rig)
    rig.fenced.add(1)
    rig.move(0, 2)
    rig.publish()
    assert taker.outcome is Ending.CLOSE


async def test_a_leader_that_has_moved_half_way_answers_to_the_end(rig: RelayRig) -> None:
    _, taker, rest = await begun(rig)
    rig.move(0, 2)
    rig.publish()
    rest.set()
    await eventually(lambda: taker.is_over, "the end")
    assert taker.outcome == []


async def test_a_node_that_says_nothing_more_is_given_up(rig: RelayRig) -> None:
    now_ms = [0]
    rig.relay.clock_ms = lambda: now_ms[0]
    client, taker, rest = await begun(rig)
    client.tick()
    assert not taker.is_over
    now_ms[0] = 3_600_000
    client.tick()
    assert taker.outcome is Ending.CLOSE
    rest.set()  # what comes now is dropped
    request, second = asked(2)
    client.submit(request)
    await eventually(lambda: second.is_over, "the next answer")
    assert isinstance(second.outcome, list)


async def test_an_answer_in_one_part_and_one_of_two_leaders_come_whole(rig: RelayRig) -> None:
    client = rig.client()
    rig.nodes[1].logs["t", 0] = [RECORDS]
    request, taker = asked(0, 1)
    client.submit(request)
    await eventually(lambda: taker.is_over, "the joined answer")
    assert not taker.total_bytes
    assert isinstance(taker.outcome, list)
    request, taker = asked(2)
    client.submit(request)
    await eventually(lambda: taker.is_over, "the small answer")
    assert not taker.total_bytes


async def test_other_requests_of_the_client_go_on_behind_an_answer_that_stopped(rig: RelayRig) -> None:
    client, taker, rest = await begun(rig)
    batch = memoryview(b"batch")
    skim = ProduceSkim(None, -1, 60_000, [ProducePartition("t", None, 1, batch)])
    frame = b"".join(encode_produce_request(9, 42, "me", skim))
    answered = rig.submit(client, Produce, frame)
    async with asyncio.timeout(60):
        assert isinstance(await answered, list)
    assert not taker.is_over
    rest.set()
    await eventually(lambda: taker.is_over, "the end")


async def test_a_consumer_reads_the_beginning_and_then_the_end_of_its_connection(rig: RelayRig) -> None:
    """All of a gateway between a socket and a node that dies half-way."""
    cluster = cluster_apis(rig)
    handler = GatewayHandler(rig.relay, cluster, cluster)
    rig.nodes[1].logs["t", 0] = rig.nodes[1].logs["t", 2] = [RECORDS]
    frame, after = fetch_frame(0), fetch_frame(2)
    async with listening(handler.handle) as (_, _h, endpoint, lifecycle):
        async with connected(endpoint) as (r, w):
            w.write(struct.pack(">i", len(frame)) + frame)
            _, whole = await read_response(r)
            assert metric(lifecycle, "penstock_kafka_sent_bytes_total") == len(whole) + 8
            rig.nodes[1].rest = asyncio.Event()
            for each in (frame, after):
                w.write(struct.pack(">i", len(each)) + each)
            length, number = struct.unpack(">ii", await r.readexactly(8))
            assert (length, number) == (len(whole) + 4, 43)
            await r.readexactly(1_000)
            assert rig.metrics.in_flight() == 2
            await rig.nodes[1].die()
            async with asyncio.timeout(60):
                rest = await r.read()
            assert whole.startswith(rest, 1_000)
            assert 1_000 + len(rest) < len(whole), "a part of one answer, and nothing of another"
        assert rig.metrics.in_flight() == 0
