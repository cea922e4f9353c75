"""Fetching a range through faults, against a real gRPC server in this process."""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from penstock_proto.v1 import common_pb2, data_pb2
from pyspark_penstock import gateway as gateway_module
from pyspark_penstock import planning
from pyspark_penstock.decode import Decoder
from pyspark_penstock.errors import DataLossError, GatewayError, OptionError
from pyspark_penstock.fetch import RangeReader
from pyspark_penstock.gateway import GatewayClient, Query, select_topics
from pyspark_penstock.options import parse_options
from pyspark_penstock.planning import batch_ranges
from pyspark_penstock.questions import size_ranges
from pyspark_penstock.reader import range_partitions
from pyspark_penstock.schema import arrow_schema, spark_schema
from pyspark_penstock.tiling import OffsetRange
from unit.spark.spark_memory_gateway import MemoryGateway

SCHEMA = arrow_schema(spark_schema(include_headers=False), include_headers=False)


@pytest.fixture
def cluster() -> Iterator[MemoryGateway]:
    memory = MemoryGateway()
    memory.start()
    memory.create("flights", 2)
    memory.append("flights", 0, [b"value %d" % i for i in range(1000)])
    yield memory
    memory.stop()


def read(
    cluster: MemoryGateway,
    start: int = 0,
    end: int = 1000,
    *,
    gateways: tuple[str, ...] | None = None,
    fail: bool = True,
    poll_timeout_ms: int = 60_000,
    topic_id: bytes | None = None,
    chunk_bytes: int = 4096,
    read_committed: bool = False,
) -> list[int]:
    wanted = OffsetRange("flights", 0, start, end, topic_id or cluster.topics["flights"].topic_id)
    reader = RangeReader(
        wanted,
        gateways or tuple(cluster.addresses),
        Decoder("flights", 0, SCHEMA),
        fail_on_data_loss=fail,
        chunk_bytes=chunk_bytes,
        poll_timeout_ms=poll_timeout_ms,
        missing_grace_ms=300,
        read_committed=read_committed,
    )
    offsets: list[int] = []
    for batch in reader.batches():
        assert batch.column("value").to_pylist() == [
            b"value %d" % i for i in batch.column("offset").to_pylist()
        ]
        offsets += batch.column("offset").to_pylist()
    return offsets


def fetches(cluster: MemoryGateway) -> list[int]:
    return [int(call.split()[1]) for call in cluster.calls if call.startswith("FetchRange")]


@pytest.mark.parametrize(("start", "end"), [(0, 1000), (1, 2), (150, 151), (37, 963), (999, 1000), (5, 5)])
def test_exactly_the_range(cluster: MemoryGateway, start: int, end: int) -> None:
    assert read(cluster, start, end) == list(range(start, end))


def test_a_broken_stream_goes_on_behind_what_came(cluster: MemoryGateway) -> None:
    broken: list[int] = []

    def fault(context: Any, sent: int) -> None:
        if sent == 2 and len(broken) < 3:
            broken.append(sent)
            context.abort(grpc.StatusCode.UNAVAILABLE, "going down")

    cluster.fault = fault
    assert read(cluster) == list(range(1000))
    asked = fetches(cluster)
    assert len(asked) == 3
    assert asked == sorted(set(asked))


def test_the_next_gateway_is_tried(cluster: MemoryGateway) -> None:
    assert read(cluster, gateways=("127.0.0.1:1", cluster.addresses[0])) == list(range(1000))
    client = GatewayClient(["127.0.0.1:1", cluster.addresses[0]])
    assert set(client.describe(None)) == {"flights"}


def test_a_node_that_would_send_what_is_aborted_is_not_read(cluster: MemoryGateway) -> None:
    assert read(cluster, read_committed=True) == list(range(1000))
    cluster.is_old = True
    assert read(cluster) == list(range(1000))
    with pytest.raises(GatewayError, match="does not know isolation read_committed yet: upgrade the node"):
        read(cluster, read_committed=True)


def test_nobody_there_ends_in_one_clear_line(cluster: MemoryGateway) -> None:
    with pytest.raises(GatewayError, match=r"127\.0\.0\.1:1 .*not its Kafka port"):
        read(cluster, gateways=("127.0.0.1:1",), poll_timeout_ms=300)
    with pytest.raises(GatewayError, match="gRPC address"):
        GatewayClient(["127.0.0.1:1"], retry_budget_ms=200).describe(None)


