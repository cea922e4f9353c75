"""Kafka requests of the native API's own making, over the same relay as clients' requests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import NO_EPOCH
from penstock_gateway.relay.client_relay import ClientRelay
from penstock_gateway.relay.fetch import Fetch
from penstock_gateway.relay.produce import Produce
from penstock_gateway.relay.queries import NATIVE_VERSION, ListOffsetsQuery, encode_list_offsets, read_answers
from penstock_gateway.relay.request import Ending, Outcome, Relayed
from penstock_kafka.wire.fetch import (
    READ_UNCOMMITTED,
    FetchPartition,
    FetchRequest,
    decode_fetch_response,
    encode_fetch_request,
)
from penstock_kafka.wire.frames import parse_request_header
from penstock_kafka.wire.primitives import Buffer
from penstock_kafka.wire.produce import (
    ProducePartition,
    ProduceResult,
    ProduceSkim,
    decode_produce_response,
    encode_produce_request,
)

PRODUCE_VERSION: Final = 9
TRANSACTIONAL_VERSION: Final = 12
"""With which the leader adds the partition to the transaction (KIP-890)."""
FETCH_VERSION: Final = 12
"""The last version that names topics."""

LATEST: Final = -1


@dataclass(slots=True)
class OffsetAnswer:
    """One partition's answer: Kafka error code, timestamp (ms since 1970), offset, leader epoch."""

    error: int
    timestamp_ms: int
    offset: int
    leader_epoch: int


def submit(client: ClientRelay, kind: type[Relayed[Any]], frame: Buffer) -> asyncio.Future[Buffer]:
    """Relay a frame; the future has the whole response, or raises PenstockError."""
    future: asyncio.Future[Buffer] = asyncio.get_running_loop().create_future()

    def finish(outcome: Outcome) -> None:
        if future.done():
            return
        if isinstance(outcome, Ending):
            future.set_exception(
                PenstockError(ErrorCode.UNKNOWN_SERVER_ERROR, "the storage node gave no answer; try again")
            )
        else:
            future.set_result(outcome[0] if len(outcome) == 1 else b"".join(outcome))

    client.submit(kind(parse_request_header(frame), frame, finish))
    return future


def rounds_of(queries: Sequence[tuple[str, int, int]]) -> list[dict[tuple[str, int], int]]:
    """Places of queries by (topic, partition), parted so that each part asks a partition once."""
    rounds: list[dict[tuple[str, int], int]] = []
    for index, (topic, partition, _) in enumerate(queries):
        for one in rounds:
            if (topic, partition) not in one:
                one[topic, partition] = index
                break
        else:
            rounds.append({(topic, partition): index})
    return rounds


async def list_offsets(
    client: ClientRelay, queries: Sequence[tuple[str, int, int]], isolation_level: int = READ_UNCOMMITTED
) -> list[OffsetAnswer]:
    """Answers to (topic, partition, timestamp)s, in their order.

    Timestamps as in Kafka: -1 latest, -2 earliest, -3 of the largest timestamp. A Kafka
    request asks a partition once, so queries that do so again travel in another one.
    """
    answers: list[OffsetAnswer | None] = [None] * len(queries)
    rounds = rounds_of(queries)
    layout = ListOffsetsQuery.layout_of(NATIVE_VERSION)
    futures = [
        submit(
            client, ListOffsetsQuery, encode_list_offsets([queries[i] for i in one.values()], isolation_level)
        )
        for one in rounds
    ]
    for one, future in zip(rounds, futures, strict=True):
        for answer in read_answers(await future, True, layout):
            partition, error, timestamp_ms, offset, leader_epoch = answer.values
            index = one.get((answer.topic, partition), -1)
            if index >= 0:
                answers[index] = OffsetAnswer(error, timestamp_ms, offset, leader_epoch)
    missing = OffsetAnswer(ErrorCode.UNKNOWN_SERVER_ERROR, -1, -1, -1)
    return [missing if a is None else a for a in answers]


async def wait_for_records(
    client: ClientRelay,
    at: Sequence[tuple[str, int, int]],
    wait_ms: int,
    isolation_level: int = READ_UNCOMMITTED,
) -> bool:
    """Wait until one of (topic, partition, offset) has a record there; False when some failed.

    A Fetch with the smallest limits: idle it costs nothing, and it ends with the first
    batch (which is thrown away: at least one batch always comes, KIP-74).
    """
    partitions = [
        FetchPartition(topic, None, partition, NO_EPOCH, offset, -1, -1, 1) for topic, partition, offset in at
    ]
    request = FetchRequest(wait_ms, 1, 1, isolation_level, partitions=partitions)
    data = await submit(client, Fetch, encode_fetch_request(FETCH_VERSION, 0, None, request))
    return all(r.error == 0 for r in decode_fetch_response(data, FETCH_VERSION).results)


def produce(
    client: ClientRelay,
    topic: str,
    partition: int,
    records: bytes | bytearray,
    acks: int,
    timeout_ms: int,
    transactional_id: str = "",
) -> asyncio.Future[Buffer]:
    """Append a batch, in a transaction where that is named; the future has the raw response, with a receipt, for
    `produce_result`."""
    one = ProducePartition(topic, None, partition, memoryview(records))
    skim = ProduceSkim(transactional_id or None, acks, timeout_ms, [one], want_receipt=True)
    version = TRANSACTIONAL_VERSION if transactional_id else PRODUCE_VERSION
    return submit(client, Produce, b"".join(encode_produce_request(version, 0, None, skim)))


def produce_result(data: Buffer, transactional_id: str = "") -> ProduceResult:
    """The one result of a response to `produce`."""
    version = TRANSACTIONAL_VERSION if transactional_id else PRODUCE_VERSION
    results = decode_produce_response(data, version).results
    if len(results) != 1:
        raise PenstockError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{len(results)} results for one batch")
    return results[0]


__all__ = [
    "LATEST",
    "OffsetAnswer",
    "list_offsets",
    "produce",
    "produce_result",
    "rounds_of",
    "submit",
    "wait_for_records",
]
