"""Reading a range from its leader's own Kafka listener: the same rows as through a gateway, whatever happens."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.types import StructField, StructType

from penstock_kafka.records.batch import iter_batches
from penstock_proto.v1 import common_pb2, gateway_pb2
from pyspark_penstock import batch_rows
from pyspark_penstock.decode import Decoder
from pyspark_penstock.direct import connection as connections
from pyspark_penstock.direct import route as routes
from pyspark_penstock.direct.nodes import Leader, NodeListener, Reachability, leaders
from pyspark_penstock.direct.route import DirectRoute
from pyspark_penstock.errors import CorruptRecordsError, DataLossError, GatewayError
from pyspark_penstock.fetch import RangeReader
from pyspark_penstock.options import parse_options
from pyspark_penstock.reader import batch_reader
from pyspark_penstock.schema import arrow_schema, spark_schema
from pyspark_penstock.tiling import OffsetRange
from unit.spark.spark_memory_gateway import MemoryGateway
from unit.spark.spark_memory_node import MemoryNode
from unit.spark.spark_stored import TRANSACTIONAL, data, marker, store

SCHEMA = arrow_schema(spark_schema(include_headers=False), include_headers=False)


@pytest.fixture
def cluster() -> Iterator[MemoryGateway]:
    memory = MemoryGateway()
    memory.start()
    memory.create("flights", 2)
    memory.append("flights", 0, [b"value %d" % i for i in range(1000)])
    yield memory
    memory.stop()


@pytest.fixture
def node(cluster: MemoryGateway) -> Iterator[MemoryNode]:
    made = MemoryNode(cluster)
    yield made
    made.stop()
    for key in list(connections._kept):
        connections._kept.pop(key).close()


class Reading:
    """One range, and what was asked on the way."""

    def __init__(
        self,
        cluster: MemoryGateway,
        leader: Leader | None,
        *found: Leader | None,
        start: int = 0,
        end: int = 1000,
        must: bool = True,
        fail: bool = True,
        poll_timeout_ms: int = 60_000,
        read_committed: bool = False,
        chunk_bytes: int = 1,
        reachability: Reachability | None = None,
        gateways: tuple[str, ...] | None = None,
        silence_s: float = routes.SILENCE_S,
        rack: str = "",
        near: Leader | None = None,
        epoch: int = -1,
    ) -> None:
        wanted = OffsetRange("flights", 0, start, end, cluster.topics["flights"].topic_id, epoch)
        self.described = 0
        self._found = found
        self.route = DirectRoute(
            wanted,
            leader,
            self._find,
            must=must,
            read_committed=read_committed,
            max_bytes=chunk_bytes,
            silence_s=silence_s,
            rack=rack,
            find_node=lambda node_id: near if node_id == 2 else None,
            reachability=reachability or Reachability(),
        )
        self.reader = RangeReader(
            wanted,
            gateways or tuple(cluster.addresses),
            Decoder("flights", 0, SCHEMA),
            fail_on_data_loss=fail,
            chunk_bytes=chunk_bytes,
            poll_timeout_ms=poll_timeout_ms,
            missing_grace_ms=300,
            read_committed=read_committed,
            direct=self.route,
        )

    def _find(self) -> Leader | None:
        self.described += 1
        return self._found[min(self.described, len(self._found)) - 1]

    def offsets(self) -> list[int]:
        return [offset for batch in self.reader.batches() for offset in batch.column("offset").to_pylist()]


def by_gateway(cluster: MemoryGateway) -> bool:
    return any(call.startswith("FetchRange") for call in cluster.calls)


@pytest.mark.parametrize(("start", "end"), [(0, 1000), (1, 2), (150, 151), (37, 963), (999, 1000), (5, 5)])
def test_exactly_the_range(cluster: MemoryGateway, node: MemoryNode, start: int, end: int) -> None:
    assert Reading(cluster, node.leader(), start=start, end=end).offsets() == list(range(start, end))
    assert not by_gateway(cluster)
    assert node.asked == sorted(set(node.asked))


def test_the_next_question_is_out_before_rows_are_handed_on(cluster: MemoryGateway, node: MemoryNode) -> None:
    rows = Reading(cluster, node.leader()).reader.batches()
    first = next(rows)
    with node.came:
        assert node.came.wait_for(lambda: len(node.asked) == 2, 30)
    assert [offset for batch in [first, *rows] for offset in batch.column("offset").to_pylist()] == list(
        range(1000)
    )


def test_answers_grow_as_far_as_something_is_left(cluster: MemoryGateway, node: MemoryNode) -> None:
    cluster.create("flights", 1)
    cluster.append("flights", 0, [b"%01000d" % i for i in range(2000)])
    chunk = 256 << 10
    assert Reading(cluster, node.leader(), end=2000, chunk_bytes=chunk).offsets() == list(range(2000))
    assert node.asked_bytes[:2] == [chunk, 4 * chunk]
    # Of the last range no more than what is left of it, and a little.
    assert chunk < node.asked_bytes[-1] < 4 * chunk
    node.asked_bytes.clear()
    assert len(Reading(cluster, node.leader(), end=300, chunk_bytes=chunk).offsets()) == 300
    assert node.asked_bytes[0] == chunk
    assert node.asked_bytes[-1] < chunk


def test_connections_are_kept_for_the_next_reader(cluster: MemoryGateway, node: MemoryNode) -> None:
    for _ in range(3):
        assert len(Reading(cluster, node.leader()).offsets()) == 1000
    assert node.connections == 1
    node.hang_up()
    assert len(Reading(cluster, node.leader()).offsets()) == 1000
    assert node.connections == 2


def test_a_reader_that_stops_early_leaves_no_answer_to_the_next(
    cluster: MemoryGateway, node: MemoryNode
) -> None:
    rows: Any = Reading(cluster, node.leader()).reader.batches()
    next(rows)
    rows.close()
    assert Reading(cluster, node.leader()).offsets() == list(range(1000))


@pytest.mark.parametrize("code", [6, 74, 75, -1])
def test_a_leader_that_moved_is_looked_for_at_the_same_offset(
    cluster: MemoryGateway, node: MemoryNode, code: int
) -> None:
    node.error = lambda turn: code if turn in (2, 4) else 0
    reading = Reading(cluster, node.leader(), node.leader(epoch=1))
    assert reading.offsets() == list(range(1000))
    assert reading.described == 2
    assert node.asked[1] == node.asked[2]
    assert not by_gateway(cluster)


def test_the_other_leader_is_asked(cluster: MemoryGateway, node: MemoryNode) -> None:
    other = MemoryNode(cluster)
    try:
        node.error = lambda turn: 6 if turn > 2 else 0
        assert Reading(cluster, node.leader(), other.leader(epoch=1)).offsets() == list(range(1000))
        assert other.asked[0] > 0
        assert not by_gateway(cluster)
    finally:
        other.stop()


def test_auto_goes_on_through_gateways(cluster: MemoryGateway, node: MemoryNode) -> None:
    node.error = lambda turn: 6 if turn > 2 else 0
    reading = Reading(cluster, node.leader(), node.leader(epoch=1), must=False)
    assert reading.offsets() == list(range(1000))
    assert by_gateway(cluster)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def test_auto_tries_a_node_once_a_minute(cluster: MemoryGateway, node: MemoryNode) -> None:
    now_s = [0.0]
    reachability = Reachability(lambda: now_s[0])
    gone = Leader(7, 0, (NodeListener("127.0.0.1", free_port(), "PLAINTEXT"),))
    tried: list[int] = []
    original = connections.Connection

    class Counting(original):  # type: ignore[misc, valid-type]
        def __init__(self, host: str, port: int, *more: Any) -> None:
            tried.append(port)
            assert more[-1] == routes.ATTEMPT_S
            super().__init__(host, port, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(routes, "Connection", Counting)
        for _ in range(3):
            reading = Reading(cluster, gone, gone, must=False, reachability=reachability)
            assert reading.offsets() == list(range(1000))
        assert len(tried) == 1
        now_s[0] = 61.0
        assert len(Reading(cluster, gone, gone, must=False, reachability=reachability).offsets()) == 1000
        assert len(tried) == 2
    # A plan that is old is no reason to go without.
    cluster.calls.clear()
    reading = Reading(cluster, gone, node.leader(), must=False, reachability=reachability)
    assert reading.offsets() == list(range(1000))
    assert not by_gateway(cluster)


def test_direct_names_the_address_that_is_out_of_reach(cluster: MemoryGateway) -> None:
    port = free_port()
    gone = Leader(7, 0, (NodeListener("127.0.0.1", port, "PLAINTEXT"),))
    with pytest.raises(
        GatewayError, match=rf"fetchMode=direct, but storage node 7 is out of reach at 127\.0\.0\.1:{port}: "
    ):
        Reading(cluster, gone, gone, poll_timeout_ms=300).offsets()
    with pytest.raises(GatewayError, match="give nodes and gateways a listener of mode direct"):
        Reading(cluster, Leader(7, 0, ())).offsets()
    secure = Leader(7, 0, (NodeListener("127.0.0.1", port, "SASL_SSL"),))
    with pytest.raises(GatewayError, match="no Kafka listener of storage node 7 with security PLAINTEXT"):
        Reading(cluster, secure).offsets()
    assert not by_gateway(cluster)


def test_a_leader_that_is_being_replaced_is_waited_for(cluster: MemoryGateway, node: MemoryNode) -> None:
    gone = Leader(7, 0, (NodeListener("127.0.0.1", free_port(), "PLAINTEXT"),))
    reading = Reading(cluster, gone, None, gone, None, node.leader())
    assert reading.offsets() == list(range(1000))


def test_a_silent_node_is_given_up(cluster: MemoryGateway, node: MemoryNode) -> None:
    node.error = lambda turn: -2 if turn == 2 else 0
    assert Reading(cluster, node.leader(), node.leader(), silence_s=0.2).offsets() == list(range(1000))
    assert node.connections >= 2  # an answer may be late by itself


def test_a_silent_node_is_left_once_another_leads(
    cluster: MemoryGateway, node: MemoryNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "LOOK_S", 0.1)
    other = MemoryNode(cluster)
    try:
        node.error = lambda turn: -2 if turn == 2 else 0
        same = node.leader()
        reading = Reading(cluster, same, same, None, other.leader(epoch=1), silence_s=600.0)
        assert reading.offsets() == list(range(1000))
        assert other.asked[0] == node.asked[1]
    finally:
        other.stop()


@pytest.mark.parametrize("must", [True, False])
def test_losses_are_told_by_the_gateways_rules(cluster: MemoryGateway, node: MemoryNode, must: bool) -> None:
    cluster.trim("flights", 0, 250)
    with pytest.raises(DataLossError, match="offsets 0 to 249 are gone: the log now starts at 250"):
        Reading(cluster, node.leader(), must=must).offsets()
    assert Reading(cluster, node.leader(), must=must, fail=False).offsets() == list(range(250, 1000))
    cluster.cut("flights", 0, 700)
    assert Reading(cluster, node.leader(), must=must, fail=False).offsets() == list(range(250, 700))
    cluster.create("flights", 1)
    old = cluster.topics["flights"].topic_id
    cluster.create("flights", 1)
    reading = Reading(cluster, node.leader(), must=must)
    object.__setattr__(reading.reader._range, "topic_id", old)
    object.__setattr__(reading.route._wanted, "topic_id", old)
    with pytest.raises(DataLossError, match="made anew"):
        reading.offsets()


def test_retention_in_the_middle_of_a_read(cluster: MemoryGateway, node: MemoryNode) -> None:
    def trim(turn: int) -> int:
        if turn == 2:
            cluster.trim("flights", 0, 800)
        return 0

    node.error = trim
    with pytest.raises(DataLossError, match="are gone: the log now starts at 800"):
        Reading(cluster, node.leader()).offsets()


def test_a_high_watermark_that_lags_is_waited_for(cluster: MemoryGateway, node: MemoryNode) -> None:
    node.high_watermark = 500

    def rise(turn: int) -> int:
        if node.asked.count(500) == 3:
            node.high_watermark = None
        return 0

    node.error = rise
    assert Reading(cluster, node.leader()).offsets() == list(range(1000))
    assert not by_gateway(cluster)


def test_a_gap_at_the_end_is_no_loss(cluster: MemoryGateway, node: MemoryNode) -> None:
    log = cluster.topics["flights"].logs[0]
    log.batches = [item for item in log.batches if item[1] < 600 or item[0] >= 800]
    assert Reading(cluster, node.leader()).offsets() == [*range(600), *range(800, 1000)]
    log.batches = [item for item in log.batches if item[1] < 600]
    assert Reading(cluster, node.leader()).offsets() == list(range(600))


def test_other_errors_are_the_gateways_to_tell(cluster: MemoryGateway, node: MemoryNode) -> None:
    node.error = lambda turn: 29
    assert Reading(cluster, node.leader()).offsets() == list(range(1000))
    assert by_gateway(cluster)


# -- a follower in the rack --------------------------------------------------------------------


@pytest.fixture
def near(cluster: MemoryGateway) -> Iterator[MemoryNode]:
    made = MemoryNode(cluster)
    yield made
    made.stop()


def test_a_follower_in_the_rack_serves(cluster: MemoryGateway, node: MemoryNode, near: MemoryNode) -> None:
    node.near = {"zone-a": 2}
    assert Reading(cluster, node.leader(), rack="zone-a", near=near.leader()).offsets() == list(range(1000))
    assert node.asked == [0]
    assert (near.asked[0], set(near.racks)) == (0, {"zone-a"})
    assert Reading(cluster, node.leader(), rack="zone-b", near=near.leader()).offsets() == list(range(1000))
    assert len(node.asked) > 2


@pytest.mark.parametrize("trouble", ["behind", "gone", "unknown", "error", "hangs up"])
def test_a_follower_in_trouble_is_left_for_the_leader(
    cluster: MemoryGateway, node: MemoryNode, near: MemoryNode, trouble: str
) -> None:
    node.near = {"zone-a": 2}
    found: Leader | None = near.leader()
    if trouble == "behind":
        near.high_watermark = 500
    elif trouble == "gone":
        found = Leader(2, 0, (NodeListener("127.0.0.1", free_port(), "PLAINTEXT"),))
    elif trouble == "unknown":
        found = None
    else:
        near.error = lambda turn: (1 if trouble == "error" else -1) if turn == 3 else 0
    reading = Reading(cluster, node.leader(), rack="zone-a", near=found)
    assert reading.offsets() == list(range(1000))
    assert node.racks[0] == "zone-a"
    assert set(node.racks[1:]) == {""}
    assert reading.described == 0
    assert not by_gateway(cluster)


# -- damaged answers -------------------------------------------------------------------------


def test_damaged_bytes_name_the_partition(cluster: MemoryGateway, node: MemoryNode) -> None:
    node.spoil = lambda frame: frame[:-10] + bytes([frame[-10] ^ 1]) + frame[-9:]
    with pytest.raises(CorruptRecordsError, match=r"topic flights partition 0.*CRC-32C"):
        Reading(cluster, node.leader()).offsets()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda frame: b"\x7f\xff\xff\xff" + frame[4:],
        lambda frame: b"\xff\xff\xff\xff" + frame[4:],
        lambda frame: b"\x00\x00\x00\x02" + frame[4:6],
        lambda frame: frame[:4] + b"\x00\x00\x00\x63" + frame[8:],
        lambda frame: frame[:-1] + b"\x7f",
        lambda frame: frame[: len(frame) // 2],
    ],
    ids=["too large", "negative", "too short", "another's answer", "odd end", "half"],
)
def test_damaged_frames_end_in_a_connection_made_anew(
    cluster: MemoryGateway, node: MemoryNode, spoil: Any
) -> None:
    turns: list[int] = []

    def once(frame: bytes) -> bytes:
        turns.append(1)
        return bytes(spoil(frame)) if len(turns) == 2 else frame

    node.spoil = once
    assert Reading(cluster, node.leader(), node.leader(), silence_s=0.2).offsets() == list(range(1000))
    assert node.connections >= 2  # an answer may be late by itself
    assert not by_gateway(cluster)
    node.spoil = spoil
    assert Reading(cluster, node.leader(), node.leader(), must=False, silence_s=0.2).offsets() == list(
        range(1000)
    )
    assert by_gateway(cluster)


# -- transactions ----------------------------------------------------------------------------


def transactional(first: int, producer: int, sequence: int = 0) -> bytes:
    return data(first, 5, producer=(producer, 0, sequence), attributes=TRANSACTIONAL)


def test_aborted_batches_are_left_out(cluster: MemoryGateway, node: MemoryNode) -> None:
    cluster.create("flights", 1)
    store(
        cluster, "flights", 0,
        transactional(0, 1), transactional(5, 2), data(10, 5), transactional(15, 1, 5),
        marker(20, 1, commit=False), transactional(21, 1, 10), marker(26, 2, commit=True),
        transactional(27, 3), marker(32, 1, commit=True), marker(33, 3, commit=False), data(34, 5),
    )  # fmt: skip
    node.aborted = [(3, 27, 33), (1, 0, 20)]
    kept = [*range(5, 15), *range(21, 26), *range(34, 39)]
    everything = [*range(20), *range(21, 26), *range(27, 32), *range(34, 39)]
    for chunk_bytes in (1, 400, 1 << 20):
        reading = Reading(cluster, node.leader(), end=39, read_committed=True, chunk_bytes=chunk_bytes)
        assert reading.offsets() == kept
        assert Reading(cluster, node.leader(), end=39, chunk_bytes=chunk_bytes).offsets() == everything
    assert Reading(cluster, node.leader(), start=17, end=35, read_committed=True).offsets() == [
        *range(21, 26),
        34,
    ]


# -- plans -----------------------------------------------------------------------------------


def described(*ports: int) -> gateway_pb2.DescribedNode:
    listeners = [common_pb2.Endpoint(listener="DIRECT", host="127.0.0.1", port=port) for port in ports]
    return gateway_pb2.DescribedNode(node_id=1, kafka=listeners)


def read_all(cluster: MemoryGateway, **options: str) -> int:
    """Rows of a batch read, by its partitions as executors get them."""
    given = {"gateway": cluster.addresses[0], "subscribe": "flights", **options}
    reader = batch_reader(parse_options(given, streaming=False), SCHEMA)
    cluster.calls.clear()
    partitions = pickle.loads(pickle.dumps(reader.partitions()))
    return sum(batch.num_rows for partition in partitions for batch in reader.read(partition))


def test_a_plan_says_where_leaders_are(cluster: MemoryGateway, node: MemoryNode) -> None:
    cluster.nodes = [described(node.port)]
    assert read_all(cluster) == 1000
    assert not by_gateway(cluster)
    # Executors had nothing to ask.
    assert cluster.calls.count("Describe") == 1
    assert read_all(cluster, fetchMode="direct", minPartitions="7") == 1000
    assert not by_gateway(cluster)
    assert read_all(cluster, fetchMode="gateway") == 1000
    assert by_gateway(cluster)


def test_a_plan_without_listeners(cluster: MemoryGateway, node: MemoryNode) -> None:
    for nodes in ([], [described()]):
        cluster.nodes = nodes
        assert read_all(cluster) == 1000
        assert by_gateway(cluster)
    with pytest.raises(GatewayError, match="give nodes and gateways a listener of mode direct"):
        read_all(cluster, fetchMode="direct")


def test_rows_about_damage_come_through_gateways(cluster: MemoryGateway, node: MemoryNode) -> None:
    cluster.nodes = [described(node.port)]
    given = {"gateway": cluster.addresses[0], "subscribe": "flights", "rows": "batches"}
    options = parse_options(given, streaming=False)
    for names, is_by_gateway in ((("bytes",), False), (("bytes", "unreadable"), True)):
        schema = batch_rows.arrow_schema(
            StructType([StructField(name, batch_rows.COLUMNS[name]) for name in names])
        )
        reader = batch_reader(options, schema)
        cluster.calls.clear()
        rows = [batch.num_rows for part in reader.partitions() for batch in reader.read(part)]
        assert sum(rows) == 10
        assert by_gateway(cluster) is is_by_gateway


def test_what_describe_tells() -> None:
    answer = gateway_pb2.DescribeResponse()
    answer.nodes.add(node_id=1, kafka=[common_pb2.Endpoint(listener="DIRECT", host="::1", port=9192)])
    answer.nodes.add(node_id=2, fenced=True)
    topic = answer.topics.add(name="flights")
    for partition, leader in enumerate((1, 2, 3, -1)):
        topic.partitions.add(partition=partition, leader=leader, leader_epoch=5)
    found = Leader(1, 5, (NodeListener("::1", 9192, "PLAINTEXT"),))
    assert leaders(answer) == {("flights", 0): found}
    assert leaders(answer, [("flights", 1)]) == {}
    assert found.listeners[0].address == "[::1]:9192"


def test_batches_are_those_that_the_brokers_walk_finds(cluster: MemoryGateway) -> None:
    from pyspark_penstock.direct.batches import whole

    run = b"".join(item[2] for item in cluster.topics["flights"].logs[0].batches)
    ends = [info.position + info.size_bytes for info in iter_batches(run)]
    for cut in (0, 1, 60, 61, ends[0] - 1, ends[0], ends[0] + 70, len(run) - 1, len(run)):
        found, next_offset = whole(memoryview(run)[:cut])
        assert len(found) == max([end for end in ends if end <= cut], default=0)
        assert next_offset == (sum(end <= cut for end in ends) * 100 or -1)
    with pytest.raises(CorruptRecordsError, match="says 3 bytes"):
        whole(memoryview(run[:8] + b"\0\0\0\3" + run[12:]))


@pytest.mark.parametrize("chunk_bytes", [1, 1 << 20])
def test_what_was_written_behind_a_cut_is_the_gateways_to_tell(
    cluster: MemoryGateway, node: MemoryNode, caplog: pytest.LogCaptureFixture, chunk_bytes: int
) -> None:
    cluster.cut("flights", 0, 500)
    cluster.append("flights", 0, [b"new %d" % i for i in range(700)])
    leader = replace(node.leader(), epoch=1)
    lenient = Reading(cluster, leader, epoch=0, fail=False, chunk_bytes=chunk_bytes)
    assert lenient.offsets() == list(range(500))
    assert "offsets 500 to 999 are gone: the log was cut at 500" in caplog.text
    with pytest.raises(DataLossError, match="offsets 500 to 999 are gone"):
        Reading(cluster, leader, epoch=0, chunk_bytes=chunk_bytes).offsets()
    cluster.calls.clear()
    assert Reading(cluster, leader, epoch=1, chunk_bytes=chunk_bytes).offsets() == list(range(1000))
    assert not by_gateway(cluster)
