"""The matrix of rights: each request that asks for one, with each way to give or deny it, on things that are there
and on things that are not.

Rows are those of `support.rights_table` and some more, ways are `support.rights_table.rules` and some more. Each way
has a user of its own, so that nobody's entries are about anybody else. What is compared is what has to do with
rights: codes, which things are shown at all, what may be done with them (`seen`). A cell is named "there/allow/7":
whether the thing is there, the way, the version.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final, Protocol
from uuid import UUID

from conformance import build
from conformance.secure_world import Doors
from conformance.sign_in import set_acls, set_users, signed_in
from conformance.wire import Closed, Wire, leaders_known, leaders_lead, topic_id_of
from penstock_core.security.acl import AclOperation as Op
from penstock_core.security.acl import ResourceType as Kind
from penstock_kafka.wire.apis import SPECS, ApiKey
from support.acls import acl
from support.rights_table import ALICE, GROUP, TOPIC, TOPIC_ID, TRANSACTION, Entry, Row, rules
from support.waiting import wait_for

ELSEWHERE: Final = "192.0.2.1"
HERE: Final = "127.0.0.1"
NO_SUCH_ID: Final = UUID(int=0x5EC0_0000_0000_4000_8000_0000_0000_0001)
SETTLED_TIMEOUT_S = 60.0
PASSING: Final = {5, 6, 14, 15, 16}
"""Codes of a leader or coordinator that is about to be there: asked again."""

CODES: Final = ("error_code", "partition_error_code")

Way = tuple[str, list[Entry]]

IDENTITIES: Final = frozenset(
    {
        *("name", "topic", "topic_name", "group_id", "key", "transactional_id", "resource_name", "principal"),
        *("user", "partition_index", "partition", "resource_type", "config_source", "path"),
    }
)
COUNTED: Final = frozenset({"records", "configs", "auth_bytes", "brokers", "credential_infos", "features"})
"""Of these it is told whether there are any."""
PASSED_OVER: Final = frozenset(
    {"node_endpoints", "throttle_time", "replica_nodes", "nodes", "supported_features", "finalized_features"}
)


class Case(Protocol):
    """What is needed of `conformance.frame.Case`."""

    @property
    def doors(self) -> Doors:
        """Where to sign in."""

    def name(self, suffix: str = "x") -> str:
        """A name that nobody else uses."""


class Names:
    """This run's names of what one request is about."""

    def __init__(self, topic: str, group: str, transaction: str, user: str) -> None:
        self.topic, self.group, self.user = topic, group, user
        self.topic_id = NO_SUCH_ID
        self._instead: dict[Any, Any] = {
            TOPIC: topic,
            GROUP: group,
            TRANSACTION: transaction,
            "User:bob": f"User:{user}-bob",
        }
        self._by_resource = {TOPIC: topic, GROUP: group, TRANSACTION: transaction}

    def of(self, value: Any) -> Any:
        """What a value of the table stands for."""
        if isinstance(value, dict):
            made = {name: self.of(one) for name, one in value.items()}
            if "pattern_type_filter" in made:  # nobody sees or deletes the entries of others
                made["principal_filter"] = f"User:{self.user}-bob"
            return made
        if isinstance(value, (list, tuple)):
            return [self.of(one) for one in value]
        if value == TOPIC_ID:
            return self.topic_id
        return self._instead.get(value, value) if isinstance(value, str) else value

    def entry(self, entry: Entry) -> dict[str, Any]:
        """An ACL of the table as CreateAcls takes it."""
        name = entry.resource_name
        if entry.pattern_type == 4:
            whole = next((real for word, real in self._by_resource.items() if word.startswith(name)), None)
            name = name if whole is None else whole[:-1]
        principal = entry.principal
        if principal != "User:*":
            principal = f"User:{self.user}" + ("-other" if principal == "User:bob" else "")
        host = {"*": "*", ALICE.host: HERE}.get(entry.host, ELSEWHERE)
        return {
            "resource_type": entry.resource_type,
            "resource_pattern_type": entry.pattern_type,
            "resource_name": self._by_resource.get(name, name),
            "principal": principal,
            "host": host,
            "operation": entry.operation,
            "permission_type": entry.permission,
        }

    def __repr__(self) -> str:
        return f"{self.topic}, {self.group}"


def ways(row: Row) -> Iterator[Way]:
    """Every way to give or deny the right of a row, and what it needs beside."""
    operation, kind, name = row.needs
    mine = "User:alice"
    beside = [acl(*need, principal=mine) for need in row.also]
    for rule, entries, _ in rules(row):
        if rule == "wildcard":  # its User:* on everything would be everybody's
            yield rule, [*beside, acl(operation, kind, "*", principal=mine)]
            # WRITE of some topic is also a right to ids of producers: nobody else's here.
            if kind is not Kind.CLUSTER and operation is not Op.WRITE:
                yield "everybody", [*beside, acl(operation, kind, name, principal="User:*")]
        else:
            yield rule, [*beside, *entries]
    right = acl(operation, kind, name, principal=mine)
    if operation is not Op.DESCRIBE:
        yield "DESCRIBE denied", [*beside, right, acl(Op.DESCRIBE, kind, name, principal=mine, deny=True)]
    if operation is not Op.DESCRIBE_CONFIGS:
        yield "DESCRIBE_CONFIGS too", [*beside, right, acl(Op.DESCRIBE_CONFIGS, kind, name, principal=mine)]


