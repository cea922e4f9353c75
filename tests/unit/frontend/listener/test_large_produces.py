"""A Produce of many megabytes is handled in parts while it comes, and its client sees one request."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Awaitable

import pytest

from penstock_core.metadata.image import MetadataImage
from penstock_core.metadata.security import SecurityImage
from penstock_core.security.quota_book import QuotaBook
from penstock_core.security.quota_entities import DEFAULT, PRODUCER_BYTE_RATE, QuotaEntity
from penstock_frontend.listener.answers import CLOSE, NO_RESPONSE, Response, WatchedReply
from penstock_frontend.listener.connection import Connection
from penstock_frontend.listener.metrics import KafkaMetrics
from penstock_frontend.listener.quota_gate import QuotaGate
from penstock_kafka.wire.frames import parse_request_header
from penstock_kafka.wire.primitives import Buffer
from penstock_kafka.wire.produce import (
    ProducePartition,
    ProduceResult,
    ProduceSkim,
    decode_produce_response,
    encode_produce_request,
    encode_produce_response,
    skim_produce,
)
from support.listening import Run, closed_by_peer, connected, listening, metric, read_response, request
from support.waiting import eventually

MIB = 1024 * 1024
VERSION = 9


def produce(sizes: list[int], acks: int = -1, correlation_id: int = 7) -> bytes:
    """A request with records of those sizes for partitions 0, 1, ..., with its length."""
    items = [
        ProducePartition("t", None, index, memoryview(bytes([index % 256]) * size))
        for index, size in enumerate(sizes)
    ]
    parts = encode_produce_request(VERSION, correlation_id, "large", ProduceSkim(None, acks, 30_000, items))
    frame = b"".join(bytes(part) for part in parts)
    return struct.pack(">i", len(frame)) + frame


def answer_to(frame: Buffer) -> bytes:
    """Says of each partition how many bytes came, as its offset; its first byte names it."""
    header = parse_request_header(frame)
    found = skim_produce(frame, header)
    results = []
    for one in found.partitions:
        assert bytes(one.records) == bytes([one.partition % 256]) * len(one.records)
        results.append(
            ProduceResult(one.topic, one.topic_id, one.partition, 0, len(one.records), -1, 0, None)
        )
    return encode_produce_response(header, results)


async def offsets(reader: asyncio.StreamReader) -> tuple[int, list[tuple[int, int]]]:
    number, body = await read_response(reader)
    response = decode_produce_response(struct.pack(">i", number) + body, VERSION)
    return number, [(one.partition, one.base_offset) for one in response.results]


@pytest.mark.parametrize("kind", ["at once", "later", "in any order"])
def test_one_answer_for_all_parts_whatever_their_order(run: Run, kind: str) -> None:
    async def main() -> None:
        seed = random.randrange(2**32)
        print("seed", seed)
        rng = random.Random(seed)
        most = 0

        def answer(connection: Connection, frame: bytearray) -> Response | Awaitable[Response]:
            nonlocal most
            if frame[1]:
                return [frame[4:8]]
            most = max(most, len(frame))
            if kind == "at once":
                return [answer_to(frame)]
            reply = WatchedReply()
            wait_s = rng.random() / 50 if kind == "in any order" else 0.001
            asyncio.get_running_loop().call_later(wait_s, reply.set_result, [answer_to(frame)])
            return reply

        async with (
            listening(answer) as (listener, handler, endpoint, lifecycle),
            connected(endpoint) as (reader, writer),
        ):
            for _ in range(3):
                sizes = [rng.choice((0, 10, 100_000, MIB, 3 * MIB)) for _ in range(20)] + [5 * MIB]
                handler.frames.clear()
                writer.write(request(1) + produce(sizes) + request(2) + produce([5, 6], correlation_id=8))
                assert (await read_response(reader))[0] == 1
                assert await offsets(reader) == (7, list(enumerate(sizes)))
                assert (await read_response(reader))[0] == 2
                assert await offsets(reader) == (8, [(0, 5), (1, 6)])
                assert len(handler.frames) > 4
            assert most < 9 * MIB
            assert listener.memory.held_bytes == 0
            assert metric(lifecycle, "penstock_kafka_bad_frames_total") == 0

    run(main())


def test_the_rest_is_not_read_while_too_much_is_unanswered(run: Run) -> None:
    async def main() -> None:
        replies: list[tuple[WatchedReply, bytes]] = []
        handed: list[int] = []

        def answer(connection: Connection, frame: bytearray) -> Awaitable[Response]:
            replies.append((WatchedReply(), answer_to(frame)))
            handed.append(len(skim_produce(frame, parse_request_header(frame)).partitions))
            return replies[-1][0]

        async def send(writer: asyncio.StreamWriter, data: bytes) -> None:
            writer.write(data)
            await writer.drain()

        async with (
            listening(answer) as (listener, handler, endpoint, _),
            connected(endpoint) as (reader, writer),
        ):
            sizes = [MIB] * 60
            sending = asyncio.create_task(send(writer, produce(sizes)))
            while sum(handed) < len(sizes):
                await eventually(lambda: bool(replies), "a part")
                # Nothing more comes before something is answered, however often one looks.
                for _ in range(50):
                    await asyncio.sleep(0)
                    assert sum(len(data) for data in handler.frames) <= 12 * MIB
                    assert listener.memory.held_bytes <= 16 * MIB
                handler.frames.clear()
                for reply, data in replies:
                    reply.set_result(data)
                replies.clear()
            await sending
            for reply, data in replies:
                reply.set_result(data)
            assert await offsets(reader) == (7, list(enumerate(sizes)))

    run(main())


def test_it_counts_as_one_request_from_its_first_part_to_its_answer(run: Run) -> None:
    async def main() -> None:
        rest_s = 0.01

        def answer(connection: Connection, frame: bytearray) -> Awaitable[Response]:
            reply = WatchedReply()
            asyncio.get_running_loop().call_later(rest_s, reply.set_result, [answer_to(frame)])
            return reply

        async with (
            listening(answer) as (_, handler, endpoint, lifecycle),
            connected(endpoint) as (reader, writer),
        ):
            for _ in range(2):
                sizes = [MIB] * 40
                writer.write(produce(sizes))
                assert await offsets(reader) == (7, list(enumerate(sizes)))
            assert len(handler.frames) > 10
            counted = metric(lifecycle, "penstock_kafka_request_seconds_count")
            took_s = metric(lifecycle, "penstock_kafka_request_seconds_sum")
            assert counted == 2
            # Its parts are answered some at a time, and the last one's answer alone would be one rest.
            assert took_s > 2 * 2 * rest_s

    run(main())


def test_acks_0_has_no_answer_and_a_part_that_closes_closes(run: Run) -> None:
    async def main() -> None:
        verdict: Response = NO_RESPONSE

        def answer(connection: Connection, frame: bytearray) -> Response:
            if frame[1]:
                return [frame[4:8]]
            return verdict

        async with (
            listening(answer) as (_, handler, endpoint, _l),
            connected(endpoint) as (reader, writer),
        ):
            writer.write(produce([MIB] * 10, acks=0) + request(3))
            assert (await read_response(reader))[0] == 3
            assert len(handler.frames) > 3
            verdict = CLOSE
            writer.write(produce([MIB] * 10))
            assert await closed_by_peer(reader)

    run(main())


def test_who_is_above_a_quota_waits_once_for_all_of_it(run: Run) -> None:
    async def main() -> None:
        metrics = KafkaMetrics()
        gate = QuotaGate(QuotaBook(), lambda: 1_000, metrics)
        quotas = {QuotaEntity(DEFAULT): {PRODUCER_BYTE_RATE: float(MIB)}}
        gate.metadata_changed(MetadataImage(), MetadataImage(security=SecurityImage(quotas=quotas)))
        assert gate.is_active

        def answer(connection: Connection, frame: bytearray) -> Response:
            return [answer_to(frame)]

        async with (
            listening(answer, quotas=gate) as (_, handler, endpoint, _l),
            connected(endpoint) as (r, w),
        ):
            w.write(produce([MIB] * 20))
            number, body = await read_response(r)
            assert decode_produce_response(struct.pack(">i", number) + body, VERSION).throttle_ms > 0
            assert len(handler.frames) > 4
            assert metrics.throttled == {PRODUCER_BYTE_RATE: 1}

    run(main())


@pytest.mark.parametrize("at_once", [True, False])
def test_one_that_has_begun_is_taken_to_its_end_when_the_listener_stops(run: Run, at_once: bool) -> None:
    """Its first records are written: its client must hear of them, or would send them again."""

    async def main() -> None:
        replies: list[tuple[WatchedReply, bytes]] = []

        def answer(connection: Connection, frame: bytearray) -> Response | Awaitable[Response]:
            if at_once:
                return [answer_to(frame)]
            replies.append((WatchedReply(), answer_to(frame)))
            return replies[-1][0]

        async with (
            listening(answer) as (listener, handler, endpoint, _),
            connected(endpoint) as (reader, writer),
        ):
            sizes = [MIB] * 20
            data = produce(sizes)
            writer.write(data[: 4 * MIB])
            await eventually(lambda: bool(handler.frames), "a part")
            (connection,) = listener.connections
            connection.close_after_responses("the test", to_the_end=True)
            writer.write(data[4 * MIB :] + request(9))
            while not (at_once or connection.closing):
                for reply, response in replies:
                    reply.set_result(response)
                replies.clear()
                await asyncio.sleep(0)
            assert await offsets(reader) == (7, list(enumerate(sizes)))
            assert await closed_by_peer(reader)

    run(main())


def test_one_whose_user_is_gone_is_not_taken_to_its_end(run: Run) -> None:
    async def main() -> None:
        replies: list[WatchedReply] = []

        def answer(connection: Connection, frame: bytearray) -> Awaitable[Response]:
            replies.append(WatchedReply())
            return replies[-1]

        async with (
            listening(answer) as (listener, handler, endpoint, _),
            connected(endpoint) as (reader, writer),
        ):
            writer.write(produce([MIB] * 20)[: 3 * MIB])
            await eventually(lambda: bool(replies), "a part")
            (connection,) = listener.connections
            connection.close_after_responses("its user was deleted")
            writer.write(bytes(MIB))
            assert not connection.closing
            replies[0].set_result([answer_to(handler.frames[0])])
            assert await closed_by_peer(reader)
            assert len(handler.frames) == 1

    run(main())


def test_what_turns_out_to_be_no_produce_closes_and_gives_all_memory_back(run: Run) -> None:
    async def main() -> None:
        def answer(connection: Connection, frame: bytearray) -> Response:
            return [answer_to(frame)]

        async with listening(answer) as (listener, _, endpoint, lifecycle):
            for number, spoil in enumerate((6 * MIB, 9 * MIB + 10), start=1):
                data = bytearray(produce([MIB] * 10))
                # From there on lengths are nonsense.
                data[spoil:] = b"\xff" * (len(data) - spoil)
                async with connected(endpoint) as (reader, writer):
                    writer.write(data)
                    assert await closed_by_peer(reader)
                await eventually(lambda: listener.memory.held_bytes == 0, "memory is back")
                assert metric(lifecycle, "penstock_kafka_bad_frames_total") == number

    run(main())


def test_a_client_that_leaves_in_the_middle_leaves_nothing(run: Run) -> None:
    async def main() -> None:
        replies: list[WatchedReply] = []

        def answer(connection: Connection, frame: bytearray) -> Awaitable[Response]:
            replies.append(WatchedReply())
            return replies[-1]

        async with listening(answer) as (listener, _, endpoint, _l):
            async with connected(endpoint) as (_, writer):
                writer.write(produce([MIB] * 10)[: 5 * MIB])
                await eventually(lambda: len(replies) >= 2, "two parts")
            await eventually(lambda: not listener.connections, "it has left")
            assert listener.memory.held_bytes == 0
            # They are the handler's: it ends them when it likes.
            assert not any(reply.done() for reply in replies)
            for reply in replies:
                reply.set_result([b""])

    run(main())
