"""Requests relayed over real streams: as they are, split, and when nodes are lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock_core.errors import ErrorCode
from penstock_gateway.relay.fetch import Fetch
from penstock_gateway.relay.produce import Produce
from penstock_gateway.relay.queries import ListOffsetsQuery, encode_list_offsets, read_answers
from penstock_gateway.relay.request import Ending, Outcome, Relayed
from penstock_gateway.routing import in_flight
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_kafka.wire.fetch import (
    FetchPartition,
    FetchRequest,
    decode_fetch,
    decode_fetch_response,
    encode_fetch_request,
)
from penstock_kafka.wire.primitives import Buffer
from penstock_kafka.wire.produce import (
    ProducePartition,
    ProduceSkim,
    decode_produce_response,
    encode_produce_request,
)
from support.waiting import eventually

Rig = Any
VERSIONS = [3, 8, 9]


def produce_frame(*parts: tuple[int, bytes], acks: int = -1, version: int = 9, topic: str = "t") -> bytes:
    partitions = [ProducePartition(topic, None, p, memoryview(r)) for p, r in parts]
    return b"".join(encode_produce_request(version, 42, "me", ProduceSkim(None, acks, 60_000, partitions)))


def fetch_frame(*partitions: int, max_bytes: int = 1000, version: int = 12) -> bytes:
    wanted = [FetchPartition("t", None, p, -1, 0, -1, -1, 500) for p in partitions]
    return encode_fetch_request(version, 43, "me", FetchRequest(500, 1, max_bytes, partitions=wanted))


async def outcome(future: asyncio.Future[Outcome]) -> Outcome:
    async with asyncio.timeout(60):
        return await future


def whole(result: Outcome) -> Buffer:
    assert isinstance(result, list)
    return b"".join(result)


def codes(result: Outcome, version: int = 9) -> dict[int, int]:
    response = decode_produce_response(whole(result), version)
    assert response.correlation_id == 42
    return {r.partition: r.error for r in response.results}


def fetched(result: Outcome) -> dict[int, tuple[int, bytes]]:
    response = decode_fetch_response(whole(result), 12)
    assert response.correlation_id == 43
    return {r.partition: (r.error, b"".join(r.records)) for r in response.results}


async def test_one_leader_gets_the_bytes_as_they_came(rig: Rig) -> None:
    client = rig.client()
    frame = produce_frame((0, b"a"), (2, b"b"))
    assert codes(await outcome(rig.submit(client, Produce, frame))) == {0: 0, 2: 0}
    assert [data for _, data in rig.nodes[1].frames] == [frame]
    assert rig.nodes[2].streams == 0
    for _ in range(3):
        await outcome(rig.submit(client, Produce, frame))
    assert rig.nodes[1].streams == 1


async def test_time_passes_for_busy_clients_alone(rig: Rig) -> None:
    client = rig.client()

    def ticks() -> bool:
        return rig.relay._timer is not None

    assert not ticks()
    for _ in range(2):
        await outcome(rig.submit(client, Produce, produce_frame((0, b"a"))))
        assert ticks()
        await eventually(lambda: not ticks(), "nobody is busy any more")
    assert not rig.relay.busy


@pytest.mark.parametrize("version", VERSIONS)
async def test_several_leaders_split_and_joined(rig: Rig, version: int) -> None:
    frame = produce_frame((0, b"a"), (1, b"bb"), (2, b"ccc"), (7, b"no"), version=version)
    got = codes(await outcome(rig.submit(rig.client(), Produce, frame)), version)
    assert got == {0: 0, 1: 0, 2: 0, 7: 3}
    assert rig.nodes[1].logs == {("t", 0): [b"a"], ("t", 2): [b"ccc"]}
    assert rig.nodes[2].logs == {("t", 1): [b"bb"]}


async def test_a_node_is_told_that_the_client_is_still_there_for_as_long_as_it_is(rig: Rig) -> None:
    here = [True]
    client, node = rig.client(lambda: here[0]), rig.nodes[1]
    node.asks = [3, 4]
    await outcome(rig.submit(client, Produce, produce_frame((0, b"a"))))
    await eventually(lambda: len(node.there) == 2, "answers to both questions")
    here[0] = False
    node.asks = [5]
    await outcome(rig.submit(client, Produce, produce_frame((0, b"b"))))
    here[0] = True
    node.asks = [6]
    await outcome(rig.submit(client, Produce, produce_frame((0, b"c"))))
    await eventually(lambda: len(node.there) == 3, "the answer to the last question")
    assert node.there == [3, 4, 6]
    assert node.streams == 1


async def test_unknown_topics_are_answered_here(rig: Rig) -> None:
    got = codes(await outcome(rig.submit(rig.client(), Produce, produce_frame((0, b"a"), topic="x"))))
    assert got == {0: 3}
    closed = await outcome(rig.submit(rig.client(), Produce, produce_frame((0, b"a"), topic="x", acks=0)))
    assert closed is Ending.CLOSE
    assert rig.nodes[1].frames == []


async def test_each_unknown_topic_is_called_unknown(rig: Rig) -> None:
    """Not "named twice" (INVALID_REQUEST, which no client retries), as the simulator saw."""
    partitions = [ProducePartition(name, None, 0, memoryview(b"a")) for name in ("x", "y", "x")]
    frame = b"".join(encode_produce_request(9, 42, "me", ProduceSkim(None, -1, 60_000, partitions)))
    response = decode_produce_response(whole(await outcome(rig.submit(rig.client(), Produce, frame))), 9)
    assert {(r.topic, r.error) for r in response.results} == {("x", 3), ("y", 3)}


def numbered(sequence: int, topic: str = "t") -> bytes:
    batch = build_batch([NewRecord(None, b"x", 0)], producer_id=7, producer_epoch=0, base_sequence=sequence)
    return produce_frame((0, batch), topic=topic)


async def test_a_batch_does_not_overtake_one_whose_topic_was_not_known_yet(rig: Rig) -> None:
    """The leader would take the second for the producer's first, and its client the first for written."""
    client = rig.client()
    assert codes(await outcome(rig.submit(client, Produce, numbered(0, "new")))) == {0: 3}
    rig.topics["new"] = b"n" * 16
    rig.publish()
    assert codes(await outcome(rig.submit(client, Produce, numbered(1, "new")))) == {0: 6}
    for sequence in (0, 1, 2):
        assert codes(await outcome(rig.submit(client, Produce, numbered(sequence, "new")))) == {0: 0}
    assert len(rig.nodes[1].logs["new", 0]) == 3


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ],
)
async def test_a_batch_does_not_overtake_one_that_a_node_refused(rig: Rig, code: ErrorCode) -> None:
    """Only the old leader knows what it refused: a new one would take the second for the first of an
    unknown producer (seed 2250 of the simulator)."""
    client = rig.client()
    rig.nodes[1].refuse.add(0)
    rig.nodes[1].refuse_with = code
    assert codes(await outcome(rig.submit(client, Produce, numbered(0)))) == {0: code}
    rig.nodes[1].refuse_with = ErrorCode.NOT_LEADER_OR_FOLLOWER
    rig.move(0, 2)
    rig.publish()
    assert codes(await outcome(rig.submit(client, Produce, numbered(1)))) == {0: 6}
    assert not rig.nodes[2].logs
    for sequence in (0, 1):
        assert codes(await outcome(rig.submit(client, Produce, numbered(sequence)))) == {0: 0}
    assert len(rig.nodes[2].logs["t", 0]) == 2


