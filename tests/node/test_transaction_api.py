"""Every version of every request of transactional producers: decoded, answered by a shard, encoded, read by a client's
codec."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.security.acl import AclOperation, ResourceType
from penstock_frontend.authorizer import ANONYMOUS, AllowAll, Identity
from penstock_kafka.error_responses.transaction import TRANSACTION_TABLE
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import SPECS, ApiKey
from penstock_kafka.wire.frames import parse_request_header, request_header
from penstock_kafka.wire.primitives import Malformed
from penstock_runtime.turns import LoopTurns
from penstock_storage_node.kafka import transactions as transactions_module
from penstock_storage_node.kafka.client_stream import ClientStream
from penstock_storage_node.kafka.request_context import RequestContext
from penstock_storage_node.kafka.rights import Rights
from penstock_storage_node.kafka.transactions import TransactionHandler
from penstock_storage_node.transactions.effects import TopicPartitionName
from penstock_storage_node.transactions.shard import Shard
from support.denials import Denying
from unit.storage_node.transactions.transaction_rig import Rig

E = ErrorCode
K = ApiKey
VERSIONS = {
    K.INIT_PRODUCER_ID: (0, 5),
    K.ADD_PARTITIONS_TO_TXN: (0, 5),
    K.ADD_OFFSETS_TO_TXN: (0, 4),
    K.END_TXN: (0, 5),
    K.WRITE_TXN_MARKERS: (1, 2),
    K.TXN_OFFSET_COMMIT: (0, 5),
    K.DESCRIBE_TRANSACTIONS: (0, 0),
    K.LIST_TRANSACTIONS: (0, 2),
}
FENCED_SINCE = {
    K.INIT_PRODUCER_ID: 4,
    K.ADD_PARTITIONS_TO_TXN: 2,
    K.ADD_OFFSETS_TO_TXN: 2,
    K.END_TXN: 2,
}


@pytest.fixture(autouse=True)
def _with_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions that may not be advertised yet can be read."""
    monkeypatch.setattr(
        codec, "SPECS", dict(SPECS) | {k: replace(SPECS[k], versions=v) for k, v in VERSIONS.items()}
    )


def versions(key: ApiKey) -> range:
    low, high = VERSIONS[key]
    return range(low, high + 1)


