"""Where leader epochs end: Kafka's OffsetForLeaderEpoch, over the same relay as clients' requests."""

from __future__ import annotations

from collections.abc import Sequence

from penstock_core.errors import ErrorCode
from penstock_gateway.relay.client_relay import ClientRelay
from penstock_gateway.relay.queries import (
    EPOCH_VERSION,
    LeaderEpochQuery,
    encode_leader_epochs,
    read_answers,
)
from penstock_gateway.rpc.offsets import rounds_of, submit

EpochAnswer = tuple[int, int, int]
"""Kafka error code, epoch, end offset."""


async def epoch_ends(client: ClientRelay, queries: Sequence[tuple[str, int, int]]) -> list[EpochAnswer]:
    """Answers to (topic, partition, leader epoch)s, in their order."""
    answers: list[EpochAnswer] = [(ErrorCode.UNKNOWN_SERVER_ERROR, -1, -1)] * len(queries)
    layout = LeaderEpochQuery.layout_of(EPOCH_VERSION)
    rounds = rounds_of(queries)
    futures = [
        submit(client, LeaderEpochQuery, encode_leader_epochs([queries[i] for i in one.values()]))
        for one in rounds
    ]
    for one, future in zip(rounds, futures, strict=True):
        for answer in read_answers(await future, True, layout):
            error, partition, epoch, end_offset = answer.values
            index = one.get((answer.topic, partition), -1)
            if index >= 0:
                answers[index] = (error, epoch, end_offset)
    return answers