ALWAYS: Final = ("none", "allow", "deny over allow")
"""Ways that every subset has."""
OWN_EACH: Final = {
    (ApiKey.CREATE_TOPICS, "absent"),
    (ApiKey.DELETE_TOPICS, "there"),
    (ApiKey.JOIN_GROUP, "there"),
    (ApiKey.JOIN_GROUP, "absent"),
}
"""Requests that leave nothing for a second one: each has things of its own."""


@dataclasses.dataclass
class Cell:
    """One way, and its requests."""

    there: str
    way: str
    user: str
    names: dict[int, Names]
    """By version."""


def play_row(t: Case, row: Row, few: bool = False) -> dict[str, Any]:
    """Every cell of a row; `few`: of a third of the ways, by the lowest and the highest version."""
    low, high = SPECS[row.api].readable[0], SPECS[row.api].readable[-1]
    versions = [
        v for v in range(max(low, row.least), high + 1) if not few or v in (max(low, row.least), high)
    ]
    cells: list[Cell] = []
    entries: list[tuple[str, dict[str, Any]]] = []
    topics: list[str] = []
    groups: list[str] = []
    for there in ("there", "absent"):
        for index, (way, rules_of_way) in enumerate(ways(row)):
            if (
                few
                and (index + row.api + len(str(row))) % 3
                and way not in ("none", "allow", "deny over allow")
            ):
                continue
            number = len(cells)
            cell = Cell(there, way, t.name(f"u{number}"), {})
            for version in versions:
                own = f".{version}" if (row.api, there) in OWN_EACH else ""
                alone = own or way == "everybody"
                topic = t.name(f"{there}{f'.{number}{own}' if alone else ''}")
                names = Names(topic, t.name(f"g{number}{own}"), t.name(f"x{number}{own}"), cell.user)
                cell.names[version] = names
                if there == "there":
                    topics.append(names.topic)
                    groups.append(names.group)
                entries += [(f"{there}/{way}", names.entry(entry)) for entry in rules_of_way]
            cells.append(cell)
    uses = {row.needs[1], *(kind for _, kind, _ in row.also), *(kind for _, kind, _ in row.instead)}
    about_topics = Kind.TOPIC in uses or _mentions(row.values, TOPIC)
    ids = make_topics(t, topics if about_topics else [])
    for cell in cells:
        for names in cell.names.values():
            names.topic_id = ids.get(names.topic, NO_SUCH_ID)
    if Kind.GROUP in uses:
        make_groups(t, groups)
    found = make_rights(t, cells, entries)
    offered = versions_offered(t.doors.plain, row.api)
    for cell in cells:
        found |= _ask(t, row, cell, offered)
    return found


def versions_offered(address: str, api: int) -> range:
    """What a target answers, as ApiVersions says."""
    with Wire(address) as wire:
        answer = wire.call(build.request("api_versions", 0, {}))
    for one in answer.api_keys:
        if one.api_key == api:
            return range(one.min_version, one.max_version + 1)
    return range(0)


def make_rights(
    t: Case, cells: Sequence[Cell], entries: Sequence[tuple[str, dict[str, Any]]]
) -> dict[str, Any]:
    """Users and ACLs; which ACLs are refused, by way."""
    set_users(t.doors.plain, [cell.user for cell in cells])
    different = list({json.dumps(entry, sort_keys=True): (way, entry) for way, entry in entries}.values())
    codes = set_acls(t.doors, [entry for _, entry in different], t.name("mark"))
    refused = {way: code for (way, _), code in zip(different, codes, strict=True) if code != "NONE"}
    return {f"{way}/acl": code for way, code in refused.items()}


def _mentions(value: Any, word: Any) -> bool:
    if isinstance(value, dict):
        return any(_mentions(one, word) for one in value.values())
    if isinstance(value, (list, tuple)):
        return any(_mentions(one, word) for one in value)
    return bool(value == word)


def _ask(t: Case, row: Row, cell: Cell, offered: range) -> dict[str, Any]:
    found: dict[str, Any] = {}
    wire = signed_in(t.doors.sasl, cell.user)
    try:
        for version, names in cell.names.items():
            key = f"{cell.there}/{cell.way}/{version}"
            if version not in offered:
                found[key] = "not offered"
                continue
            request = build.request(row.api.name.lower(), version, names.of(row.values))
            try:
                found[key] = _settled(wire, request, t.name(""), names)
            except (Closed, TimeoutError) as error:
                found[key] = "closed" if isinstance(error, Closed) else "silent"
                wire.__exit__()
                wire = signed_in(t.doors.sasl, cell.user)
    finally:
        wire.__exit__()
    return found


