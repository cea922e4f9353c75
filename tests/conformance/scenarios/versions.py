"""Every version of every request that Kafka and Penstock both have: the same answers, but for ids and addresses."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from conformance import build
from conformance.client import Client
from conformance.frame import Case, Outcome, Play, scenario
from conformance.scenarios.raw import RAW, _good, produce_values
from conformance.wire import Closed, Wire, coordinator_of, leader_of, topic_id_of
from penstock_kafka.wire.apis import SUPPORTED

SECTION = "The wire: every version"
NEVER_BEFORE = 4
"""First version of JoinGroup that gives a member id and asks again."""

Values = Callable[[str, Any, int], dict[str, Any]]
"""What to ask, given a topic, its id and the version."""


def both(api: str) -> list[int]:
    """Versions of an API that Penstock and the schemas have; Produce below 3 is only advertised."""
    known = build.versions(api)
    low, high = SUPPORTED.get(int(build.entity(api, known[0]).__api_key__), (0, -1))
    return [version for version in known if low <= version <= high]


def ask(address: str, api: str, version: int, values: dict[str, Any]) -> Any:
    """The answer, or "closed"."""
    with Wire(address) as wire:
        try:
            return wire.call(build.request(api, version, values))
        except Closed:
            return "closed"


def _name(topic: str, topic_id: Any, by_id: bool) -> dict[str, Any]:
    return {"topic_id": topic_id} if by_id else {"topic": topic, "name": topic}


def _fetch(topic: str, topic_id: Any, version: int) -> dict[str, Any]:
    part = {
        "partition": 0, "fetch_offset": 0, "partition_max_bytes": 10_000, "current_leader_epoch": -1,
        "last_fetched_epoch": -1, "log_start_offset": -1,
    }  # fmt: skip
    return {
        "replica_id": -1, "max_wait": 10, "min_bytes": 1, "max_bytes": 100_000, "session_epoch": -1,
        "topics": [{**_name(topic, topic_id, version >= 13), "partitions": [part]}],
    }  # fmt: skip


def _list_offsets(topic: str, _id: Any, _version: int) -> dict[str, Any]:
    parts = [{"partition_index": p, "current_leader_epoch": -1, "timestamp": -1} for p in (0, 9)]
    return {"replica_id": -1, "topics": [{"name": topic, "partitions": parts}]}


def _metadata(topic: str, topic_id: Any, version: int) -> dict[str, Any]:
    names = [{"name": topic, "topic_id": None}, {"name": f"{topic}.nowhere", "topic_id": None}]
    if version >= 12:  # by id or by name; who asks for both is told of the ids alone
        names = [{"name": None, "topic_id": topic_id}]
    return {"topics": names, "allow_auto_topic_creation": False}


def _epochs(topic: str, _id: Any, _version: int) -> dict[str, Any]:
    parts = [{"partition": p, "current_leader_epoch": -1, "leader_epoch": e} for p, e in ((0, 0), (9, 0))]
    return {"replica_id": -1, "topics": [{"topic": topic, "partitions": parts}]}


def _delete_records(topic: str, _id: Any, _version: int) -> dict[str, Any]:
    parts = [{"partition_index": 0, "offset": 0}]
    return {"topics": [{"name": topic, "partitions": parts}], "timeout": 5_000}


AT_LEADER: dict[str, Values] = {
    "produce": lambda topic, topic_id, _v: produce_values(topic, topic_id, _good()),
    "fetch": _fetch,
    "list_offsets": _list_offsets,
    "offset_for_leader_epoch": _epochs,
    "delete_records": _delete_records,
}


def _topic_states(topic: str, _id: Any, version: int) -> dict[str, Any]:
    gone = f"{topic}.nowhere"
    return {"topic_names": [gone], "topics": [{"name": gone, "topic_id": None}], "timeout": 5_000}


def _configs(topic: str, _id: Any, _version: int) -> dict[str, Any]:
    return {
        "resources": [
            {
                "resource_type": 2,
                "resource_name": topic,
                "configuration_keys": ["retention.ms", "segment.ms"],
            },
            {"resource_type": 2, "resource_name": f"{topic}.nowhere", "configuration_keys": None},
        ],
        "include_synonyms": True,
        "include_documentation": False,
    }


def _incremental(topic: str, _id: Any, _version: int) -> dict[str, Any]:
    change = {"name": "segment.ms", "config_operation": 0, "value": "3600000"}
    return {
        "resources": [
            {"resource_type": 2, "resource_name": name, "configs": [change]}
            for name in (topic, f"{topic}.nowhere")
        ],
        "validate_only": True,
    }


def _alter(topic: str, _id: Any, _version: int) -> dict[str, Any]:
    change = {"name": "segment.ms", "value": "3600000"}
    return {
        "resources": [
            {"resource_type": 2, "resource_name": name, "configs": [change]}
            for name in (topic, f"{topic}.nowhere")
        ],
        "validate_only": True,
    }


def _create_topics(topic: str, _id: Any, version: int) -> dict[str, Any]:
    config = [{"name": "retention.ms", "value": "5000"}]
    return {
        "topics": [
            {
                "name": f"{topic}.new{version}",
                "num_partitions": 2,
                "replication_factor": 2,
                "configs": config,
            },
            {"name": topic, "num_partitions": 2, "replication_factor": 2},
        ],
        "timeout": 20_000,
        "validate_only": False,
    }


def _create_partitions(topic: str, _id: Any, _version: int) -> dict[str, Any]:
    wanted = [
        {"name": topic, "count": 1, "assignments": None},
        {"name": f"{topic}.nowhere", "count": 3, "assignments": None},
    ]
    return {"topics": wanted, "timeout": 5_000, "validate_only": True}


def _elect(topic: str, _id: Any, _version: int) -> dict[str, Any]:
    wanted = [{"topic": topic, "partitions": [0, 9]}]
    return {"election_type": 0, "topic_partitions": wanted, "timeout": 5_000}


def _quotas(topic: str, _id: Any, version: int) -> dict[str, Any]:
    # One entity a request: the order of several is that of Kafka's hash table.
    bad = {"key": "no_such_rate", "value": 5.0, "remove": False}
    good = {"key": "producer_byte_rate", "value": 5.0, "remove": False}
    entity = [{"entity_type": "user", "entity_name": topic}]
    return {
        "entries": [{"entity": entity, "ops": [good, bad] if version == 0 else [good]}],
        "validate_only": True,
    }


def _quota_filter(topic: str, _id: Any, _version: int) -> dict[str, Any]:
    return {"components": [{"entity_type": "user", "match_type": 0, "match": topic}], "strict": True}


def _credentials(topic: str, _id: Any, _version: int) -> dict[str, Any]:
    good = {"mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": b"p" * 32}
    return {"deletions": [], "upsertions": [good | {"name": f"{topic}.user", "iterations": 1}]}


_ACL_FILTER = {
    "resource_type_filter": 2, "resource_name_filter": None, "pattern_type_filter": 3, "principal_filter": None,
    "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip


def _acl(name: str) -> dict[str, Any]:
    return {
        "resource_type": 2, "resource_name": name, "resource_pattern_type": 3, "principal": "User:a", "host": "*",
        "operation": 3, "permission_type": 3,
    }  # fmt: skip


ANYWHERE: dict[str, Values] = {
    "metadata": _metadata,
    "find_coordinator": lambda topic, _i, _v: {"key": topic, "key_type": 0, "coordinator_keys": [topic]},
    "create_topics": _create_topics,
    "delete_topics": _topic_states,
    "create_partitions": _create_partitions,
    "init_producer_id": lambda _t, _i, _v: {
        "transactional_id": None, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1,
    },
    "describe_cluster": lambda _t, _i, _v: {"endpoint_type": 1},
    "describe_topic_partitions": lambda topic, _i, _v: {
        "topics": [{"name": topic}, {"name": f"{topic}.nowhere"}], "response_partition_limit": 100,
    },
    "describe_configs": _configs,
    "incremental_alter_configs": _incremental,
    "alter_configs": _alter,
    "elect_leaders": _elect,
    "list_partition_reassignments": lambda topic, _i, _v: {
        "topics": [{"name": topic, "partition_indexes": [0]}], "timeout": 5_000,
    },
    "describe_client_quotas": _quota_filter,
    "alter_client_quotas": _quotas,
    "describe_user_scram_credentials": lambda topic, _i, _v: {"users": [{"name": f"{topic}.nobody"}]},
    "alter_user_scram_credentials": _credentials,
    # Neither cluster has an authorizer: what each answers then.
    "describe_acls": lambda _t, _i, _v: _ACL_FILTER,
    "create_acls": lambda topic, _i, _v: {"creations": [_acl(topic), _acl("")]},
    "delete_acls": lambda _t, _i, _v: {"filters": [_ACL_FILTER, _ACL_FILTER]},
}  # fmt: skip


def _commit(topic: str, topic_id: Any, version: int) -> dict[str, Any]:
    parts = [
        {"partition_index": p, "committed_offset": 3, "committed_leader_epoch": -1, "committed_metadata": "m"}
        for p in (0, 9)
    ]
    return {
        "group_id": f"{topic}.g", "generation_id_or_member_epoch": -1, "member_id": "", "retention_time": -1,
        "topics": [{**_name(topic, topic_id, version >= 10), "partitions": parts}],
    }  # fmt: skip


def _offset_fetch(topic: str, topic_id: Any, version: int) -> dict[str, Any]:
    topics = [{**_name(topic, topic_id, version >= 10), "partition_indexes": [0, 9]}]
    group = f"{topic}.g"
    asked = {"group_id": group, "member_id": None, "member_epoch": -1, "topics": topics}
    return {"group_id": group, "topics": topics, "groups": [asked]}


AT_COORDINATOR: dict[str, Values] = {
    "offset_commit": _commit,
    "offset_fetch": _offset_fetch,
    "describe_groups": lambda topic, _i, _v: {"groups": [f"{topic}.g"]},
    "consumer_group_describe": lambda topic, _i, _v: {"group_ids": [f"{topic}.g"]},
    "heartbeat": lambda topic, _i, _v: {"group_id": f"{topic}.g", "generation_id": 4, "member_id": "nobody"},
    "leave_group": lambda topic, _i, _v: {
        "group_id": f"{topic}.g", "member_id": "nobody", "members": [{"member_id": "nobody",
        "group_instance_id": None}],
    },
    "sync_group": lambda topic, _i, _v: {
        "group_id": f"{topic}.g", "generation_id": 1, "member_id": "nobody", "protocol_type": "consumer",
        "protocol_name": "range", "assignments": [],
    },
    "offset_delete": lambda topic, _i, _v: {
        "group_id": f"{topic}.g", "topics": [{"name": topic, "partitions": [{"partition_index": 1}]}],
    },
    "consumer_group_heartbeat": lambda topic, _i, _v: {
        "group_id": f"{topic}.g", "member_id": "nobody", "member_epoch": 5, "rebalance_timeout": -1,
        "subscribed_topic_names": None, "server_assignor": None, "topic_partitions": None,
    },
    "delete_groups": lambda topic, _i, v: {"groups_names": [f"{topic}.g"]},
}  # fmt: skip


def _each_version(api: str, values: Values, where: str) -> Play:
    def play(c: Client, t: Case) -> Outcome:
        topic = t.topic()
        t.fill(topic, ["a", "b"])
        topic_id = topic_id_of(t.bootstrap, topic)
        address = t.bootstrap
        if where == "leader":
            address = leader_of(t.bootstrap, topic)
        elif where == "coordinator":
            address = coordinator_of(t.bootstrap, f"{topic}.g")
            ask(address, "offset_commit", 8, _commit(topic, None, 8))
        return {
            # Which configs a new topic has is in section Configs.
            str(version): build.shape(
                ask(address, api, version, values(topic, topic_id, version)),
                build.LEFT_OUT | {"configs"} if api == "create_topics" else build.LEFT_OUT,
            )
            for version in both(api)
            if api != "produce" or version >= 3
        }

    play.__doc__ = f"every version of {api}"
    return play


for _where, _apis in (("leader", AT_LEADER), ("anywhere", ANYWHERE), ("coordinator", AT_COORDINATOR)):
    for _api, _values in _apis.items():
        _quick = _api in ("metadata", "fetch", "offset_commit", "offset_fetch", "create_topics", "produce")
        scenario(f"versions-{_api.replace('_', '-')}", SECTION, clients=RAW, fast=_quick)(
            _each_version(_api, _values, _where)
        )


def _subscription(topic: str) -> bytes:
    return struct.pack(">hih", 0, 1, len(topic)) + topic.encode() + struct.pack(">i", -1)


def _classic(address: str, group: str, version: int) -> Any:
    """A member's whole life, with JoinGroup of that version and whatever goes with it."""

    def of(api: str) -> int:
        return min(version, both(api)[-1])

    seen: list[Any] = []
    with Wire(address) as wire:
        join = {
            "group_id": group, "session_timeout": 10_000, "rebalance_timeout": 10_000, "member_id": "",
            "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": _subscription("t")}],
        }  # fmt: skip
        joined = wire.call(build.request("join_group", version, join))
        seen.append(joined.error_code.name.upper())
        if version >= NEVER_BEFORE:
            joined = wire.call(build.request("join_group", version, join | {"member_id": joined.member_id}))
            seen.append(joined.error_code.name.upper())
        me = joined.member_id
        seen.append(
            [int(joined.generation_id), joined.protocol_name, joined.leader == me, len(joined.members)]
        )
        who = {
            "group_id": group, "member_id": me, "generation_id": joined.generation_id,
            "generation_id_or_member_epoch": joined.generation_id, "protocol_type": "consumer", "protocol_name":
            "range",
        }  # fmt: skip
        given = [{"member_id": me, "assignment": b"mine"}]
        seen.append(
            build.shape(
                wire.call(build.request("sync_group", of("sync_group"), who | {"assignments": given}))
            )
        )
        seen.append(build.shape(wire.call(build.request("heartbeat", of("heartbeat"), who))))
        wrong = who | {"generation_id": 77}
        seen.append(build.shape(wire.call(build.request("heartbeat", of("heartbeat"), wrong))))
        seen.append(
            build.shape(
                wire.call(build.request("describe_groups", of("describe_groups"), {"groups": [group]}))
            )
        )
        leave = who | {"members": [{"member_id": me, "group_instance_id": None}]}
        seen.append(build.shape(wire.call(build.request("leave_group", of("leave_group"), leave))))
        seen.append(build.shape(wire.call(build.request("heartbeat", of("heartbeat"), who))))
    return seen


