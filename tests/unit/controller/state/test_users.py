"""Credentials: what Kafka's clients may ask for, and what it comes to."""

from __future__ import annotations

import pytest

from penstock_controller.state import users
from penstock_core.errors import ErrorCode
from penstock_core.metadata.security import SIGN_IN_KEY, CredentialKey
from penstock_proto.v1 import controller_pb2 as api
from unit.controller.state.test_nodes import Cluster

SHA_256, SHA_512 = 1, 2


def change(user: str = "alice", mechanism: int = SHA_256, **values: object) -> api.UserCredentialChange:
    size = 64 if mechanism == SHA_512 else 32
    fields = {"salt": b"s", "stored_key": b"k" * size, "server_key": b"v" * size, "iterations": 4096}
    return api.UserCredentialChange(user=user, mechanism=mechanism, **{**fields, **values})  # type: ignore[arg-type]


def removal(user: str = "alice", mechanism: int = SHA_256) -> api.UserCredentialChange:
    return api.UserCredentialChange(user=user, mechanism=mechanism, remove=True)


def alter(cluster: Cluster, *changes: api.UserCredentialChange) -> list[int]:
    made = users.alter_user_credentials(cluster.context, api.AlterUserCredentialsRequest(changes=changes))
    cluster.do(made)
    assert not made.reply.error.code
    return [result.code for result in made.reply.results]


def test_a_credential_is_kept_with_the_version_that_wrote_it_and_deleted_again() -> None:
    cluster = Cluster(level=2)
    assert alter(cluster, change(), change(mechanism=SHA_512)) == [0, 0]
    stored = cluster.image.security.credentials
    assert stored[CredentialKey("alice", SHA_256)].version == cluster.image.version
    assert stored[CredentialKey("alice", SHA_512)].stored_key == b"k" * 64
    assert alter(cluster, removal()) == [0]
    assert list(cluster.image.security.credentials) == [CredentialKey("alice", SHA_512)]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (change(user=""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (change(user="a" * 256), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (change(iterations=4095), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (change(iterations=16_385), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (change(salt=b""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (change(salt=b"s" * 257), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (change(stored_key=b"k"), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (change(server_key=b"k" * 64), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (change(mechanism=3), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (removal(mechanism=0), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (removal(), ErrorCode.RESOURCE_NOT_FOUND),
    ],
)
def test_what_is_refused_has_kafkas_code_and_changes_nothing(
    asked: api.UserCredentialChange, code: ErrorCode
) -> None:
    cluster = Cluster(level=2)
    assert alter(cluster, asked) == [code]
    assert not cluster.image.security.credentials


def test_changes_of_one_user_count_together_and_others_on_their_own() -> None:
    cluster = Cluster(level=2)
    codes = alter(cluster, change("alice"), change("alice", SHA_512, iterations=1), change("bob"))
    assert codes == [ErrorCode.UNACCEPTABLE_CREDENTIAL, ErrorCode.UNACCEPTABLE_CREDENTIAL, 0]
    assert [key.user for key in cluster.image.security.credentials] == ["bob"]


def test_a_user_named_twice_with_one_mechanism_is_refused() -> None:
    cluster = Cluster(level=2)
    assert alter(cluster, change(), removal()) == [ErrorCode.DUPLICATE_RESOURCE] * 2


def test_below_level_2_there_are_no_users() -> None:
    made = users.alter_user_credentials(
        Cluster(level=1).context, api.AlterUserCredentialsRequest(changes=[change()])
    )
    assert made.reply.error.code == ErrorCode.UNSUPPORTED_VERSION
    assert "penstock cluster upgrade" in made.reply.error.message
    assert not made.records


def test_a_cluster_of_level_2_has_a_secret_for_the_salts_of_users_that_there_are_not() -> None:
    assert len(Cluster(level=2).image.security.secrets[SIGN_IN_KEY]) == 32
    assert not Cluster(level=1).image.security.secrets
