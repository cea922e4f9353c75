"""Requests about ACLs, quotas and users by somebody who may make them: what is taken, found and refused."""

from __future__ import annotations

import itertools
from typing import Any, Final

from conformance import build
from conformance.client import Client
from conformance.frame import Case, Outcome, scenario
from conformance.scenarios.raw import RAW
from conformance.sign_in import ITERATIONS, SALT, set_acls
from conformance.targets import SECURE
from conformance.wire import Closed, Wire

SECTION: Final = "Users, ACLs and quotas"
ANY: Final = 1


def _ask(t: Case, api: str, version: int, values: dict[str, Any]) -> Any:
    with Wire(t.doors.plain) as wire:
        try:
            return wire.call(build.request(api, version, values))
        except Closed:
            return "closed"


def _code(one: Any) -> str:
    return str(one.error_code.name).upper()


def _entry(t: Case, **values: Any) -> dict[str, Any]:
    return {
        "resource_type": 2,
        "resource_pattern_type": 3,
        "resource_name": t.name("topic"),
        "principal": f"User:{t.name('user')}",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    } | values


def _filter(**values: Any) -> dict[str, Any]:
    return {
        "resource_type_filter": ANY,
        "resource_name_filter": None,
        "pattern_type_filter": ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
    } | values


@scenario("acl-create", SECTION, clients=RAW, world=SECURE, fast=True)
def create(c: Client, t: Case) -> Outcome:
    """entries that can be and entries that cannot, in one request each"""
    cases: dict[str, dict[str, Any]] = {
        "good": {},
        "again": {},
        **{f"resource type {n}": {"resource_type": n} for n in (-1, 0, 1, 3, 4, 5, 6, 7, 8, 99)},
        **{f"pattern type {n}": {"resource_pattern_type": n} for n in (-1, 0, 1, 2, 4, 5)},
        **{f"operation {n}": {"operation": n} for n in (-1, 0, 1, *range(2, 18))},
        **{f"permission {n}": {"permission_type": n} for n in (-1, 0, 1, 2, 4)},
        "no name": {"resource_name": ""},
        "the cluster by its name": {"resource_type": 4, "resource_name": "kafka-cluster", "operation": 8},
        "prefix of the cluster": {
            "resource_type": 4,
            "resource_name": "kafka-cluster",
            "resource_pattern_type": 4,
        },
        "prefix of all": {"resource_name": "*", "resource_pattern_type": 4},
        "a name that no topic has": {"resource_name": f"{t.name('x')} /"},
        "a principal without a type": {"principal": t.name("nobody")},
        "a principal of no name": {"principal": "User:"},
        "no principal": {"principal": ""},
        "a principal with colons": {"principal": f"User:{t.name('a')}:b:c"},
        "another type of principal": {"principal": f"Group:{t.name('group')}"},
        "no host": {"host": ""},
        "a host's name": {"host": "localhost"},
    }
    found: dict[str, Any] = {}
    for name, values in cases.items():
        answer = _ask(t, "create_acls", 3, {"creations": [_entry(t, **values)]})
        found[name] = answer if answer == "closed" else [_code(one) for one in answer.results]
    mixed = [_entry(t, operation=4), _entry(t, resource_name=""), _entry(t, operation=4)]
    found["mixed"] = [_code(one) for one in _ask(t, "create_acls", 2, {"creations": mixed}).results]
    found["none"] = [_code(one) for one in _ask(t, "create_acls", 1, {"creations": []}).results]
    return found


def _filled(t: Case) -> None:
    """Entries of every kind whose filters are told apart."""
    topic = t.name("topic")
    entries = [
        _entry(t, resource_name=topic),
        _entry(t, resource_name=topic, operation=4, host="10.0.0.1"),
        _entry(t, resource_name=topic, permission_type=2),
        _entry(t, resource_name=topic, principal=f"User:{t.name('other')}"),
        _entry(t, resource_name=topic[:-1], resource_pattern_type=4),
        _entry(t, resource_name=topic, resource_pattern_type=4),
        _entry(t, resource_name=f"{topic}-long", resource_pattern_type=4),
        _entry(t, resource_name="*"),
        _entry(t, resource_type=3, resource_name=t.name("group")),
        _entry(t, resource_type=3, resource_name="*", operation=2),
        _entry(t, resource_type=4, resource_name="kafka-cluster", operation=8),
        _entry(t, resource_type=5, resource_name=t.name("tx"), operation=4),
    ]
    assert set(set_acls(t.doors, entries, t.name("mark"))) == {"NONE"}