@scenario("versions-join-group", SECTION, clients=RAW, seconds=120)
def join_group(c: Client, t: Case) -> Outcome:
    """join, sync, heartbeat, describe, leave: with every version of JoinGroup"""
    found = {}
    for version in both("join_group"):
        group = t.group(f"g{version}")
        found[str(version)] = _classic(coordinator_of(t.bootstrap, group), group, version)
    return found


@scenario("wire-join-errors", "The wire: bad input", clients=RAW, fast=True)
def join_errors(c: Client, t: Case) -> Outcome:
    """joining with what cannot be: no group, no protocols, timeouts out of bounds, members that are not there"""
    group = t.group()
    good = {
        "group_id": group, "session_timeout": 10_000, "rebalance_timeout": 10_000, "member_id": "",
        "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": _subscription("t")}],
    }  # fmt: skip
    cases: dict[str, dict[str, Any]] = {
        "no group": {"group_id": ""},
        "session too short": {"session_timeout": 10},
        "session too long": {"session_timeout": 10_000_000},
        "unknown member": {"member_id": "nobody"},
        "no protocols": {"protocols": []},
        "no protocol type": {"protocol_type": ""},
    }
    address = coordinator_of(t.bootstrap, group)
    found = {}
    for name, change in cases.items():
        answer = ask(address, "join_group", 5, good | change)
        found[name] = answer if answer == "closed" else answer.error_code.name.upper()
    return found


