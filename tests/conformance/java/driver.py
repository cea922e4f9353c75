"""The Java clients 4.x, and those of 3.9 (`conformance.java.older`), behind the suite's vocabulary.

All clients of a run live in one JVM (`support.java.shared_driver`); `spawn` starts a JVM of its own, which
`kill` ends
as kill -9 does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from conformance.client import Client, ClientError, Place, Position, Record, Unsupported, in_order
from conformance.clients.texts import to_bytes, to_text
from support.java import JavaDriver, JavaError, decode, encode, missing_java, shared_driver

CALL_TIMEOUT_MS = 30_000
TAKE_SLACK_S = 90.0
_ASSIGNORS = "org.apache.kafka.clients.consumer."
_STRATEGIES = {
    "range": "RangeAssignor",
    "roundrobin": "RoundRobinAssignor",
    "sticky": "StickyAssignor",
    "cooperative-sticky": "CooperativeStickyAssignor",
}
_CONSUMER_SETTINGS = {
    "group": "group.id",
    "reset": "auto.offset.reset",
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
    "fetch_wait_ms": "fetch.max.wait.ms",
    "fetch_bytes_max": "fetch.max.bytes",
    "partition_bytes_max": "max.partition.fetch.bytes",
    "poll_records_max": "max.poll.records",
    "auto_create": "allow.auto.create.topics",
    "isolation": "isolation.level",
}
_PRODUCER_SETTINGS = {
    "acks": "acks",
    "compression": "compression.type",
    "idempotence": "enable.idempotence",
    "request_bytes_max": "max.request.size",
    "linger_ms": "linger.ms",
    "transactional_id": "transactional.id",
    "transaction_timeout_ms": "transaction.timeout.ms",
}
_TIMESTAMPS = {"CreateTime": "create", "LogAppendTime": "append"}

missing = missing_java


@contextmanager
def _guarded() -> Iterator[None]:
    try:
        yield
    except JavaError as error:
        raise ClientError(_name(error.name, error.kind), error.message) from error


def _name(name: str, kind: str) -> str:
    # Exceptions of the client itself have no code of the protocol.
    return f"LOCAL_{kind}" if name == "UNKNOWN_SERVER_ERROR" else name


def _error(entry: dict[str, Any]) -> str:
    """NONE, or the name of the error of one thing in an answer about several."""
    error = entry.get("error")
    return "NONE" if error is None else _name(error["name"], error["type"])


def _errors(answer: dict[str, Any]) -> dict[str, str]:
    return {name: _error(entry) for name, entry in answer.items()}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class JavaClient(Client):
    name = "java"

    def __init__(self, bootstrap: str, own: JavaDriver | None = None) -> None:
        super().__init__(bootstrap)
        self._driver = own or self._shared()
        self._own = own
        self._handles: dict[str, str] = {}
        self._producers: dict[str, str] = {}

    @classmethod
    def _shared(cls) -> JavaDriver:
        return shared_driver()

    @classmethod
    def _new(cls) -> JavaDriver:
        return JavaDriver()

    def close(self) -> None:
        for name in list(self._handles):
            with suppress(ClientError, TimeoutError):
                self.close_consumer(name)
        for name in list(self._producers):
            with suppress(ClientError, TimeoutError):
                self.close_producer(name)
        if self._own is not None:
            self._own.close()

    def spawn(self) -> Client:
        return type(self)(self.bootstrap, self._new())

    def kill(self) -> None:
        if self._own is None:
            raise Unsupported("shares its process")
        self._own.kill()
        self._handles.clear()
        self._producers.clear()

    def _call(self, op: str, **arguments: Any) -> Any:
        with _guarded():
            return self._driver.call(op, **arguments)

    # -- producing -----------------------------------------------------------------------

    def produce(
        self, topic: str, records: Sequence[Record], settings: dict[str, Any] | None = None
    ) -> list[Any]:
        wanted = dict(settings or {})
        timeout_ms = int(wanted.pop("timeout_ms", 20_000))
        config = {_PRODUCER_SETTINGS[key]: _text(value) for key, value in wanted.items()}
        linger_ms = int(config.get("linger.ms", 5))
        config |= {
            "bootstrap.servers": self.bootstrap,
            "delivery.timeout.ms": str(timeout_ms),
            "request.timeout.ms": str(max(1, min(10_000, timeout_ms - linger_ms))),
            "max.block.ms": str(timeout_ms),
        }
        handle = self._call("producer.open", config=config)
        try:
            return self._send(handle, topic, records)
        finally:
            self._call("producer.close", handle=handle)

    def _send(self, handle: str, topic: str, records: Sequence[Record]) -> list[Any]:
        rows = [
            {
                "partition": r.get("partition"),
                "timestamp": r.get("timestamp_ms"),
                "key": encode(to_bytes(r.get("key"))),
                "value": encode(to_bytes(r["value"])),
                "headers": [[h, encode(to_bytes(v))] for h, v in r.get("headers", [])],
            }
            for r in records
        ]
        answers = self._call(
            "producer.send", handle=handle, topic=topic, records=rows, wait_s=len(rows) + TAKE_SLACK_S
        )
        return [
            {"error": _error(one)}
            if "error" in one
            else {"partition": one["partition"], "offset": one["offset"]}
            for one in answers
        ]

    # -- transactions --------------------------------------------------------------------

    def open_producer(self, name: str, settings: dict[str, Any] | None = None) -> None:
        config = {_PRODUCER_SETTINGS[key]: _text(value) for key, value in (settings or {}).items()}
        config |= {
            "bootstrap.servers": self.bootstrap,
            "delivery.timeout.ms": "20000",
            "request.timeout.ms": "10000",
            "max.block.ms": "20000",
        }
        self._producers[name] = self._call("producer.open", config=config)

    def _with(self, name: str, op: str, **arguments: Any) -> Any:
        return self._call(f"producer.{op}", handle=self._producers[name], **arguments)

    def close_producer(self, name: str) -> None:
        self._call("producer.close", handle=self._producers.pop(name), timeout_ms=5_000)

    def init_transactions(self, name: str) -> None:
        self._with(name, "init_transactions")

    def begin(self, name: str) -> None:
        self._with(name, "begin")

    def send(self, name: str, topic: str, records: Sequence[Record]) -> list[Any]:
        return self._send(self._producers[name], topic, records)

    def send_offsets(self, name: str, consumer: str, positions: Sequence[Position]) -> None:
        topics: dict[str, list[list[int]]] = {}
        for topic, partition, offset in positions:
            topics.setdefault(topic, []).append([partition, offset])
        for topic, offsets in topics.items():
            self._with(name, "send_offsets", consumer=self._handles[consumer], topic=topic, offsets=offsets)

    def commit_transaction(self, name: str) -> None:
        self._with(name, "commit")

    def abort_transaction(self, name: str) -> None:
        self._with(name, "abort")

    # -- consuming -----------------------------------------------------------------------

    def open_consumer(self, name: str, settings: dict[str, Any] | None = None) -> None:
        wanted = {"auto_commit": False, **(settings or {})}
        wanted.setdefault("reset", "latest" if "group" in wanted else "none")
        if wanted.get("protocol") == "consumer":
            # The broker tells these, and the client refuses them.
            wanted.pop("session_timeout_ms", None)
            wanted.pop("heartbeat_ms", None)
        if "strategy" in wanted:
            wanted["strategy"] = _ASSIGNORS + _STRATEGIES[wanted["strategy"]]
        config = {_CONSUMER_SETTINGS[key]: _text(value) for key, value in wanted.items()}
        config["bootstrap.servers"] = self.bootstrap
        config.setdefault("default.api.timeout.ms", str(CALL_TIMEOUT_MS))
        self._handles[name] = self._call("consumer.open", config=config)

    def _on(self, name: str, op: str, **arguments: Any) -> Any:
        return self._call(f"consumer.{op}", handle=self._handles[name], **arguments)

    def close_consumer(self, name: str) -> None:
        handle = self._handles.pop(name)
        self._call("consumer.close", handle=handle)

    def subscribe(self, name: str, topics: Sequence[str]) -> None:
        self._on(name, "subscribe", topics=list(topics))

    def subscribe_pattern(self, name: str, pattern: str) -> None:
        if self._on(name, "protocol") == "consumer":
            self._on(name, "subscribe", server_pattern=pattern)
        else:
            self._on(name, "subscribe", pattern=pattern)

    def unsubscribe(self, name: str) -> None:
        self._on(name, "unsubscribe")

    def assign(self, name: str, positions: Sequence[Position]) -> None:
        self._on(name, "assign", partitions=[[t, p] for t, p, _ in positions])
        for t, p, offset in positions:
            if offset is not None:
                self.seek(name, t, p, offset)

    def poll(self, name: str, count: int, timeout_ms: int) -> list[Record]:
        found = self._on(
            name, "take", count=count, timeout_ms=timeout_ms, wait_s=timeout_ms / 1000 + TAKE_SLACK_S
        )
        return [
            {
                "topic": r["topic"],
                "partition": r["partition"],
                "offset": r["offset"],
                "key": to_text(decode(r["key"])),
                "value": to_text(decode(r["value"])),
                "headers": [[h, to_text(decode(v))] for h, v in r["headers"]],
                "timestamp_ms": r["timestamp"],
                "timestamp_type": _TIMESTAMPS.get(r["timestamp_type"]),
            }
            for r in found
        ]

    def assignment(self, name: str) -> list[Place]:
        return sorted(self._on(name, "assignment"))

    def seek(self, name: str, topic: str, partition: int, offset: int | str) -> None:
        if offset == "beginning":
            self._on(name, "seek_to_beginning", partitions=[[topic, partition]])
        elif offset == "end":
            self._on(name, "seek_to_end", partitions=[[topic, partition]])
        else:
            self._on(name, "seek", offsets=[[topic, partition, offset]])

    def position(self, name: str, topic: str, partition: int) -> int | None:
        found: int = self._on(name, "position", partitions=[[topic, partition]])[0][2]
        return found

    def pause(self, name: str, places: Sequence[Place]) -> None:
        self._on(name, "pause", partitions=list(places))

    def resume(self, name: str, places: Sequence[Place]) -> None:
        self._on(name, "resume", partitions=list(places))

    def commit(self, name: str, positions: Sequence[Position] | None = None) -> None:
        self._on(name, "commit", offsets=None if positions is None else [list(p) for p in positions])

    def committed(self, name: str, places: Sequence[Place]) -> list[Position]:
        found = {(t, p): (o, m) for t, p, o, m in self._on(name, "committed", partitions=list(places))}
        return [[t, p, *found.get((t, p), (None, ""))] for t, p in places]

    def watermarks(self, name: str, topic: str, partition: int) -> list[int]:
        place = [[topic, partition]]
        low = self._on(name, "beginning_offsets", partitions=place)
        high = self._on(name, "end_offsets", partitions=place)
        return [low[0][2], high[0][2]]

    def offsets_for_times(self, name: str, times: Sequence[Position]) -> list[Position]:
        answer = self._on(name, "offsets_for_times", offsets=[list(t) for t in times])
        found = {(t, p): o for t, p, o, _ in answer}
        return [[t, p, found.get((t, p))] for t, p, _ in times]

    # -- admin ---------------------------------------------------------------------------

    def _admin(self, op: str, **arguments: Any) -> Any:
        config = {"bootstrap.servers": self.bootstrap, "default.api.timeout.ms": str(CALL_TIMEOUT_MS)}
        return self._call(f"admin.{op}", config=config, **arguments)

    def create_topics(self, topics: Sequence[dict[str, Any]], validate_only: bool = False) -> dict[str, str]:
        wanted = []
        for topic in topics:
            row: dict[str, Any] = {"name": topic["name"], "config": topic.get("config", {})}
            if "replicas" in topic:
                row["assignment"] = topic["replicas"]
            else:
                row["partitions"] = _unless_default(topic.get("partitions", -1))
                row["replication_factor"] = _unless_default(topic.get("replication", -1))
            wanted.append(row)
        return _errors(self._admin("create_topics", topics=wanted, validate_only=validate_only))

    def delete_topics(self, names: Sequence[str]) -> dict[str, str]:
        return _errors(self._admin("delete_topics", topics=list(names)))

    def create_partitions(self, counts: dict[str, int], validate_only: bool = False) -> dict[str, str]:
        return _errors(self._admin("create_partitions", totals=counts, validate_only=validate_only))

    def list_topics(self) -> list[str]:
        return sorted(self._admin("list_topics", internal=True))

    def describe_topics(self, names: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, entry in self._admin("describe_topics", topics=list(names)).items():
            if "error" in entry:
                found[name] = _error(entry)
                continue
            topic = entry["result"]
            found[name] = {
                "internal": topic["internal"],
                "partitions": [
                    {
                        "partition": p["partition"],
                        "leader": p["leader"] if p["leader"] >= 0 else None,
                        "replicas": p["replicas"],
                        "isr": sorted(p["isr"]),
                    }
                    for p in topic["partitions"]
                ],
            }
        return found

    def describe_cluster(self) -> dict[str, Any]:
        found = self._admin("describe_cluster")
        return {
            "nodes": sorted(node[0] for node in found["nodes"]),
            "controller": found["controller"] is not None,
            "cluster_id": bool(found["cluster_id"]),
        }

    def describe_configs(self, resources: Sequence[Sequence[str]]) -> dict[str, Any]:
        asked = [[kind.upper(), name] for kind, name in resources]
        found: dict[str, Any] = {}
        for label, entry in self._admin("describe_configs", resources=asked, synonyms=True).items():
            kind, _, name = label.partition(":")
            key = f"{kind.lower()}:{name}"
            if "error" in entry:
                found[key] = _error(entry)
                continue
            found[key] = {
                setting: {word: value for word, value in one.items() if word != "documented"}
                for setting, one in entry["result"].items()
            }
        return found

    def alter_configs(
        self, type: str, name: str, changes: Sequence[Sequence[str | None]], validate_only: bool = False
    ) -> str:
        wanted = [[type.upper(), name, key, str(op).upper(), value] for key, op, value in changes]
        answer = self._admin("incremental_alter_configs", changes=wanted, validate_only=validate_only)
        return _error(next(iter(answer.values())))

    def delete_records(self, positions: Sequence[Position]) -> list[Position]:
        answer = self._admin("delete_records", offsets=[list(p) for p in positions])
        return sorted(
            [t, p, entry["result"] if "result" in entry else _error(entry)]
            for (t, p), entry in _by_place(answer).items()
        )

    def list_offsets(self, places: Sequence[Position], isolation: str = "read_uncommitted") -> list[Position]:
        asked = [[t, p, str(at)] for t, p, at in places]
        answer = self._admin("list_offsets", partitions=asked, isolation=isolation.upper())
        found: list[Position] = []
        for (t, p), entry in _by_place(answer).items():
            if "error" in entry:
                found.append([t, p, _error(entry), None])
            else:
                found.append([t, p, entry["result"]["offset"], entry["result"]["timestamp"]])
        return sorted(found, key=str)

    def elect_leaders(self, places: Sequence[Place], unclean: bool = False) -> list[Position]:
        kind = "UNCLEAN" if unclean else "PREFERRED"
        return _place_errors(self._admin("elect_leaders", type=kind, partitions=list(places)))

    def log_dirs(self, topic: str) -> list[Any]:
        nodes = sorted(node[0] for node in self._admin("describe_cluster")["nodes"])
        found = []
        for node, entry in sorted(self._admin("describe_log_dirs", nodes=nodes).items()):
            if "error" in entry:
                raise ClientError(_error(entry))
            rows = [
                [place[1], info["size"] > 0]
                for one in entry["result"]
                for place, info in _by_place(one["replicas"]).items()
                if place[0] == topic
            ]
            found.append([int(node), len(entry["result"]), sorted(rows)])
        return found

    def reassign(self, targets: Sequence[Sequence[Any]]) -> list[Position]:
        return _place_errors(
            self._admin("alter_partition_reassignments", reassignments=[list(t) for t in targets])
        )

    def reassignments(self, topic: str) -> list[Any]:
        found = _by_place(self._admin("list_partition_reassignments"))
        return sorted(
            [p, r["replicas"], r["adding"], r["removing"]] for (t, p), r in found.items() if t == topic
        )

    def list_groups(self) -> list[dict[str, Any]]:
        rows = [
            {"group": g["group"], "state": g["state"], "type": g["type"]} for g in self._admin("list_groups")
        ]
        return sorted(rows, key=lambda row: str(row["group"]))

    def describe_groups(self, names: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, entry in self._admin("describe_consumer_groups", groups=list(names)).items():
            if "error" in entry:
                found[name] = _error(entry)
                continue
            group = entry["result"]
            members = [
                {"instance_id": m["instance"], "assignment": sorted(m["partitions"])}
                for m in group["members"]
            ]
            found[name] = {
                "state": group["state"],
                "assignor": group["assignor"],
                "type": group["type"],
                "members": sorted(members, key=lambda m: str(m["assignment"])),
            }
        return found

    def delete_groups(self, names: Sequence[str]) -> dict[str, str]:
        return _errors(self._admin("delete_consumer_groups", groups=list(names)))

    def group_offsets(self, group: str) -> list[Position]:
        entry = self._admin("list_consumer_group_offsets", groups=[group])[group]
        if "error" in entry:
            raise ClientError(_error(entry))
        found = _by_place(entry["result"])
        return sorted([t, p, o[0], o[1]] for (t, p), o in found.items() if o is not None)

    def alter_group_offsets(self, group: str, positions: Sequence[Position]) -> list[Position]:
        return _place_errors(
            self._admin("alter_consumer_group_offsets", group=group, offsets=[list(p) for p in positions])
        )

    def delete_group_offsets(self, group: str, places: Sequence[Place]) -> list[Position]:
        return _place_errors(
            self._admin("delete_consumer_group_offsets", group=group, partitions=list(places))
        )

    def list_transactions(self, prefix: str) -> list[list[str]]:
        return sorted(row for row in self._admin("list_transactions") if row[0].startswith(prefix))

    def describe_transactions(self, names: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, entry in self._admin("describe_transactions", ids=list(names)).items():
            if "error" in entry:
                found[name] = _error(entry)
            else:
                found[name] = entry["result"] | {"partitions": sorted(entry["result"]["partitions"])}
        return found

    def describe_producers(self, topic: str, partition: int) -> list[list[Any]]:
        found = self._admin("describe_producers", partitions=[[topic, partition]])
        return in_order([[one["last_sequence"], one["start"]] for one in found])

    def fence_producers(self, names: Sequence[str]) -> dict[str, str]:
        return _errors(self._admin("fence_producers", ids=list(names)))

    def remove_members(self, group: str, instance_ids: Sequence[str]) -> list[Position]:
        found = _errors(self._admin("remove_members", group=group, instances=list(instance_ids)))
        return sorted([name, error] for name, error in found.items())


def _unless_default(number: int) -> int | None:
    return None if number == -1 else number


def _by_place(answer: dict[str, Any]) -> dict[tuple[str, int], Any]:
    """The driver names a partition topic-number."""
    found = {}
    for name, entry in answer.items():
        topic, _, number = name.rpartition("-")
        found[(topic, int(number))] = entry
    return found


def _place_errors(answer: dict[str, Any]) -> list[Position]:
    return sorted([t, p, _error(entry)] for (t, p), entry in _by_place(answer).items())


CLIENT = JavaClient
