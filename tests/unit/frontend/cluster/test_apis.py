"""The Kafka APIs answered from metadata, over a real listener and real gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Mapping
from typing import Any
from uuid import UUID

import pytest
from prometheus_client import generate_latest

from penstock_core.errors import ErrorCode, InvariantBroken, PenstockError
from penstock_core.metadata.image import Endpoint, MetadataImage, NodeImage
from penstock_core.metadata.levels import METADATA_LEVEL, TRANSACTIONS_LEVEL
from penstock_core.topics import TRANSACTIONS_TOPIC
from penstock_frontend.authorizer import AllowAll, Operation
from penstock_frontend.cluster.apis import ApiOptions, ClusterApis, admit
from penstock_frontend.listener.listener import CLOSE, Connection, KafkaListener, Response
from penstock_frontend.listener.metrics import KafkaMetrics
from penstock_frontend.producer_ids import ProducerIdAllocator
from penstock_kafka.error_responses.data import ERROR_FORMS
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import SUPPORTED, ApiKey, Route
from penstock_kafka.wire.frames import RequestHeader, request_header
from penstock_proto.v1 import common_pb2, metadata_pb2
from penstock_runtime.controller_client import ControllerClient
from penstock_runtime.grpc_tools import ChannelPool
from penstock_runtime.lifecycle import Lifecycle, monotonic_ms
from penstock_runtime.metadata_client import MetadataClient
from penstock_runtime.settings import ListenerSettings
from support.denials import Denying
from support.kafka_specs import change_spec
from unit.runtime.fake_controllers import Cluster, FakeController, controllers

Run = Callable[[Coroutine[Any, Any, Any]], Any]


class Addresses:
    """Every node is at the address that the client dialled."""

    def node_address(self, connection: Connection, node: NodeImage) -> tuple[str, int] | None:
        return connection.local_host, connection.local_port

    def view_key(self, connection: Connection) -> Hashable:
        return connection.local_host, connection.local_port

    def apis(self, image: MetadataImage) -> Mapping[int, tuple[int, int]]:
        return SUPPORTED


def deny_topic(topic: str) -> Denying:
    """No right to anything of one topic, nor to make or delete any."""
    made_or_deleted = (Operation.CREATE, Operation.DELETE)
    return Denying(lambda operation, _, name: name == topic or operation in made_or_deleted)


class Handler:
    def __init__(self, apis: ClusterApis, metrics: KafkaMetrics) -> None:
        self.apis = apis
        self.metrics = metrics

    def handle(self, connection: Connection, frame: bytearray) -> Response | Awaitable[Response]:
        admitted = admit(connection, frame, self.metrics)
        if not isinstance(admitted, RequestHeader):
            return admitted
        if not self.apis.handles(admitted.api_key):
            return CLOSE
        return self.apis.answer(connection, admitted, frame)


def client_port(client: Client) -> int:
    port: int = client.writer.get_extra_info("peername")[1]
    return port


class Client:
    """A Kafka client of one connection."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, metadata: MetadataClient
    ) -> None:
        self.reader = reader
        self.writer = writer
        self.metadata = metadata
        self.correlation_id = 0

    async def raw(self, key: int, version: int, body: bytes) -> bytes:
        self.correlation_id += 1
        frame = request_header(key, version, self.correlation_id, "test") + body
        self.writer.write(struct.pack(">i", len(frame)) + frame)
        (length,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(length)

    async def call(self, key: int, version: int, /, **values: Any) -> Any:
        request = codec.build(codec.request_type(key, version), **values)
        response = await self.raw(key, version, codec.encode_body(request))
        correlation_id, entity = codec.decode_response(key, version, response)
        assert correlation_id == self.correlation_id
        return entity


def of(key: int, version: int, kind: str, /, **values: Any) -> Any:
    return codec.build(codec.entity_type(key, version, kind, request=True), **values)


def node(node_id: int, *, fenced: bool = False) -> metadata_pb2.MetadataRecord:
    return metadata_pb2.MetadataRecord(
        node=metadata_pb2.NodeRecord(
            node_id=node_id, fenced=fenced, rack="r/h1", grpc=common_pb2.Endpoint(host="h", port=1)
        )
    )


@contextlib.asynccontextmanager
async def serving(
    authorizer: Any = None,
    **more: Any,
) -> AsyncIterator[tuple[Client, Cluster, FakeController, Lifecycle, Endpoint]]:
    async with controllers(1) as (cluster, (controller,)):
        cluster.commit(
            metadata_pb2.MetadataRecord(cluster=metadata_pb2.ClusterRecord(cluster_id=bytes(15) + b"c")),
            node(1),
            node(2),
            node(3, fenced=True),
        )
        lifecycle = Lifecycle("test")
        metrics = KafkaMetrics.of(lifecycle)
        channels = ChannelPool()
        client = ControllerClient([controller.endpoint.address], "test", channels)
        metadata = MetadataClient(client, "test", monotonic_ms)
        following = asyncio.create_task(metadata.run())
        ids = ProducerIdAllocator(client, "test")
        apis = ClusterApis(
            metadata, client, ids, Addresses(), authorizer or AllowAll(), metrics, ApiOptions(**more)
        )
        listener = KafkaListener(
            ListenerSettings(name="PROXY", bind="127.0.0.1:0"), Handler(apis, metrics), lifecycle
        )
        endpoint = await listener.start()
        assert await metadata.wait_for_version(1, 60_000)
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        try:
            yield Client(reader, writer, metadata), cluster, controller, lifecycle, endpoint
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            await listener.stop()
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following
            await ids.close()
            await channels.close()


async def apis_alone() -> ClusterApis:
    """One whose controllers are never there."""
    channels = ChannelPool()
    client = ControllerClient(["127.0.0.1:1"], "test", channels)
    metadata = MetadataClient(client, "test", monotonic_ms)
    try:
        ids = ProducerIdAllocator(client, "test")
        return ClusterApis(metadata, client, ids, Addresses(), AllowAll(), KafkaMetrics())
    finally:
        await channels.close()


def test_an_api_that_nobody_here_answers_is_found_at_the_start(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(apis_alone())
    change_spec(monkeypatch, ApiKey.FETCH, route=Route.GATEWAY)
    with pytest.raises(InvariantBroken, match=r"^handlers of ClusterApis: Fetch .* has no entry"):
        run(apis_alone())


def test_an_api_without_an_error_response_is_found_at_the_start(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(ERROR_FORMS, ApiKey.CREATE_TOPICS)
    with pytest.raises(InvariantBroken, match=r"^error responses: CreateTopics .* has no entry"):
        run(apis_alone())


def test_a_version_without_a_schema_is_found_at_the_start(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    change_spec(monkeypatch, ApiKey.CREATE_TOPICS, versions=(1, 7))
    with pytest.raises(InvariantBroken, match=r"^CreateTopics: kio has no schema of the versions \[1\]"):
        run(apis_alone())


def test_topics_come_by_themselves_where_that_is_allowed(run: Run) -> None:
    def asked(version: int, *names: str, allow: bool = True) -> dict[str, Any]:
        topics = [
            of(ApiKey.METADATA, version, "MetadataRequestTopic", name=name, topic_id=None) for name in names
        ]
        return {"topics": tuple(topics), "allow_auto_topic_creation": allow}

    async def main() -> None:
        async with serving(auto_create=True) as (client, cluster, controller, _lifecycle, _e):
            kept = await client.call(
                ApiKey.METADATA,
                9,
                **asked(9, "new", allow=False),
                include_cluster_authorized_operations=False,
                include_topic_authorized_operations=False,
            )
            assert int(kept.topics[0].error_code) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            made = await client.call(
                ApiKey.METADATA, 5, **asked(5, "new", "new", "a b", "__consumer_offsets")
            )
            codes = {t.name: int(t.error_code) for t in made.topics}
            assert codes["new"] == 0
            assert codes["a b"] == ErrorCode.INVALID_TOPIC_EXCEPTION
            assert codes["__consumer_offsets"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert list(cluster.image.topic_ids) == ["new"]
            assert controller.calls.count("CreateTopics") == 1
            await client.call(ApiKey.METADATA, 1, topics=asked(1, "older")["topics"])
            assert set(cluster.image.topic_ids) == {"new", "older"}, "versions without the field allow it"
        async with serving() as (client, cluster, _c, _l, _e):
            answer = await client.call(ApiKey.METADATA, 5, **asked(5, "new"))
            assert int(answer.topics[0].error_code) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert not cluster.image.topic_ids

    run(main())


def test_api_versions_in_every_version_and_beyond(run: Run) -> None:
    async def main() -> None:
        async with serving() as (client, _, _c, lifecycle, _e):
            for version in range(5):
                values = {"client_software_name": "x", "client_software_version": "1"} if version >= 3 else {}
                response = await client.call(ApiKey.API_VERSIONS, version, **values)
                ranges = {a.api_key: (a.min_version, a.max_version) for a in response.api_keys}
                assert ranges == dict(SUPPORTED)
            for name, software_version in (("", "1"), ("a b", "1"), ("-x", "1"), ("ok", "")):
                values = {"client_software_name": name, "client_software_version": software_version}
                response = await client.call(ApiKey.API_VERSIONS, 3, **values)
                assert (int(response.error_code), response.api_keys) == (ErrorCode.INVALID_REQUEST, ())
            raw = await client.raw(ApiKey.API_VERSIONS, 77, b"\x00\x02x\x021\x00")
            low, high = SUPPORTED[ApiKey.API_VERSIONS]
            assert raw[4:] == struct.pack(">hihhh", 35, 1, ApiKey.API_VERSIONS, low, high)
            assert b'code="UNSUPPORTED_VERSION"' in generate_latest(lifecycle.registry)

    run(main())


@pytest.mark.parametrize(
    ("key", "version", "reason"),
    [(ApiKey.METADATA, 99, "version"), (ApiKey.FETCH, 3, "version"), (777, 0, "header"), (0, 99, "version")],
)
def test_other_unsupported_versions_close_the_connection(
    run: Run, key: int, version: int, reason: str
) -> None:
    async def main() -> None:
        async with serving() as (client, _, _c, lifecycle, _e):
            client.writer.write(struct.pack(">ihhihb", 11, key, version, 1, -1, 0))
            assert await client.reader.read() == b""
            assert f'bad_frames_total{{listener="PROXY",reason="{reason}"}} 1.0'.encode() in generate_latest(
                lifecycle.registry
            )

    run(main())


def test_a_body_that_cannot_be_read_closes_the_connection(run: Run) -> None:
    async def main() -> None:
        for key, version, body in [
            (ApiKey.METADATA, 5, b"\x7f\xff\xff\xff"),
            (ApiKey.CREATE_TOPICS, 7, b"\xff\xff\xff\xff\x0f"),
            (ApiKey.INIT_PRODUCER_ID, 5, b""),
        ]:
            async with serving() as (client, _, _c, lifecycle, _e):
                with pytest.raises(asyncio.IncompleteReadError):
                    await client.raw(key, version, body)
                assert b'reason="body"} 1.0' in generate_latest(lifecycle.registry)

    run(main())


def test_create_describe_delete(run: Run) -> None:
    async def main() -> None:
        async with serving() as (client, _, _c, lifecycle, endpoint):
            for version in range(2, 8):
                name = f"topic-{version}"
                key = (ApiKey.CREATE_TOPICS, version)
                topic = of(
                    *key,
                    "CreatableTopic",
                    name=name,
                    num_partitions=3,
                    replication_factor=1,
                    assignments=(),
                    configs=(of(*key, "CreatableTopicConfig", name="retention.ms", value="5"),),
                )
                for validate_only in (True, False):  # the same answer, but for the id
                    response = await client.call(
                        *key, topics=(topic,), timeout=60_000, validate_only=validate_only
                    )
                    assert [(t.name, int(t.error_code)) for t in response.topics] == [(name, 0)]
                    if version >= 5:
                        assert response.topics[0].num_partitions == 3
                        made = {c.name: (c.value, c.config_source) for c in response.topics[0].configs}
                        assert (made["retention.ms"], made["segment.bytes"]) == (("5", 1), ("1073741824", 5))
                again = await client.call(*key, topics=(topic,), timeout=0, validate_only=True)
                assert [int(t.error_code) for t in again.topics] == [36]
                # The answer came after this process had applied the topic.
                shown = await client.call(ApiKey.METADATA, 5, topics=None, allow_auto_topic_creation=False)
                assert name in [t.name for t in shown.topics]
            assert b'penstock_kafka_errors_total{api="CreateTopics",code="TOPIC_ALREADY_EXISTS"} 6.0' in (
                generate_latest(lifecycle.registry)
            )
            for version in range(13):
                shown = await client.call(
                    ApiKey.METADATA,
                    version,
                    topics=() if version == 0 else None,
                    allow_auto_topic_creation=False,
                    include_topic_authorized_operations=False,
                    include_cluster_authorized_operations=False,
                )
                assert {b.node_id for b in shown.brokers} == {1, 2}
                assert {(b.host, b.port) for b in shown.brokers} == {(endpoint.host, endpoint.port)}
                assert len(shown.topics) == 6
            for version in range(1, 7):
                key = (ApiKey.DELETE_TOPICS, version)
                names = [f"topic-{version + 1}", "none"]
                if version < 6:
                    deleted = await client.call(*key, topic_names=tuple(names), timeout=60_000)
                else:
                    states = (
                        of(*key, "DeleteTopicState", name=names[0], topic_id=None),
                        of(*key, "DeleteTopicState", name=None, topic_id=UUID(int=5)),
                        of(*key, "DeleteTopicState", name="twice", topic_id=None),
                        of(*key, "DeleteTopicState", name="twice", topic_id=None),
                        of(*key, "DeleteTopicState", name=None, topic_id=None),
                    )
                    deleted = await client.call(*key, topics=states, timeout=60_000)
                    codes = {(t.name, t.topic_id): int(t.error_code) for t in deleted.responses}
                    assert codes.pop(("twice", None)) == 42
                    assert codes.pop((None, None)) == 42
                    assert codes.pop((None, UUID(int=5))) == 100
                    assert [(k[0], v) for k, v in codes.items()] == [(names[0], 0)]
                    continue
                assert [(t.name, int(t.error_code)) for t in deleted.responses] == [
                    (names[0], 0),
                    ("none", 3),
                ]

    run(main())


def test_create_topics_refuses_what_contradicts_itself(run: Run) -> None:
    async def main() -> None:
        async with serving() as (client, _, _c, _l, _e):
            key = (ApiKey.CREATE_TOPICS, 7)

            def topic(name: str, partitions: int = 1, **values: Any) -> Any:
                values.setdefault("assignments", ())
                values.setdefault("configs", ())
                return of(
                    *key,
                    "CreatableTopic",
                    name=name,
                    num_partitions=partitions,
                    replication_factor=partitions,
                    **values,
                )

            def assigned(*indexes: int) -> Any:
                return tuple(
                    of(*key, "CreatableReplicaAssignment", partition_index=i, broker_ids=(1,))
                    for i in indexes
                )

            topics = (
                topic("twice"),
                topic("twice"),
                topic("both", assignments=assigned(0)),
                topic("gap", -1, assignments=assigned(0, 2)),
                topic("fine", -1, assignments=assigned(1, 0)),
                topic("null", configs=(of(*key, "CreatableTopicConfig", name="a", value=None),)),
            )
            response = await client.call(*key, topics=topics, timeout=60_000, validate_only=False)
            assert {t.name: int(t.error_code) for t in response.topics} == {
                "twice": 42,
                "both": 42,
                "gap": 39,
                "fine": 0,
                "null": 40,
            }
            assert all(t.error_message for t in response.topics if t.error_code)

    run(main())


def test_create_partitions_carries_the_controllers_verdict(run: Run) -> None:
    async def main() -> None:
        async with serving() as (client, _, _c, _l, _e):
            for version in range(4):
                key = (ApiKey.CREATE_PARTITIONS, version)
                topic = of(*key, "CreatePartitionsTopic", name="t", count=1, assignments=None)
                response = await client.call(*key, topics=(topic,), timeout=60_000, validate_only=False)
                assert [(r.name, int(r.error_code), r.error_message) for r in response.results] == [
                    ("t", 37, "1 is too few")
                ]

    run(main())


def test_who_gets_no_producer_id_in_time_asks_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older Java producers end for good at REQUEST_TIMED_OUT (Kafka: RPCProducerIdManager.generateProducerId)."""

    async def no_block(*_: object) -> int:
        raise PenstockError(ErrorCode.REQUEST_TIMED_OUT, "no controller")

    monkeypatch.setattr(ProducerIdAllocator, "allocate", no_block)

    async def main() -> None:
        async with serving() as (client, *_):
            values = {"transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}
            response = await client.call(ApiKey.INIT_PRODUCER_ID, 4, transactional_id=None, **values)
            assert response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    run(main())


def test_producer_ids_and_coordinators(run: Run) -> None:
    async def main() -> None:
        async with serving() as (client, _, controller, _l, _e):
            given = []
            for version in range(6):
                key = (ApiKey.INIT_PRODUCER_ID, version)
                values = {"transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}
                response = await client.call(*key, transactional_id=None, **values)
                assert (int(response.error_code), response.producer_epoch) == (0, 0)
                given.append(response.producer_id)
                refused = await client.call(*key, transactional_id="t", **values)
                assert int(refused.error_code) == 16
                empty = await client.call(*key, transactional_id="", **values)
                assert int(empty.error_code) == 42
            assert len(set(given)) == 6
            assert controller.calls == ["AllocateProducerIds"]
            for version in range(7):
                found = await client.call(
                    ApiKey.FIND_COORDINATOR, version, key="g", key_type=0, coordinator_keys=("g",)
                )
                item = found.coordinators[0] if version >= 4 else found
                # The topic was made for it; it has one partition here, led by node 1.
                assert (int(item.error_code), item.node_id, item.port) == (0, 1, client_port(client))
                if version >= 1:
                    unknown = await client.call(
                        ApiKey.FIND_COORDINATOR, version, key="t", key_type=2, coordinator_keys=("t",)
                    )
                    item = unknown.coordinators[0] if version >= 4 else unknown
                    assert (int(item.error_code), item.node_id) == (42, -1)
            assert controller.calls == ["AllocateProducerIds", "CreateTopics"]

    run(main())


def test_coordinators_of_transactions(run: Run) -> None:
    """Their topic is made when the first is looked for, but not while there may be processes that know none."""

    async def main() -> None:
        async with serving() as (client, cluster, controller, _l, _e):

            async def find(version: int) -> Any:
                keys: dict[str, Any] = {"key": "t", "coordinator_keys": ("t", "u")}
                found = await client.call(ApiKey.FIND_COORDINATOR, version, key_type=1, **keys)
                return found.coordinators[0] if version >= 4 else found

            early = await find(6)
            assert (int(early.error_code), early.node_id) == (15, -1)
            assert "penstock cluster upgrade" in early.error_message
            assert controller.calls == []
            feature = metadata_pb2.FeatureRecord(name=METADATA_LEVEL, level=TRANSACTIONS_LEVEL)
            risen = cluster.commit(metadata_pb2.MetadataRecord(feature=feature))
            assert await client.metadata.wait_for_version(risen, 60_000)
            for version in range(1, 7):
                item = await find(version)
                assert (int(item.error_code), item.node_id, item.port) == (0, 1, client_port(client))
            assert controller.calls == ["CreateTopics"]
            assert client.metadata.image.topic(TRANSACTIONS_TOPIC) is not None

    run(main())


def test_describe_cluster(run: Run) -> None:
    async def main() -> None:
        async with serving() as (client, _, _c, _l, endpoint):
            for version in range(3):
                shown = await client.call(
                    ApiKey.DESCRIBE_CLUSTER,
                    version,
                    include_cluster_authorized_operations=False,
                    endpoint_type=1,
                    include_fenced_brokers=True,
                )
                assert {b.broker_id for b in shown.brokers} == ({1, 2, 3} if version == 2 else {1, 2})
                assert {(b.host, b.port, b.rack) for b in shown.brokers} == {
                    (endpoint.host, endpoint.port, "r")
                }
                assert shown.controller_id == 1
                assert shown.cluster_id == "AAAAAAAAAAAAAAAAAAAAYw"
            refused = await client.call(
                ApiKey.DESCRIBE_CLUSTER,
                1,
                include_cluster_authorized_operations=False,
                endpoint_type=2,
            )
            assert int(refused.error_code) == 114

    run(main())


def test_describe_topic_partitions_in_pages(run: Run) -> None:
    async def main() -> None:
        async with serving() as (client, cluster, _, _l, _e):
            key = (ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0)
            topics = [(f"t{i}", i + 1) for i in range(4)]
            for name, count in topics:
                topic_id = name.encode().rjust(16, b"\0")
                cluster.commit(
                    metadata_pb2.MetadataRecord(topic=metadata_pb2.TopicRecord(topic_id=topic_id, name=name)),
                    *(
                        metadata_pb2.MetadataRecord(
                            partition=metadata_pb2.PartitionRecord(
                                topic_id=topic_id, partition=i, replicas=[1, 3], isr=[1], leader=1
                            )
                        )
                        for i in range(count)
                    ),
                )
            assert await client.metadata.wait_for_version(cluster.image.version, 60_000)
            seen = []
            cursor = None
            pages = 0
            while True:
                page = await client.call(*key, topics=(), response_partition_limit=3, cursor=cursor)
                pages += 1
                for topic in page.topics:
                    seen += [(topic.name, p.partition_index) for p in topic.partitions]
                    assert all(p.offline_replicas == (3,) for p in topic.partitions)
                if page.next_cursor is None:
                    break
                cursor = of(
                    *key,
                    "Cursor",
                    topic_name=page.next_cursor.topic_name,
                    partition_index=page.next_cursor.partition_index,
                )
            assert seen == [(name, i) for name, count in topics for i in range(count)]
            assert pages == 4
            names = tuple(of(*key, "TopicRequest", name=n) for n in ("t1", "none", "a b"))
            page = await client.call(*key, topics=names, response_partition_limit=2000, cursor=None)
            assert [(t.name, int(t.error_code)) for t in page.topics] == [("a b", 17), ("none", 3), ("t1", 0)]

    run(main())


def test_every_topic_goes_past_the_authorizer(run: Run) -> None:
    async def main() -> None:
        async with serving(deny_topic("secret")) as (client, cluster, controller, _, _e):
            for name in ("secret", "open"):
                topic_id = name.encode().rjust(16, b"\0")
                cluster.commit(
                    metadata_pb2.MetadataRecord(topic=metadata_pb2.TopicRecord(topic_id=topic_id, name=name))
                )
            assert await client.metadata.wait_for_version(cluster.image.version, 60_000)
            shown = await client.call(
                ApiKey.METADATA,
                9,
                topics=None,
                allow_auto_topic_creation=False,
                include_topic_authorized_operations=False,
                include_cluster_authorized_operations=False,
            )
            assert [t.name for t in shown.topics] == ["open"]
            key = (ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0)
            page = await client.call(*key, topics=(), response_partition_limit=2000, cursor=None)
            assert [t.name for t in page.topics] == ["open"]
            deleted = await client.call(ApiKey.DELETE_TOPICS, 5, topic_names=("secret",), timeout=1)
            assert [int(t.error_code) for t in deleted.responses] == [29]
            key = (ApiKey.CREATE_TOPICS, 7)
            topic = of(
                *key,
                "CreatableTopic",
                name="new",
                num_partitions=1,
                replication_factor=1,
                assignments=(),
                configs=(),
            )
            made = await client.call(*key, topics=(topic,), timeout=1000, validate_only=False)
            assert [int(t.error_code) for t in made.topics] == [29]
            assert controller.calls == []

    run(main())


def test_random_requests_are_answered_or_close_the_connection(run: Run) -> None:
    async def main() -> None:
        seed = random.randrange(2**32)
        print("seed", seed)
        rng = random.Random(seed)
        async with serving() as (_, _c, _m, lifecycle, endpoint):
            for _ in range(150):
                reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
                key = rng.choice(list(SUPPORTED))
                version = rng.randint(*SUPPORTED[key])
                # Lengths and counts are mostly small numbers: so are most of these bytes.
                body = bytes(rng.choice([0, 0, 0, 1, 2, 3, 255, rng.randrange(256)]) for _ in range(60))
                frame = request_header(key, version, 1, None) + body[: rng.randrange(60)]
                writer.write(struct.pack(">i", len(frame)) + frame)
                writer.write_eof()
                await reader.read()
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
            assert b"penstock_unhandled_errors_total 0.0" in generate_latest(lifecycle.registry)

    run(main())
