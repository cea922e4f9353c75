"""DeleteRecords by real clients, through the gateway and straight at the leaders."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka.admin import KafkaAdminClient
from kafka.structs import TopicPartition as KafkaPythonPartition

from penstock.local.cluster import LocalCluster
from support.kafka import client_config, create_topic, produce, read_all, wait_for_full_isr
from support.waiting import wait_for

TIMEOUT_S = 60.0


@pytest.mark.parametrize("mode", ["proxy", "direct"])
def test_records_are_deleted_on_every_leader(shared_cluster: LocalCluster, mode: str) -> None:
    bootstrap = shared_cluster.bootstrap if mode == "proxy" else shared_cluster.direct_bootstrap
    topic = f"deleted-{uuid.uuid4().hex[:8]}"
    create_topic(bootstrap, topic, 6, 3)
    wait_for_full_isr(bootstrap, topic)
    produce(bootstrap, topic, 600, keys=60)  # so that every partition has some
    ends = dict.fromkeys(range(6), 0)
    for record in read_all(bootstrap, topic):
        ends[record.partition] = max(ends[record.partition], record.offset + 1)
    admin = AdminClient(client_config(bootstrap))
    wanted = [TopicPartition(topic, number, end // 2) for number, end in ends.items()]
    done = admin.delete_records(wanted, request_timeout=TIMEOUT_S, operation_timeout=TIMEOUT_S)
    assert {p.partition: f.result(TIMEOUT_S).low_watermark for p, f in done.items()} == {
        number: end // 2 for number, end in ends.items()
    }
    # A consumer that begins at the start gets what is left.
    left = {(r.partition, r.offset) for r in read_all(bootstrap, topic)}
    assert left == {(number, offset) for number, end in ends.items() for offset in range(end // 2, end)}
    (future,) = admin.delete_records(
        [TopicPartition(topic, 0, ends[0] + 1)], request_timeout=TIMEOUT_S
    ).values()
    with pytest.raises(KafkaException, match="OFFSET_OUT_OF_RANGE"):
        future.result(TIMEOUT_S)


def test_another_client_deletes_up_to_the_end(shared_cluster: LocalCluster) -> None:
    topic = f"deleted-{uuid.uuid4().hex[:8]}"
    create_topic(shared_cluster.bootstrap, topic, 1, 3)
    produce(shared_cluster.bootstrap, topic, 50)
    admin = KafkaAdminClient(bootstrap_servers=shared_cluster.bootstrap)
    try:
        admin.delete_records({KafkaPythonPartition(topic, 0): -1}, timeout_ms=60_000)
    finally:
        admin.close()
    wait_for(lambda: not read_all(shared_cluster.bootstrap, topic), "nothing left")
