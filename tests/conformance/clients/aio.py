"""aiokafka: its coroutines run on an event loop in a thread of their own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import aiokafka
import aiokafka.admin
import aiokafka.errors
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from conformance.client import Client, ClientError, Place, Position, Record, Unsupported
from conformance.clients.texts import code_name, to_bytes, to_text

CALL_TIMEOUT_S = 60.0
CLOSE_TIMEOUT_S = 5.0
_CONSUMER_SETTINGS = {
    "group": "group_id",
    "reset": "auto_offset_reset",
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
    "isolation": "isolation_level",
}
_PRODUCER_SETTINGS = {
    "idempotence": "enable_idempotence",
    "request_bytes_max": "max_request_size",
    "linger_ms": "linger_ms",
    "transactional_id": "transactional_id",
    "transaction_timeout_ms": "transaction_timeout_ms",
}
_STRATEGIES = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}
_TIMESTAMPS = {0: "create", 1: "append"}


def error_name(error: BaseException) -> str:
    """Kafka's name of a broker's error; the client's own begin with LOCAL."""
    code = getattr(error, "errno", None)
    if isinstance(error, aiokafka.errors.BrokerResponseError) and isinstance(code, int) and code >= 0:
        return code_name(code)
    return f"LOCAL_{type(error).__name__}"


def _place(topic: str, partition: int) -> aiokafka.TopicPartition:
    return aiokafka.TopicPartition(topic, partition)