def _filters(t: Case) -> dict[str, dict[str, Any]]:
    topic, mine = t.name("topic"), f"User:{t.name('user')}"
    named: dict[str, dict[str, Any]] = {
        "all of a principal": {"principal_filter": mine},
        "of a principal without a type": {"principal_filter": t.name("user")},
        "of no principal": {"principal_filter": ""},
        "of a host": {"principal_filter": mine, "host_filter": "10.0.0.1"},
        "of every host": {"principal_filter": mine, "host_filter": "*"},
        "of no name": {"principal_filter": mine, "resource_name_filter": ""},
        "of the name *": {"principal_filter": mine, "resource_name_filter": "*"},
    }
    for kind, pattern, suffix in itertools.product(
        (-1, 0, 1, 2, 3, 4, 9), (-1, 0, 1, 2, 3, 4, 5), ("", "-longer")
    ):
        named[f"type {kind}, pattern {pattern}, name{suffix}"] = {
            "resource_type_filter": kind,
            "pattern_type_filter": pattern,
            "resource_name_filter": topic + suffix,
        }
    for operation in range(-1, 17):
        named[f"operation {operation}"] = {"principal_filter": mine, "operation": operation}
    for permission in range(-1, 5):
        named[f"permission {permission}"] = {"principal_filter": mine, "permission_type": permission}
    return named


def _shown(t: Case, resource: Any, entry: Any) -> list[Any]:
    return [
        int(resource.resource_type),
        int(resource.pattern_type),
        resource.resource_name,
        entry.principal,
        entry.host,
        int(entry.operation),
        int(entry.permission_type),
    ]


@scenario("acl-describe", SECTION, clients=RAW, world=SECURE, fast=True)
def describe(c: Client, t: Case) -> Outcome:
    """filters of every type, pattern, name, principal, host, operation and permission"""
    _filled(t)
    found: dict[str, Any] = {}
    for name, values in _filters(t).items():
        answer = _ask(t, "describe_acls", 3, _filter(**values))
        if answer == "closed" or int(answer.error_code):
            found[name] = answer if answer == "closed" else _code(answer)
            continue
        rows = [_shown(t, one, entry) for one in answer.resources for entry in one.acls]
        found[name] = sorted(row for row in rows if t.name("") in row[3])
    return found


@scenario("acl-delete", SECTION, clients=RAW, world=SECURE, fast=True)
def delete(c: Client, t: Case) -> Outcome:
    """filters that delete something, nothing, and that cannot be"""
    _filled(t)
    topic, mine = t.name("topic"), f"User:{t.name('user')}"
    requests: dict[str, list[dict[str, Any]]] = {
        "a code that is none": [_filter(principal_filter=mine, operation=99)],
        "of no name": [_filter(principal_filter=mine, resource_name_filter="")],
        "one entry": [_filter(principal_filter=mine, resource_name_filter=topic, host_filter="10.0.0.1")],
        "the same again": [
            _filter(principal_filter=mine, resource_name_filter=topic, host_filter="10.0.0.1")
        ],
        "two filters that share": [
            _filter(principal_filter=mine, resource_type_filter=3),
            _filter(principal_filter=mine, resource_type_filter=3, resource_name_filter="*"),
            _filter(principal_filter=t.name("nobody")),
        ],
        "what matches a name": [
            _filter(principal_filter=mine, resource_name_filter=f"{topic}-longer", pattern_type_filter=2)
        ],
        "the rest": [_filter(principal_filter=mine)],
        "nothing": [],
    }
    found: dict[str, Any] = {}
    for name, filters in requests.items():
        answer = _ask(t, "delete_acls", 3, {"filters": filters})
        if answer == "closed":
            found[name] = answer
            continue
        found[name] = [
            [_code(one), sorted(_shown(t, entry, entry) for entry in one.matching_acls)]
            for one in answer.filter_results
        ]
    return found