def test_retriable_errors_inside_the_stream(cluster: MemoryGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    original = MemoryGateway.FetchRange
    failed: list[int] = []

    def not_leader(self: MemoryGateway, request: Any, context: Any) -> Iterator[Any]:
        if len(failed) < 2:
            failed.append(1)
            yield data_pb2.FetchRangeResponse(error=common_pb2.Error(code=6, message="not leader"))
            return
        yield from original(self, request, context)

    monkeypatch.setattr(MemoryGateway, "FetchRange", not_leader)
    cluster.start()  # a server binds its methods when it starts
    assert read(cluster, gateways=(cluster.addresses[1],)) == list(range(1000))


def test_a_silent_gateway_is_given_up(cluster: MemoryGateway) -> None:
    """It answers other calls, so it is not told that none answers."""

    def fault(context: Any, sent: int) -> None:
        while context.is_active():
            time.sleep(0.01)

    cluster.fault = fault
    with pytest.raises(GatewayError, match=r"offset 0: no data for .*kafkaConsumer\.pollTimeoutMs") as told:
        read(cluster, poll_timeout_ms=500)
    assert "no gateway answers" not in str(told.value)
    assert "Kafka port" not in str(told.value)
    assert f"gateways answer at {cluster.addresses[0]}" in str(told.value)


def test_a_leader_that_is_gone_is_not_told_as_a_gateway_that_is(cluster: MemoryGateway) -> None:
    def fault(context: Any, sent: int) -> None:
        context.abort(grpc.StatusCode.UNAVAILABLE, "flights-0 at offset 0: no leader")

    cluster.fault = fault
    with pytest.raises(GatewayError, match=r"no leader.*gateways answer at"):
        read(cluster, poll_timeout_ms=300)


def test_a_stream_may_live_longer_than_the_silence_that_is_borne(cluster: MemoryGateway) -> None:
    left: list[float | None] = []
    cluster.fault = lambda context, sent: left.append(context.time_remaining())
    assert read(cluster, poll_timeout_ms=30_000) == list(range(1000))
    assert len(left) > 3
    assert all(seconds is None or seconds > 1e9 for seconds in left)  # gRPC's words for no deadline


@pytest.mark.parametrize("start", [400, 500, 0])
def test_a_log_cut_inside_the_range(
    cluster: MemoryGateway, caplog: pytest.LogCaptureFixture, start: int
) -> None:
    """Its offsets are pinned in the checkpoint: only the task can end it."""
    log = cluster.topics["flights"].logs[0]
    log.batches, log.end = log.batches[:5], 500
    with pytest.raises(DataLossError, match="offsets 500 to 999 are gone: the log now ends at 500"):
        read(cluster, start, 1000)
    with caplog.at_level(logging.WARNING):
        assert read(cluster, start, 1000, fail=False) == list(range(start, 500))
    assert "offsets 500 to 999" in caplog.text
    # Whatever silence is borne: what is lost is known sooner, or later, and is no error.
    assert read(cluster, start, 1000, fail=False, poll_timeout_ms=50) == list(range(start, 500))


def test_a_log_cut_while_it_is_read_and_written_anew(cluster: MemoryGateway) -> None:
    """What is written in the place of the lost records is read, as far as the range goes."""
    log = cluster.topics["flights"].logs[0]

    def fault(context: Any, sent: int) -> None:
        if sent == 1 and log.end == 1000:
            log.batches, log.end = log.batches[:5], 500
            cluster.append("flights", 0, [b"value %d" % i for i in range(500, 700)])

    cluster.fault = fault
    assert read(cluster, 0, 1000, fail=False) == list(range(700))


def test_a_high_watermark_that_lags_inside_the_range_is_no_loss(cluster: MemoryGateway) -> None:
    log = cluster.topics["flights"].logs[0]
    whole, log.batches, log.end = log.batches, log.batches[:5], 500
    looks: list[str] = []

    def look() -> None:
        looks.append("")
        if len(looks) == 1:  # the first look still finds it short
            with cluster.changed:
                log.batches, log.end = whole, 1000
                cluster.changed.notify_all()

    cluster.after_list = look
    assert read(cluster, 400, 1000) == list(range(400, 1000))
    assert looks


def test_retention_before_the_read(cluster: MemoryGateway, caplog: pytest.LogCaptureFixture) -> None:
    cluster.trim("flights", 0, 450)
    with pytest.raises(DataLossError, match="offsets 0 to 449 are gone"):
        read(cluster)
    with caplog.at_level(logging.WARNING):
        assert read(cluster, fail=False) == list(range(450, 1000))
    assert "offsets 0 to 449" in caplog.text
    assert read(cluster, 0, 400, fail=False) == []
    assert read(cluster, 460, 500) == list(range(460, 500))


def test_retention_during_the_read(cluster: MemoryGateway) -> None:
    def fault(context: Any, sent: int) -> None:
        if sent == 2:
            cluster.trim("flights", 0, 800)

    cluster.fault = fault
    with pytest.raises(DataLossError, match="to 799 are gone"):
        read(cluster)


def test_a_gap_inside_the_log_is_no_loss(cluster: MemoryGateway) -> None:
    log = cluster.topics["flights"].logs[0]
    del log.batches[2:5]
    assert read(cluster) == [*range(200), *range(500, 1000)]
    del log.batches[-2:]
    assert read(cluster) == [*range(200), *range(500, 800)]


@pytest.mark.parametrize("fail", [True, False])
def test_a_log_that_grows_on_while_its_end_is_believed_is_no_loss(
    cluster: MemoryGateway, monkeypatch: pytest.MonkeyPatch, fail: bool
) -> None:
    """A new leader that learns its high watermark just then: what it sends is on its way when the stream is ended."""
    log = cluster.topics["flights"].logs[0]
    whole, log.batches, log.end = log.batches, log.batches[:5], 500
    plain = RangeReader._look_after

    def look_after(self: RangeReader, call: Any, silent_ms: float) -> None:
        plain(self, call, silent_ms)
        if self._ends_at is not None:
            log.batches, log.end = whole, 1000

    monkeypatch.setattr(RangeReader, "_look_after", look_after)
    assert read(cluster, 0, 1000, fail=fail) == list(range(1000))


def test_a_high_watermark_that_lags_and_moves_is_doubted_anew(cluster: MemoryGateway) -> None:
    """What came between two looks at a log's early end begins a new doubt."""
    log = cluster.topics["flights"].logs[0]
    whole, log.batches, log.end = log.batches, log.batches[:5], 500
    looks: list[str] = []

    def look() -> None:
        looks.append("")
        upto = {1: 600, 3: 1000}.get(len(looks))
        if upto is not None:
            with cluster.changed:
                log.batches, log.end = whole[: upto // 100], upto
                cluster.changed.notify_all()

    cluster.after_list = look
    assert read(cluster, 400, 1000) == list(range(400, 1000))
    assert len(looks) >= 3


def test_what_comes_while_an_early_end_is_believed_begins_a_new_doubt(
    cluster: MemoryGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A high watermark that moves in steps, the first of them between the look and the end of the stream."""
    log = cluster.topics["flights"].logs[0]
    whole, log.batches, log.end = log.batches, log.batches[:5], 500
    came = threading.Event()
    plain_look, plain_heard = RangeReader._look_after, RangeReader._heard

    def grow(upto: int) -> None:
        with cluster.changed:
            log.batches, log.end = whole[: upto // 100], upto
            cluster.changed.notify_all()

    class Late:
        """A stream whose end comes late."""

        def __init__(self, call: Any) -> None:
            self.call = call

        def cancel(self) -> None:
            if log.end == 500:
                grow(600)
                assert came.wait(30)
                cluster.after_list = lambda: grow(1000)
            self.call.cancel()

    def heard(self: RangeReader) -> None:
        plain_heard(self)
        if self._received == 600:
            came.set()

    monkeypatch.setattr(RangeReader, "_look_after", lambda self, call, ms: plain_look(self, Late(call), ms))
    monkeypatch.setattr(RangeReader, "_heard", heard)
    assert read(cluster, 400, 1000) == list(range(400, 1000))


def test_a_log_that_was_truncated(cluster: MemoryGateway) -> None:
    log = cluster.topics["flights"].logs[0]
    log.batches, log.end = log.batches[:5], 500
    with pytest.raises(DataLossError, match="ends at 500"):
        read(cluster, 600, 1000)
    assert read(cluster, 600, 1000, fail=False) == []


def test_a_topic_made_anew(cluster: MemoryGateway) -> None:
    old = cluster.topics["flights"].topic_id
    cluster.create("flights", 2)
    with pytest.raises(DataLossError, match="made anew"):
        read(cluster, topic_id=old)
    assert read(cluster, topic_id=old, fail=False) == []
    del cluster.topics["flights"]
    with pytest.raises(DataLossError, match="deleted"):
        read(cluster, topic_id=old)


def test_corrupt_bytes_name_the_partition(cluster: MemoryGateway) -> None:
    log = cluster.topics["flights"].logs[0]
    first, last, data = log.batches[3]
    log.batches[3] = (first, last, data[:-1] + b"?")
    with pytest.raises(Exception, match=r"topic flights partition 0.*CRC"):
        read(cluster)


def test_partitions_pickle_small_and_plain(cluster: MemoryGateway) -> None:
    cluster.start()
    address = cluster.addresses[0]
    options = parse_options({"gateway": address, "subscribe": "flights"}, streaming=False)
    client = GatewayClient.of(options)
    parts = range_partitions(client, batch_ranges(client, options))
    assert [part.wanted.size for part in parts] == [1000]  # type: ignore[attr-defined]
    assert parts[0].gateways == (address, cluster.addresses[1])  # type: ignore[attr-defined]
    assert len(pickle.dumps(parts[0])) < 500


def test_channels_are_kept(cluster: MemoryGateway) -> None:
    assert gateway_module.channel(cluster.addresses[0]) is gateway_module.channel(cluster.addresses[0])


def test_select_topics(cluster: MemoryGateway) -> None:
    cluster.create("flights-2", 1)
    cluster.create("__consumer_offsets", 1)

    def chosen(**options: str) -> dict[str, tuple[int, ...]]:
        parsed = parse_options({"gateway": cluster.addresses[0], **options}, streaming=False)
        return {
            name: topic.partitions for name, topic in select_topics(GatewayClient.of(parsed), parsed).items()
        }

    assert chosen(subscribe="flights, flights-2") == {"flights": (0, 1), "flights-2": (0,)}
    assert chosen(subscribePattern="flights") == {"flights": (0, 1), "flights-2": (0,)}
    assert chosen(subscribePattern="^flights$") == {"flights": (0, 1)}
    assert chosen(subscribePattern=".*") == {"flights": (0, 1), "flights-2": (0,)}
    assert chosen(subscribePattern="nothing") == {}
    assert chosen(subscribePattern="__") == {}
    assert chosen(assign='{"flights":[1]}') == {"flights": (1,)}
    with pytest.raises(OptionError, match="no such topic or partition: absent"):
        chosen(subscribe="flights,absent")
    with pytest.raises(OptionError, match="flights-7"):
        chosen(assign='{"flights":[0,7]}')


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("orders", {"my-orders-eu", "orders"}),
        ("(?i)orders", {"my-orders-eu", "orders", "ORDERS"}),
        ("(?i:o)rders$", {"orders"}),
        ("^orders", {"orders"}),
        ("__private", {"__private", "x__private"}),
        ("^__", {"__private"}),
        ("flights|orders", {"flights", "my-orders-eu", "orders"}),
    ],
)
def test_patterns_search_and_leave_out_what_is_kafkas_own(
    cluster: MemoryGateway, pattern: str, found: set[str]
) -> None:
    """As Spark's connector since 3.4: only Kafka's internal topics are left out, not whatever begins with `__`."""
    for name in ("orders", "my-orders-eu", "ORDERS", "__private", "x__private"):
        cluster.create(name, 1)
    for name in ("__consumer_offsets", "__transaction_state", "__share_group_state"):
        cluster.create(name, 1)
    parsed = parse_options({"gateway": cluster.addresses[0], "subscribePattern": pattern}, streaming=False)
    assert set(select_topics(GatewayClient.of(parsed), parsed)) == found


def test_a_leader_that_lags_behind_what_was_told_loses_no_batch_its_end(
    cluster: MemoryGateway, caplog: pytest.LogCaptureFixture
) -> None:
    """The end of a batch read is told by one leader, and held against what the next one knows."""
    asked = 0

    def after_list() -> None:
        nonlocal asked
        asked += 1
        cluster.latest_shift = -100 if 2 <= asked < 6 else 0

    for options in ({}, {"endingOffsets": '{"flights":{"0":1000,"1":-1}}'}):
        for fails in ("true", "false"):
            asked, cluster.after_list = 0, after_list
            given = {
                "gateway": cluster.addresses[0],
                "subscribe": "flights",
                "failOnDataLoss": fails,
            } | options
            parsed = parse_options(given, streaming=False)
            planned = batch_ranges(GatewayClient.of(parsed), parsed)
            assert [(item.start, item.end) for item in planned] == [(0, 1000)]
            assert asked >= 6
    assert "beyond the end" not in caplog.text


def test_batch_bounds(cluster: MemoryGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "REGRESSION_GRACE_MS", 0)
    cluster.append("flights", 1, [b"value %d" % i for i in range(10)], timestamp_ms=2_000_000_000_000)

    def ranges(**options: str) -> dict[int, tuple[int, int]]:
        parsed = parse_options(
            {"gateway": cluster.addresses[0], "subscribe": "flights", **options}, streaming=False
        )
        return {
            item.partition: (item.start, item.end) for item in batch_ranges(GatewayClient.of(parsed), parsed)
        }

    assert ranges() == {0: (0, 1000), 1: (0, 10)}
    assert ranges(startingOffsets='{"flights":{"0":10,"1":-2}}') == {0: (10, 1000), 1: (0, 10)}
    assert ranges(endingOffsets='{"flights":{"0":10,"1":-1}}') == {0: (0, 10), 1: (0, 10)}
    assert ranges(endingOffsets='{"flights":{"0":0,"1":0}}') == {}
    with pytest.raises(OptionError, match="missing: flights-1"):
        ranges(startingOffsets='{"flights":{"0":10}}')
    with pytest.raises(OptionError, match="not read: other-0"):
        ranges(startingOffsets='{"flights":{"0":10,"1":0},"other":{"0":1}}')
    with pytest.raises(OptionError, match="flights-0"):
        ranges(startingTimestamp="1999999999999")
    late = {"startingTimestamp": "1999999999999", "startingOffsetsByTimestampStrategy": "latest"}
    assert ranges(**late) == {1: (0, 10)}
    assert ranges(endingTimestamp="1999999999999") == {0: (0, 1000)}
    assert ranges(startingOffsetsByTimestamp='{"flights":{"0":1,"1":1}}') == {0: (0, 1000), 1: (0, 10)}
    with pytest.raises(DataLossError, match="beyond the end"):
        ranges(endingOffsets='{"flights":{"0":1001,"1":-1}}')
    clipped = {"endingOffsets": '{"flights":{"0":1001,"1":-1}}', "failOnDataLoss": "false"}
    assert ranges(**clipped) == {0: (0, 1000), 1: (0, 10)}
    cluster.trim("flights", 0, 500)
    with pytest.raises(DataLossError, match="outside 500"):
        ranges(startingOffsets='{"flights":{"0":10,"1":-2}}')
    assert ranges(startingOffsets='{"flights":{"0":10,"1":-2}}', failOnDataLoss="false")[0] == (500, 1000)


def test_the_planner_goes_on_with_gateways_that_it_was_told_of(cluster: MemoryGateway) -> None:
    """Configured addresses are needed to begin; one that dies must not end a query while others live."""
    other = cluster.start()
    client = GatewayClient([cluster.addresses[0]], retry_budget_ms=200)
    client.describe(None)
    assert other in client.learned
    cluster.stop_one(0)
    assert [answer.offset for answer in client.list_offsets([Query("flights", 0, -1)])] == [1000]
    assert set(client.describe(None)) == {"flights"}
    # The configured ones stay in the list, and are named when none answers.
    cluster.stop()
    with pytest.raises(GatewayError, match=cluster.addresses[0]):
        client.describe(None)


def test_a_gateway_of_an_older_build_does_not_speak_for_the_others(
    cluster: MemoryGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while gateways are upgraded, one after the other."""
    newer = MemoryGateway()
    newer.start()
    try:
        newer.create("flights", 1)
        newer.append("flights", 0, [b"v"] * 10)
        newer.knows_sizes = True
        wanted = [OffsetRange("flights", 0, 0, 10)]
        client = GatewayClient([*cluster.addresses, *newer.addresses])
        for _ in range(2):
            sized = size_ranges(client, wanted)
            assert sized is not None
            assert sized[0].size_bytes > 0
        assert (
            cluster.calls.count("SizeRanges") == 1
        )  # it is not asked again, as long as the other one answers
        # Where no other answers, it does.
        monkeypatch.setattr(gateway_module.Backoff, "wait", lambda _: pytest.fail("it is asked again"))
        assert size_ranges(GatewayClient(cluster.addresses), wanted) is None
        assert size_ranges(GatewayClient([*cluster.addresses, "127.0.0.1:1"]), wanted) is None
    finally:
        newer.stop()


def test_another_roles_port_is_told(cluster: MemoryGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: Any, __: Any, context: Any) -> None:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")

    monkeypatch.setattr(MemoryGateway, "Describe", unknown)
    cluster.start()
    with pytest.raises(
        GatewayError, match=r"UNIMPLEMENTED.*: this is the gRPC port of another role.* a gateway's$"
    ):
        GatewayClient(cluster.addresses[-1:]).describe(None)


def test_queries_keep_their_order(cluster: MemoryGateway) -> None:
    client = GatewayClient(cluster.addresses)
    answers = client.list_offsets([Query("flights", 1, -1), Query("flights", 0, -1), Query("absent", 0, -1)])
    assert [answer.offset for answer in answers] == [0, 1000, -1]
    assert answers[2].code == 3
    assert client.list_offsets([]) == []


def in_pieces(cluster: MemoryGateway, monkeypatch: pytest.MonkeyPatch, spoil: Any) -> tuple[str, ...]:
    """A gateway that gives every run of batches in pieces of 700 bytes; `spoil` changes the list of them."""
    original = MemoryGateway.FetchRange

    def fetch_range(self: Any, request: Any, context: Any) -> Iterator[data_pb2.FetchRangeResponse]:
        assert request.takes_pieces
        before = request.from_offset
        for response in original(self, request, context):
            data = response.records
            if not data:
                yield response
                continue
            pieces = []
            for start in range(0, len(data), 700):
                is_last = start + 700 >= len(data)
                part = data_pb2.FetchRangeResponse(log_start_offset=response.log_start_offset)
                part.next_offset = response.next_offset if is_last else before
                part.done = response.done and is_last
                part.piece.base_offset, part.piece.total_bytes = before, len(data)
                part.piece.position, part.piece.data = start, data[start : start + 700]
                pieces.append(part)
            before = response.next_offset
            yield from spoil(pieces)

    monkeypatch.setattr(MemoryGateway, "FetchRange", fetch_range)
    return (cluster.start(),)


def test_large_batches_come_in_pieces(cluster: MemoryGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    gateways = in_pieces(cluster, monkeypatch, lambda pieces: pieces)
    assert read(cluster, gateways=gateways) == list(range(1000))


def test_another_leader_begins_a_large_batch_anew(
    cluster: MemoryGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway goes on at the new leader, in the same call, from where the batch begins."""
    gateways = in_pieces(cluster, monkeypatch, lambda pieces: [*pieces[: len(pieces) // 2], *pieces])
    assert read(cluster, gateways=gateways) == list(range(1000))


@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_piece_is_an_error_and_no_row(
    cluster: MemoryGateway, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    def spoil(pieces: list[data_pb2.FetchRangeResponse]) -> list[data_pb2.FetchRangeResponse]:
        assert len(pieces) > 2
        del pieces[lost]
        return pieces

    gateways = in_pieces(cluster, monkeypatch, spoil)
    with pytest.raises(GatewayError, match="topic flights partition 0: the gateway's answer is broken: "):
        read(cluster, chunk_bytes=50_000, gateways=gateways)


def test_two_leaders_that_lag_one_after_the_other_are_two_doubts(cluster: MemoryGateway) -> None:
    """Each is waited for: what the first one said lies too far back, and says nothing of the second."""
    begun_s, said = time.monotonic(), list[int]()

    def instead() -> tuple[int, str] | None:
        said.append(1 if not said else 6 if time.monotonic() - begun_s < 0.5 else 1 if said[-1] == 6 else 0)
        if said[-1] == 1:
            cluster.latest_shift = -500
        elif said[-1] == 0:
            cluster.latest_shift = 0
        return (said[-1], "of a leader that is new") if said[-1] else None

    cluster.instead = instead
    assert read(cluster, 600, fail=False) == list(range(600, 1000))
    assert 6 in said


def test_a_doubt_about_a_topic_is_none_about_an_offset(cluster: MemoryGateway) -> None:
    begun_s, said = time.monotonic(), list[int]()

    def instead() -> tuple[int, str] | None:
        said.append(3 if not said or time.monotonic() - begun_s < 0.2 else 1 if said[-1] == 3 else 0)
        cluster.latest_shift = -500 if said[-1] == 1 else 0
        if said[-1] == 1:
            time.sleep(0.3)  # longer than the grace, counted from the first doubt
        return (said[-1], "not there") if said[-1] else None

    cluster.instead = instead
    assert read(cluster, 600, fail=False) == list(range(600, 1000))


def test_a_gateway_with_older_metadata_is_not_believed(
    cluster: MemoryGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = GatewayClient(cluster.addresses)
    assert set(client.describe(None)) == {"flights"}
    cluster.behind = 3
    assert set(client.describe(None)) == {"flights"}
    assert cluster.behind == 0
    # A cluster that was restored goes on with lower versions.
    monkeypatch.setattr(gateway_module, "BEHIND_GRACE_MS", 100)
    cluster.behind = 1_000_000
    assert client.describe(None) == {}
    cluster.behind = 0
    # Nothing is known of what was before.
    cluster.behind = 1
    assert GatewayClient(cluster.addresses).describe(None) == {}


def written_anew(cluster: MemoryGateway) -> OffsetRange:
    """A range that was planned before its log was cut at 500 and grew beyond it again."""
    wanted = OffsetRange("flights", 0, 0, 1000, cluster.topics["flights"].topic_id, epoch=0)
    cluster.cut("flights", 0, 500)
    cluster.append("flights", 0, [b"new %d" % i for i in range(700)])
    return wanted


def reading(cluster: MemoryGateway, wanted: OffsetRange, fail: bool, chunk_bytes: int) -> list[Any]:
    reader = RangeReader(
        wanted,
        tuple(cluster.addresses),
        Decoder("flights", 0, SCHEMA),
        fail_on_data_loss=fail,
        chunk_bytes=chunk_bytes,
        poll_timeout_ms=60_000,
    )
    return [value for batch in reader.batches() for value in batch.column("value").to_pylist()]


@pytest.mark.parametrize("chunk_bytes", [1, 4096, 1 << 20])
def test_what_was_written_behind_a_cut_is_none_of_a_range_that_was_planned_before(
    cluster: MemoryGateway, caplog: pytest.LogCaptureFixture, chunk_bytes: int
) -> None:
    """The driver goes back to the cut at its next look: what is new would come twice."""
    wanted = written_anew(cluster)
    assert reading(cluster, wanted, False, chunk_bytes) == [b"value %d" % i for i in range(500)]
    assert "offsets 500 to 999 are gone: the log was cut at 500 and written anew" in caplog.text
    with pytest.raises(DataLossError, match="offsets 500 to 999 are gone"):
        reading(cluster, wanted, True, chunk_bytes)


def test_a_new_leader_with_the_whole_range_is_no_cut(cluster: MemoryGateway) -> None:
    wanted = OffsetRange("flights", 0, 0, 1000, cluster.topics["flights"].topic_id, epoch=0)
    cluster.cut("flights", 0, 1000)
    cluster.append("flights", 0, [b"new"] * 100, size=7)
    assert reading(cluster, wanted, True, 4096) == [b"value %d" % i for i in range(1000)]
    # Where nobody told an epoch nothing is known of cuts.
    wanted = OffsetRange("flights", 0, 990, 1010, cluster.topics["flights"].topic_id)
    assert len(reading(cluster, wanted, True, 4096)) == 20