def _settled(wire: Wire, request: Any, prefix: str, names: Names) -> Any:
    """What is seen in the answer, once it is none of a coordinator that comes up. Raises Closed."""
    deadline_s = time.monotonic() + SETTLED_TIMEOUT_S
    while True:
        answer = wire.call(request)
        if not PASSING & set(_codes(answer)) or time.monotonic() > deadline_s:
            return seen(answer, prefix, names)
        time.sleep(0.1)


def _codes(value: Any, name: str = "") -> Iterator[int]:
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _codes(getattr(value, field.name), field.name)
    elif isinstance(value, tuple):
        for one in value:
            yield from _codes(one)
    elif name in CODES:
        yield int(value)


def seen(value: Any, prefix: str, names: Names) -> Any:
    """What an answer tells of rights: codes but 0, the names of what it shows of this scenario, what may be done."""
    if not dataclasses.is_dataclass(value):
        return None
    told: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        one, name = getattr(value, field.name), field.name
        if name in PASSED_OVER:
            continue
        if name in COUNTED:
            told[name] = "some" if one else "none"
        elif name in CODES:
            if int(one):
                told[name] = one.name.upper() if isinstance(one, enum.Enum) else int(one)
        elif name.endswith("authorized_operations"):
            told["operations"] = _operations(int(one))
        elif name == "topic_id":
            told[name] = "none" if not one or not one.int else "right" if one == names.topic_id else "other"
        elif name in IDENTITIES:
            told[name] = one if one is None or isinstance(one, str) else int(one)
        elif isinstance(one, tuple):
            parts = [part for part in one if dataclasses.is_dataclass(part) and _ours(part, prefix)]
            shown = [seen(part, prefix, names) for part in parts]
            told[name] = sorted((part for part in shown if part), key=lambda part: json.dumps(part))
    return {name: one for name, one in told.items() if one not in ([], {})}


def _operations(bits: int) -> list[str] | str:
    if bits < 0:
        return "not told"
    return [op.name for op in Op if bits >> op & 1]


def _ours(part: Any, prefix: str) -> bool:
    """Whether a thing in a list is this scenario's, or has no name."""
    if hasattr(part, "values"):  # a quota that is described: those are others'
        return False
    for field in ("name", "topic", "topic_name", "group_id", "key", "resource_name", "transactional_id"):
        name = getattr(part, field, None)
        if isinstance(name, str) and name not in ("", "1"):
            return name.startswith(prefix) or part.__class__.__name__ not in _LISTS
    return True


_LISTS: Final = frozenset(
    {"MetadataResponseTopic", "ListedGroup", "ConfigResource", "DescribeLogDirsTopic", "TransactionState"}
)
"""What answers have that name all there is."""


def make_topics(t: Case, topics: Sequence[str]) -> dict[str, UUID]:
    """Topics of one partition that are led, and their ids."""
    new = sorted(set(topics))
    if not new:
        return {}
    values = {
        "topics": [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in new],
        "timeout": 60_000,
    }
    with Wire(t.doors.plain) as wire:
        answer = wire.call(build.request("create_topics", 7, values))
    wrong = [one for one in answer.topics if int(one.error_code)]
    assert not wrong, wrong[0]
    for witness in t.doors.witnesses:
        led = partial(_all_led, witness, new)
        wait_for(led, f"leaders of {len(new)} topics", SETTLED_TIMEOUT_S)
    wait_for(partial(leaders_lead, t.doors.plain, new[-1]), "leaders that lead", SETTLED_TIMEOUT_S)
    return {name: topic_id_of(t.doors.plain, name) for name in new}


def _all_led(address: str, topics: Sequence[str]) -> bool:
    return leaders_known(address, topics[0]) == 1 and leaders_known(address, topics[-1]) == 1


def make_groups(t: Case, groups: Sequence[str]) -> None:
    """Groups without members, for each has committed an offset of some topic."""
    if not groups:
        return
    topic = t.name("committed")
    make_topics(t, [topic])
    commits = [{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": 0}]}]
    with Wire(t.doors.plain) as wire:
        for group in sorted(set(groups)):
            values = {"group_id": group, "generation_id_or_member_epoch": -1, "topics": commits}
            request = build.request("offset_commit", 8, values)

            def committed(request: Any = request) -> bool:
                codes = set(_codes(wire.call(request)))
                assert codes <= {0, *PASSING}, codes
                return codes == {0}

            wait_for(committed, f"an offset of {group}", SETTLED_TIMEOUT_S)


__all__ = ["Names", "Op", "make_topics", "play_row", "seen", "ways"]