class Host:
    """One shard for all ids, but for those called `away...` and `loading`."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.is_whole = True
        self.counts = {"t": 3, "secret": 1, "__consumer_offsets": 50}
        self.made: list[str] = []

    def find(self, name: str) -> Shard:
        if name.startswith("away"):
            raise PenstockError(E.NOT_COORDINATOR, "elsewhere")
        if name == "loading":
            raise PenstockError(E.COORDINATOR_LOAD_IN_PROGRESS, "not yet")
        return self.rig.shard

    def shards(self) -> Iterator[Shard]:
        yield self.rig.shard

    def exists(self, name: TopicPartitionName) -> bool:
        return name.partition in range(self.counts.get(name.topic, 0))

    def partition_count(self, topic: str) -> int:
        return self.counts.get(topic, 0)

    def make_topic(self, name: str) -> None:
        self.made.append(name)

    @property
    def now_ms(self) -> int:
        return self.rig.wall_ms()


class Peer:
    """Calls the handler as a connection does."""

    def __init__(self, authorizer: Any = None) -> None:
        self.rig = Rig()
        self.host = Host(self.rig)
        self.rig.unknown = {TopicPartitionName("t", 9), TopicPartitionName("gone", 0)}
        self.handler = TransactionHandler(self.host, Rights(authorizer or AllowAll()), LoopTurns())  # type: ignore[arg-type]
        self.stream = ClientStream()

    def send(self, key: ApiKey, version: int, /, **values: Any) -> Any:
        """What the handler gives: an answer or a future."""
        request = codec.build(codec.request_type(key, version), **values)
        return self.send_frame(request_header(key, version, 9, "client") + codec.encode_body(request))

    def send_frame(self, frame: bytes) -> Any:
        self.caller = RequestContext(
            Identity(ANONYMOUS, "1.2.3.4"), "client", "1.2.3.4:5", stream=self.stream
        )
        return self.handler.handle(self.caller, parse_request_header(frame), frame)

    async def call(self, key: ApiKey, version: int, /, **values: Any) -> Any:
        answer = self.send(key, version, **values)
        self.rig.settle()
        return await read(key, version, answer)

    # -- requests

    async def init(self, version: int = 4, name: str | None = "x", **values: Any) -> Any:
        given = {"transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1} | values
        return await self.call(K.INIT_PRODUCER_ID, version, transactional_id=name, **given)

    async def pair(self, name: str = "x") -> tuple[int, int]:
        answer = await self.init(name=name)
        assert int(answer.error_code) == 0
        return answer.producer_id, answer.producer_epoch

    async def add(
        self,
        version: int,
        pair: tuple[int, int],
        *topics: tuple[str, tuple[int, ...]],
        name: str = "x",
        verify_only: bool = False,
    ) -> list[tuple[str, int, int]]:
        """Rows of topic, partition, code."""
        key = K.ADD_PARTITIONS_TO_TXN
        asked = tuple(
            item(key, version, "AddPartitionsToTxnTopic", name=topic, partitions=numbers)
            for topic, numbers in topics
        )
        if version < 4:
            response = await self.call(
                key,
                version,
                v3_and_below_transactional_id=name,
                v3_and_below_producer_id=pair[0],
                v3_and_below_producer_epoch=pair[1],
                v3_and_below_topics=asked,
            )
            return rows(response.results_by_topic_v3_and_below)
        one = item(
            key,
            version,
            "AddPartitionsToTxnTransaction",
            transactional_id=name,
            producer_id=pair[0],
            producer_epoch=pair[1],
            verify_only=verify_only,
            topics=asked,
        )
        response = await self.call(key, version, transactions=(one,))
        assert int(response.error_code) == 0
        (result,) = response.results_by_transaction
        assert result.transactional_id == name
        return rows(result.topic_results)

    async def end(self, version: int, pair: tuple[int, int], *, commit: bool = True, name: str = "x") -> Any:
        return await self.call(
            K.END_TXN,
            version,
            transactional_id=name,
            producer_id=pair[0],
            producer_epoch=pair[1],
            committed=commit,
        )


async def read(key: ApiKey, version: int, answer: Any) -> Any:
    response = await answer if isinstance(answer, Awaitable) else answer
    correlation_id, entity = codec.decode_response(key, version, b"".join(response))
    assert correlation_id == 9
    return entity


def item(key: ApiKey, version: int, kind: str, /, **values: Any) -> Any:
    return codec.build(codec.entity_type(key, version, kind, request=True), **values)


def rows(topics: Any) -> list[tuple[str, int, int]]:
    return [
        (topic.name, each.partition_index, int(each.partition_error_code))
        for topic in topics
        for each in topic.results_by_partition
    ]


async def test_a_transaction_in_every_version() -> None:
    for init in versions(K.INIT_PRODUCER_ID):
        peer = Peer()
        first = await peer.init(init)
        assert (int(first.error_code), first.producer_epoch) == (0, 0)
        again = await peer.init(init)
        assert (again.producer_id, again.producer_epoch) == (first.producer_id, 1)
        assert peer.rig.value("x").init_version == (2 if init >= 5 else 0)
    for version in range(4):
        peer = Peer()
        pair = await peer.pair()
        assert await peer.add(version, pair, ("t", (0, 2))) == [("t", 0, 0), ("t", 2, 0)]
        assert peer.rig.value("x").client_version == 0
        ended = await peer.end(version, pair)
        assert int(ended.error_code) == 0
        assert peer.rig.value("x").status.label == "CompleteCommit"
    for version in (4, 5):
        peer = Peer()
        pair = await peer.pair()
        assert await peer.add(version, pair, ("t", (0,)), ("t", (1,))) == [("t", 0, 0), ("t", 1, 0)]
        assert peer.rig.value("x").client_version == 2
        ended = await peer.end(5, pair, commit=False)
        assert (int(ended.error_code), ended.producer_id, ended.producer_epoch) == (0, pair[0], pair[1] + 1)
        assert peer.rig.value("x").status.label == "CompleteAbort"


async def test_offsets_are_added_as_their_partition() -> None:
    for version in versions(K.ADD_OFFSETS_TO_TXN):
        peer = Peer()
        pair = await peer.pair()
        asked = {
            "transactional_id": "x",
            "producer_id": pair[0],
            "producer_epoch": pair[1],
            "group_id": "g",
        }
        assert int((await peer.call(K.ADD_OFFSETS_TO_TXN, version, **asked)).error_code) == 0
        ((topic, _),) = peer.rig.value("x").partitions
        assert topic == "__consumer_offsets"
        # A cluster in which no group has been yet: its topic is made, and the client asks again.
        peer.host.counts.clear()
        refused = await peer.call(K.ADD_OFFSETS_TO_TXN, version, **asked)
        assert int(refused.error_code) == E.COORDINATOR_NOT_AVAILABLE
        assert peer.host.made == ["__consumer_offsets"]


async def test_old_versions_know_no_fenced_producer() -> None:
    for key, since in FENCED_SINCE.items():
        for version in versions(key):
            peer = Peer()
            old = await peer.pair()
            await peer.pair()
            code: int
            if key is K.INIT_PRODUCER_ID:
                if version < 3:
                    continue  # names no producer
                refused = await peer.init(version, producer_id=old[0] + 77, producer_epoch=0)
                code = int(refused.error_code)
                assert (refused.producer_id, refused.producer_epoch) == (-1, -1)
            elif key is K.ADD_PARTITIONS_TO_TXN:
                ((_, _, code),) = await peer.add(version, old, ("t", (0,)))
            elif key is K.ADD_OFFSETS_TO_TXN:
                asked = {"transactional_id": "x", "group_id": "g"}
                answer = await peer.call(key, version, **asked, producer_id=old[0], producer_epoch=old[1])
                code = int(answer.error_code)
            else:
                # The old epoch is one below: from version 5 on such an EndTxn may be a repeated one.
                answer = await peer.end(version, (old[0], 7))
                code = int(answer.error_code)
            assert code == (E.INVALID_PRODUCER_EPOCH if version < since else E.PRODUCER_FENCED), (
                key,
                version,
            )


async def test_a_partition_that_is_not_there_fails_the_others() -> None:
    for version in versions(K.ADD_PARTITIONS_TO_TXN):
        peer = Peer()
        pair = await peer.pair()
        assert await peer.add(version, pair, ("t", (0, 9)), ("gone", (0,))) == [
            ("t", 0, E.OPERATION_NOT_ATTEMPTED),
            ("t", 9, E.UNKNOWN_TOPIC_OR_PARTITION),
            ("gone", 0, E.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        assert not peer.rig.value("x").partitions


async def test_verification_tells_each_partition_apart() -> None:
    for version in (4, 5):
        peer = Peer()
        pair = await peer.pair()
        await peer.add(version, pair, ("t", (0,)))
        assert await peer.add(version, pair, ("t", (0, 1)), verify_only=True) == [
            ("t", 0, 0),
            ("t", 1, E.TRANSACTION_ABORTABLE),
        ]
        assert len(peer.rig.value("x").partitions) == 1


async def test_several_transactions_in_one_request_have_an_answer_each() -> None:
    peer = Peer()
    pair, other = await peer.pair(), await peer.pair("y")
    key, version = K.ADD_PARTITIONS_TO_TXN, 5

    def one(name: str, pair: tuple[int, int], *, verify_only: bool = False) -> Any:
        topics = (item(key, version, "AddPartitionsToTxnTopic", name="t", partitions=(0,)),)
        return item(
            key,
            version,
            "AddPartitionsToTxnTransaction",
            transactional_id=name,
            producer_id=pair[0],
            producer_epoch=pair[1],
            verify_only=verify_only,
            topics=topics,
        )

    asked = (one("x", pair), one("away", pair), one("y", other), one("", pair), one("z", pair))
    response = await peer.call(key, version, transactions=asked)
    found = {each.transactional_id: rows(each.topic_results) for each in response.results_by_transaction}
    assert [each.transactional_id for each in response.results_by_transaction] == ["x", "away", "y", "", "z"]
    assert {name: code for name, ((_, _, code),) in found.items()} == {
        "x": 0,
        "away": E.NOT_COORDINATOR,
        "y": 0,
        "": E.INVALID_REQUEST,
        "z": E.INVALID_PRODUCER_ID_MAPPING,
    }
    assert int((await peer.call(key, version, transactions=())).error_code) == 0


async def test_who_is_no_coordinator_says_so_in_every_version() -> None:
    for name, code in (
        ("away", E.NOT_COORDINATOR),
        ("loading", E.COORDINATOR_LOAD_IN_PROGRESS),
        ("", E.INVALID_REQUEST),
        ("x" * 17_000, E.INVALID_REQUEST),
    ):
        peer = Peer()
        for version in versions(K.INIT_PRODUCER_ID):
            assert int((await peer.init(version, name=name)).error_code) == code
            assert peer.caller.errors == [code]
        for version in versions(K.ADD_PARTITIONS_TO_TXN):
            assert await peer.add(version, (1, 0), ("t", (0,)), name=name) == [("t", 0, code)]
            assert peer.caller.errors == [code]
        for version in versions(K.ADD_OFFSETS_TO_TXN):
            asked = {"transactional_id": name, "producer_id": 1, "producer_epoch": 0, "group_id": "g"}
            assert int((await peer.call(K.ADD_OFFSETS_TO_TXN, version, **asked)).error_code) == code
        for version in versions(K.END_TXN):
            answer = await peer.end(version, (1, 0), name=name)
            assert int(answer.error_code) == code
            if version >= 5:
                assert (answer.producer_id, answer.producer_epoch) == (-1, -1)
        described = await peer.call(K.DESCRIBE_TRANSACTIONS, 0, transactional_ids=(name,))
        assert [int(each.error_code) for each in described.transaction_states] == [code]


async def test_init_refuses_what_no_producer_may_have() -> None:
    peer = Peer()
    assert int((await peer.init(transaction_timeout=0)).error_code) == E.INVALID_TRANSACTION_TIMEOUT
    assert int((await peer.init(transaction_timeout=2**31 - 1)).error_code) == E.INVALID_TRANSACTION_TIMEOUT
    assert int((await peer.init(transaction_timeout=-1)).error_code) == E.INVALID_TRANSACTION_TIMEOUT
    assert int((await peer.init(producer_id=1)).error_code) == E.INVALID_REQUEST
    assert int((await peer.init(producer_epoch=1)).error_code) == E.INVALID_REQUEST
    assert int((await peer.init(name=None)).error_code) == E.INVALID_REQUEST


async def test_operators_see_what_there_is() -> None:
    peer = Peer()
    pair = await peer.pair()
    await peer.add(3, pair, ("t", (1, 0)))
    await peer.pair("idle")
    described = await peer.call(K.DESCRIBE_TRANSACTIONS, 0, transactional_ids=("x", "idle", "nobody", "away"))
    x, idle, nobody, away = described.transaction_states
    assert (x.transaction_state, x.producer_id, x.producer_epoch) == ("Ongoing", *pair)
    assert [(each.topic, each.partitions) for each in x.topics] == [("t", (0, 1))]
    assert x.transaction_timeout.total_seconds() == 60
    assert x.transaction_start_time.timestamp() * 1000 == pytest.approx(peer.rig.wall_ms())
    assert (idle.transaction_state, idle.topics) == ("Empty", ())
    assert idle.transaction_start_time == codec.NO_MOMENT
    assert [int(each.error_code) for each in (x, idle, nobody, away)] == [
        0,
        0,
        E.TRANSACTIONAL_ID_NOT_FOUND,
        E.NOT_COORDINATOR,
    ]
    for version in versions(K.LIST_TRANSACTIONS):
        filters: dict[str, Any] = {
            "state_filters": (),
            "producer_id_filters": (),
            "duration_filter": -1,
            "transactional_id_pattern": None,
        }

        async def found(v: int = version, f: dict[str, Any] = filters, **changes: Any) -> list[str]:
            answer = await peer.call(K.LIST_TRANSACTIONS, v, **f | changes)
            assert int(answer.error_code) == 0
            return sorted(each.transactional_id for each in answer.transaction_states)

        assert await found() == ["idle", "x"]
        assert await found(state_filters=("Ongoing",)) == ["x"]
        assert await found(state_filters=("Ongoing", "Nonsense")) == ["x"]
        assert await found(state_filters=("Nonsense",)) == []
        assert await found(producer_id_filters=(pair[0],)) == ["x"]
        if version >= 1:
            # Kafka's way: what has no beginning is older than anything.
            assert await found(duration_filter=1_000) == ["idle"]
        if version >= 2:
            assert await found(transactional_id_pattern="i.*") == ["idle"]
            bad = await peer.call(K.LIST_TRANSACTIONS, version, **filters | {"transactional_id_pattern": "("})
            assert int(bad.error_code) == E.INVALID_REGULAR_EXPRESSION
    answer = await peer.call(
        K.LIST_TRANSACTIONS,
        0,
        state_filters=("Nonsense", "Dead", "PrepareEpochFence"),
        producer_id_filters=(),
    )
    assert answer.unknown_state_filters == ("Nonsense",)
    peer.host.is_whole = False
    answer = await peer.call(K.LIST_TRANSACTIONS, 0, state_filters=(), producer_id_filters=())
    assert (int(answer.error_code), answer.transaction_states) == (E.COORDINATOR_LOAD_IN_PROGRESS, ())


# -- rights --------------------------------------------------------------------------------------


def denying(*rights: tuple[AclOperation, ResourceType, str]) -> Denying:
    return Denying(lambda *asked: asked in rights)


async def test_rights_come_first() -> None:
    write = (AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, "x")
    code = E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    peer = Peer(denying(write))
    for version in versions(K.INIT_PRODUCER_ID):
        assert int((await peer.init(version)).error_code) == code
    for version in range(4):
        assert await peer.add(version, (1, 0), ("gone", (0,))) == [("gone", 0, code)]
    for version in versions(K.END_TXN):
        assert int((await peer.end(version, (1, 0))).error_code) == code
    asked = {"transactional_id": "x", "producer_id": 1, "producer_epoch": 0, "group_id": "g"}
    for version in versions(K.ADD_OFFSETS_TO_TXN):
        assert int((await peer.call(K.ADD_OFFSETS_TO_TXN, version, **asked)).error_code) == code
    peer = Peer(denying((AclOperation.READ, ResourceType.GROUP, "g")))
    answer = await peer.call(K.ADD_OFFSETS_TO_TXN, 3, **asked)
    assert int(answer.error_code) == E.GROUP_AUTHORIZATION_FAILED


async def test_topics_that_may_not_be_written_to_fail_the_others() -> None:
    peer = Peer(denying((AclOperation.WRITE, ResourceType.TOPIC, "secret")))
    pair = await peer.pair()
    for version in range(4):
        assert await peer.add(
            version, pair, ("t", (0, 9)), ("secret", (0,)), ("__consumer_offsets", (1,))
        ) == [
            ("t", 0, E.OPERATION_NOT_ATTEMPTED),
            ("t", 9, E.UNKNOWN_TOPIC_OR_PARTITION),
            ("secret", 0, E.TOPIC_AUTHORIZATION_FAILED),
            ("__consumer_offsets", 1, E.TOPIC_AUTHORIZATION_FAILED),
        ]
    # Brokers have asked already.
    assert await peer.add(5, pair, ("secret", (0,))) == [("secret", 0, 0)]


async def test_only_brokers_add_for_others() -> None:
    peer = Peer(denying((AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, "kafka-cluster")))
    for version in (4, 5):
        answer = await peer.call(K.ADD_PARTITIONS_TO_TXN, version, transactions=())
        assert int(answer.error_code) == E.CLUSTER_AUTHORIZATION_FAILED


async def test_what_may_not_be_described_is_not_there() -> None:
    hidden = (
        (AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, "idle"),
        (AclOperation.DESCRIBE, ResourceType.TOPIC, "secret"),
    )
    peer = Peer(denying(*hidden))
    pair = await peer.pair()
    await peer.pair("idle")
    await peer.add(5, pair, ("secret", (0,)), ("t", (0,)))
    described = await peer.call(K.DESCRIBE_TRANSACTIONS, 0, transactional_ids=("x", "idle"))
    x, idle = described.transaction_states
    assert [each.topic for each in x.topics] == ["t"]
    assert int(idle.error_code) == E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    listed = await peer.call(K.LIST_TRANSACTIONS, 0, state_filters=(), producer_id_filters=())
    assert [each.transactional_id for each in listed.transaction_states] == ["x"]


# -- answers that come late ----------------------------------------------------------------------


async def test_an_answer_that_the_log_does_not_cover_in_time_is_not_available(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transactions_module, "ANSWER_MS", 1)
    peer = Peer()
    pair = await peer.pair()
    peer.rig.hold = True
    assert await peer.add(3, pair, ("t", (0,))) == [("t", 0, E.COORDINATOR_NOT_AVAILABLE)]
    assert peer.caller.errors == [E.COORDINATOR_NOT_AVAILABLE]
    peer.rig.hold = False
    peer.rig.settle()
    assert len(peer.rig.value("x").partitions) == 1


async def test_what_is_held_for_a_client_that_went_is_not_begun() -> None:
    peer = Peer()
    pair = await peer.pair()
    await peer.add(3, pair, ("t", (0,)))
    peer.rig.hold_markers = True
    assert int((await peer.end(1, pair)).error_code) == 0
    # The next transaction's first partition waits for the markers, and its producer goes.
    asked = {
        "v3_and_below_transactional_id": "x",
        "v3_and_below_producer_id": pair[0],
        "v3_and_below_producer_epoch": pair[1],
    }
    topics = (item(K.ADD_PARTITIONS_TO_TXN, 0, "AddPartitionsToTxnTopic", name="t", partitions=(1,)),)
    answer = peer.send(K.ADD_PARTITIONS_TO_TXN, 0, **asked, v3_and_below_topics=topics)
    peer.rig.settle()
    assert (peer.rig.shard.held_count, answer.done()) == (1, False)
    peer.stream.end()
    assert peer.rig.shard.held_count == 0
    peer.rig.hold_markers = False
    peer.rig.settle()
    assert peer.rig.value("x").status.label == "CompleteCommit"
    answer.cancel()


async def test_who_is_answered_is_held_no_more() -> None:
    peer = Peer()
    dropped: list[Any] = []
    drop = peer.rig.shard.drop
    peer.rig.shard.drop = lambda question: (dropped.append(question), drop(question))[1]  # type: ignore[method-assign,func-returns-value]
    await peer.pair()
    await asyncio.sleep(0)
    peer.stream.end()
    assert dropped == []


class Relayed:
    """A stream of a gateway's; it says whether its client is there when the test does, or at once."""

    def __init__(self, *, is_there: bool = False) -> None:
        self.asks: list[int] = []
        self.is_there = is_there
        self.stream = ClientStream(ask=self._ask)

    def _ask(self, number: int) -> None:
        if self.is_there:
            self.stream.told(number)
        else:
            self.asks.append(number)


