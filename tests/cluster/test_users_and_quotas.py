"""Users, ACLs and quotas of a real cluster, by confluent-kafka's admin client, Kafka's own tool and `penstock`."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from penstock.cli.main import run
from penstock.local.cluster import LocalCluster
from penstock.local.plan import GATEWAY, NODE
from support.cluster import running_cluster
from support.java import needs_java, shared_driver
from support.kafka import client_config
from support.waiting import wait_for

TIMEOUT_S = 60.0
MODES = ("proxy", "direct")


def address(cluster: LocalCluster, mode: str) -> str:
    return cluster.bootstrap if mode == "proxy" else cluster.direct_bootstrap


@pytest.fixture
def user() -> str:
    return f"user-{uuid.uuid4().hex[:8]}"


def described(admin: AdminClient, user: str) -> list[tuple[str, int]]:
    futures: Any = admin.describe_user_scram_credentials([user])
    found = futures[user].result(TIMEOUT_S)
    return [(info.mechanism.name, info.iterations) for info in found.scram_credential_infos]


def code_of(error: pytest.ExceptionInfo[KafkaException]) -> int:
    return int(error.value.args[0].code())


@pytest.mark.parametrize("mode", MODES)
def test_confluent_kafka_makes_and_deletes_users(shared_cluster: LocalCluster, user: str, mode: str) -> None:
    admin = AdminClient(client_config(address(shared_cluster, mode)))
    infos = [
        ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096),
        ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192),
    ]
    for info in infos:
        upsertion = UserScramCredentialUpsertion(user, info, b"password", b"salt")
        admin.alter_user_scram_credentials([upsertion])[user].result(TIMEOUT_S)
    # By a node another process may answer than the one that took the change.
    both = [("SCRAM_SHA_256", 4096), ("SCRAM_SHA_512", 8192)]

    def all_there() -> bool:
        try:
            return described(admin, user) == both
        except KafkaException:
            return False

    wait_for(all_there, "both credentials are described")
    bad = UserScramCredentialUpsertion(
        user, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 100), b"password", b"salt"
    )
    with pytest.raises(KafkaException) as refused:
        admin.alter_user_scram_credentials([bad])[user].result(TIMEOUT_S)
    assert code_of(refused) == KafkaError.UNACCEPTABLE_CREDENTIAL
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        deletion = UserScramCredentialDeletion(user, mechanism)
        admin.alter_user_scram_credentials([deletion])[user].result(TIMEOUT_S)
    with pytest.raises(KafkaException) as refused:
        admin.alter_user_scram_credentials([deletion])[user].result(TIMEOUT_S)
    assert code_of(refused) == KafkaError.RESOURCE_NOT_FOUND


@pytest.mark.parametrize("mode", MODES)
def test_acls_are_not_taken_where_nothing_decides_by_them(shared_cluster: LocalCluster, mode: str) -> None:
    admin = AdminClient(client_config(address(shared_cluster, mode)))
    rule = (ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, "User:a", "*")
    wanted = AclBindingFilter(*rule, AclOperation.READ, AclPermissionType.ALLOW)
    (made,) = admin.create_acls(
        [AclBinding(*rule, AclOperation.READ, AclPermissionType.ALLOW)], request_timeout=TIMEOUT_S
    ).values()
    (gone,) = admin.delete_acls([wanted], request_timeout=TIMEOUT_S).values()
    for future in (made, gone):
        with pytest.raises(KafkaException) as refused:
            future.result(TIMEOUT_S)
        assert code_of(refused) == KafkaError.SECURITY_DISABLED
    # librdkafka 2.16 tells no error of a whole DescribeAcls, whoever answers.
    assert admin.describe_acls(wanted, request_timeout=TIMEOUT_S).result(TIMEOUT_S) == []


@pytest.fixture(scope="module")
def cluster_with_rights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Where ACLs count. Nobody signs in, so everybody is ANONYMOUS, who may change the cluster's rights."""
    settings = {"authorizer": "acl", "super_users": '["User:ANONYMOUS"]'}
    with running_cluster(
        tmp_path_factory.mktemp("rights"),
        controllers=1,
        nodes=1,
        settings={NODE: settings, GATEWAY: settings},
        steady=True,
    ) as cluster:
        yield cluster


