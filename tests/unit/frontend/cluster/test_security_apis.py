"""Users, ACLs and client quotas: every version, with and without the right, over a real listener and real gRPC.

The controller here decides by the rules of the real one.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock_controller.state import acls, quotas, users
from penstock_controller.state.generation import Context
from penstock_core.errors import ErrorCode
from penstock_core.metadata.levels import METADATA_LEVEL
from penstock_core.metadata.security import CredentialKey
from penstock_core.security.acl import AclOperation, PatternType, Permission, ResourceType
from penstock_core.security.quota_entities import QuotaEntity
from penstock_core.security.scram import ScramMechanism, credential
from penstock_frontend.authorizer import CLUSTER_NAME, AllowAll, Identity, Operation
from penstock_kafka.wire.apis import ApiKey
from penstock_proto.v1 import metadata_pb2
from penstock_runtime.turns import LoopTurns
from unit.frontend.cluster.test_admin_apis import versions
from unit.frontend.cluster.test_apis import Client, of, serving
from unit.runtime.fake_controllers import Cluster, FakeController

Run = Callable[[Coroutine[Any, Any, Any]], Any]
DESCRIBE_USERS = (ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0)
ALTER_USERS = (ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0)
SALT = b"salt of alice"


@pytest.fixture(autouse=True)
def controller(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the controller was asked."""
    return deciding(monkeypatch)