async def test_a_late_request_of_a_client_that_went_decides_nothing() -> None:
    """An EndTxn of the old protocol that a hiccup held back would end the next transaction."""
    peer = Peer()
    first, second = Relayed(is_there=True), Relayed()
    peer.stream = first.stream
    pair = await peer.pair()
    assert await peer.add(0, pair, ("t", (0,))) == [("t", 0, 0)]
    first.is_there = False
    asked = {"transactional_id": "x", "producer_id": pair[0], "producer_epoch": pair[1]}
    # The client gives its EndTxn up and sends it again by another connection, then begins anew.
    peer.stream = second.stream
    answer = peer.send(K.END_TXN, 1, **asked, committed=True)
    assert (second.asks, answer.done()) == ([1], False)
    second.stream.told(1)
    peer.rig.settle()
    assert int((await read(K.END_TXN, 1, answer)).error_code) == 0
    assert await peer.add(0, pair, ("t", (1,))) == [("t", 1, 0)]
    assert second.asks == [1]
    # The first EndTxn comes at last, and then the end of its stream.
    peer.stream = first.stream
    late = peer.send(K.END_TXN, 1, **asked, committed=True)
    peer.rig.settle()
    assert (first.asks, late.done()) == ([2], False)
    assert peer.rig.value("x").status.label == "Ongoing"
    first.stream.end()
    first.stream.told(2)
    peer.rig.settle()
    assert peer.rig.value("x").status.label == "Ongoing"
    late.cancel()