async def test_without_acks(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    client = rig.client()
    both = produce_frame((0, b"a"), (1, b"b"), acks=0)
    assert await outcome(rig.submit(client, Produce, both)) is Ending.NO_RESPONSE
    assert rig.nodes[2].logs == {("t", 1): [b"b"]}
    rig.nodes[2].refuse.add(1)
    with monkeypatch.context() as patched:
        patched.setattr(Relayed, "hold_ms", 500)
        assert await outcome(rig.submit(client, Produce, both)) is Ending.CLOSE, (
            "refused for as long as it is held"
        )
    waiting = rig.submit(client, Produce, both)
    before = len(rig.nodes[2].frames)
    await rig.nodes[2].frame(before + 1)
    rig.nodes[2].refuse.clear()
    assert await outcome(waiting) is Ending.NO_RESPONSE, "what was refused is routed again"
    assert rig.nodes[2].logs == {("t", 1): [b"b"] * 2}


async def test_what_was_sent_without_acks_is_written_though_the_client_is_gone(rig: Rig) -> None:
    """As kcat does it: the last batch, then the end of the connection, before any node was dialled."""
    client = rig.client()
    done = rig.submit(client, Produce, produce_frame((0, b"a"), (1, b"b"), acks=0))
    client.close()
    assert await outcome(done) is Ending.NO_RESPONSE
    assert (rig.nodes[1].logs, rig.nodes[2].logs) == ({("t", 0): [b"a"]}, {("t", 1): [b"b"]})
    client.tick()
    assert (rig.metrics.client_relays, rig.relay.leaving_count) == (0, 0)


async def test_clients_of_a_gateway_that_closes_are_sent_to_look_for_leaders(rig: Rig) -> None:
    """They ask for metadata then, and learn of gateways that came after they had asked last."""
    client, native = rig.client(is_moved=True), rig.client()
    frame = produce_frame((0, b"a"), (1, b"b"))
    under_way = rig.submit(client, Produce, frame)
    rig.relay.hands_over = True
    assert codes(await outcome(under_way)) == {0: 0, 1: 0}, "what came before is answered by leaders"
    sent = len(rig.nodes[1].frames), len(rig.nodes[2].frames)
    six = ErrorCode.NOT_LEADER_OR_FOLLOWER
    got = codes(await outcome(rig.submit(client, Produce, produce_frame((0, b"a"), (7, b"b")))))
    assert got == {0: six, 7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert fetched(await outcome(rig.submit(client, Fetch, fetch_frame(0, 1)))) == {
        0: (six, b""),
        1: (six, b""),
    }
    assert sent == (len(rig.nodes[1].frames), len(rig.nodes[2].frames)), "nobody was asked"
    # Who is told nothing cannot be moved, and native clients have lists of gateways.
    silent = produce_frame((0, b"c"), acks=0)
    assert await outcome(rig.submit(client, Produce, silent)) is Ending.NO_RESPONSE
    assert codes(await outcome(rig.submit(native, Produce, frame))) == {0: 0, 1: 0}


async def test_large_frames_both_ways(rig: Rig) -> None:
    client = rig.client()
    big = bytes(range(256)) * 14_000  # 3.5 MiB
    frames = [produce_frame((0, big), version=8) for _ in range(3)]
    results = await asyncio.gather(*(outcome(rig.submit(client, Produce, f)) for f in frames))
    assert [codes(r, 8) for r in results] == [{0: 0}] * 3
    assert rig.nodes[1].logs["t", 0] == [big] * 3
    got = fetched(await outcome(rig.submit(client, Fetch, fetch_frame(0))))
    assert got == {0: (0, big * 3)}


async def test_a_split_fetch_divides_its_bytes(rig: Rig) -> None:
    client = rig.client()
    await outcome(rig.submit(client, Produce, produce_frame((0, b"a"), (1, b"b"), (2, b"c"))))
    got = fetched(await outcome(rig.submit(client, Fetch, fetch_frame(0, 1, 2, 7))))
    assert got == {0: (0, b"a"), 1: (0, b"b"), 2: (0, b"c"), 7: (3, b"")}
    header, data = rig.nodes[2].frames[-1]
    part = decode_fetch(data, header)
    assert part.max_bytes == 500
    assert part.max_wait_ms == 0  # partition 7 is answered already


async def test_a_node_that_dies_leaves_sent_produce_timed_out(rig: Rig) -> None:
    client = rig.client()
    rig.nodes[1].silent = True
    sent = rig.submit(client, Produce, produce_frame((0, b"a")))
    reading = rig.submit(client, Fetch, fetch_frame(0, 2))
    await rig.nodes[1].frame(2)
    await rig.nodes[1].refuse_connections()
    assert codes(await outcome(sent)) == {0: 7}
    assert {code for code, _ in fetched(await outcome(reading)).values()} == {6}
    # What comes now is held until there is a leader, and arrives once.
    later = rig.submit(client, Produce, produce_frame((0, b"b")))
    tried = rig.nodes[1].attempts
    await eventually(lambda: rig.nodes[1].attempts >= tried + 2, "attempts at the dead node")
    assert not later.done()
    rig.fenced.add(1)
    rig.move(0, 2)
    rig.publish()
    assert codes(await outcome(later)) == {0: 0}
    assert rig.nodes[2].logs == {("t", 0): [b"b"]}


async def test_what_is_out_by_a_channel_that_is_closed_is_answered_at_once(rig: Rig) -> None:
    """A day after new certificates came, channels of the old ones are closed, with the streams of clients on them."""
    client = rig.client()
    rig.nodes[1].silent = True
    sent = rig.submit(client, Produce, produce_frame((0, b"a")))
    reading = rig.submit(client, Fetch, fetch_frame(0, 2))
    await rig.nodes[1].frame(2)
    await rig.channels.drop(f"127.0.0.1:{rig.nodes[1].port}")
    await eventually(lambda: sent.done() and reading.done(), "both answers", timeout_s=5)
    assert codes(sent.result()) == {0: 7}
    assert {code for code, _ in fetched(reading.result()).values()} == {6}
    rig.nodes[1].silent = False
    assert codes(await outcome(rig.submit(client, Produce, produce_frame((0, b"b"))))) == {0: 0}


async def test_a_channel_that_is_closed_while_it_connects_is_made_anew(rig: Rig) -> None:
    port = rig.nodes[1].port
    await rig.nodes[1].refuse_connections()
    client = rig.client()
    held = rig.submit(client, Produce, produce_frame((0, b"a")))
    await eventually(lambda: rig.nodes[1].attempts >= 1, "an attempt at the dead node")
    await rig.channels.drop(f"127.0.0.1:{port}")
    await eventually(
        lambda: rig.metrics.streams_lost or rig.lifecycle.failed.is_set(), "the end of the stream"
    )
    assert not rig.lifecycle.failed.is_set()
    rig.move(0, 2)
    rig.publish()
    assert codes(await outcome(held)) == {0: 0}


async def test_a_node_that_never_was_reached_loses_nothing(rig: Rig) -> None:
    await rig.nodes[1].refuse_connections()
    client = rig.client()
    held = [rig.submit(client, Produce, produce_frame((0, bytes([i])))) for i in range(5)]
    await eventually(lambda: rig.nodes[1].attempts >= 2, "attempts at the dead node")
    assert not any(future.done() for future in held)
    rig.move(0, 2)
    rig.publish()
    for future in held:
        assert codes(await outcome(future)) == {0: 0}
    assert rig.nodes[2].logs["t", 0] == [bytes([i]) for i in range(5)]


async def test_a_hung_node_is_answered_for_once_it_is_fenced(rig: Rig) -> None:
    client = rig.client()
    rig.nodes[1].silent = True
    sent = rig.submit(client, Produce, produce_frame((0, b"a"), (1, b"b")))
    await rig.nodes[1].frame()
    await rig.nodes[2].frame()
    rig.fenced.add(1)
    rig.move(0, 2)
    rig.move(2, 2)
    rig.publish()
    assert codes(await outcome(sent)) == {0: 7, 1: 0}


async def test_a_refusal_is_routed_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    # The same leader is not asked again, however long it takes until another one is known.
    monkeypatch.setattr(in_flight, "RETRY_MS", 3_600_000)
    client = rig.client()
    rig.nodes[1].refuse.add(0)
    first = rig.submit(client, Produce, produce_frame((0, b"a"), (2, b"c")))
    second = rig.submit(client, Produce, produce_frame((0, b"b")))
    await eventually(lambda: rig.metrics.reroutes == 2, "both refusals")
    assert not first.done()
    assert not second.done()
    rig.move(0, 2)
    rig.publish()
    assert codes(await outcome(first)) == {0: 0, 2: 0}
    assert codes(await outcome(second)) == {0: 0}
    assert rig.nodes[2].logs == {("t", 0): [b"a", b"b"]}
    assert rig.nodes[1].logs["t", 2] == [b"c"]
    assert rig.metrics.reroutes == 2


async def test_queries_find_the_new_leader(rig: Rig) -> None:
    client = rig.client()
    rig.nodes[1].refuse.add(0)
    asked = rig.submit(
        client, ListOffsetsQuery, encode_list_offsets([("t", 0, -1), ("t", 1, -1), ("t", 9, -1)])
    )
    await rig.nodes[1].frame()
    rig.move(0, 2)
    rig.publish()
    layout = ListOffsetsQuery.layout_of(7)
    answers = read_answers(whole(await outcome(asked)), True, layout)
    assert sorted(a.values[:2] for a in answers) == [(0, 0), (1, 0), (9, 3)]


async def test_a_moved_leader_is_told_to_a_consumer_once(rig: Rig) -> None:
    client = rig.client()
    await outcome(rig.submit(client, Produce, produce_frame((0, b"a"))))
    assert fetched(await outcome(rig.submit(client, Fetch, fetch_frame(0)))) == {0: (0, b"a")}
    rig.move(0, 2)
    rig.publish()
    assert fetched(await outcome(rig.submit(client, Fetch, fetch_frame(0)))) == {0: (6, b"")}
    assert fetched(await outcome(rig.submit(client, Fetch, fetch_frame(0)))) == {0: (0, b"")}


async def test_the_streams_of_a_client_end_with_its_relay(rig: Rig) -> None:
    client = rig.client()
    rig.nodes[1].silent = True
    pending = rig.submit(client, Produce, produce_frame((0, b"a")))
    await rig.nodes[1].frame()
    assert (rig.metrics.client_relays, rig.metrics.streams) == (1, 1)
    client.close()
    await eventually(lambda: rig.nodes[1].streams_ended == 1, "the end of the stream at the node")
    assert (rig.metrics.client_relays, rig.metrics.streams, rig.metrics.streams_lost) == (0, 0, 0)
    assert not pending.done()


async def test_a_partition_named_twice_is_refused(rig: Rig) -> None:
    frame = produce_frame((0, b"a"), (2, b"b"))
    twice = frame.replace(b"\x00\x00\x00\x02\x02b", b"\x00\x00\x00\x00\x02b")
    assert twice != frame
    result = decode_produce_response(whole(await outcome(rig.submit(rig.client(), Produce, twice))), 9)
    assert sorted((r.partition, r.error) for r in result.results) == [(0, 0), (0, 42)]
    assert rig.metrics.kafka.errors[0, 42] == 1
