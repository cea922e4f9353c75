"""The vocabulary of the scenarios: what a Kafka client can be told to do.

Everything is JSON: bytes are strings of U+0000 to U+00FF, a place is `[topic, partition]`, a position `[topic,
partition, offset]`, a committed position `[topic, partition, offset or None, metadata]`. Results per name are
objects whose values are "NONE" or Kafka's name of an error code. Methods that a client lacks raise
`Unsupported`, as they all do here. Names of settings are neutral; a client leaves out those it has no word for
(or raises `Unsupported` when the scenario would be meaningless):

* producers: `acks` ("all", "1", "0"), `compression` (none, gzip, snappy, lz4, zstd), `idempotence` (bool),
  `request_bytes_max`, `timeout_ms` (delivery), `linger_ms`. Default: the client's own, but for a delivery
  timeout of 20 s.
* consumers: `group`, `reset` (earliest, latest, none; default none for a consumer without a group),
  `auto_commit` (default false), `instance_id`, `client_id`, `protocol` ("classic", "consumer"), `strategy`
  (range, roundrobin, sticky, cooperative-sticky), `remote_assignor` (uniform, range), `session_timeout_ms`,
  `heartbeat_ms`, `max_poll_interval_ms`, `fetch_bytes_min`, `fetch_wait_ms`, `fetch_bytes_max`,
  `partition_bytes_max`, `poll_records_max`, `auto_create` (bool), `isolation` (read_uncommitted, read_committed;
  default: read_uncommitted).
* transactional producers: `transactional_id`, `transaction_timeout_ms` (default 60,000), `linger_ms`.

A record that is sent: {"value", "key", "headers": [[name, value or None], ...], "timestamp_ms", "partition"},
all but value optional (value may be None). A record that is read: {"topic", "partition", "offset", "key",
"value", "headers", "timestamp_ms", "timestamp_type": "create" | "append" | None where the client does not
tell}.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, ClassVar

COPY_POLL_MS = 1_000

Record = dict[str, Any]
Place = list[Any]
Position = list[Any]


class ClientError(Exception):
    """A client's or broker's refusal: `name` is Kafka's name of the code, or LOCAL_... for the client's own."""

    def __init__(self, name: str, message: str = "") -> None:
        super().__init__(f"{name}: {message}" if message else name)
        self.name = name
        self.message = message


class Unsupported(Exception):
    """This client has no such call."""


def _lacks(what: str) -> Unsupported:
    return Unsupported(f"has no {what}")


class Client:
    """A Kafka client. Consumers are told apart by names that the scenario gives them."""

    name: ClassVar[str] = ""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def close(self) -> None:
        """End everything that is still open, in order; never raises."""

    def spawn(self) -> Client:
        """A second client of the same kind in a process of its own, which `kill` ends as kill -9 does."""
        raise _lacks("process of its own")

    def kill(self) -> None:
        """SIGKILL for the process behind this client."""
        raise _lacks("process of its own")

    # -- producing -----------------------------------------------------------------------

    def produce(
        self, topic: str, records: Sequence[Record], settings: dict[str, Any] | None = None
    ) -> list[Any]:
        """Send all records with one new producer and wait for every answer, in the order of `records`:
        {"partition": n, "offset": n} (offset None with acks 0) or {"error": name}."""
        raise _lacks("producer")

    # -- transactions --------------------------------------------------------------------

    def open_producer(self, name: str, settings: dict[str, Any] | None = None) -> None:
        """A new transactional producer; nothing is asked of a coordinator before `init_transactions`."""
        raise _lacks("transactions")

    def close_producer(self, name: str) -> None:
        """Close it, whatever state it is in; an error that it has raised before is not raised again."""
        raise _lacks("transactions")

    def init_transactions(self, name: str) -> None:
        """Have the coordinator fence who had the id before."""
        raise _lacks("transactions")

    def begin(self, name: str) -> None:
        """Begin a transaction."""
        raise _lacks("transactions")

    def send(self, name: str, topic: str, records: Sequence[Record]) -> list[Any]:
        """Send within the transaction and wait for every answer, as `produce` does."""
        raise _lacks("transactions")

    def send_offsets(self, name: str, consumer: str, positions: Sequence[Position]) -> None:
        """Offsets of a consumer's group, [topic, partition, offset], in the transaction."""
        raise _lacks("offsets in transactions")

    def commit_transaction(self, name: str) -> None:
        """Commit, and wait for the answer."""
        raise _lacks("transactions")

    def abort_transaction(self, name: str) -> None:
        """Abort, and wait for the answer."""
        raise _lacks("transactions")

    def copy(self, name: str, source: str, sink: str, count: int, batch: int, abort_every: int) -> None:
        """Consume, transform, produce: so many records of `source` to `sink`, their values in < and >, with group and
        transactional id `name`, at most `batch` records in a transaction; each `abort_every`-th is aborted and done
        again. Partitions stay what they were."""
        copy(self, name, source, sink, count, batch, abort_every)

    # -- consuming -----------------------------------------------------------------------

    def open_consumer(self, name: str, settings: dict[str, Any] | None = None) -> None:
        """A new consumer."""
        raise _lacks("consumer")

    def close_consumer(self, name: str) -> None:
        """Close it: a member leaves its group as the client does it."""
        raise _lacks("consumer")

    def subscribe(self, name: str, topics: Sequence[str]) -> None:
        """Subscribe to topics by name."""
        raise _lacks("subscription")

    def subscribe_pattern(self, name: str, pattern: str) -> None:
        """Subscribe to topics by a regular expression that starts with ^ (classic: in the client; consumer protocol:
        in the broker, RE2)."""
        raise _lacks("subscription by pattern")

    def unsubscribe(self, name: str) -> None:
        """Drop the subscription; a member leaves its group."""
        raise _lacks("subscription")

    def assign(self, name: str, positions: Sequence[Position]) -> None:
        """Take partitions without a group: [topic, partition, offset | "beginning" | "end" | None (committed)]."""
        raise _lacks("assignment by hand")

    def poll(self, name: str, count: int, timeout_ms: int) -> list[Record]:
        """Records as they come, until there are `count` or the time is over; 0 records: serve the group for that
        long. An error that the client reports raises."""
        raise _lacks("consumer")

    def assignment(self, name: str) -> list[Place]:
        """Partitions that the consumer has now, sorted."""
        raise _lacks("assignment")

    def seek(self, name: str, topic: str, partition: int, offset: int | str) -> None:
        """Next record to read: an offset, "beginning" or "end"."""
        raise _lacks("seek")

    def position(self, name: str, topic: str, partition: int) -> int | None:
        """Offset of the next record to read; None where the client does not know one."""
        raise _lacks("position")

    def pause(self, name: str, places: Sequence[Place]) -> None:
        """Read nothing from these."""
        raise _lacks("pause")

    def resume(self, name: str, places: Sequence[Place]) -> None:
        """Read from these again."""
        raise _lacks("pause")

    def commit(self, name: str, positions: Sequence[Position] | None = None) -> None:
        """Commit and wait: [topic, partition, offset, metadata], or what was read last."""
        raise _lacks("commit")

    def committed(self, name: str, places: Sequence[Place]) -> list[Position]:
        """[topic, partition, offset or None, metadata] of each."""
        raise _lacks("committed offsets")

    def watermarks(self, name: str, topic: str, partition: int) -> list[int]:
        """[first offset, end offset]."""
        raise _lacks("watermarks")

    def offsets_for_times(self, name: str, times: Sequence[Position]) -> list[Position]:
        """[topic, partition, offset or None] for each [topic, partition, timestamp in ms]."""
        raise _lacks("offsets for times")

    # -- admin ---------------------------------------------------------------------------

    def create_topics(self, topics: Sequence[dict[str, Any]], validate_only: bool = False) -> dict[str, str]:
        """Topics: {"name", "partitions", "replication" (-1 default), "config": {}, "replicas": {"0": [1, 2]}};
        last two optional."""
        raise _lacks("admin client")

    def delete_topics(self, names: Sequence[str]) -> dict[str, str]:
        """Delete topics."""
        raise _lacks("admin client")

    def create_partitions(self, counts: dict[str, int], validate_only: bool = False) -> dict[str, str]:
        """Raise the number of partitions of each topic to a count."""
        raise _lacks("admin client")

    def list_topics(self) -> list[str]:
        """Names of all topics, sorted."""
        raise _lacks("listing of topics")

    def describe_topics(self, names: Sequence[str]) -> dict[str, Any]:
        """By name: error name, or {"internal": bool, "partitions": [{"partition", "leader": node or None,
        "replicas": [node], "isr": [node, sorted]}]}."""
        raise _lacks("description of topics")

    def describe_cluster(self) -> dict[str, Any]:
        """{"nodes": [id, sorted], "controller": bool (one is named), "cluster_id": bool (one is named)}."""
        raise _lacks("description of the cluster")

    def describe_configs(self, resources: Sequence[Sequence[str]]) -> dict[str, Any]:
        """Resources: [type, name], type "topic", "broker" or "group". By "type:name": error name, or by key
        {"value", "source"
        (Kafka's name, as DYNAMIC_TOPIC_CONFIG), "read_only", "sensitive"; where the client tells: "type",
        "synonyms": [[name, value, source]]}."""
        raise _lacks("description of configs")

    def alter_configs(
        self, type: str, name: str, changes: Sequence[Sequence[str | None]], validate_only: bool = False
    ) -> str:
        """IncrementalAlterConfigs: changes [key, "set" | "delete" | "append" | "subtract", value or None]."""
        raise _lacks("IncrementalAlterConfigs")

    def replace_configs(
        self, type: str, name: str, configs: dict[str, str], validate_only: bool = False
    ) -> str:
        """AlterConfigs, the old form: what is not named goes back to its default."""
        raise _lacks("AlterConfigs")

    def delete_records(self, positions: Sequence[Position]) -> list[Position]:
        """Delete what is before each offset (-1 = the high watermark): [topic, partition, low watermark or
        error name]."""
        raise _lacks("DeleteRecords")

    def list_offsets(self, places: Sequence[Position], isolation: str = "read_uncommitted") -> list[Position]:
        """Places: [topic, partition, "earliest" | "latest" | "max_timestamp" | timestamp in ms]:
        [topic, partition, offset or error name, timestamp in ms]."""
        raise _lacks("ListOffsets")

    def elect_leaders(self, places: Sequence[Place], unclean: bool = False) -> list[Position]:
        """[topic, partition, error name]."""
        raise _lacks("ElectLeaders")

    def log_dirs(self, topic: str) -> list[Any]:
        """For every node (its number of directories, and its replicas of the topic, sorted):
        [node, directories, [[partition, has bytes: bool]]]."""
        raise _lacks("DescribeLogDirs")

    def reassign(self, targets: Sequence[Sequence[Any]]) -> list[Position]:
        """AlterPartitionReassignments: [topic, partition, [nodes] or None to cancel]: [topic, partition, error
        name]."""
        raise _lacks("AlterPartitionReassignments")

    def reassignments(self, topic: str) -> list[Any]:
        """ListPartitionReassignments: [partition, replicas, adding, removing] of what is under way."""
        raise _lacks("ListPartitionReassignments")

    def list_groups(self) -> list[dict[str, Any]]:
        """{"group", "state", "type" (Classic, Consumer; where told)} sorted by group; states as Kafka writes them."""
        raise _lacks("listing of groups")

    def describe_groups(self, names: Sequence[str]) -> dict[str, Any]:
        """By name: error name, or {"state", "assignor", "type" (where told), "members": [{"instance_id",
        "assignment":
        [place, sorted]}] sorted by assignment}."""
        raise _lacks("description of groups")

    def delete_groups(self, names: Sequence[str]) -> dict[str, str]:
        """Delete groups."""
        raise _lacks("deletion of groups")

    def group_offsets(self, group: str) -> list[Position]:
        """Everything that a group has committed: [topic, partition, offset, metadata], sorted."""
        raise _lacks("offsets of a group")

    def alter_group_offsets(self, group: str, positions: Sequence[Position]) -> list[Position]:
        """[topic, partition, error name]."""
        raise _lacks("changing a group's offsets")

    def delete_group_offsets(self, group: str, places: Sequence[Place]) -> list[Position]:
        """[topic, partition, error name]."""
        raise _lacks("deletion of a group's offsets")

    def list_transactions(self, prefix: str) -> list[list[str]]:
        """[transactional id, state] of every id that begins so, sorted."""
        raise _lacks("listing of transactions")

    def describe_transactions(self, names: Sequence[str]) -> dict[str, Any]:
        """By id: error name, or {"state", "timeout_ms", "open" (whether it has a start time), "partitions"
        [place, sorted]}."""
        raise _lacks("description of transactions")

    def describe_producers(self, topic: str, partition: int) -> list[list[Any]]:
        """Of each producer that a partition knows: [last sequence, offset at which its transaction begins or None]."""
        raise _lacks("description of producers")

    def fence_producers(self, names: Sequence[str]) -> dict[str, str]:
        """Fence whoever has these transactional ids."""
        raise _lacks("fencing of producers")

    def remove_members(self, group: str, instance_ids: Sequence[str]) -> list[Position]:
        """Batch LeaveGroup: [instance id, error name]."""
        raise _lacks("removal of members")