@scenario("wire-group-api-errors", "The wire: bad input", clients=RAW, fast=True)
def group_errors(c: Client, t: Case) -> Outcome:
    """requests of members that are not there, groups without a name, generations of the past"""
    topic, group = t.topic(), t.group()
    part = {
        "partition_index": 0,
        "committed_offset": 1,
        "committed_leader_epoch": -1,
        "committed_metadata": None,
    }
    commit = {"group_id": group, "topics": [{"name": topic, "partitions": [part]}]}
    modern = {
        "group_id": group, "member_id": "A" * 22, "member_epoch": 0, "rebalance_timeout": 10_000,
        "subscribed_topic_names": [topic], "server_assignor": None, "topic_partitions": [],
    }  # fmt: skip
    cases: dict[str, tuple[str, int, dict[str, Any]]] = {
        "commit, no member": ("offset_commit", 8, commit | {"generation_id_or_member_epoch": -1}),
        "commit, unknown member": (
            "offset_commit", 8, commit | {"member_id": "nobody", "generation_id_or_member_epoch": 3},
        ),
        "commit, negative offset": (
            "offset_commit", 8,
            commit | {"generation_id_or_member_epoch": -1, "topics": [{"name": topic, "partitions": [part |
            {"committed_offset": -1}]}]},
        ),
        "heartbeat, no group": ("heartbeat", 3, {"group_id": "", "member_id": "m"}),
        "heartbeat, unknown group": ("heartbeat", 3, {"group_id": t.group("none"), "member_id": "m"}),
        "sync, unknown group": ("sync_group", 3, {"group_id": t.group("none"), "member_id": "m"}),
        "leave, unknown group": ("leave_group", 2, {"group_id": t.group("none"), "member_id": "m"}),
        "offsets of an unknown topic": (
            "offset_fetch", 5, {"group_id": group, "topics": [{"name": t.name("nowhere"), "partition_indexes": [0]}]},
        ),
        "coordinator of nothing": ("find_coordinator", 3, {"key": "", "key_type": 0}),
        "coordinator of type 9": ("find_coordinator", 3, {"key": "x", "key_type": 9}),
        "modern, epoch of nobody": ("consumer_group_heartbeat", 1, modern | {"member_epoch": 7}),
        "modern, negative epoch": ("consumer_group_heartbeat", 1, modern | {"member_epoch": -9}),
        "modern, no member id": ("consumer_group_heartbeat", 1, modern | {"member_id": ""}),
        "modern, no group": ("consumer_group_heartbeat", 1, modern | {"group_id": ""}),
        "modern, no timeout": ("consumer_group_heartbeat", 1, modern | {"rebalance_timeout": -1}),
        "modern, unknown assignor": ("consumer_group_heartbeat", 1, modern | {"server_assignor": "sticky"}),
        "modern, bad pattern": ("consumer_group_heartbeat", 1, modern | {"subscribed_topic_regex": "(["}),
        "modern, owns already": (
            "consumer_group_heartbeat", 1,
            modern | {"topic_partitions": [{"topic_id": topic_id_of(t.bootstrap, topic), "partitions": [0]}]},
        ),
    }  # fmt: skip
    found = {}
    for name, (api, version, values) in cases.items():
        own = values.get("group_id") or group
        address = coordinator_of(t.bootstrap, own)
        found[name] = build.shape(ask(address, api, version, values))
    return found
