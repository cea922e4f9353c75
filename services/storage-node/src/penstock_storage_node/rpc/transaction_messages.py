"""The messages of `Storage.Transactions`, as what decides speaks of them and as they travel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock_core.errors import ErrorCode
from penstock_proto.v1 import storage_pb2 as pb
from penstock_storage_node.transactions.effects import MarkersDue, TopicPartitionName
from penstock_storage_node.transactions.link import Results, by_code
from penstock_storage_node.transactions.outbox import Key, Marker
from penstock_storage_node.transactions.verifier import Ask, Producer


def put_asks(request: pb.TransactionsRequest, asks: Iterable[Ask]) -> None:
    """Add questions to a message."""
    for ask in asks:
        request.asks.add(
            number=ask.number,
            transactional_id=ask.producer.transactional_id,
            producer_id=ask.producer.producer_id,
            producer_epoch=ask.producer.epoch,
            verify_only=ask.verify_only,
            topics=_topics(ask.partitions),
        )


def read_ask(ask: pb.TransactionAsk) -> Ask:
    """A question."""
    producer = Producer(ask.transactional_id, ask.producer_id, ask.producer_epoch)
    return Ask(ask.number, producer, ask.verify_only, tuple(_names(ask.topics)))


def put_markers(request: pb.TransactionsRequest, markers: Iterable[Marker]) -> None:
    """Add markers to a message."""
    for marker in markers:
        due = marker.due
        request.markers.add(
            state_partition=due.state_partition,
            coordinator_epoch=due.coordinator_epoch,
            producer_id=due.producer_id,
            producer_epoch=due.producer_epoch,
            commit=due.commit,
            transaction_version=due.transaction_version,
            topics=_topics(marker.partitions),
        )


def read_markers(markers: pb.TransactionMarkers) -> MarkersDue:
    """A coordinator's decision, for partitions that are led here."""
    return MarkersDue(
        markers.state_partition,
        markers.coordinator_epoch,
        markers.producer_id,
        markers.producer_epoch,
        markers.commit,
        tuple(_names(markers.topics)),
        markers.transaction_version,
    )


def put_answer(response: pb.TransactionsResponse, number: int, epoch: int, results: Results) -> None:
    """Add a coordinator's answer."""
    response.answers.add(number=number, coordinator_epoch=epoch, results=_results(results))


def put_markers_answer(response: pb.TransactionsResponse, key: Key, results: Results) -> None:
    """Add a leader's answer."""
    response.markers.add(**key._asdict(), results=_results(results))


def read_markers_answer(answer: pb.TransactionMarkersAnswer) -> tuple[Key, Results]:
    """Which markers, and what became of them."""
    key = Key(answer.state_partition, answer.coordinator_epoch, answer.producer_id, answer.producer_epoch)
    return key, read_results(answer.results)


def read_results(results: Iterable[pb.TransactionResult]) -> Results:
    """A code for each partition."""
    found: Results = []
    for result in results:
        code = error_of(result.error_code)
        found += ((name, code) for name in _names(result.topics))
    return found


def error_of(code: int) -> ErrorCode:
    """A peer of a later build may say what this one does not know."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def _results(results: Results) -> list[pb.TransactionResult]:
    return [
        pb.TransactionResult(error_code=code, topics=_topics(names))
        for code, names in by_code(results).items()
    ]


def _topics(names: Sequence[TopicPartitionName]) -> list[pb.TransactionTopic]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in names:
        by_topic.setdefault(topic, []).append(partition)
    return [pb.TransactionTopic(name=topic, partitions=found) for topic, found in by_topic.items()]


def _names(topics: Iterable[pb.TransactionTopic]) -> Iterable[TopicPartitionName]:
    return (TopicPartitionName(topic.name, index) for topic in topics for index in topic.partitions)
