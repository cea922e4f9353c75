"""Kafka's names of broker configurations: each has a counterpart that exists, and is told in words."""

from __future__ import annotations

import pytest

from penstock.local.plan import LISTENERS, OWN_LISTENER_SETTINGS, OWN_SETTINGS, SHORT_NAMES, parse_assignments
from penstock.local.roles import role_fields
from penstock_core.config.catalog import (
    CLUSTER,
    CLUSTER_DYNAMIC,
    NODE_DYNAMIC,
    NODE_STATIC,
    TOPIC_NAMES,
    TOPIC_SETTINGS,
)
from penstock_runtime.kafka_names import KAFKA_NAMES, OTHER_UNITS, dotted_names, hint
from penstock_storage_node.settings import StorageNodeSettings

ALL_FIELDS = {field for fields in role_fields().values() for field in fields}
IN_THE_CLUSTER = [*TOPIC_NAMES, *NODE_DYNAMIC, *CLUSTER_DYNAMIC, *OTHER_UNITS, *TOPIC_SETTINGS]


@pytest.mark.parametrize("name", KAFKA_NAMES)
def test_every_counterpart_is_a_setting_of_a_role(name: str) -> None:
    assert set(KAFKA_NAMES[name].settings) <= ALL_FIELDS


def test_every_setting_of_a_node_that_kafkas_clients_are_shown_has_its_counterpart() -> None:
    assert set(NODE_STATIC) <= set(KAFKA_NAMES)


OF_THE_PROCESS = sorted(set(NODE_STATIC) - {"advertised.listeners", "broker.rack", "log.dirs", "node.id"})


@pytest.mark.parametrize("name", OF_THE_PROCESS)
def test_a_node_shows_a_changed_setting_by_the_name_whose_counterpart_it_is(name: str) -> None:
    (setting,) = KAFKA_NAMES[name].settings
    value = "true" if setting == "auto_create_topics" else "54321"
    settings = StorageNodeSettings.model_validate({setting: value})
    assert settings.shown_to_clients("/data") == {name: value, "log.dirs": "/data"}


def test_no_name_is_a_setting_of_the_process_and_of_the_cluster() -> None:
    assert not set(KAFKA_NAMES) & set(IN_THE_CLUSTER)
    assert set(OTHER_UNITS.values()) <= set(TOPIC_NAMES)


@pytest.mark.parametrize("name", KAFKA_NAMES)
def test_set_names_ours(name: str) -> None:
    with pytest.raises(Exception, match=f"^--set {name}: {name} is Kafka's name; here it is ") as told:
        parse_assignments([f"{name}=1"], role_fields)
    for setting in KAFKA_NAMES[name].settings:
        assert (setting if setting in OWN_SETTINGS else f"--set {setting}=VALUE") in str(told.value)


@pytest.mark.parametrize("name", IN_THE_CLUSTER)
def test_what_is_set_in_the_running_cluster_is_told_with_the_command(name: str) -> None:
    told = hint(name, ALL_FIELDS)
    if name in TOPIC_SETTINGS and not TOPIC_SETTINGS[name].node_name:
        assert told is None  # of topics alone
        return
    assert told is not None
    setting = told.rpartition("cluster ")[2].removesuffix("=VALUE`")
    assert told.endswith(f"`penstock config set {CLUSTER} {setting}=VALUE`")
    assert setting in {*TOPIC_NAMES, *NODE_DYNAMIC, *CLUSTER_DYNAMIC}


def test_no_setting_of_ours_is_taken_for_kafkas() -> None:
    for role, fields in role_fields().items():
        for field in fields:
            assert hint(field, ALL_FIELDS) is None
            is_listeners_own = (
                field.startswith(f"{LISTENERS}.") and field.rpartition(".")[2] in OWN_LISTENER_SETTINGS
            )
            if field not in OWN_SETTINGS and not is_listeners_own:
                for word in (field, field.replace("_", "-"), f"{SHORT_NAMES[role]}.{field}"):
                    assert parse_assignments([f"{word}=1"], role_fields)[role] == {field: "1"}


def test_names_that_are_nobodys_get_no_hint() -> None:
    assert hint("log.cleaner.threads", ALL_FIELDS) is None
    assert hint("", ALL_FIELDS) is None


def test_tables_become_dotted_names_again() -> None:
    assert list(dotted_names("a", {"b": {"c": 1, "d": {}}, "e": [{"f": 1}]})) == ["a.b.c", "a.e"]
    assert list(dotted_names("a.b", 1)) == ["a.b"]
