"""kafka-python."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import kafka
import kafka.admin
import kafka.errors
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from conformance.client import Client, ClientError, Place, Position, Record, Unsupported, in_order
from conformance.clients.texts import code_name, to_bytes, to_text

CALL_TIMEOUT_MS = 30_000
_CONSUMER_SETTINGS = {
    "group": "group_id",
    "auto_commit": "enable_auto_commit",
    "instance_id": "group_instance_id",
    "client_id": "client_id",
    "session_timeout_ms": "session_timeout_ms",
    "heartbeat_ms": "heartbeat_interval_ms",
    "max_poll_interval_ms": "max_poll_interval_ms",
    "fetch_bytes_min": "fetch_min_bytes",
    "fetch_wait_ms": "fetch_max_wait_ms",
    "fetch_bytes_max": "fetch_max_bytes",
    "partition_bytes_max": "max_partition_fetch_bytes",
    "poll_records_max": "max_poll_records",
    "auto_create": "allow_auto_create_topics",
    "isolation": "isolation_level",
}
_PRODUCER_SETTINGS = {
    "idempotence": "enable_idempotence",
    "request_bytes_max": "max_request_size",
    "timeout_ms": "delivery_timeout_ms",
    "linger_ms": "linger_ms",
    "transactional_id": "transactional_id",
    "transaction_timeout_ms": "transaction_timeout_ms",
}
_STRATEGIES = {
    "range": RangePartitionAssignor,
    "sticky": StickyPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}
_TIMESTAMPS = {0: "create", 1: "append"}


def error_name(error: BaseException | type[BaseException]) -> str:
    """Kafka's name of a broker's error; the client's own begin with LOCAL."""
    kind = error if isinstance(error, type) else type(error)
    code = getattr(kind, "errno", None)
    if code is not None and code >= 0 and issubclass(kind, kafka.errors.BrokerResponseError):
        return code_name(code)
    return f"LOCAL_{kind.__name__}"


def guarded(call: Callable[[], Any]) -> Any:
    """Errors of the client and of the broker as the vocabulary has them."""
    try:
        return call()
    except kafka.errors.UnsupportedCodecError as error:
        raise Unsupported("finds no package for this codec (python-snappy, lz4, zstandard)") from error
    except kafka.errors.KafkaError as error:
        raise ClientError(error_name(error), str(error)) from error
    except RuntimeError as error:
        if "codec not found" in str(error):
            raise Unsupported("finds no package for this codec (python-snappy, lz4, zstandard)") from error
        raise
    except (ValueError, TypeError, AssertionError) as error:
        raise ClientError("LOCAL_INVALID_ARGUMENT", str(error)) from error


def _place(topic: str, partition: int) -> kafka.TopicPartition:
    return kafka.TopicPartition(topic, partition)


