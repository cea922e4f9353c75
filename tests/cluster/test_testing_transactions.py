"""What `penstock.testing` does to transactions: they hang, and coordinators move, of a broker and of a cluster."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from penstock.cli import transaction_wire
from penstock.testing import Broker, broker, cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
CALL_S = 60.0


def commit_while_the_coordinator_moves(made: Broker) -> list[tuple[str, str]]:
    """Three transactions; where the coordinator was and where it is then."""
    made.create_topic("moved")
    producer = Producer({**made.client_config, "transactional.id": "mover"})
    producer.init_transactions(CALL_S)
    moves = []
    for number in range(3):
        producer.begin_transaction()
        producer.produce("moved", b"%d" % number)
        was = made.transaction_coordinator("mover")
        moves.append((was, made.move_coordinator("mover")))
        assert made.transaction_coordinator("mover") == moves[-1][1]
        producer.commit_transaction(CALL_S)
    consumer = Consumer({**made.client_config, "group.id": "g", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition("moved", 0, 0)])
    found: list[bytes | None] = []
    while len(found) < 3:
        found += [m.value() for m in consumer.consume(10, timeout=1) if m.error() is None]
    consumer.close()
    assert found == [b"0", b"1", b"2"]
    return moves


def test_a_broker_alone_is_its_own_next_coordinator() -> None:
    with broker() as made:
        assert commit_while_the_coordinator_moves(made) == [("node-1", "node-1")] * 3


def test_coordinators_move_and_transactions_hang_in_a_cluster() -> None:
    with cluster(seed=1) as made:
        assert all(was != now for was, now in commit_while_the_coordinator_moves(made))
        hanging = made.hang_transaction("moved")
        place = ("moved", 0)

        def open_ids() -> list[int]:
            known = transaction_wire.read_cluster(made.bootstrap, "moved")
            found, failed = transaction_wire.open_producers(known, [place])
            assert not failed
            return [each.producer_id for each in found]

        assert open_ids() == [hanging.producer_id]
        made.move_coordinator("mover")  # no coordinator knows of it, none ends it
        assert open_ids() == [hanging.producer_id]
        made.heal()
        assert open_ids() == []