@pytest.mark.parametrize("mode", MODES)
def test_confluent_kafka_and_the_command_see_the_same_rules(
    cluster_with_rights: LocalCluster, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bootstrap = address(cluster_with_rights, mode)
    admin = AdminClient(client_config(bootstrap))

    def penstock(*words: str) -> Any:
        capsys.readouterr()
        assert run([*words, "--bootstrap", bootstrap]) == 0, capsys.readouterr()
        return capsys.readouterr().out

    topic = f"rights-{mode}"
    rule = (ResourceType.TOPIC, topic, ResourcePatternType.PREFIXED, "User:a", "192.0.2.7")
    made = AclBinding(*rule, AclOperation.READ, AclPermissionType.ALLOW)
    (future,) = admin.create_acls([made], request_timeout=TIMEOUT_S).values()
    future.result(TIMEOUT_S)
    penstock("acl", "add", "User:b", "write", f"topic:{topic}", "--deny")
    applying = ("--resource", f"topic:{topic}", "--applying")

    def rules() -> list[tuple[str, str, str]]:
        found = json.loads(penstock("acl", "list", *applying, "--json"))
        return sorted((one["principal"], one["operation"], one["pattern"]) for one in found)

    both = [("User:a", "read", "prefixed"), ("User:b", "write", "literal")]
    # Another process may answer than the one that took the change.
    wait_for(lambda: rules() == both, "both rules are listed")
    every: Any = (ResourceType.TOPIC, topic, ResourcePatternType.MATCH, None, None)
    every += (AclOperation.ANY, AclPermissionType.ANY)
    anything = AclBindingFilter(*every)
    found = admin.describe_acls(anything, request_timeout=TIMEOUT_S).result(TIMEOUT_S)
    assert made in found
    assert {(one.principal, one.operation) for one in found} == {
        ("User:a", AclOperation.READ),
        ("User:b", AclOperation.WRITE),
    }
    asked = ("acl", "test", "User:a", "describe", f"topic:{topic}.x", "--host", "192.0.2.7")
    assert "allow User:a from 192.0.2.7 read on prefixed" in penstock(*asked)
    (future,) = admin.delete_acls([anything], request_timeout=TIMEOUT_S).values()
    assert len(future.result(TIMEOUT_S)) == 2
    wait_for(lambda: rules() == [], "no rule is left")


@needs_java
@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_kafka_configs_sets_users_and_quotas(shared_cluster: LocalCluster, user: str, mode: str) -> None:
    driver = shared_driver()
    whom = ("--bootstrap-server", address(shared_cluster, mode), "--entity-type", "users")

    def tool(*arguments: str, exit: int | None = 0) -> str:
        return driver.tool("ConfigCommand", *whom, *arguments, exit=exit).text

    credentials = "SCRAM-SHA-256=[iterations=8192,password=one],SCRAM-SHA-512=[password=two]"
    rates = "producer_byte_rate=1024,request_percentage=12.5"
    named = ("--entity-name", user)
    tool("--alter", *named, "--add-config", credentials)
    tool("--alter", *named, "--add-config", rates)
    tool("--alter", *named, "--entity-type", "clients", "--entity-name", "c", "--add-config", rates)
    # Of another process than the one that took the changes, maybe.
    wait_for(
        lambda: all(
            word in tool("--describe", *named)
            for word in ("SCRAM-SHA-256=iterations=8192", "SCRAM-SHA-512=iterations=4096", "1024.0", "12.5")
        ),
        "credentials and quotas are described",
    )
    assert "client-id 'c'" in tool("--describe", *named, "--entity-type", "clients")
    assert "must be greater than 0" in tool(
        "--alter", *named, "--add-config", "producer_byte_rate=0", exit=None
    )
    tool("--alter", *named, "--delete-config", "SCRAM-SHA-256,SCRAM-SHA-512")
    tool("--alter", *named, "--delete-config", "producer_byte_rate,request_percentage")
    client = (*named, "--entity-type", "clients", "--entity-name", "c")
    tool("--alter", *client, "--delete-config", "producer_byte_rate,request_percentage")
    wait_for(
        lambda: "1024" not in (said := tool("--describe", *named)) and "SCRAM" not in said, "nothing is left"
    )


def test_the_command_makes_users_and_quotas_of_a_real_cluster(
    shared_cluster: LocalCluster, user: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def penstock(*words: str, expect: int = 0) -> str:
        capsys.readouterr()
        code = run([*words, "--bootstrap", shared_cluster.bootstrap])
        said = capsys.readouterr()
        assert code == expect, (words, code, said)
        return said.out + said.err

    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("one and two")
    penstock("user", "add", user, "--password-file", str(secret))
    assert described(AdminClient(client_config(shared_cluster.bootstrap)), user) == [
        ("SCRAM_SHA_256", 4096),
        ("SCRAM_SHA_512", 4096),
    ]
    penstock("quota", "set", "producer_byte_rate=2048", "--user", user)
    assert json.loads(penstock("quota", "list", "--user", user, "--json")) == [
        {"entity": {"user": user}, "quotas": {"producer_byte_rate": 2048.0}}
    ]
    penstock("quota", "unset", "producer_byte_rate", "--user", user)
    penstock("user", "delete", user)
    assert "ACLs do not count" in penstock("acl", "list", expect=1)
    # What a log, a snapshot or an error might have kept of the password.
    for file in Path(shared_cluster.directory).rglob("*"):
        if file.is_file() and file.name in ("log.txt", "journal"):
            assert b"one and two" not in file.read_bytes(), file


def test_a_cluster_says_its_level_and_who_understands_it(
    shared_cluster: LocalCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["cluster", "upgrade", "--json", "--dir", str(shared_cluster.directory)]
    with open("/dev/null") as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        assert run(words) == 2
        capsys.readouterr()
        assert run([*words, "--dry-run"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["raised"], found["level"], found["in_the_way"]) == (False, found["wanted"], [])
    roles = [process["role"] for process in found["processes"]]
    assert roles == ["controller"] * 3 + ["storage node"] * 3 + ["gateway"]
