"""Records far above what one gRPC message carries, with a stock client, through every way in."""

from __future__ import annotations

import random
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition

from penstock.local.cluster import LocalCluster
from penstock_core.config.topic import TopicConfig
from penstock_kafka.records.read import read_all
from penstock_proto.fast.pieces import Assembly, Piece
from penstock_proto.v1 import data_pb2, gateway_pb2_grpc
from support.cluster import running_cluster, start_ready
from support.kafka import busiest_leader, client_config, create_topic, wait_for_full_isr
from support.waiting import wait_for

grpc = pytest.importorskip("grpc")

MIB = 1 << 20
SIZES = (100, 8 * MIB + MIB // 2, 20 * MIB, 90 * MIB, 100)
LARGEST = str(96 * MIB)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path_factory.mktemp("large"), controllers=1, steady=True) as running:
        yield running


def values() -> list[bytes]:
    rng = random.Random(20261122)
    return [rng.randbytes(size) for size in SIZES]


def produce(bootstrap: str, topic: str, wanted: list[bytes]) -> None:
    producer = Producer(
        client_config(
            bootstrap,
            **{
                "message.max.bytes": 97 * MIB,
                "message.timeout.ms": 240_000,
                "request.timeout.ms": 120_000,
                "enable.idempotence": True,
                "linger.ms": 0,
            },
        )
    )
    failed: list[object] = []
    for value in wanted:
        producer.produce(topic, value, on_delivery=lambda error, _: failed.append(error) if error else None)
        assert producer.flush(240) == 0
    assert not failed


def digests(bootstrap: str, topic: str, count: int) -> list[str]:
    consumer = Consumer(
        client_config(
            bootstrap,
            **{
                "group.id": "tests-unused",
                "enable.auto.commit": False,
                "check.crcs": True,
                "fetch.message.max.bytes": MIB,
                "receive.message.max.bytes": 200 * MIB,
            },
        )
    )
    out: list[str] = []
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        while len(out) < count:
            message = consumer.poll(120)
            assert message is not None, f"{len(out)} of {count} came"
            error = message.error()
            if error is not None:
                assert error.retriable(), error
                continue
            out.append(sha256(message.value() or b"").hexdigest())
    finally:
        consumer.close()
    return out


def logs(cluster: LocalCluster, topic: str) -> list[Path]:
    return sorted(cluster.directory.glob(f"**/{topic}-0/*.log"))


def on_all_disks(cluster: LocalCluster, topic: str, count: int) -> bool:
    found = logs(cluster, topic)
    return len(found) == count and len({sha256(path.read_bytes()).hexdigest() for path in found}) == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", ["proxy", "direct"])
def test_a_stock_client_writes_and_reads_large_records(cluster: LocalCluster, way: str) -> None:
    bootstrap = cluster.bootstrap if way == "proxy" else cluster.direct_bootstrap
    topic = f"large-{way}"
    create_topic(cluster.bootstrap, topic, 1, 3, max_message_bytes=LARGEST)
    wanted = values()
    produce(bootstrap, topic, wanted)
    assert digests(bootstrap, topic, len(wanted)) == [sha256(value).hexdigest() for value in wanted]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_follower_that_was_away_catches_up_over_large_records(cluster: LocalCluster) -> None:
    topic = "large-behind"
    create_topic(cluster.bootstrap, topic, 1, 3, max_message_bytes=LARGEST)
    wanted = values()
    produce(cluster.bootstrap, topic, wanted[:2])
    leader = busiest_leader(cluster.bootstrap, topic)
    follower = next(name for name in ("node-1", "node-2", "node-3") if name != leader)
    cluster.kill(follower)
    produce(cluster.bootstrap, topic, wanted[2:])
    start_ready(cluster, follower)
    wait_for_full_isr(cluster.bootstrap, topic, 240)
    wait_for(lambda: on_all_disks(cluster, topic, 3), "the same bytes on every disk", 120)
    # And by the native API, in pieces.
    with grpc.insecure_channel(cluster.gateways_alive("grpc")[0]) as channel:
        call = gateway_pb2_grpc.GatewayStub(channel).FetchRange(
            data_pb2.FetchRangeRequest(topic=topic, from_offset=0, to_offset=-1, takes_pieces=True)
        )
        assembly, found = Assembly(1 << 30, may_restart=True), []
        for response in call:
            assert not response.error.code, response.error.message
            batches = response.records
            if response.HasField("piece"):
                piece = response.piece
                batches = assembly.add(
                    Piece(piece.base_offset, piece.total_bytes, piece.position, piece.data)
                )
            found += [sha256(record.value or b"").hexdigest() for record in read_all(batches or b"")]
    assert found == [sha256(value).hexdigest() for value in wanted]


def test_what_is_above_the_setting_is_refused(cluster: LocalCluster) -> None:
    topic = "not-so-large"
    create_topic(cluster.bootstrap, topic, 1, 3)
    assert TopicConfig().max_message_bytes == MIB + 12
    producer = Producer(client_config(cluster.bootstrap, **{"message.max.bytes": 20 * MIB}))
    errors: list[object] = []
    producer.produce(topic, bytes(9 * MIB), on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(120) == 0
    assert "MSG_SIZE_TOO_LARGE" in str(errors)
    with pytest.raises(KafkaException, match="1073741824"):
        create_topic(cluster.bootstrap, "too-large", 1, 3, max_message_bytes=str((1 << 30) + 1))