async def test_a_late_request_decides_nothing_at_a_coordinator_that_has_just_begun() -> None:
    """The client goes on by another connection, and its coordinator moves before that one is heard of there."""
    peer = Peer()
    gone, other = Relayed(), Relayed(is_there=True)
    peer.stream = other.stream
    pair = await peer.pair()
    assert await peer.add(0, pair, ("t", (0,))) == [("t", 0, 0)]
    peer.rig.fail_over()
    peer.handler = TransactionHandler(peer.host, Rights(AllowAll()), LoopTurns())  # type: ignore[arg-type]
    peer.stream = gone.stream
    asked = {"transactional_id": "x", "producer_id": pair[0], "producer_epoch": pair[1]}
    late = peer.send(K.END_TXN, 1, **asked, committed=True)
    peer.rig.settle()
    assert (gone.asks, late.done()) == ([1], False)
    assert peer.rig.value("x").status.label == "Ongoing"
    late.cancel()


async def test_requests_wait_in_order_while_their_client_is_asked() -> None:
    peer = Peer()
    pair = await peer.pair()
    peer.stream = (other := Relayed()).stream
    topics = (item(K.ADD_PARTITIONS_TO_TXN, 0, "AddPartitionsToTxnTopic", name="t", partitions=(0,)),)
    answers = [
        peer.send(
            K.ADD_PARTITIONS_TO_TXN,
            0,
            v3_and_below_transactional_id="x",
            v3_and_below_producer_id=pair[0],
            v3_and_below_producer_epoch=pair[1],
            v3_and_below_topics=topics,
        ),
        peer.send(
            K.END_TXN,
            1,
            transactional_id="x",
            producer_id=pair[0],
            producer_epoch=pair[1],
            committed=True,
        ),
    ]
    for number in other.asks:
        other.stream.told(number)
        peer.rig.settle()
    for answer in answers:
        assert answer.done()
    assert peer.rig.value("x").status.label == "CompleteCommit"


