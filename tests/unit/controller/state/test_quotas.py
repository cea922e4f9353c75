"""Client quotas are set and removed as Kafka's controller does it."""

from __future__ import annotations

import pytest

from penstock_controller.state import quotas
from penstock_core.errors import ErrorCode
from penstock_core.security.quota_entities import QuotaEntity
from penstock_proto.v1 import controller_pb2 as api
from unit.controller.state.test_nodes import Cluster

RATE = "producer_byte_rate"


def change(values: dict[str, float | None], **entity: str) -> api.QuotaChange:
    made = [api.QuotaValue(key=key, value=value) for key, value in values.items()]
    return api.QuotaChange(values=made, **entity)


def alter(cluster: Cluster, *changes: api.QuotaChange, validate_only: bool = False) -> list[int]:
    made = quotas.alter_quotas(
        cluster.context, api.AlterQuotasRequest(changes=changes, validate_only=validate_only)
    )
    cluster.do(made)
    assert not made.reply.error.code
    return [result.code for result in made.reply.results]


def test_quotas_are_set_changed_and_removed() -> None:
    cluster = Cluster(level=2)
    assert alter(
        cluster,
        change({RATE: 100.0, "request_percentage": 12.5}, user="alice"),
        change({RATE: 50.0}, user=""),
        change({RATE: 10.0}, user="alice", client_id=""),
        change({"connection_creation_rate": 5.0}, ip="10.0.0.1"),
    ) == [0, 0, 0, 0]
    assert cluster.image.security.quotas == {
        QuotaEntity(user="alice"): {RATE: 100.0, "request_percentage": 12.5},
        QuotaEntity(user=""): {RATE: 50.0},
        QuotaEntity(user="alice", client_id=""): {RATE: 10.0},
        QuotaEntity(ip="10.0.0.1"): {"connection_creation_rate": 5.0},
    }
    assert alter(cluster, change({RATE: None, "request_percentage": 20.0}, user="alice")) == [0]
    assert cluster.image.security.quotas[QuotaEntity(user="alice")] == {"request_percentage": 20.0}


def test_what_is_so_already_and_what_is_only_checked_changes_nothing() -> None:
    cluster = Cluster(level=2)
    alter(cluster, change({RATE: 100.0}, user="alice"))
    version = cluster.image.version
    assert alter(cluster, change({RATE: 100.0}, user="alice"), change({RATE: None}, user="bob")) == [0, 0]
    assert alter(cluster, change({RATE: 5.0}, user="carol"), validate_only=True) == [0]
    assert cluster.image.version == version


@pytest.mark.parametrize(
    "bad",
    [
        change({RATE: 1.0}),
        change({RATE: 1.0}, user="a", ip="10.0.0.1"),
        change({"connection_creation_rate": 1.0}, ip="host.example"),
        change({RATE: 0.0}, user="a"),
        change({RATE: -1.0}, user="a"),
        change({RATE: float("nan")}, user="a"),
        change({RATE: 1.5}, user="a"),
        change({"compression.type": 1.0}, user="a"),
        change({"connection_creation_rate": 1.0}, user="a"),
    ],
    ids=lambda bad: str(bad).replace("\n", " "),
)
def test_a_bad_entity_key_or_value_fails_alone(bad: api.QuotaChange) -> None:
    cluster = Cluster(level=2)
    assert alter(cluster, bad, change({RATE: 1.0}, user="b")) == [ErrorCode.INVALID_REQUEST, 0]
    assert list(cluster.image.security.quotas) == [QuotaEntity(user="b")]


def test_one_bad_key_leaves_the_whole_entity_as_it_was() -> None:
    cluster = Cluster(level=2)
    assert alter(cluster, change({RATE: 1.0, "nonsense": 1.0}, user="a")) == [ErrorCode.INVALID_REQUEST]
    assert not cluster.image.security.quotas


def test_an_entity_or_key_that_stands_twice_is_refused() -> None:
    cluster = Cluster(level=2)
    twice = api.QuotaChange(user="b", values=[api.QuotaValue(key=RATE, value=v) for v in (1.0, 2.0)])
    codes = alter(cluster, change({RATE: 1.0}, user="a"), change({RATE: 2.0}, user="a"), twice)
    assert codes == [0, ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST]


def test_below_level_2_there_are_no_quotas() -> None:
    made = quotas.alter_quotas(
        Cluster(level=1).context, api.AlterQuotasRequest(changes=[change({RATE: 1.0}, user="a")])
    )
    assert made.reply.error.code == ErrorCode.UNSUPPORTED_VERSION
