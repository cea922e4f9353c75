"""One response per Produce request, made of what became of each partition."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock_core.errors import ErrorCode, PenstockError
from penstock_kafka.records.check import InvalidRecords
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.frames import RequestHeader
from penstock_kafka.wire.produce import ProducePartition, ProduceResult, ProduceSkim, decode_produce_response
from penstock_storage_node.kafka.produce_outcomes import AppendedBatch, ProduceInProgress, refused
from penstock_storage_node.kafka.request_context import RequestContext

VERSION = 9


class Leader:
    """What a batch asks of its leadership."""

    epoch = 4

    def holders(self, required_offset: int) -> tuple[list[int], list[int]]:
        return ([1, 2], [1]) if required_offset <= 8 else ([], [])


def request(partitions: int) -> ProduceInProgress:
    header = RequestHeader(ApiKey.PRODUCE, VERSION, 7, None, 0)
    items = [ProducePartition("t", None, i, memoryview(b"")) for i in range(partitions)]
    return ProduceInProgress(RequestContext(), header, ProduceSkim(None, -1, 1_000, items), 50, 60)


def appended() -> AppendedBatch:
    leadership: Any = Leader()
    info: Any = None
    return AppendedBatch(leadership, info, 8, ProduceResult("t", None, 0, ErrorCode.NONE, 5, 1_234, 2))


def results(answer: Any) -> list[ProduceResult]:
    return decode_produce_response(b"".join(answer), VERSION).results


async def test_a_response_comes_with_the_last_outcome_and_names_partitions_in_the_requests_order() -> None:
    made = request(3)
    made.settle(1, ProduceResult("t", None, 1, ErrorCode.NONE, 11))
    answer = made.when_settled()
    assert isinstance(answer, asyncio.Future)
    made.settle(2, ProduceResult("t", None, 2, ErrorCode.NONE, 12))
    assert not answer.done()
    made.settle(0, ProduceResult("t", None, 0, ErrorCode.NONE, 10))
    assert [r.base_offset for r in results(answer.result())] == [10, 11, 12]


async def test_outcomes_that_come_after_the_client_has_gone_are_dropped() -> None:
    made = request(1)
    answer = made.when_settled()
    assert isinstance(answer, asyncio.Future)
    answer.cancel()
    made.settle(0, ProduceResult("t", None, 0))


async def test_what_is_settled_at_once_is_answered_at_once() -> None:
    made = request(1)
    item = ProducePartition("t", None, 0, memoryview(b""))
    made.settle(0, refused(item, PenstockError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "no")))
    assert made.has_error
    assert [(r.error, r.error_message) for r in results(made.when_settled())] == [(6, "no")]
    assert results(request(0).when_settled()) == []


def test_a_batch_without_its_acks_has_no_offset_and_says_that_it_may_be_written() -> None:
    batch = appended()
    late = batch.unacknowledged(ErrorCode.REQUEST_TIMED_OUT)
    assert (late.base_offset, late.log_append_time_ms, late.log_start_offset) == (-1, -1, 2)
    assert late.error_message is not None and "may be written" in late.error_message
    assert batch.result.base_offset == 5, "the outcome is a value of its own"


def test_a_receipt_names_who_holds_the_batch_when_its_acks_are_there() -> None:
    receipt = appended().with_receipt().receipt
    assert receipt is not None
    assert (receipt.leader_epoch, receipt.held_by, receipt.flushed_by) == (4, (1, 2), (1,))


def test_which_records_were_wrong_is_told_of_no_other_error() -> None:
    item = ProducePartition("t", None, 0, memoryview(b""))
    wrong = InvalidRecords(ErrorCode.INVALID_RECORD, "bad", [(3, "no key")])
    assert refused(item, wrong).record_errors == [(3, "no key")]
    assert refused(item, PenstockError(ErrorCode.NOT_ENOUGH_REPLICAS, "few")).record_errors == ()


def test_to_note_an_error_copies_none_of_those_before_it() -> None:
    """A Fetch for 100,000 partitions that a node has not took its loop 20 s, and the node its session."""
    caller = RequestContext()
    noted = caller.errors
    for code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER):
        caller.note(code)
    assert caller.errors is noted
    assert noted == [3, 6]
    assert caller.concerns_router