def in_order(producers: list[list[Any]]) -> list[list[Any]]:
    """What `describe_producers` answers with: no open transaction goes before one."""
    return sorted(producers, key=lambda row: (row[0], -1 if row[1] is None else row[1]))


def copy(c: Client, name: str, source: str, sink: str, count: int, batch: int, abort_every: int) -> None:
    """`Client.copy` out of the other words, as a client's own documentation would have it."""
    c.open_consumer(name, {"group": name, "reset": "earliest", "isolation": "read_committed"})
    c.open_producer(name, {"transactional_id": name})
    c.init_transactions(name)
    c.subscribe(name, [source])
    done = turn = 0
    while done < count:
        records = c.poll(name, batch, COPY_POLL_MS)
        if not records:
            continue
        turn += 1
        c.begin(name)
        first: dict[tuple[str, int], int] = {}
        behind: dict[tuple[str, int], int] = {}
        for record in records:
            place = (record["topic"], record["partition"])
            first.setdefault(place, record["offset"])
            behind[place] = record["offset"] + 1
        c.send(name, sink, [{"value": f"<{r['value']}>", "partition": r["partition"]} for r in records])
        c.send_offsets(name, name, [[t, p, offset] for (t, p), offset in behind.items()])
        if turn % abort_every:
            c.commit_transaction(name)
            done += len(records)
            continue
        c.abort_transaction(name)
        for (t, p), offset in first.items():
            c.seek(name, t, p, offset)
    c.close_producer(name)
    c.close_consumer(name)


OPERATIONS = frozenset(
    name
    for name, _ in inspect.getmembers(Client, inspect.isfunction)
    if not name.startswith("_") and name not in ("close", "spawn", "kill")
)
"""What may stand as `op` in a line to a remote client."""