class KafkaPython(Client):
    name = "kafka-python"

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self._consumers: dict[str, Any] = {}
        self._producers: dict[str, Any] = {}
        self._own_admin: Any = None

    @property
    def _admin(self) -> Any:
        if self._own_admin is None:
            self._own_admin = guarded(lambda: kafka.KafkaAdminClient(bootstrap_servers=self.bootstrap))
        return self._own_admin

    def close(self) -> None:
        for name in list(self._consumers):
            self.close_consumer(name)
        for name in list(self._producers):
            self.close_producer(name)
        if self._own_admin is not None:
            self._own_admin.close()

    # -- producing -----------------------------------------------------------------------

    def produce(
        self, topic: str, records: Sequence[Record], settings: dict[str, Any] | None = None
    ) -> list[Any]:
        wanted = {"timeout_ms": 20_000, **(settings or {})}
        config: dict[str, Any] = {
            _PRODUCER_SETTINGS[k]: v for k, v in wanted.items() if k in _PRODUCER_SETTINGS
        }
        config["request_timeout_ms"] = 10_000
        config["max_block_ms"] = wanted["timeout_ms"]
        if "acks" in wanted:
            config["acks"] = wanted["acks"] if wanted["acks"] == "all" else int(wanted["acks"])
            if config["acks"] != "all":
                config["enable_idempotence"] = False
        if wanted.get("compression", "none") != "none":
            config["compression_type"] = wanted["compression"]
        producer = guarded(lambda: kafka.KafkaProducer(bootstrap_servers=self.bootstrap, **config))
        try:
            futures = [self._send(producer, topic, record) for record in records]
            guarded(lambda: producer.flush(timeout=wanted["timeout_ms"] / 1000 + 10))
            return [self._answer(future, silent=wanted.get("acks") == "0") for future in futures]
        finally:
            producer.close(timeout=5)

    def _send(self, producer: Any, topic: str, record: Record) -> Any:
        headers = record.get("headers")
        if any(value is None for _, value in headers or ()):
            raise Unsupported("sends no null header values")
        if record["value"] is None and record.get("key") is None:
            raise Unsupported("sends no record without key and value")
        try:
            return producer.send(
                topic,
                value=to_bytes(record["value"]),
                key=to_bytes(record.get("key")),
                headers=[(name, to_bytes(value)) for name, value in headers] if headers else None,
                partition=record.get("partition"),
                timestamp_ms=record.get("timestamp_ms"),
            )
        except kafka.errors.KafkaError as error:
            return error
        except (ValueError, TypeError, AssertionError) as error:
            raise ClientError("LOCAL_INVALID_ARGUMENT", str(error)) from error

    def _answer(self, future: Any, *, silent: bool) -> Any:
        if isinstance(future, kafka.errors.KafkaError):
            return {"error": error_name(future)}
        try:
            done = future.get(timeout=10)
        except kafka.errors.KafkaError as error:
            return {"error": error_name(error)}
        return {"partition": done.partition, "offset": None if silent else done.offset}

    # -- transactions --------------------------------------------------------------------

    def open_producer(self, name: str, settings: dict[str, Any] | None = None) -> None:
        config: dict[str, Any] = {_PRODUCER_SETTINGS[k]: v for k, v in (settings or {}).items()}
        self._producers[name] = guarded(
            lambda: kafka.KafkaProducer(bootstrap_servers=self.bootstrap, max_block_ms=20_000, **config)
        )

    def close_producer(self, name: str) -> None:
        producer = self._producers.pop(name)
        guarded(lambda: producer.close(timeout=5))

    def init_transactions(self, name: str) -> None:
        guarded(self._producers[name].init_transactions)

    def begin(self, name: str) -> None:
        guarded(self._producers[name].begin_transaction)

    def send(self, name: str, topic: str, records: Sequence[Record]) -> list[Any]:
        producer = self._producers[name]
        futures = [self._send(producer, topic, record) for record in records]
        guarded(lambda: producer.flush(timeout=30))
        return [self._answer(future, silent=False) for future in futures]

    def send_offsets(self, name: str, consumer: str, positions: Sequence[Position]) -> None:
        offsets = {_place(t, p): kafka.OffsetAndMetadata(o, "", -1) for t, p, o in positions}
        group = self._consumers[consumer].group_metadata()
        guarded(lambda: self._producers[name].send_offsets_to_transaction(offsets, group))

    def commit_transaction(self, name: str) -> None:
        guarded(self._producers[name].commit_transaction)

    def abort_transaction(self, name: str) -> None:
        guarded(self._producers[name].abort_transaction)

    # -- consuming -----------------------------------------------------------------------

    def open_consumer(self, name: str, settings: dict[str, Any] | None = None) -> None:
        wanted = {"auto_commit": False, **(settings or {})}
        if wanted.pop("protocol", "classic") != "classic":
            raise Unsupported("has no group.protocol=consumer (KIP-848)")
        wanted.pop("remote_assignor", None)
        reset = wanted.pop("reset", "latest" if "group" in wanted else "none")
        config: dict[str, Any] = {"auto_offset_reset": reset, "group_id": None}
        strategy = wanted.pop("strategy", None)
        if strategy == "roundrobin":
            # One member often never takes up its share, within minutes, on Kafka as well.
            raise Unsupported("settles by chance only with its roundrobin assignor")
        if strategy is not None:
            config["partition_assignment_strategy"] = [_STRATEGIES[strategy]]
        for key, value in wanted.items():
            config[_CONSUMER_SETTINGS[key]] = value
        self._consumers[name] = guarded(
            lambda: kafka.KafkaConsumer(bootstrap_servers=self.bootstrap, **config)
        )

    def close_consumer(self, name: str) -> None:
        consumer = self._consumers.pop(name)
        guarded(lambda: consumer.close(timeout_ms=10_000))

    def subscribe(self, name: str, topics: Sequence[str]) -> None:
        guarded(lambda: self._consumers[name].subscribe(topics=list(topics)))

    def subscribe_pattern(self, name: str, pattern: str) -> None:
        guarded(lambda: self._consumers[name].subscribe(pattern=pattern))

    def unsubscribe(self, name: str) -> None:
        guarded(lambda: self._consumers[name].unsubscribe())

    def assign(self, name: str, positions: Sequence[Position]) -> None:
        guarded(lambda: self._consumers[name].assign([_place(t, p) for t, p, _ in positions]))
        for topic, partition, offset in positions:
            if offset is not None:
                self.seek(name, topic, partition, offset)

    def poll(self, name: str, count: int, timeout_ms: int) -> list[Record]:
        consumer = self._consumers[name]
        found: list[Record] = []
        deadline = time.monotonic() + timeout_ms / 1000
        while (left := deadline - time.monotonic()) > 0 and not (count and len(found) >= count):
            wait_ms = int(min(left, 0.5) * 1000)
            most = count - len(found) if count else None
            batches = guarded(partial(consumer.poll, timeout_ms=wait_ms, max_records=most))
            for records in batches.values():
                found += [self._record(record) for record in records]
        return found

    def _record(self, record: Any) -> Record:
        return {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "key": to_text(record.key),
            "value": to_text(record.value),
            "headers": [[name, to_text(value)] for name, value in record.headers],
            "timestamp_ms": record.timestamp,
            "timestamp_type": _TIMESTAMPS.get(record.timestamp_type),
        }

    def assignment(self, name: str) -> list[Place]:
        return sorted([p.topic, p.partition] for p in self._consumers[name].assignment())

    def seek(self, name: str, topic: str, partition: int, offset: int | str) -> None:
        consumer, place = self._consumers[name], _place(topic, partition)
        if offset == "beginning":
            guarded(lambda: consumer.seek_to_beginning(place))
        elif offset == "end":
            guarded(lambda: consumer.seek_to_end(place))
        else:
            guarded(lambda: consumer.seek(place, offset))

    def position(self, name: str, topic: str, partition: int) -> int | None:
        consumer = self._consumers[name]
        found: int | None = guarded(
            lambda: consumer.position(_place(topic, partition), timeout_ms=CALL_TIMEOUT_MS)
        )
        return found

    def pause(self, name: str, places: Sequence[Place]) -> None:
        guarded(lambda: self._consumers[name].pause(*(_place(t, p) for t, p in places)))

    def resume(self, name: str, places: Sequence[Place]) -> None:
        guarded(lambda: self._consumers[name].resume(*(_place(t, p) for t, p in places)))

    def commit(self, name: str, positions: Sequence[Position] | None = None) -> None:
        wanted = None
        if positions is not None:
            wanted = {_place(t, p): kafka.OffsetAndMetadata(o, m or "", -1) for t, p, o, m in positions}
        guarded(lambda: self._consumers[name].commit(wanted, timeout_ms=CALL_TIMEOUT_MS))

    def committed(self, name: str, places: Sequence[Place]) -> list[Position]:
        consumer = self._consumers[name]
        found: list[Position] = []
        for topic, partition in places:
            place = _place(topic, partition)
            one = guarded(partial(consumer.committed, place, metadata=True, timeout_ms=CALL_TIMEOUT_MS))
            has = one is not None and one.offset >= 0
            found.append([topic, partition, one.offset if has else None, one.metadata if has else ""])
        return found

    def watermarks(self, name: str, topic: str, partition: int) -> list[int]:
        consumer, place = self._consumers[name], _place(topic, partition)
        low = guarded(lambda: consumer.beginning_offsets([place], timeout_ms=CALL_TIMEOUT_MS))[place]
        return [low, guarded(lambda: consumer.end_offsets([place], timeout_ms=CALL_TIMEOUT_MS))[place]]

    def offsets_for_times(self, name: str, times: Sequence[Position]) -> list[Position]:
        wanted = {_place(t, p): at for t, p, at in times}
        consumer = self._consumers[name]
        found = guarded(lambda: consumer.offsets_for_times(wanted, timeout_ms=CALL_TIMEOUT_MS))
        return [[p.topic, p.partition, None if found[p] is None else found[p].offset] for p in wanted]

    # -- admin ---------------------------------------------------------------------------

    def create_topics(self, topics: Sequence[dict[str, Any]], validate_only: bool = False) -> dict[str, str]:
        wanted: dict[str, Any] = {}
        for topic in topics:
            options: dict[str, Any] = {"configs": topic.get("config", {})}
            if "replicas" in topic:
                options["assignments"] = {int(p): nodes for p, nodes in topic["replicas"].items()}
            else:
                options["num_partitions"] = topic.get("partitions", -1)
                options["replication_factor"] = topic.get("replication", -1)
            wanted[topic["name"]] = options
        answer = guarded(
            lambda: self._admin.create_topics(
                wanted, timeout_ms=20_000, validate_only=validate_only, raise_errors=False
            )
        )
        return {topic["name"]: code_name(topic["error_code"]) for topic in answer["topics"]}

    def delete_topics(self, names: Sequence[str]) -> dict[str, str]:
        answer = guarded(
            lambda: self._admin.delete_topics(list(names), timeout_ms=20_000, raise_errors=False)
        )
        return {topic["name"]: code_name(topic["error_code"]) for topic in answer["topics"]}

    def create_partitions(self, counts: dict[str, int], validate_only: bool = False) -> dict[str, str]:
        answer = guarded(
            lambda: self._admin.create_partitions(
                dict(counts), timeout_ms=20_000, validate_only=validate_only, raise_errors=False
            )
        )
        return {topic.name: code_name(topic.error_code) for topic in answer.results}

    def list_topics(self) -> list[str]:
        return sorted(guarded(lambda: self._admin.list_topics()))

    def describe_topics(self, names: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for topic in guarded(lambda: self._admin.describe_topics(list(names))):
            if topic["error_code"]:
                found[topic["name"]] = code_name(topic["error_code"])
                continue
            partitions = sorted(topic["partitions"], key=lambda p: int(p["partition_index"]))
            found[topic["name"]] = {
                "internal": topic["is_internal"],
                "partitions": [
                    {
                        "partition": p["partition_index"],
                        "leader": p["leader_id"] if p["leader_id"] >= 0 else None,
                        "replicas": list(p["replica_nodes"]),
                        "isr": sorted(p["isr_nodes"]),
                    }
                    for p in partitions
                ],
            }
        return found

    def describe_cluster(self) -> dict[str, Any]:
        found = guarded(lambda: self._admin.describe_cluster())
        nodes = found.get("brokers", [])
        return {
            "nodes": sorted(node.get("broker_id", node.get("node_id")) for node in nodes),
            "controller": found.get("controller_id", -1) >= 0,
            "cluster_id": bool(found.get("cluster_id")),
        }

    def describe_configs(self, resources: Sequence[Sequence[str]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for kind, name in resources:
            resource = kafka.admin.ConfigResource(kind, name)
            label = f"{kind}:{name}"
            try:
                answer = guarded(
                    partial(
                        self._admin.describe_configs, [resource], include_synonyms=True, config_filter="all"
                    )
                )
            except ClientError as error:
                found[label] = error.name
                continue
            entries = answer[kind][name]
            if not isinstance(entries, dict):
                found[label] = error_name(entries)
                continue
            found[label] = {key: _entry(entry) for key, entry in entries.items()}
        return found

    def alter_configs(
        self, type: str, name: str, changes: Sequence[Sequence[str | None]], validate_only: bool = False
    ) -> str:
        configs = {str(key): (str(op).upper(), value) for key, op, value in changes}
        return self._alter(type, name, configs, validate_only, incremental=True)

    def replace_configs(
        self, type: str, name: str, configs: dict[str, str], validate_only: bool = False
    ) -> str:
        return self._alter(type, name, dict(configs), validate_only, incremental=False)

    def _alter(
        self, kind: str, name: str, configs: dict[str, Any], validate: bool, *, incremental: bool
    ) -> str:
        resource = kafka.admin.ConfigResource(kind, name, configs)
        try:
            answer = guarded(
                lambda: self._admin.alter_configs(
                    [resource], validate_only=validate, raise_on_unknown=False, incremental=incremental
                )
            )
        except ClientError as error:
            return error.name
        return _outcome_name(answer[kind][name])

    def delete_records(self, positions: Sequence[Position]) -> list[Position]:
        found: list[Position] = []
        for topic, partition, offset in positions:
            wanted = {_place(topic, partition): offset}
            try:
                done = guarded(partial(self._admin.delete_records, wanted, timeout_ms=20_000))
                low: Any = done[_place(topic, partition)]["low_watermark"]
            except ClientError as error:
                low = error.name
            found.append([topic, partition, low])
        return found

    def list_offsets(self, places: Sequence[Position], isolation: str = "read_uncommitted") -> list[Position]:
        spec = kafka.admin.OffsetSpec
        specs = {"earliest": spec.EARLIEST, "latest": spec.LATEST, "max_timestamp": spec.MAX_TIMESTAMP}
        found: list[Position] = []
        for topic, partition, at in places:
            wanted = {_place(topic, partition): specs.get(at, at)}
            try:
                answer = guarded(
                    partial(
                        self._admin.list_partition_offsets,
                        wanted,
                        isolation_level=isolation,
                        timeout_ms=CALL_TIMEOUT_MS,
                    )
                )[_place(topic, partition)]
                found.append([topic, partition, answer.offset, answer.timestamp])
            except ClientError as error:
                found.append([topic, partition, error.name, None])
        return found

    def elect_leaders(self, places: Sequence[Place], unclean: bool = False) -> list[Position]:
        topics: dict[str, list[int]] = {}
        for topic, partition in places:
            topics.setdefault(topic, []).append(partition)
        answer = guarded(
            lambda: self._admin.elect_leaders(int(unclean), topics, timeout_ms=20_000, raise_errors=False)
        )
        return sorted(
            [topic.topic, p.partition_id, code_name(p.error_code)]
            for topic in answer.replica_election_results
            for p in topic.partition_result
        )

    def log_dirs(self, topic: str) -> list[Any]:
        answer = guarded(lambda: self._admin.describe_log_dirs([topic]))
        return sorted(
            [
                node["broker"],
                len(node["log_dirs"]),
                sorted(
                    [p["partition_index"], p["partition_size"] > 0]
                    for folder in node["log_dirs"]
                    for one in folder["topics"]
                    for p in one["partitions"]
                    if one["name"] == topic
                ),
            ]
            for node in answer
        )

    def reassign(self, targets: Sequence[Sequence[Any]]) -> list[Position]:
        wanted = {_place(t, p): nodes for t, p, nodes in targets}
        answer = guarded(lambda: self._admin.alter_partition_reassignments(wanted, timeout_ms=20_000))
        return [
            [t, p, "NONE" if answer.get(_place(t, p)) is None else error_name(answer[_place(t, p)])]
            for t, p, _ in targets
        ]

    def reassignments(self, topic: str) -> list[Any]:
        answer = guarded(lambda: self._admin.list_partition_reassignments(None, timeout_ms=20_000))
        return sorted(
            [
                p.partition,
                sorted(one["replicas"]),
                sorted(one["adding_replicas"]),
                sorted(one["removing_replicas"]),
            ]
            for p, one in answer.items()
            if p.topic == topic
        )

    def list_groups(self) -> list[dict[str, Any]]:
        rows = [
            {"group": g["group_id"], "state": g.get("group_state"), "type": g.get("group_type")}
            for g in guarded(lambda: self._admin.list_groups())
        ]
        return sorted(rows, key=lambda row: str(row["group"]))

    def describe_groups(self, names: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in names:
            try:
                group = guarded(partial(self._admin.describe_groups, [name]))[name]
            except ClientError as error:
                found[name] = error.name
                continue
            members = [
                {
                    "instance_id": m.get("group_instance_id"),
                    "assignment": _assigned(m.get("member_assignment")),
                }
                for m in group["members"]
            ]
            found[name] = {
                "state": group["group_state"],
                "assignor": group["protocol_data"],
                "protocol_type": group["protocol_type"],
                "members": sorted(members, key=lambda m: str(m["assignment"])),
            }
        return found

    def delete_groups(self, names: Sequence[str]) -> dict[str, str]:
        answer = guarded(lambda: self._admin.delete_groups(list(names)))
        return {name: _outcome_name(error) for name, error in answer.items()}

    def group_offsets(self, group: str) -> list[Position]:
        found = guarded(lambda: self._admin.list_group_offsets(group))[group]
        return sorted([p.topic, p.partition, o.offset, o.metadata or ""] for p, o in found.items())

    def alter_group_offsets(self, group: str, positions: Sequence[Position]) -> list[Position]:
        wanted = {_place(t, p): kafka.OffsetAndMetadata(o, "", -1) for t, p, o in positions}
        answer = guarded(lambda: self._admin.alter_group_offsets(group, wanted))
        return sorted([p.topic, p.partition, _outcome_name(error)] for p, error in answer.items())

    def delete_group_offsets(self, group: str, places: Sequence[Place]) -> list[Position]:
        wanted = [_place(t, p) for t, p in places]
        answer = guarded(lambda: self._admin.delete_group_offsets(group, wanted))
        return sorted([p.topic, p.partition, _outcome_name(error)] for p, error in answer.items())

    def remove_members(self, group: str, instance_ids: Sequence[str]) -> list[Position]:
        wanted = [kafka.admin.MemberToRemove(group_instance_id=one) for one in instance_ids]
        answer = guarded(lambda: self._admin.remove_group_members(group, wanted))
        return sorted([member.group_instance_id, _outcome_name(error)] for member, error in answer.items())

    def list_transactions(self, prefix: str) -> list[list[str]]:
        by_node = guarded(lambda: self._admin.list_transactions())
        return sorted(
            [t.transactional_id, t.state.value]
            for listed in by_node.values()
            for t in listed
            if t.transactional_id.startswith(prefix)
        )

    def describe_transactions(self, names: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in names:
            try:
                one = guarded(partial(self._admin.describe_transactions, [name]))[name]
            except ClientError as error:
                found[name] = error.name
                continue
            found[name] = {
                "state": one.state.value,
                "timeout_ms": one.transaction_timeout_ms,
                "open": one.transaction_start_time_ms >= 0,
                "partitions": sorted([p.topic, p.partition] for p in one.topic_partitions),
            }
        return found

    def describe_producers(self, topic: str, partition: int) -> list[list[Any]]:
        place = _place(topic, partition)
        found = guarded(lambda: self._admin.describe_producers([place]))[place].active_producers
        return in_order(
            [
                [
                    p.last_sequence,
                    p.current_transaction_start_offset if p.current_transaction_start_offset >= 0 else None,
                ]
                for p in found
            ]
        )


def _outcome_name(answer: Any) -> str:
    """An error class, an instance or its words, as Kafka's name."""
    if answer is None or answer is kafka.errors.NoError:
        return "NONE"
    if isinstance(answer, (type, BaseException)):
        return error_name(answer)
    return str(answer).partition(":")[0]


def _entry(entry: Any) -> dict[str, Any]:
    synonyms = entry.get("synonyms") or []
    return {
        "value": entry["value"],
        "source": _word(entry.get("config_source")),
        "read_only": entry["read_only"],
        "sensitive": entry["is_sensitive"],
        "type": _word(entry.get("config_type")),
        "synonyms": [[s.get("name"), s.get("value"), _word(s.get("source"))] for s in synonyms],
    }


def _word(value: Any) -> Any:
    return getattr(value, "name", value)


def _assigned(assignment: Any) -> list[Place]:
    if not assignment:
        return []
    found: list[Place] = []
    for topic in assignment.get("assigned_partitions", assignment.get("assignment", [])):
        name = topic.get("topic") if isinstance(topic, dict) else topic[0]
        numbers = topic.get("partitions") if isinstance(topic, dict) else topic[1]
        found += [[name, number] for number in numbers or []]
    return sorted(found)


CLIENT = KafkaPython