def _alter_quotas(
    t: Case, entity: list[tuple[str, str | None]], ops: list[tuple[str, float, bool]], **more: Any
) -> Any:
    entry = {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
        "ops": [{"key": key, "value": value, "remove": remove} for key, value, remove in ops],
    }
    answer = _ask(t, "alter_client_quotas", 1, {"entries": [entry], "validate_only": False} | more)
    return answer if answer == "closed" else [_code(one) for one in answer.entries]


@scenario("quota-alter", SECTION, clients=RAW, world=SECURE, fast=True)
def alter_quotas(c: Client, t: Case) -> Outcome:
    """quotas that can be and quotas that cannot"""
    user, client = t.name("user"), t.name("client")
    rate = [("producer_byte_rate", 1000.0, False)]
    entities: dict[str, list[tuple[str, str | None]]] = {
        "user": [("user", user)],
        "client": [("client-id", client)],
        "both": [("user", user), ("client-id", client)],
        "both, the other way round": [("client-id", client), ("user", user)],
        "user and every client": [("user", user), ("client-id", None)],
        "address": [("ip", "10.1.2.3")],
        "user and address": [("user", user), ("ip", "10.1.2.3")],
        "nothing": [],
        "an unknown type": [("group", user)],
        "a type without a name": [("", user)],
        "a user without a name": [("user", "")],
        "a user twice": [("user", user), ("user", user)],
    }
    found = {f"of {name}": _alter_quotas(t, entity, rate) for name, entity in entities.items()}
    numbers = {"0": 0.0, "-1": -1.0, "1.5": 1.5, "inf": float("inf"), "nan": float("nan"), "1e300": 1e300}
    for key in (
        "producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate",
        "connection_creation_rate", "no_such_rate", "",
    ):  # fmt: skip
        for word, value in (numbers | {"10": 10.0}).items():
            found[f"{key} = {word}"] = _alter_quotas(t, [("user", user)], [(key, value, False)])
    for word, value in (numbers | {"10": 10.0}).items():
        one = [("connection_creation_rate", value, False)]
        found[f"connection_creation_rate = {word} of an address"] = _alter_quotas(
            t, [("ip", "10.1.2.3")], one
        )
    for address in ("::1", "10.1.2", "not an address", ""):
        ten = [("connection_creation_rate", 10.0, False)]
        found[f"of the address {address!r}"] = _alter_quotas(t, [("ip", address)], ten)
    found["remove what is not there"] = _alter_quotas(
        t, [("user", t.name("nobody"))], [("producer_byte_rate", 0, True)]
    )
    found["remove an unknown key"] = _alter_quotas(t, [("user", user)], [("no_such_rate", 0, True)])
    found["a key twice"] = _alter_quotas(t, [("user", user)], [*rate, ("producer_byte_rate", 2000.0, False)])
    found["no keys"] = _alter_quotas(t, [("user", user)], [])
    found["validate_only"] = _alter_quotas(t, [("user", t.name("only"))], rate, validate_only=True)
    return found


