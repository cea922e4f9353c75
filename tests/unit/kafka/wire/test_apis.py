"""The one description of each API, and the tables that are held against it."""

from __future__ import annotations

import kio.schema.index
import pytest

from penstock_core.errors import InvariantBroken
from penstock_kafka.error_responses.data import ERROR_FORMS
from penstock_kafka.wire import apis, codec
from penstock_kafka.wire.apis import (
    LOCAL_ROUTES,
    ON_LOSS,
    PRODUCE_VERSION_MIN,
    RELAYED_ROUTES,
    SPECS,
    SUPPORTED,
    ApiKey,
    OnLoss,
    Route,
    answered,
    is_supported,
    require_entries,
)
from support.kafka_specs import change_spec

LEADERS = [Route.PARTITION_LEADER]
OF_LEADERS = {spec.key for spec in answered() if spec.route is Route.PARTITION_LEADER}


def test_each_api_has_one_row() -> None:
    assert sorted(spec.key for spec in apis._ROWS) == sorted(ApiKey)


def test_each_route_has_one_who_answers_it() -> None:
    assert {*LOCAL_ROUTES, *RELAYED_ROUTES, Route.NODE} == set(Route)
    assert not LOCAL_ROUTES & RELAYED_ROUTES


def test_each_relayed_api_says_what_a_lost_node_means_and_no_other() -> None:
    # InitProducerId with a transactional id goes to that one's coordinator.
    require_entries("on_loss", ON_LOSS, RELAYED_ROUTES, also=[ApiKey.INIT_PRODUCER_ID])
    assert [key for key, on_loss in ON_LOSS.items() if on_loss is OnLoss.MAYBE_WRITTEN] == [ApiKey.PRODUCE]


def test_names_are_kafkas() -> None:
    names = {key: spec.name for key, spec in SPECS.items()}
    assert names[ApiKey.PRODUCE] == "Produce"
    assert names[ApiKey.OFFSET_FOR_LEADER_EPOCH] == "OffsetForLeaderEpoch"
    assert names[ApiKey.DESCRIBE_ACLS] == "DescribeAcls"
    for key, (_, high) in SUPPORTED.items():
        assert codec.request_type(key, high).__name__ == f"{names[key]}Request"
        assert codec.request_type(key, high).__api_key__ == key


def test_readable_versions_are_the_supported_ones() -> None:
    for key, spec in SPECS.items():
        assert list(spec.readable) == [version for version in range(40) if is_supported(key, version)]
    assert SPECS[ApiKey.PRODUCE].readable[0] == PRODUCE_VERSION_MIN


def test_a_whole_table_is_taken() -> None:
    require_entries("handlers", OF_LEADERS, LEADERS)
    require_entries(
        "handlers", {*OF_LEADERS, ApiKey.DESCRIBE_LOG_DIRS}, LEADERS, also=[ApiKey.DESCRIBE_LOG_DIRS]
    )
    require_entries("error responses", ERROR_FORMS, Route)


def test_a_missing_entry_is_named_with_its_table() -> None:
    with pytest.raises(
        InvariantBroken, match=r"^relays: DeleteRecords \(route partition_leader\) has no entry"
    ):
        require_entries("relays", OF_LEADERS - {ApiKey.DELETE_RECORDS}, LEADERS)
    with pytest.raises(InvariantBroken, match=r"DescribeLogDirs \(route gateway\) has no entry"):
        require_entries("relays", OF_LEADERS, LEADERS, also=[ApiKey.DESCRIBE_LOG_DIRS])


def test_every_missing_entry_is_named() -> None:
    with pytest.raises(InvariantBroken) as caught:
        require_entries("relays", [], LEADERS)
    assert str(caught.value).count("has no entry") == len(OF_LEADERS)


def test_an_entry_of_another_route_is_one_too_many() -> None:
    with pytest.raises(InvariantBroken, match=r"Metadata \(route gateway\) has an entry too many"):
        require_entries("relays", {*OF_LEADERS, ApiKey.METADATA}, LEADERS)


def test_an_entry_of_an_api_that_is_not_answered_is_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    change_spec(monkeypatch, ApiKey.DELETE_RECORDS, versions=None)
    with pytest.raises(InvariantBroken, match=r"DeleteRecords \(not answered\) has an entry too many"):
        require_entries("relays", OF_LEADERS, LEADERS)


def test_an_entry_without_a_spec_is_one_too_many() -> None:
    with pytest.raises(InvariantBroken, match=r"api key 4711 \(no spec\) has an entry too many"):
        require_entries("relays", {*OF_LEADERS, 4711}, LEADERS)


def test_kio_has_every_version_that_is_answered() -> None:
    codec.require_schemas()


@pytest.mark.parametrize(("versions", "lacking"), [((1, 7), [1]), ((2, 8), [8]), ((90, 91), [90, 91])])
def test_a_version_that_kio_lacks_is_named(
    monkeypatch: pytest.MonkeyPatch, versions: tuple[int, int], lacking: list[int]
) -> None:
    change_spec(monkeypatch, ApiKey.CREATE_TOPICS, versions=versions)
    with pytest.raises(InvariantBroken) as caught:
        codec.require_schemas()
    assert str(caught.value) == f"CreateTopics: kio has no schema of the versions {lacking}"


def test_a_version_that_is_refused_needs_no_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    codec.require_schemas()
    change_spec(monkeypatch, ApiKey.PRODUCE, refused_below=2)
    with pytest.raises(InvariantBroken, match=r"Produce: .* \[2\]"):
        codec.require_schemas()


def test_an_api_that_kio_calls_otherwise_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kio.schema.index, "api_key_map", {0: "produce", 1: "get"})
    with pytest.raises(InvariantBroken, match=r"^Fetch: kio's name of api key 1 is get"):
        codec.require_schemas()