def deciding(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Controllers decide and commit as the real one does; what they are asked."""
    asked: list[Any] = []
    deciders: dict[str, Any] = {
        "AlterUserCredentials": users.alter_user_credentials,
        "AlterAcls": acls.alter_acls,
        "AlterQuotas": quotas.alter_quotas,
    }

    def answering(decide: Any) -> Any:
        async def answer(self: FakeController, request: Any, _context: Any) -> Any:
            asked.append(request)
            made = decide(Context(self.cluster.image, random.Random(0)), request)
            if made.records:
                made.reply.version = self.cluster.commit(*made.records)
            return made.reply

        return answer

    for name, decide in deciders.items():
        monkeypatch.setattr(FakeController, name, answering(decide), raising=False)
    return asked


@asynccontextmanager
async def cluster_of_level_2(
    authorizer: Any = None, *, acls_enabled: bool = True, **more: Any
) -> AsyncIterator[tuple[Client, Cluster]]:
    authorizer = authorizer or AllowAll()
    authorizer.is_enabled = acls_enabled
    async with serving(authorizer, **more) as (client, cluster, *_):
        feature = metadata_pb2.FeatureRecord(name=METADATA_LEVEL, level=2)
        version = cluster.commit(metadata_pb2.MetadataRecord(feature=feature))
        assert await client.metadata.wait_for_version(version, 60_000)
        yield client, cluster


class Turns(LoopTurns):
    """Counts the turns that long work waits for; every look at the clock is 0.1 ms later."""

    def __init__(self) -> None:
        self.given = 0
        clock_s = (n / 10_000 for n in itertools.count()).__next__
        super().__init__(clock_s, clock_s)

    async def next_slice(self) -> None:
        self.given += 1
        await super().next_slice()


class Only(AllowAll):
    """The right to one operation on the cluster, and to nothing else."""

    def __init__(self, operation: Operation | None) -> None:
        self.operation = operation

    def authorize(self, who: Identity, operation: Operation, kind: ResourceType, name: str) -> bool:
        return operation is self.operation and (kind, name) == (ResourceType.CLUSTER, CLUSTER_NAME)


# Users


def upsertion(
    name: str,
    mechanism: int = ScramMechanism.SHA_256,
    *,
    iterations: int = 4096,
    password: bytes = b"password",
    salted: bytes | None = None,
) -> Any:
    if salted is None:
        digest = "sha512" if mechanism == ScramMechanism.SHA_512 else "sha256"
        salted = hashlib.pbkdf2_hmac(digest, password, SALT, max(iterations, 1))
    return of(
        *ALTER_USERS,
        "ScramCredentialUpsertion",
        name=name,
        mechanism=mechanism,
        iterations=iterations,
        salt=SALT,
        salted_password=salted,
    )


def deletion(name: str, mechanism: int = ScramMechanism.SHA_256) -> Any:
    return of(*ALTER_USERS, "ScramCredentialDeletion", name=name, mechanism=mechanism)


async def alter_users(client: Client, *changes: Any) -> dict[str, tuple[int, str | None]]:
    found = await client.call(
        *ALTER_USERS,
        deletions=tuple(c for c in changes if not hasattr(c, "salt")),
        upsertions=tuple(c for c in changes if hasattr(c, "salt")),
    )
    results = {r.user: (int(r.error_code), r.error_message) for r in found.results}
    assert len(results) == len(found.results), "one result for each user"
    return results


async def describe_users(client: Client, *names: str) -> Any:
    asked = tuple(of(*DESCRIBE_USERS, "UserName", name=name) for name in names)
    found = await client.call(*DESCRIBE_USERS, users=asked or None)
    assert int(found.error_code) == 0
    return [
        (r.user, int(r.error_code), tuple((int(c.mechanism), int(c.iterations)) for c in r.credential_infos))
        for r in found.results
    ]


def test_a_user_is_made_described_changed_and_deleted_and_keys_alone_reach_the_controller(
    run: Run, controller: list[Any]
) -> None:
    async def main() -> None:
        async with cluster_of_level_2() as (client, cluster):
            assert await describe_users(client) == []
            made = await alter_users(
                client, upsertion("bob"), upsertion("alice", ScramMechanism.SHA_512, iterations=8192)
            )
            assert made == {"bob": (0, None), "alice": (0, None)}
            salted = hashlib.pbkdf2_hmac("sha256", b"password", SALT, 4096)
            wanted = credential(ScramMechanism.SHA_256, SALT, salted, 4096)
            stored = cluster.image.security.credentials[CredentialKey("bob", 1)]
            assert (stored.salt, stored.stored_key, stored.server_key, stored.iterations) == (
                wanted.salt,
                wanted.stored_key,
                wanted.server_key,
                wanted.iterations,
            )
            assert salted not in controller[0].SerializeToString()
            assert controller[0].principal == "User:ANONYMOUS"
            # What was answered is seen here, without waiting.
            assert await describe_users(client) == [("alice", 0, ((2, 8192),)), ("bob", 0, ((1, 4096),))]
            both = await alter_users(client, upsertion("bob", iterations=5000), upsertion("bob", 2))
            assert both == {"bob": (0, None)}
            assert await describe_users(client, "bob") == [("bob", 0, ((1, 5000), (2, 4096)))]
            assert await alter_users(client, deletion("bob"), deletion("bob", 2)) == {"bob": (0, None)}
            assert await describe_users(client, "bob", "alice", "carol", "alice") == [
                ("bob", ErrorCode.RESOURCE_NOT_FOUND, ()),
                ("alice", ErrorCode.DUPLICATE_RESOURCE, ()),
                ("carol", ErrorCode.RESOURCE_NOT_FOUND, ()),
            ]

    run(main())


def test_what_is_wrong_with_a_user_has_kafkas_code_and_words_and_others_go_through(run: Run) -> None:
    async def main() -> None:
        async with cluster_of_level_2() as (client, cluster):
            found = await alter_users(
                client,
                upsertion("good"),
                upsertion(""),
                upsertion("few", iterations=4095),
                upsertion("many", iterations=16385),
                upsertion("unknown", 3),
                upsertion("negative", -1),
                upsertion("twice"),
                deletion("twice"),
                deletion("nobody"),
                upsertion("half"),
                upsertion("half", ScramMechanism.SHA_512, iterations=1),
                upsertion("empty", salted=b""),
                upsertion("other hash", ScramMechanism.SHA_512, salted=b"s" * 32),
            )
            for user, code, words in (
                ("good", ErrorCode.NONE, None),
                ("", ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"),
                ("few", ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations"),
                ("many", ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations"),
                ("unknown", ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
                ("negative", ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
                ("twice", ErrorCode.DUPLICATE_RESOURCE, "cannot be altered twice in the same request"),
                ("nobody", ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not"),
                ("half", ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations"),
                ("empty", ErrorCode.UNACCEPTABLE_CREDENTIAL, "SCRAM-SHA-256 gives 32"),
                ("other hash", ErrorCode.UNACCEPTABLE_CREDENTIAL, "SCRAM-SHA-512 gives 64"),
            ):
                assert found[user][0] == code, user
                assert found[user][1] is None if words is None else words in (found[user][1] or ""), user
            assert list(cluster.image.security.credentials) == [CredentialKey("good", 1)]

    run(main())


def test_more_changes_than_a_request_may_have_are_refused_whole(run: Run, controller: list[Any]) -> None:
    async def main() -> None:
        async with cluster_of_level_2() as (client, _):
            found = await alter_users(client, *(deletion(f"u{n}") for n in range(10_001)))
            assert {code for code, _ in found.values()} == {ErrorCode.INVALID_REQUEST}
            assert len(found) == 10_001
            assert controller == []

    run(main())


# ACLs


def creation(version: int, name: str, **values: Any) -> Any:
    fields = {
        "resource_type": int(ResourceType.TOPIC),
        "resource_name": name,
        "resource_pattern_type": int(PatternType.LITERAL),
        "principal": "User:alice",
        "host": "*",
        "operation": int(AclOperation.READ),
        "permission_type": int(Permission.ALLOW),
    }
    return of(ApiKey.CREATE_ACLS, version, "AclCreation", **{**fields, **values})


def filtering(**values: Any) -> dict[str, Any]:
    return {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
        **values,
    }


async def described(client: Client, version: int, **values: Any) -> dict[tuple[int, int, str], list[Any]]:
    found = await client.call(ApiKey.DESCRIBE_ACLS, version, **filtering(**values))
    assert int(found.error_code) == 0, found.error_message
    result = {}
    for r in found.resources:
        rules = [(a.principal, a.host, int(a.operation), int(a.permission_type)) for a in r.acls]
        result[int(r.resource_type), int(r.pattern_type), str(r.resource_name)] = rules
    assert len(result) == len(found.resources), "a pattern stands there once"
    return result


@pytest.mark.parametrize("version", versions(ApiKey.CREATE_ACLS))
def test_acls_are_made_described_by_pattern_and_deleted_by_filters(run: Run, version: int) -> None:
    async def main() -> None:
        async with cluster_of_level_2() as (client, cluster):
            made = await client.call(
                ApiKey.CREATE_ACLS,
                version,
                creations=(
                    creation(version, "flights"),
                    creation(version, "flights", operation=4, principal="User:bob", permission_type=2),
                    creation(version, "fl", resource_pattern_type=4, host="192.0.2.7"),
                    creation(version, "*"),
                    creation(version, "other"),
                    creation(version, "flights"),
                    creation(version, ""),
                    creation(version, "x", resource_type=99),
                    creation(version, "x", resource_type=-3),
                    creation(version, "x", resource_type=4),
                    creation(version, "x", resource_pattern_type=2),
                    creation(version, "x", operation=1),
                    creation(version, "x", principal="alice"),
                ),
            )
            codes = [int(r.error_code) for r in made.results]
            assert codes == [0] * 6 + [ErrorCode.INVALID_REQUEST] * 7
            assert len(cluster.image.security.acls) == 5
            flights = [("User:alice", "*", 3, 3), ("User:bob", "*", 4, 2)]
            alice = [("User:alice", "*", 3, 3)]
            prefixed = [("User:alice", "192.0.2.7", 3, 3)]
            assert await described(client, version) == {
                (2, 3, "flights"): flights,
                (2, 4, "fl"): prefixed,
                (2, 3, "*"): alice,
                (2, 3, "other"): alice,
            }
            assert await described(
                client, version, pattern_type_filter=2, resource_name_filter="flights"
            ) == {(2, 3, "flights"): flights, (2, 4, "fl"): prefixed, (2, 3, "*"): alice}
            assert await described(client, version, principal_filter="User:bob", operation=4) == {
                (2, 3, "flights"): [("User:bob", "*", 4, 2)]
            }
            assert await described(client, version, resource_type_filter=3) == {}
            gone = await client.call(
                ApiKey.DELETE_ACLS,
                version,
                filters=tuple(
                    of(ApiKey.DELETE_ACLS, version, "DeleteAclsFilter", **filtering(**values))
                    for values in (
                        {"resource_name_filter": "flights", "pattern_type_filter": 2},
                        {"host_filter": "192.0.2.8"},
                        {"operation": 99},
                    )
                ),
            )
            first, second, third = gone.filter_results
            assert [(int(r.error_code), len(r.matching_acls)) for r in (first, second)] == [
                (0, 3 + 1),
                (0, 0),
            ]
            assert {(a.resource_name, int(a.pattern_type), a.principal) for a in first.matching_acls} == {
                ("flights", 3, "User:alice"),
                ("flights", 3, "User:bob"),
                ("fl", 4, "User:alice"),
                ("*", 3, "User:alice"),
            }
            assert int(third.error_code) == ErrorCode.INVALID_REQUEST
            assert await described(client, version) == {(2, 3, "other"): alice}

    run(main())


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_ACLS))
def test_all_of_many_rules_are_described_while_the_loop_turns(run: Run, version: int) -> None:
    async def main() -> None:
        turns = Turns()
        async with cluster_of_level_2(turns=turns) as (client, cluster):
            rules = [
                metadata_pb2.AclRecord(
                    resource_type=2,
                    pattern_type=3,
                    resource_name=f"t{n // 3}",
                    principal=f"User:u{n}",
                    host="*",
                    operation=3,
                    permission=3,
                )
                for n in range(3_000)
            ]
            committed = cluster.commit(*(metadata_pb2.MetadataRecord(acl=rule) for rule in rules))
            assert await client.metadata.wait_for_version(committed, 60_000)
            found = await described(client, version)
            assert sum(map(len, found.values())) == 3_000
            assert all(len(each) == 3 for each in found.values())
            # A step for 20 rules that are looked at and for each of 1,000 patterns, 20 steps a slice.
            assert turns.given >= 50

    run(main())


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_ACLS))
def test_a_filter_that_nobody_knows_is_an_invalid_request(run: Run, version: int) -> None:
    async def main() -> None:
        async with cluster_of_level_2() as (client, _):
            found = await client.call(ApiKey.DESCRIBE_ACLS, version, **filtering(operation=99))
            assert int(found.error_code) == ErrorCode.INVALID_REQUEST
            assert found.resources == ()

    run(main())


def acl_requests(version: int) -> dict[ApiKey, dict[str, Any]]:
    wanted = of(ApiKey.DELETE_ACLS, version, "DeleteAclsFilter", **filtering())
    return {
        ApiKey.DESCRIBE_ACLS: filtering(),
        ApiKey.CREATE_ACLS: {"creations": (creation(version, "a"), creation(version, "b"))},
        ApiKey.DELETE_ACLS: {"filters": (wanted, wanted)},
    }


def errors_of(response: Any) -> list[int]:
    """The codes of a response: its own, or those of its items."""
    if hasattr(response, "error_code"):
        return [int(response.error_code)]
    for name in ("results", "filter_results", "entries"):
        if hasattr(response, name):
            return [int(item.error_code) for item in getattr(response, name)]
    raise AssertionError(response)


@pytest.mark.parametrize("version", versions(ApiKey.CREATE_ACLS))
def test_where_acls_do_not_count_they_are_not_taken(run: Run, version: int, controller: list[Any]) -> None:
    async def main() -> None:
        async with cluster_of_level_2(acls_enabled=False) as (client, _):
            for key, values in acl_requests(version).items():
                codes = errors_of(await client.call(key, version, **values))
                assert codes == [ErrorCode.SECURITY_DISABLED] * (1 if key == ApiKey.DESCRIBE_ACLS else 2)
            assert controller == []

    run(main())


# Quotas


def entry(version: int, entity: dict[str, str | None], **ops: float | None) -> Any:
    key = (ApiKey.ALTER_CLIENT_QUOTAS, version)
    return of(
        *key,
        "EntryData",
        entity=tuple(of(*key, "EntityData", entity_type=k, entity_name=n) for k, n in entity.items()),
        ops=tuple(
            of(*key, "OpData", key=k, value=0.0 if value is None else value, remove=value is None)
            for k, value in ops.items()
        ),
    )


async def alter_quotas(client: Client, version: int, *entries: Any, validate_only: bool = False) -> list[Any]:
    found = await client.call(
        ApiKey.ALTER_CLIENT_QUOTAS, version, entries=entries, validate_only=validate_only
    )
    wanted = [[(e.entity_type, e.entity_name) for e in one.entity] for one in entries]
    assert [[(e.entity_type, e.entity_name) for e in one.entity] for one in found.entries] == wanted
    return [(int(e.error_code), e.error_message) for e in found.entries]


async def quotas_of(
    client: Client, version: int, *components: tuple[str, int, str | None], strict: bool = False
) -> Any:
    found = await client.call(
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        version,
        components=tuple(
            of(
                ApiKey.DESCRIBE_CLIENT_QUOTAS,
                version,
                "ComponentData",
                entity_type=kind,
                match_type=match_type,
                match=match,
            )
            for kind, match_type, match in components
        ),
        strict=strict,
    )
    if int(found.error_code):
        assert found.entries is None
        return int(found.error_code), found.error_message
    return {
        tuple((e.entity_type, e.entity_name) for e in one.entity): {v.key: v.value for v in one.values}
        for one in found.entries
    }


ALICE = ("user", "alice")
ANY_USER = ("user", None)


@pytest.mark.parametrize("version", versions(ApiKey.ALTER_CLIENT_QUOTAS))
def test_quotas_are_set_found_by_filters_and_removed(run: Run, version: int) -> None:
    async def main() -> None:
        async with cluster_of_level_2() as (client, cluster):
            checked = await alter_quotas(
                client, version, entry(version, {"user": "alice"}, producer_byte_rate=1.0), validate_only=True
            )
            assert checked == [(0, None)]
            assert await quotas_of(client, version) == {}
            made = await alter_quotas(
                client,
                version,
                entry(version, {"user": "alice"}, producer_byte_rate=1024.0, request_percentage=12.5),
                entry(version, {"user": "alice", "client-id": "c"}, consumer_byte_rate=5.0),
                entry(version, {"user": None}, producer_byte_rate=7.0),
                entry(version, {"client-id": None}, producer_byte_rate=8.0),
                entry(version, {"ip": "2001:DB8::1"}, connection_creation_rate=9.0),
            )
            assert made == [(0, None)] * 5
            assert QuotaEntity(ip="2001:db8::1") in cluster.image.security.quotas
            alice = {(ALICE,): {"producer_byte_rate": 1024.0, "request_percentage": 12.5}}
            both = {(ALICE, ("client-id", "c")): {"consumer_byte_rate": 5.0}}
            any_user = {(ANY_USER,): {"producer_byte_rate": 7.0}}
            any_client = {(("client-id", None),): {"producer_byte_rate": 8.0}}
            address = {(("ip", "2001:db8::1"),): {"connection_creation_rate": 9.0}}
            for components, strict, wanted in (
                ((), False, alice | both | any_user | any_client | address),
                ((), True, {}),
                ((("user", 0, "alice"),), False, alice | both),
                ((("user", 0, "alice"),), True, alice),
                ((("user", 0, ""),), False, {}),
                ((("user", 0, "bob"),), False, {}),
                ((("user", 1, None),), False, any_user),
                ((("user", 2, None),), False, alice | both | any_user),
                ((("user", 2, None),), True, alice | any_user),
                ((("user", 0, "alice"), ("client-id", 2, None)), True, both),
                ((("user", 1, None), ("client-id", 2, None)), False, {}),
                ((("ip", 2, None),), True, address),
            ):
                found = await quotas_of(client, version, *components, strict=strict)
                assert found == wanted, (components, strict)
            gone = await alter_quotas(
                client,
                version,
                entry(version, {"user": "alice"}, producer_byte_rate=None, consumer_byte_rate=None),
                entry(version, {"user": None}, producer_byte_rate=None),
            )
            assert gone == [(0, None)] * 2
            assert await quotas_of(client, version, ("user", 2, None), strict=True) == {
                (ALICE,): {"request_percentage": 12.5}
            }

    run(main())


@pytest.mark.parametrize("version", versions(ApiKey.ALTER_CLIENT_QUOTAS))
def test_quotas_that_cannot_be_are_refused_each_and_others_go_through(run: Run, version: int) -> None:
    async def main() -> None:
        async with cluster_of_level_2() as (client, cluster):
            found = await alter_quotas(
                client,
                version,
                entry(version, {}, producer_byte_rate=1.0),
                entry(version, {"group": "g"}, producer_byte_rate=1.0),
                entry(version, {"user": ""}, producer_byte_rate=1.0),
                entry(version, {"ip": "here"}, connection_creation_rate=1.0),
                entry(version, {"ip": "192.0.2.7", "user": "u"}, connection_creation_rate=1.0),
                entry(version, {"ip": "192.0.2.7"}, producer_byte_rate=1.0),
                entry(version, {"user": "half"}, producer_byte_rate=1.0, no_such_rate=1.0),
                entry(version, {"user": "zero"}, producer_byte_rate=0.0),
                entry(version, {"user": "nan"}, request_percentage=float("nan")),
                entry(version, {"user": "fine"}, producer_byte_rate=2.0),
            )
            assert [code for code, _ in found] == [ErrorCode.INVALID_REQUEST] * 9 + [0]
            assert all(message for _, message in found[:9])
            assert list(cluster.image.security.quotas) == [QuotaEntity(user="fine")]
            for components, code in (
                ([("", 0, "x")], ErrorCode.INVALID_REQUEST),
                ([("user", 0, "x"), ("user", 1, None)], ErrorCode.INVALID_REQUEST),
                ([("group", 0, "x")], ErrorCode.UNSUPPORTED_VERSION),
                ([("user", 0, None)], ErrorCode.INVALID_REQUEST),
                ([("user", 1, "x")], ErrorCode.INVALID_REQUEST),
                ([("user", 2, "x")], ErrorCode.INVALID_REQUEST),
                ([("user", 3, None)], ErrorCode.INVALID_REQUEST),
                ([("user", 2, None), ("ip", 2, None)], ErrorCode.INVALID_REQUEST),
            ):
                answer = await quotas_of(client, version, *components)
                assert answer[0] == code, components

    run(main())


# Rights, and levels


def requests_of(key: ApiKey, version: int) -> dict[str, Any]:
    if key in (ApiKey.DESCRIBE_ACLS, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS):
        return acl_requests(version)[key]
    others: dict[ApiKey, dict[str, Any]] = {
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: {"users": (of(*DESCRIBE_USERS, "UserName", name="alice"),)},
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: {
            "deletions": (deletion("bob"),),
            "upsertions": (upsertion("alice"),),
        },
        ApiKey.DESCRIBE_CLIENT_QUOTAS: {"components": (), "strict": False},
        ApiKey.ALTER_CLIENT_QUOTAS: {
            "entries": (entry(version if key == ApiKey.ALTER_CLIENT_QUOTAS else 0, {"user": "a"}),),
            "validate_only": False,
        },
    }
    return others[key]


RIGHTS = {
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Operation.DESCRIBE,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Operation.ALTER,
    ApiKey.DESCRIBE_ACLS: Operation.DESCRIBE,
    ApiKey.CREATE_ACLS: Operation.ALTER,
    ApiKey.DELETE_ACLS: Operation.ALTER,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Operation.DESCRIBE_CONFIGS,
    ApiKey.ALTER_CLIENT_QUOTAS: Operation.ALTER_CONFIGS,
}


@pytest.mark.parametrize(
    ("key", "version"), [(key, version) for key in RIGHTS for version in versions(key)], ids=str
)
def test_the_one_right_is_enough_and_nothing_else_is(
    run: Run, controller: list[Any], key: ApiKey, version: int
) -> None:
    denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED

    async def main() -> None:
        # Even to those who may not know whether there are ACLs at all.
        for enabled in (True, False):
            for operation in (None, *(set(RIGHTS.values()) - {RIGHTS[key]})):
                async with cluster_of_level_2(Only(operation), acls_enabled=enabled) as (client, _):
                    codes = errors_of(await client.call(key, version, **requests_of(key, version)))
                    assert codes
                    assert set(codes) == {denied}
        assert controller == []
        async with cluster_of_level_2(Only(RIGHTS[key])) as (client, _):
            assert denied not in errors_of(await client.call(key, version, **requests_of(key, version)))

    run(main())


@pytest.mark.parametrize(
    ("key", "version"),
    [
        (key, version)
        for key in RIGHTS
        for version in versions(key)
        if RIGHTS[key] in (Operation.ALTER, Operation.ALTER_CONFIGS)
    ],
    ids=str,
)
def test_below_level_2_each_change_is_refused_with_the_mend(run: Run, key: ApiKey, version: int) -> None:
    async def main() -> None:
        authorizer = AllowAll()
        authorizer.is_enabled = True
        async with serving(authorizer) as (client, *_):
            found = await client.call(key, version, **requests_of(key, version))
            assert set(errors_of(found)) == {ErrorCode.UNSUPPORTED_VERSION}
            assert "penstock cluster upgrade" in str(found)

    run(main())