class Aio(Client):
    name = "aiokafka"

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self._consumers: dict[str, Any] = {}
        self._producers: dict[str, Any] = {}
        self._groups: dict[str, str] = {}
        self._own_admin: Any = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="aiokafka", daemon=True)
        self._thread.start()

    def close(self) -> None:
        for name in list(self._consumers):
            self.close_consumer(name)
        for name in list(self._producers):
            self.close_producer(name)
        if self._own_admin is not None:
            self._run(self._own_admin.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _run(self, call: Coroutine[Any, Any, Any]) -> Any:
        try:
            return asyncio.run_coroutine_threadsafe(call, self._loop).result(CALL_TIMEOUT_S)
        except aiokafka.errors.KafkaError as error:
            raise ClientError(error_name(error), str(error)) from error
        except (ValueError, TypeError, AssertionError) as error:
            raise ClientError("LOCAL_INVALID_ARGUMENT", str(error)) from error

    async def _calling(self, function: Any, *words: Any, **named: Any) -> Any:
        """A plain function, on the loop's thread."""
        return function(*words, **named)

    # -- producing -----------------------------------------------------------------------

    def produce(
        self, topic: str, records: Sequence[Record], settings: dict[str, Any] | None = None
    ) -> list[Any]:
        return list(self._run(self._produce(topic, records, settings or {})))

    async def _produce(self, topic: str, records: Sequence[Record], wanted: dict[str, Any]) -> list[Any]:
        config: dict[str, Any] = {
            _PRODUCER_SETTINGS[k]: v for k, v in wanted.items() if k in _PRODUCER_SETTINGS
        }
        if "acks" in wanted:
            config["acks"] = wanted["acks"] if wanted["acks"] == "all" else int(wanted["acks"])
        if wanted.get("compression", "none") != "none":
            config["compression_type"] = wanted["compression"]
        # aiokafka has no delivery timeout; this one bounds its retries.
        config["request_timeout_ms"] = wanted.get("timeout_ms", 20_000)
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=self.bootstrap, **config)
        await producer.start()
        try:
            return await self._send_all(producer, topic, records, silent=wanted.get("acks") == "0")
        finally:
            await producer.stop()

    async def _send_all(
        self, producer: Any, topic: str, records: Sequence[Record], *, silent: bool
    ) -> list[Any]:
        futures: list[Any] = []
        for record in records:
            try:
                futures.append(await self._send(producer, topic, record))
            except aiokafka.errors.KafkaError as error:
                futures.append(error)
        return [await self._answer(future, silent=silent) for future in futures]

    async def _send(self, producer: Any, topic: str, record: Record) -> Any:
        headers = record.get("headers")
        if record["value"] is None and record.get("key") is None:
            raise Unsupported("sends no record without key and value")
        return await producer.send(
            topic,
            value=to_bytes(record["value"]),
            key=to_bytes(record.get("key")),
            headers=[(name, to_bytes(value)) for name, value in headers] if headers else None,
            partition=record.get("partition"),
            timestamp_ms=record.get("timestamp_ms"),
        )

    async def _answer(self, future: Any, *, silent: bool) -> Any:
        if isinstance(future, BaseException):
            return {"error": error_name(future)}
        try:
            done = await future
        except aiokafka.errors.KafkaError as error:
            return {"error": error_name(error)}
        if done is None:  # with acks=0 it tells nothing
            return {"offset": None}
        return {"partition": done.partition, "offset": None if silent else done.offset}

    # -- transactions --------------------------------------------------------------------

    def open_producer(self, name: str, settings: dict[str, Any] | None = None) -> None:
        config: dict[str, Any] = {_PRODUCER_SETTINGS[k]: v for k, v in (settings or {}).items()}

        async def make() -> Any:
            return aiokafka.AIOKafkaProducer(bootstrap_servers=self.bootstrap, **config)

        self._producers[name] = self._run(make())

    def close_producer(self, name: str) -> None:
        self._run(asyncio.wait_for(self._producers.pop(name).stop(), CLOSE_TIMEOUT_S))

    def init_transactions(self, name: str) -> None:
        # It asks for its id when it begins the first transaction; a moment earlier does no harm.
        producer = self._producers[name]

        async def start() -> None:
            await producer.start()
            await producer._txn_manager.wait_for_pid()

        self._run(start())

    def begin(self, name: str) -> None:
        self._run(self._producers[name].begin_transaction())

    def send(self, name: str, topic: str, records: Sequence[Record]) -> list[Any]:
        return list(self._run(self._send_all(self._producers[name], topic, records, silent=False)))

    def send_offsets(self, name: str, consumer: str, positions: Sequence[Position]) -> None:
        offsets = {_place(t, p): o for t, p, o in positions}
        group = self._groups[consumer]
        self._run(self._producers[name].send_offsets_to_transaction(offsets, group))

    def commit_transaction(self, name: str) -> None:
        self._run(self._producers[name].commit_transaction())

    def abort_transaction(self, name: str) -> None:
        self._run(self._producers[name].abort_transaction())

    # -- consuming -----------------------------------------------------------------------

    def open_consumer(self, name: str, settings: dict[str, Any] | None = None) -> None:
        wanted = {"auto_commit": False, **(settings or {})}
        if wanted.pop("protocol", "classic") != "classic":
            raise Unsupported("has no group.protocol=consumer (KIP-848)")
        for unknown in ("remote_assignor", "auto_create"):
            wanted.pop(unknown, None)
        wanted.setdefault("reset", "latest" if "group" in wanted else "none")
        strategy = wanted.pop("strategy", None)
        config = {_CONSUMER_SETTINGS[key]: value for key, value in wanted.items()}
        if strategy is not None:
            if strategy not in _STRATEGIES:
                raise Unsupported(f"has no assignor {strategy}")
            config["partition_assignment_strategy"] = (_STRATEGIES[strategy],)

        async def start() -> Any:
            consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=self.bootstrap, **config)
            await consumer.start()
            return consumer

        self._groups[name] = wanted.get("group", "")
        self._consumers[name] = self._run(start())

    def close_consumer(self, name: str) -> None:
        self._run(self._consumers.pop(name).stop())

    def subscribe(self, name: str, topics: Sequence[str]) -> None:
        self._run(self._calling(self._consumers[name].subscribe, list(topics)))

    def subscribe_pattern(self, name: str, pattern: str) -> None:
        self._run(self._calling(self._consumers[name].subscribe, pattern=pattern))

    def unsubscribe(self, name: str) -> None:
        self._run(self._calling(self._consumers[name].unsubscribe))

    def assign(self, name: str, positions: Sequence[Position]) -> None:
        consumer = self._consumers[name]

        async def assign() -> None:
            # A consumer without a subscription learns only of the topics that it asked for.
            await consumer._client.fetch_all_metadata()
            consumer.assign([_place(t, p) for t, p, _ in positions])

        self._run(assign())
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
            batches = self._run(consumer.getmany(timeout_ms=wait_ms, max_records=most))
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
            self._run(consumer.seek_to_beginning(place))
        elif offset == "end":
            self._run(consumer.seek_to_end(place))
        else:
            self._run(self._calling(consumer.seek, place, offset))

    def position(self, name: str, topic: str, partition: int) -> int | None:
        found: int | None = self._run(self._consumers[name].position(_place(topic, partition)))
        return found

    def pause(self, name: str, places: Sequence[Place]) -> None:
        self._run(self._calling(self._consumers[name].pause, *(_place(t, p) for t, p in places)))

    def resume(self, name: str, places: Sequence[Place]) -> None:
        self._run(self._calling(self._consumers[name].resume, *(_place(t, p) for t, p in places)))

    def commit(self, name: str, positions: Sequence[Position] | None = None) -> None:
        wanted = None
        if positions is not None:
            wanted = {_place(t, p): (o, m or "") for t, p, o, m in positions}
        self._run(self._consumers[name].commit(wanted))

    def committed(self, name: str, places: Sequence[Place]) -> list[Position]:
        found = [(t, p, self._run(self._consumers[name].committed(_place(t, p)))) for t, p in places]
        # It gives the offset alone.
        return [[t, p, offset, ""] for t, p, offset in found]

    def watermarks(self, name: str, topic: str, partition: int) -> list[int]:
        consumer, place = self._consumers[name], _place(topic, partition)
        return [
            self._run(consumer.beginning_offsets([place]))[place],
            self._run(consumer.end_offsets([place]))[place],
        ]

    def offsets_for_times(self, name: str, times: Sequence[Position]) -> list[Position]:
        wanted = {_place(t, p): at for t, p, at in times}
        found = self._run(self._consumers[name].offsets_for_times(wanted))
        return [[p.topic, p.partition, None if found[p] is None else found[p].offset] for p in wanted]

    # -- admin ---------------------------------------------------------------------------

    def _admin(self, method: str, *words: Any, **named: Any) -> Any:
        async def call() -> Any:
            if self._own_admin is None:
                admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
                await admin.start()
                self._own_admin = admin
            return await getattr(self._own_admin, method)(*words, **named)

        return self._run(call())

    def create_topics(self, topics: Sequence[dict[str, Any]], validate_only: bool = False) -> dict[str, str]:
        wanted = []
        for topic in topics:
            nodes = {int(p): n for p, n in topic.get("replicas", {}).items()}
            partitions, replication = topic.get("partitions", -1), topic.get("replication", -1)
            if not nodes and -1 in (partitions, replication):
                raise Unsupported("asks for numbers of partitions and replicas")
            wanted.append(
                aiokafka.admin.NewTopic(
                    topic["name"],
                    -1 if nodes else partitions,
                    -1 if nodes else replication,
                    replica_assignments=nodes or None,
                    topic_configs=topic.get("config", {}),
                )
            )
        answer = self._admin("create_topics", wanted, timeout_ms=20_000, validate_only=validate_only)
        return {error[0]: code_name(error[1]) for error in answer.topic_errors}

    def delete_topics(self, names: Sequence[str]) -> dict[str, str]:
        answer = self._admin("delete_topics", list(names), timeout_ms=20_000)
        return {error[0]: code_name(error[1]) for error in answer.topic_error_codes}

    def create_partitions(self, counts: dict[str, int], validate_only: bool = False) -> dict[str, str]:
        found = {}
        for name, count in counts.items():
            wanted = {name: aiokafka.admin.NewPartitions(count)}
            try:
                self._admin("create_partitions", wanted, timeout_ms=20_000, validate_only=validate_only)
                found[name] = "NONE"
            except ClientError as error:
                found[name] = error.name
        return found

    def list_topics(self) -> list[str]:
        return sorted(self._admin("list_topics"))

    def describe_topics(self, names: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for topic in self._admin("describe_topics", list(names)):
            if topic["error_code"]:
                found[topic["topic"]] = code_name(topic["error_code"])
                continue
            found[topic["topic"]] = {
                "internal": topic["is_internal"],
                "partitions": [
                    {
                        "partition": p["partition"],
                        "leader": p["leader"] if p["leader"] >= 0 else None,
                        "replicas": list(p["replicas"]),
                        "isr": sorted(p["isr"]),
                    }
                    for p in sorted(topic["partitions"], key=lambda p: int(p["partition"]))
                ],
            }
        return found

    def describe_cluster(self) -> dict[str, Any]:
        found = self._admin("describe_cluster")
        return {
            "nodes": sorted(node["node_id"] for node in found["brokers"]),
            "controller": found["controller_id"] >= 0,
            "cluster_id": bool(found.get("cluster_id")),
        }

    def describe_configs(self, resources: Sequence[Sequence[str]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for kind, name in resources:
            resource = ConfigResource(ConfigResourceType[kind.upper()], name)
            for answer in self._admin("describe_configs", [resource], include_synonyms=True):
                for one in answer.to_object()["resources"]:
                    label = f"{kind}:{name}"
                    if one["error_code"]:
                        found[label] = code_name(one["error_code"])
                        continue
                    found[label] = {entry["config_names"]: _entry(entry) for entry in one["config_entries"]}
        return found

    def replace_configs(
        self, type: str, name: str, configs: dict[str, str], validate_only: bool = False
    ) -> str:
        if validate_only:
            raise Unsupported("has no validate_only in AlterConfigs")
        resource = ConfigResource(ConfigResourceType[type.upper()], name, configs)
        for answer in self._admin("alter_configs", [resource]):
            for one in answer.to_object()["resources"]:
                if one["resource_name"] == name:
                    return code_name(one["error_code"])
        return "NONE"

    def delete_records(self, positions: Sequence[Position]) -> list[Position]:
        found: list[Position] = []
        for topic, partition, offset in positions:
            wanted = {_place(topic, partition): aiokafka.admin.RecordsToDelete(offset)}
            try:
                low: Any = self._admin("delete_records", wanted, timeout_ms=20_000)[_place(topic, partition)]
            except ClientError as error:
                low = error.name
            found.append([topic, partition, low])
        return found

    def list_groups(self) -> list[dict[str, Any]]:
        rows = [{"group": g[0], "protocol_type": g[1]} for g in self._admin("list_consumer_groups")]
        return sorted(rows, key=lambda row: str(row["group"]))

    def describe_groups(self, names: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in names:
            for answer in self._admin("describe_consumer_groups", [name]):
                for group in answer.to_object()["groups"]:
                    if group["error_code"]:
                        found[name] = code_name(group["error_code"])
                        continue
                    found[name] = {
                        "state": group["state"],
                        "protocol_type": group["protocol_type"],
                        "assignor": group["protocol"],
                        "members": len(group["members"]),
                    }
        return found

    def group_offsets(self, group: str) -> list[Position]:
        found = self._admin("list_consumer_group_offsets", group)
        return sorted([p.topic, p.partition, o.offset, o.metadata or ""] for p, o in found.items())


def _entry(entry: Any) -> dict[str, Any]:
    synonyms = entry.get("config_synonyms") or []
    return {
        "value": entry["config_value"],
        "source": entry.get("config_source"),
        "read_only": entry["read_only"],
        "sensitive": entry["is_sensitive"],
        "synonyms": [list(s.values()) for s in synonyms],
    }


CLIENT = Aio