async def test_who_is_asked_for_nothing_is_not_asked_whether_it_is_there() -> None:
    peer = Peer()
    pair = await peer.pair()
    peer.stream = (other := Relayed()).stream
    # By the new protocol an epoch belongs to one transaction, and looking changes nothing.
    assert await peer.add(5, pair, ("t", (0,))) == [("t", 0, 0)]
    await peer.call(K.DESCRIBE_TRANSACTIONS, 0, transactional_ids=("x",))
    assert int((await peer.end(5, pair)).error_code) == 0
    assert other.asks == []


async def test_a_connection_that_its_client_has_closed_begins_nothing() -> None:
    peer = Peer()
    pair = await peer.pair()
    await peer.add(0, pair, ("t", (0,)))
    peer.stream = ClientStream(is_there=lambda: False)
    late = peer.send(
        K.END_TXN, 1, transactional_id="x", producer_id=pair[0], producer_epoch=pair[1], committed=True
    )
    peer.rig.settle()
    assert (late.done(), peer.rig.value("x").status.label) == (False, "Ongoing")
    late.cancel()


# -- bad input -----------------------------------------------------------------------------------


async def test_cut_requests_are_malformed_and_nothing_worse() -> None:
    peer = Peer()
    pair = await peer.pair()
    samples: list[tuple[ApiKey, dict[str, Any]]] = [
        (K.INIT_PRODUCER_ID, {"transactional_id": "x", "transaction_timeout": 1}),
        (
            K.END_TXN,
            {"transactional_id": "x", "producer_id": pair[0], "producer_epoch": 0, "committed": True},
        ),
        (
            K.ADD_OFFSETS_TO_TXN,
            {"transactional_id": "x", "producer_id": 1, "producer_epoch": 0, "group_id": "g"},
        ),
        (K.DESCRIBE_TRANSACTIONS, {"transactional_ids": ("x",)}),
    ]
    for key, values in samples:
        for version in versions(key):
            given = {"producer_id": -1, "producer_epoch": -1} | values
            request = codec.build(codec.request_type(key, version), **given)
            frame = request_header(key, version, 9, "client") + codec.encode_body(request)
            body = len(codec.encode_body(request))
            for left in range(body):
                with pytest.raises(Malformed):
                    peer.send_frame(frame[: len(frame) - body + left])


