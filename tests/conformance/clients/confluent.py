"""confluent-kafka (librdkafka)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_STORED,
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ElectionType,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from conformance.client import Client, ClientError, Place, Position, Record, Unsupported
from conformance.clients.texts import to_bytes, to_text
from support.kafka import client_config

CALL_TIMEOUT_S = 30.0
_CONSUMER_SETTINGS = {
    "group": "group.id",
    "auto_commit": "enable.auto.commit",
    "instance_id": "group.instance.id",
    "client_id": "client.id",
    "protocol": "group.protocol",
    "strategy": "partition.assignment.strategy",
    "remote_assignor": "group.remote.assignor",
    "session_timeout_ms": "session.timeout.ms",
    "heartbeat_ms": "heartbeat.interval.ms",
    "max_poll_interval_ms": "max.poll.interval.ms",
    "fetch_bytes_min": "fetch.min.bytes",
    "fetch_wait_ms": "fetch.wait.max.ms",
    "fetch_bytes_max": "fetch.max.bytes",
    "partition_bytes_max": "max.partition.fetch.bytes",
    "auto_create": "allow.auto.create.topics",
    "isolation": "isolation.level",
}
_PRODUCER_SETTINGS = {
    "acks": "acks",
    "compression": "compression.type",
    "idempotence": "enable.idempotence",
    "request_bytes_max": "message.max.bytes",
    "timeout_ms": "message.timeout.ms",
    "linger_ms": "linger.ms",
    "transactional_id": "transactional.id",
    "transaction_timeout_ms": "transaction.timeout.ms",
}
_TYPES = {"topic": ResourceType.TOPIC, "broker": ResourceType.BROKER, "group": ResourceType.GROUP}
_SPECIAL: dict[Any, Any] = {"beginning": OFFSET_BEGINNING, "end": OFFSET_END, None: OFFSET_STORED}
_TIMESTAMPS = {1: "create", 2: "append"}


def error_name(error: KafkaError) -> str:
    """Kafka's name of a code; librdkafka's own begin with LOCAL."""
    name: str = error.name()
    renamed = {
        "TOPIC_EXCEPTION": "INVALID_TOPIC_EXCEPTION",
        "UNKNOWN_TOPIC_OR_PART": "UNKNOWN_TOPIC_OR_PARTITION",
    }
    return f"LOCAL{name}" if name.startswith("_") else renamed.get(name, name)


def _failed(error: KafkaException) -> ClientError:
    cause = error.args[0]
    return (
        ClientError(error_name(cause), cause.str())
        if isinstance(cause, KafkaError)
        else ClientError(str(cause))
    )


def _guarded(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except KafkaException as error:
        raise _failed(error) from error
    except ValueError as error:
        raise ClientError("LOCAL_INVALID_ARGUMENT", str(error)) from error


class Confluent(Client):
    name = "confluent-kafka"

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self._consumers: dict[str, Consumer] = {}
        self._producers: dict[str, Producer] = {}
        self._own_admin: AdminClient | None = None

    @property
    def _admin(self) -> AdminClient:
        if self._own_admin is None:
            self._own_admin = AdminClient(client_config(self.bootstrap))
        return self._own_admin

    def close(self) -> None:
        for name in list(self._consumers):
            self.close_consumer(name)
        for name in list(self._producers):
            self.close_producer(name)

    # -- producing -----------------------------------------------------------------------

    def produce(
        self, topic: str, records: Sequence[Record], settings: dict[str, Any] | None = None
    ) -> list[Any]:
        wanted = {"timeout_ms": 20_000, **(settings or {})}
        config = {_PRODUCER_SETTINGS[name]: value for name, value in wanted.items()}
        producer = _guarded(lambda: Producer(client_config(self.bootstrap, **config)))
        silent = wanted.get("acks") == "0"
        return self._send(producer, topic, records, wanted["timeout_ms"] / 1000 + 10, silent=silent)

    def _send(
        self, producer: Producer, topic: str, records: Sequence[Record], timeout_s: float, *, silent: bool
    ) -> list[Any]:
        answers: list[Any] = [None] * len(records)

        def report(index: int) -> Callable[[Any, Any], None]:
            def note(error: KafkaError | None, message: Any) -> None:
                if error is not None:
                    answers[index] = {"error": error_name(error)}
                else:
                    offset = None if silent else message.offset()
                    answers[index] = {"partition": message.partition(), "offset": offset}

            return note

        for index, record in enumerate(records):
            headers = record.get("headers")
            more: dict[str, Any] = {}
            if "partition" in record:
                more["partition"] = record["partition"]
            if "timestamp_ms" in record:
                more["timestamp"] = record["timestamp_ms"]
            if headers:
                more["headers"] = [(name, to_bytes(value)) for name, value in headers]
            try:
                producer.produce(
                    topic,
                    to_bytes(record["value"]),
                    to_bytes(record.get("key")),
                    on_delivery=report(index),
                    **more,
                )
            except KafkaException as error:
                answers[index] = {"error": error_name(error.args[0])}
        _guarded(lambda: producer.flush(timeout_s))
        return answers

    # -- transactions --------------------------------------------------------------------

    def open_producer(self, name: str, settings: dict[str, Any] | None = None) -> None:
        # A message's own timeout may not be longer than its transaction's.
        config = {_PRODUCER_SETTINGS[key]: value for key, value in (settings or {}).items()}
        config["message.timeout.ms"] = min(20_000, config.get("transaction.timeout.ms", 20_000))
        self._producers[name] = _guarded(lambda: Producer(client_config(self.bootstrap, **config)))

    def close_producer(self, name: str) -> None:
        producer = self._producers.pop(name)
        producer.purge()
        _guarded(lambda: producer.flush(5))

    def init_transactions(self, name: str) -> None:
        _guarded(lambda: self._producers[name].init_transactions(CALL_TIMEOUT_S))

    def begin(self, name: str) -> None:
        _guarded(self._producers[name].begin_transaction)

    def send(self, name: str, topic: str, records: Sequence[Record]) -> list[Any]:
        return self._send(self._producers[name], topic, records, CALL_TIMEOUT_S, silent=False)

    def send_offsets(self, name: str, consumer: str, positions: Sequence[Position]) -> None:
        places = [TopicPartition(t, p, o) for t, p, o in positions]
        group = _guarded(self._consumers[consumer].consumer_group_metadata)
        _guarded(lambda: self._producers[name].send_offsets_to_transaction(places, group, CALL_TIMEOUT_S))

    def commit_transaction(self, name: str) -> None:
        _guarded(lambda: self._producers[name].commit_transaction(CALL_TIMEOUT_S))

    def abort_transaction(self, name: str) -> None:
        _guarded(lambda: self._producers[name].abort_transaction(CALL_TIMEOUT_S))

    # -- consuming -----------------------------------------------------------------------

    def open_consumer(self, name: str, settings: dict[str, Any] | None = None) -> None:
        wanted = {"auto_commit": False, **(settings or {})}
        resets = {"none": "error"}
        reset = wanted.pop("reset", "latest" if "group" in wanted else "none")
        wanted.pop("poll_records_max", None)
        config: dict[str, Any] = {"auto.offset.reset": resets.get(reset, reset), "group.id": "unused"}
        if wanted.get("strategy") == "sticky":
            raise Unsupported("has no assignor sticky")
        for key, value in wanted.items():
            config[_CONSUMER_SETTINGS[key]] = value
        if config.get("group.protocol") == "consumer":
            config.pop("session.timeout.ms", None)
            config.pop("heartbeat.interval.ms", None)
        self._consumers[name] = _guarded(lambda: Consumer(client_config(self.bootstrap, **config)))

    def close_consumer(self, name: str) -> None:
        _guarded(self._consumers.pop(name).close)

    def subscribe(self, name: str, topics: Sequence[str]) -> None:
        _guarded(lambda: self._consumers[name].subscribe(list(topics)))

    def subscribe_pattern(self, name: str, pattern: str) -> None:
        self.subscribe(name, [pattern])

    def unsubscribe(self, name: str) -> None:
        _guarded(self._consumers[name].unsubscribe)

    def assign(self, name: str, positions: Sequence[Position]) -> None:
        places = [TopicPartition(t, p, _offset(o)) for t, p, o in positions]
        _guarded(lambda: self._consumers[name].assign(places))

    def poll(self, name: str, count: int, timeout_ms: int) -> list[Record]:
        consumer = self._consumers[name]
        found: list[Record] = []
        deadline = time.monotonic() + timeout_ms / 1000
        while (left := deadline - time.monotonic()) > 0 and not (count and len(found) >= count):
            message = _guarded(partial(consumer.poll, min(left, 0.5)))
            if message is None:
                continue
            error = message.error()
            if error is not None:
                if error.retriable():
                    continue
                raise ClientError(error_name(error), error.str())
            kind, timestamp_ms = message.timestamp()
            headers = message.headers() or []
            found.append(
                {
                    "topic": message.topic(),
                    "partition": message.partition(),
                    "offset": message.offset(),
                    "key": to_text(message.key()),
                    "value": to_text(message.value()),
                    "headers": [[header, to_text(value)] for header, value in headers],
                    "timestamp_ms": timestamp_ms,
                    "timestamp_type": _TIMESTAMPS.get(kind),
                }
            )
        return found

    def assignment(self, name: str) -> list[Place]:
        return sorted([p.topic, p.partition] for p in _guarded(self._consumers[name].assignment))

    def seek(self, name: str, topic: str, partition: int, offset: int | str) -> None:
        place = TopicPartition(topic, partition, offset if isinstance(offset, int) else _SPECIAL[offset])
        _guarded(lambda: self._consumers[name].seek(place))

    def position(self, name: str, topic: str, partition: int) -> int | None:
        found = _guarded(lambda: self._consumers[name].position([TopicPartition(topic, partition)]))[0]
        return found.offset if found.offset >= 0 else None

    def pause(self, name: str, places: Sequence[Place]) -> None:
        _guarded(lambda: self._consumers[name].pause([TopicPartition(t, p) for t, p in places]))

    def resume(self, name: str, places: Sequence[Place]) -> None:
        _guarded(lambda: self._consumers[name].resume([TopicPartition(t, p) for t, p in places]))

    def commit(self, name: str, positions: Sequence[Position] | None = None) -> None:
        consumer = self._consumers[name]
        if positions is None:
            done = _guarded(lambda: consumer.commit(asynchronous=False))
        else:
            places = [
                TopicPartition(t, p, o, m) if m else TopicPartition(t, p, o) for t, p, o, m in positions
            ]
            done = _guarded(lambda: consumer.commit(offsets=places, asynchronous=False))
        for place in done:
            if place.error is not None:
                raise ClientError(error_name(place.error), place.error.str())

    def committed(self, name: str, places: Sequence[Place]) -> list[Position]:
        wanted = [TopicPartition(t, p) for t, p in places]
        found = _guarded(lambda: self._consumers[name].committed(wanted, timeout=CALL_TIMEOUT_S))
        for place in found:
            if place.error is not None:
                raise ClientError(error_name(place.error), place.error.str())
        return [[p.topic, p.partition, p.offset if p.offset >= 0 else None, p.metadata or ""] for p in found]

    def watermarks(self, name: str, topic: str, partition: int) -> list[int]:
        place = TopicPartition(topic, partition)
        return list(
            _guarded(lambda: self._consumers[name].get_watermark_offsets(place, timeout=CALL_TIMEOUT_S))
        )

    def offsets_for_times(self, name: str, times: Sequence[Position]) -> list[Position]:
        wanted = [TopicPartition(t, p, at) for t, p, at in times]
        found = _guarded(lambda: self._consumers[name].offsets_for_times(wanted, timeout=CALL_TIMEOUT_S))
        return [[p.topic, p.partition, p.offset if p.offset >= 0 else None] for p in found]

    # -- admin ---------------------------------------------------------------------------

    def _names(self, futures: dict[Any, Any]) -> dict[str, str]:
        return {str(name): self._name(future) for name, future in futures.items()}

    def _name(self, future: Any) -> str:
        try:
            future.result(timeout=CALL_TIMEOUT_S)
        except KafkaException as error:
            return _failed(error).name
        return "NONE"

    def create_topics(self, topics: Sequence[dict[str, Any]], validate_only: bool = False) -> dict[str, str]:
        wanted = []
        for topic in topics:
            more: dict[str, Any] = {"replication_factor": topic.get("replication", -1)}
            partitions = topic.get("partitions", -1)
            if "replicas" in topic:
                nodes = topic["replicas"]
                more = {"replica_assignment": [nodes[str(p)] for p in range(len(nodes))]}
                partitions = len(nodes)
            wanted.append(NewTopic(topic["name"], partitions, config=topic.get("config", {}), **more))
        return self._names(
            _guarded(
                lambda: self._admin.create_topics(wanted, validate_only=validate_only, operation_timeout=20)
            )
        )

    def delete_topics(self, names: Sequence[str]) -> dict[str, str]:
        return self._names(_guarded(lambda: self._admin.delete_topics(list(names), operation_timeout=20)))

    def create_partitions(self, counts: dict[str, int], validate_only: bool = False) -> dict[str, str]:
        wanted = [NewPartitions(name, count) for name, count in counts.items()]
        return self._names(
            _guarded(
                lambda: self._admin.create_partitions(
                    wanted, validate_only=validate_only, operation_timeout=20
                )
            )
        )

    def list_topics(self) -> list[str]:
        return sorted(_guarded(lambda: self._admin.list_topics(timeout=CALL_TIMEOUT_S)).topics)

    def describe_topics(self, names: Sequence[str]) -> dict[str, Any]:
        futures = _guarded(lambda: self._admin.describe_topics(TopicCollection(list(names))))
        found: dict[str, Any] = {}
        for name, future in futures.items():
            try:
                topic = future.result(timeout=CALL_TIMEOUT_S)
            except KafkaException as error:
                found[name] = _failed(error).name
                continue
            found[name] = {
                "internal": topic.is_internal,
                "partitions": [
                    {
                        "partition": p.id,
                        "leader": p.leader.id if p.leader is not None else None,
                        "replicas": [node.id for node in p.replicas],
                        "isr": sorted(node.id for node in p.isr),
                    }
                    for p in topic.partitions
                ],
            }
        return found

    def describe_cluster(self) -> dict[str, Any]:
        found = _guarded(self._admin.describe_cluster().result)
        return {
            "nodes": sorted(node.id for node in found.nodes),
            "controller": found.controller is not None,
            "cluster_id": bool(found.cluster_id),
        }

    def describe_configs(self, resources: Sequence[Sequence[str]]) -> dict[str, Any]:
        wanted = [ConfigResource(_TYPES[kind], name) for kind, name in resources]
        found: dict[str, Any] = {}
        for resource, future in _guarded(lambda: self._admin.describe_configs(wanted)).items():
            label = f"{resource.restype.name.lower()}:{resource.name}"
            try:
                entries = future.result(timeout=CALL_TIMEOUT_S)
            except KafkaException as error:
                found[label] = _failed(error).name
                continue
            found[label] = {
                key: {
                    "value": entry.value,
                    "source": _source(entry.source),
                    "read_only": entry.is_read_only,
                    "sensitive": entry.is_sensitive,
                    "synonyms": [[s.name, s.value, _source(s.source)] for s in entry.synonyms.values()],
                }
                for key, entry in entries.items()
            }
        return found

    def alter_configs(
        self, type: str, name: str, changes: Sequence[Sequence[str | None]], validate_only: bool = False
    ) -> str:
        entries = [
            ConfigEntry(str(key), value, incremental_operation=AlterConfigOpType[str(op).upper()])
            for key, op, value in changes
        ]
        resource = ConfigResource(_TYPES[type], name, incremental_configs=entries)
        futures = _guarded(
            lambda: self._admin.incremental_alter_configs([resource], validate_only=validate_only)
        )
        return self._name(next(iter(futures.values())))

    def replace_configs(
        self, type: str, name: str, configs: dict[str, str], validate_only: bool = False
    ) -> str:
        resource = ConfigResource(_TYPES[type], name, set_config=configs)
        futures = _guarded(lambda: self._admin.alter_configs([resource], validate_only=validate_only))
        return self._name(next(iter(futures.values())))

    def delete_records(self, positions: Sequence[Position]) -> list[Position]:
        wanted = [TopicPartition(t, p, OFFSET_END if o == -1 else o) for t, p, o in positions]
        found: list[Position] = []
        for place, future in _guarded(lambda: self._admin.delete_records(wanted)).items():
            try:
                low: Any = future.result(timeout=CALL_TIMEOUT_S).low_watermark
            except KafkaException as error:
                low = _failed(error).name
            found.append([place.topic, place.partition, low])
        return sorted(found)

    def list_offsets(self, places: Sequence[Position], isolation: str = "read_uncommitted") -> list[Position]:
        specs: dict[Any, Callable[[], Any]] = {
            "earliest": OffsetSpec.earliest,
            "latest": OffsetSpec.latest,
            "max_timestamp": OffsetSpec.max_timestamp,
        }
        wanted = {
            TopicPartition(t, p): specs[at]() if at in specs else OffsetSpec.for_timestamp(at)
            for t, p, at in places
        }
        level = IsolationLevel[isolation.upper()]
        found: list[Position] = []
        for place, future in _guarded(
            lambda: self._admin.list_offsets(wanted, isolation_level=level)
        ).items():
            try:
                answer = future.result(timeout=CALL_TIMEOUT_S)
                found.append([place.topic, place.partition, answer.offset, answer.timestamp])
            except KafkaException as error:
                found.append([place.topic, place.partition, _failed(error).name, None])
        return sorted(found, key=str)

    def elect_leaders(self, places: Sequence[Place], unclean: bool = False) -> list[Position]:
        kind = ElectionType.UNCLEAN if unclean else ElectionType.PREFERRED
        wanted = [TopicPartition(t, p) for t, p in places]
        try:
            found = _guarded(lambda: self._admin.elect_leaders(kind, wanted)).result(timeout=CALL_TIMEOUT_S)
        except KafkaException as error:
            raise _failed(error) from error
        return sorted(
            [p.topic, p.partition, "NONE" if e is None else error_name(e)] for p, e in found.items()
        )

    def list_groups(self) -> list[dict[str, Any]]:
        found = _guarded(lambda: self._admin.list_consumer_groups().result(timeout=CALL_TIMEOUT_S))
        rows = [
            {
                "group": g.group_id,
                "state": _state(g.state),
                "type": g.type.name.capitalize() if g.type else None,
            }
            for g in found.valid
        ]
        return sorted(rows, key=lambda row: str(row["group"]))

    def describe_groups(self, names: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, future in _guarded(lambda: self._admin.describe_consumer_groups(list(names))).items():
            try:
                group = future.result(timeout=CALL_TIMEOUT_S)
            except KafkaException as error:
                found[name] = _failed(error).name
                continue
            members = [
                {
                    "instance_id": m.group_instance_id or None,
                    "assignment": sorted([p.topic, p.partition] for p in m.assignment.topic_partitions),
                }
                for m in group.members
            ]
            found[name] = {
                "state": _state(group.state),
                "assignor": group.partition_assignor,
                "type": group.type.name.capitalize(),
                "members": sorted(members, key=lambda m: str(m["assignment"])),
            }
        return found

    def delete_groups(self, names: Sequence[str]) -> dict[str, str]:
        return self._names(_guarded(lambda: self._admin.delete_consumer_groups(list(names))))

    def group_offsets(self, group: str) -> list[Position]:
        futures = _guarded(
            lambda: self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
        )
        found = _guarded(lambda: futures[group].result(timeout=CALL_TIMEOUT_S))
        return sorted([p.topic, p.partition, p.offset, p.metadata or ""] for p in found.topic_partitions)

    def alter_group_offsets(self, group: str, positions: Sequence[Position]) -> list[Position]:
        places = [TopicPartition(t, p, o) for t, p, o in positions]
        wanted = [ConsumerGroupTopicPartitions(group, places)]
        future = _guarded(lambda: self._admin.alter_consumer_group_offsets(wanted))[group]
        found = _guarded(lambda: future.result(timeout=CALL_TIMEOUT_S))
        return sorted(
            [p.topic, p.partition, "NONE" if p.error is None else error_name(p.error)]
            for p in found.topic_partitions
        )


def _offset(wanted: Any) -> int:
    known: int | None = _SPECIAL.get(wanted)
    return int(wanted) if known is None else known


def _source(value: Any) -> str:
    try:
        return str(ConfigSource(value).name)
    except ValueError:
        return str(value)


def _state(state: ConsumerGroupState) -> str:
    return "".join(word.capitalize() for word in state.name.split("_"))


CLIENT = Confluent