@scenario("quota-describe", SECTION, clients=RAW, world=SECURE, fast=True)
def describe_quotas(c: Client, t: Case) -> Outcome:
    """filters by user, client and both, exact, default and any, strict or not"""
    user, client = t.name("user"), t.name("client")
    entities: list[list[tuple[str, str | None]]] = [
        [("user", user)],
        [("user", user), ("client-id", client)],
        [("user", user), ("client-id", None)],
        [("client-id", client)],
    ]
    for entity in entities:
        assert _alter_quotas(t, entity, [("producer_byte_rate", 1000.0, False)]) == ["NONE"]
    set_acls(t.doors, [], t.name("mark"))

    def part(kind: str, match: int, name: str | None) -> dict[str, Any]:
        return {"entity_type": kind, "match_type": match, "match": name}

    of_user = [part("user", 0, user), part("user", 1, None), part("user", 2, None)]
    of_client = [part("client-id", 0, client), part("client-id", 1, None), part("client-id", 2, None)]
    filters: dict[str, list[dict[str, Any]]] = {
        "nothing": [],
        **{f"user {n}": [one] for n, one in enumerate(of_user)},
        **{f"client {n}": [one] for n, one in enumerate(of_client)},
        **{
            f"user {n}, client {m}": [one, other]
            for (n, one), (m, other) in itertools.product(enumerate(of_user), enumerate(of_client))
        },
        "exact without a name": [part("user", 0, None)],
        "default with a name": [part("user", 1, user)],
        "any with a name": [part("user", 2, user)],
        "an unknown match": [part("user", 3, user)],
        "an unknown type": [part("group", 0, user)],
        "no type": [part("", 0, user)],
        "a type twice": [part("user", 0, user), part("user", 0, user)],
        "user and address": [part("user", 0, user), part("ip", 0, "10.1.2.3")],
        "an address": [part("ip", 0, "10.77.77.77")],
    }
    found: dict[str, Any] = {}
    for (name, components), strict in itertools.product(filters.items(), (False, True)):
        answer = _ask(t, "describe_client_quotas", 1, {"components": components, "strict": strict})
        key = f"{name}{', strict' if strict else ''}"
        if answer == "closed" or int(answer.error_code):
            found[key] = answer if answer == "closed" else _code(answer)
            continue
        rows = [
            [
                sorted([one.entity_type, one.entity_name] for one in entry.entity),
                sorted([one.key, one.value] for one in entry.values),
            ]
            for entry in answer.entries or ()
        ]
        ours = (row for row in rows if any((name or "").startswith(t.name("")) for _, name in row[0]))
        found[key] = sorted(ours, key=str)
    return found


@scenario("scram-users", SECTION, clients=RAW, world=SECURE, fast=True)
def scram_users(c: Client, t: Case) -> Outcome:
    """credentials that can be set and deleted, and those that cannot"""

    def upsert(suffix: str = "user", **values: Any) -> dict[str, Any]:
        return {
            "name": t.name(suffix),
            "mechanism": 1,
            "iterations": ITERATIONS,
            "salt": SALT,
            "salted_password": b"x" * 32,
        } | values

    def gone(suffix: str, mechanism: int = 1) -> dict[str, Any]:
        return {"name": t.name(suffix), "mechanism": mechanism}

    requests: dict[str, dict[str, Any]] = {
        "good": {"upsertions": [upsert()]},
        "again": {"upsertions": [upsert(iterations=8192)]},
        **{f"mechanism {n}": {"upsertions": [upsert(mechanism=n)]} for n in (-1, 0, 3, 99)},
        **{f"iterations {n}": {"upsertions": [upsert(iterations=n)]} for n in (-1, 0, 4095, 16_384, 16_385)},
        "no name": {"upsertions": [upsert(name="")]},
        "one good, one not": {"upsertions": [upsert("one"), upsert("two", iterations=1)]},
        "twice": {"upsertions": [upsert("three"), upsert("three")]},
        "set and deleted": {"upsertions": [upsert("four")], "deletions": [gone("four")]},
        "set and deleted, one who is there": {"upsertions": [upsert()], "deletions": [gone("user")]},
        "delete nobody": {"deletions": [gone("nobody")]},
        "delete the other mechanism": {"deletions": [gone("user", 2)]},
        "delete an unknown mechanism": {"deletions": [gone("user", 9)]},
        "delete": {"deletions": [gone("one")]},
        "delete without a name": {"deletions": [{"name": "", "mechanism": 1}]},
        "nothing": {},
    }
    found: dict[str, Any] = {}
    for name, values in requests.items():
        answer = _ask(t, "alter_user_scram_credentials", 0, values)
        told = answer if answer == "closed" else sorted([one.user, _code(one)] for one in answer.results)
        found[name] = told
        set_acls(t.doors, [], t.name(f"mark-{len(found)}"))
    asked: dict[str, list[str]] = {
        "one": [t.name("user")],
        "one twice": [t.name("user"), t.name("user")],
        "one and nobody": [t.name("user"), t.name("nobody")],
        "no name": [""],
    }
    for name, users in asked.items():
        values = {"users": [{"name": user} for user in users]}
        answer = _ask(t, "describe_user_scram_credentials", 0, values)
        found[f"described: {name}"] = sorted(
            [
                one.user,
                _code(one),
                sorted([int(i.mechanism), int(i.iterations)] for i in one.credential_infos),
            ]
            for one in answer.results
        )
    return found