def test_every_request_has_a_whole_failure_in_every_version() -> None:
    for key in VERSIONS:
        for version in versions(key):
            schema = codec.request_type(key, version)
            request = codec.build(schema, **_sample(key, version))
            frame = request_header(key, version, 9, "client") + codec.encode_body(request)
            response = TRANSACTION_TABLE[key](parse_request_header(frame), frame, E.NOT_COORDINATOR, None)
            assert response is not None
            _, entity = codec.decode_response(key, version, response)
            assert "not_coordinator" in repr(entity), (key, version)


def _sample(key: ApiKey, version: int) -> dict[str, Any]:
    def one(kind: str, **values: Any) -> tuple[Any]:
        return (item(key, version, kind, **values),)

    producer = {"producer_id": 1, "producer_epoch": 0}
    if key is K.ADD_PARTITIONS_TO_TXN:
        topics = one("AddPartitionsToTxnTopic", name="t", partitions=(0,))
        if version >= 4:
            return {"transactions": ()}
        return {
            "v3_and_below_transactional_id": "x",
            "v3_and_below_producer_id": 1,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": topics,
        }
    if key is K.WRITE_TXN_MARKERS:
        topics = one("WritableTxnMarkerTopic", name="t", partition_indexes=(0,))
        marker = {
            "transaction_result": True,
            "topics": topics,
            "coordinator_epoch": 0,
            "transaction_version": 0,
        }
        return {"markers": one("WritableTxnMarker", **producer, **marker)}
    if key is K.TXN_OFFSET_COMMIT:
        partitions = one(
            "TxnOffsetCommitRequestPartition",
            partition_index=0,
            committed_offset=1,
            committed_leader_epoch=-1,
            committed_metadata=None,
        )
        topics = one("TxnOffsetCommitRequestTopic", name="t", partitions=partitions)
        member = {"generation_id": -1, "member_id": "", "group_instance_id": None}
        return {"transactional_id": "x", "group_id": "g", "topics": topics, **producer, **member}
    if key is K.LIST_TRANSACTIONS:
        return {
            "state_filters": (),
            "producer_id_filters": (),
            "duration_filter": -1,
            "transactional_id_pattern": None,
        }
    if key is K.DESCRIBE_TRANSACTIONS:
        return {"transactional_ids": ("x",)}
    return {
        "transactional_id": "x",
        "transaction_timeout": 1,
        "committed": True,
        "group_id": "g",
        **producer,
    }
