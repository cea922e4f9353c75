"""The layout of a local cluster: ports, settings files, `--set`."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import CommandError
from penstock.local import plan
from penstock.local.plan import CONTROLLER, GATEWAY, NODE, ClusterSpec, ClusterState

LISTENER_FIELDS = [f"listeners.{key}" for key in ("bind", "tls", "max_reauth_ms", "sasl_mechanisms")]
FIELDS = {
    CONTROLLER: {"log_level", "data_dir", "node_session_timeout_ms", "controllers"},
    NODE: {
        "log_level",
        "data_dir",
        "disk_threads",
        "listeners",
        *LISTENER_FIELDS,
        "replica_lag_time_max_ms",
        "auto_create_topics",
    },
    GATEWAY: {"log_level", "data_dir", "listeners", "auto_create_topics", *LISTENER_FIELDS},
}


def ports_from(first: int) -> Callable[[int], list[int]]:
    counter = itertools.count(first)
    return lambda count: [next(counter) for _ in range(count)]


def planned(**spec: object) -> ClusterState:
    return plan.plan_cluster(ClusterSpec(**spec), ports_from(20_000))  # type: ignore[arg-type]


def test_gateway_ports_follow_the_rule() -> None:
    assert plan.gateway_ports(9092, 1) == {"kafka": 9092, "grpc": 9094, "direct": 9192, "http": 8080}
    assert plan.gateway_ports(19092, 3) == {"kafka": 19112, "grpc": 19114, "direct": 19212, "http": 18100}


def test_addresses_list_every_gateway() -> None:
    assert plan.addresses(planned(gateways=2)) == {
        "bootstrap": "127.0.0.1:9092,127.0.0.1:9102",
        "direct_bootstrap": "127.0.0.1:9192,127.0.0.1:9202",
        "gateway": "127.0.0.1:9094,127.0.0.1:9104",
        "http": "http://127.0.0.1:8080,http://127.0.0.1:8090",
    }


def test_no_two_members_share_a_port() -> None:
    state = planned(controllers=5, nodes=7, gateways=plan.GATEWAYS_MAX)
    ports = [port for member in state.members for port in member.ports.values()]
    assert len(ports) == len(set(ports))
    assert {p for m in state.of_role(GATEWAY) for p in m.ports.values()} <= plan.reserved_ports(9092)


def test_names_ids_and_racks() -> None:
    state = planned(racks=("a", "b"))
    assert [m.name for m in state.members] == [
        *("controller-1", "controller-2", "controller-3", "node-1", "node-2", "node-3", "gateway-1")
    ]
    assert [(m.id, m.rack) for m in state.of_role(NODE)] == [(1, "a"), (2, "b"), (3, "a")]
    assert plan.plan_member(state, NODE, ports_from(30_000)).name == "node-4"


def test_racks_may_be_paths() -> None:
    state = planned(racks=("a/h1", "a/h1", "b/h2"))
    assert [m.rack for m in state.of_role(NODE)] == ["a/h1", "a/h1", "b/h2"]
    with pytest.raises(CommandError, match=r"--racks: 'a/b/c/d' has 4 levels, at most 3"):
        planned(racks=("a/b/c/d",))
    with pytest.raises(CommandError, match=r"--racks: 'a//b' has a level that is empty"):
        planned(racks=("a//b",))


def test_settings_files_are_toml_that_says_who_is_who(tmp_path: Path) -> None:
    state = planned(settings={NODE: {"disk_threads": "2", "log_level": "DEBUG"}})
    controller = tomllib.loads(
        plan.to_toml(plan.member_settings(state, state.member("controller-2"), tmp_path))
    )
    assert controller["controller_id"] == 2
    assert controller["raft_bind"] == controller["raft_peers"][1].partition("@")[2]
    assert [peer.partition("@")[0] for peer in controller["controllers"]] == ["1", "2", "3"]
    node = tomllib.loads(plan.to_toml(plan.member_settings(state, state.member("node-1"), tmp_path)))
    assert node["disk_threads"] == 2
    assert node["log_level"] == "DEBUG"
    assert node["listeners"][0]["mode"] == "direct"
    assert node["data_dir"] == str(tmp_path / "node-1" / "data")
    gateway = tomllib.loads(plan.to_toml(plan.member_settings(state, state.member("gateway-1"), tmp_path)))
    assert [listener["mode"] for listener in gateway["listeners"]] == ["proxy", "direct"]
    assert "disk_threads" not in gateway


def test_secure_members_have_certificates_users_and_an_admin(tmp_path: Path) -> None:
    state = planned(secure=True, gateways=2, settings={GATEWAY: {"listeners.max_reauth_ms": "5000"}})
    assert ClusterState.from_json(state.to_json(), tmp_path) == state
    found = {
        member.name: tomllib.loads(plan.to_toml(plan.member_settings(state, member, tmp_path)))
        for member in state.members
    }
    made = tmp_path / "secure"
    controller, node, gateway = found["controller-2"], found["node-3"], found["gateway-2"]
    assert controller["tls"]["key"] == str(made / "controller-2" / "key.pem")
    assert controller["bootstrap_users"] == str(made / "first-users.json")
    assert node["tls"]["ca"] == str(made / "storage-node-node-3" / "ca.pem")
    for name, settings in found.items():
        assert settings["audit_log"] == str(made / f"{name}-audit.log")
    for settings in (node, gateway):
        assert (settings["authorizer"], settings["super_users"]) == ("acl", ["User:admin"])
        for listener in settings["listeners"]:
            port = listener["bind"].partition(":")[2]
            assert (listener["security"], listener["advertised"]) == ("SASL_SSL", f"localhost:{port}")
    assert [each["max_reauth_ms"] for each in gateway["listeners"]] == [5000, 5000]
    assert "max_reauth_ms" not in node["listeners"][0]
    assert plan.addresses(state)["bootstrap"] == "localhost:9092,localhost:9102"


def test_single_is_one_process_with_every_member() -> None:
    state = planned(controllers=1, nodes=1, gateways=1, single=True)
    assert [(p.name, p.members) for p in state.processes] == [
        ("single", ["controller-1", "node-1", "gateway-1"])
    ]


def test_state_survives_its_file(tmp_path: Path) -> None:
    state = planned(racks=("a",), settings={NODE: {"log_level": "DEBUG"}})
    assert ClusterState.from_json(state.to_json(), tmp_path) == state


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"format": 1}', '{"format": 1, "members": [{}], "processes": []}']
)
def test_damaged_state_is_one_line_that_names_the_file(text: str) -> None:
    with pytest.raises(CommandError, match=r"cluster\.json is damaged"):
        ClusterState.from_json(text, Path("/x/cluster.json"))


def test_newer_state_is_refused() -> None:
    with pytest.raises(CommandError, match="has format 2, this build knows 1"):
        ClusterState.from_json('{"format": 2}', Path("/x/cluster.json"))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"controllers": 2}, "--controllers 2"),
        ({"nodes": 0}, "--nodes 0"),
        ({"gateways": 11}, "--gateways 11"),
        ({"port": 80}, "--port 80"),
        ({"port": 65_400}, "--port 65400"),
    ],
)
def test_bad_sizes_name_the_option(spec: dict[str, int], message: str) -> None:
    with pytest.raises(CommandError, match=message) as caught:
        planned(**spec)
    assert caught.value.exit_code == 2


def test_set_goes_to_each_role_that_has_it_or_to_the_one_named() -> None:
    words = ["log-level=DEBUG", "node.disk_threads=2", "controller.node_session_timeout_ms=1000"]
    assert plan.parse_assignments(words, lambda: FIELDS) == {
        CONTROLLER: {"log_level": "DEBUG", "node_session_timeout_ms": "1000"},
        NODE: {"log_level": "DEBUG", "disk_threads": "2"},
        GATEWAY: {"log_level": "DEBUG"},
    }


def test_set_reaches_into_each_listener() -> None:
    words = ["listeners.max_reauth_ms=5000", 'gateway.listeners.sasl-mechanisms=["PLAIN"]']
    assert plan.parse_assignments(words, lambda: FIELDS) == {
        NODE: {"listeners.max_reauth_ms": "5000"},
        GATEWAY: {"listeners.max_reauth_ms": "5000", "listeners.sasl_mechanisms": '["PLAIN"]'},
    }


def test_no_words_ask_no_role() -> None:
    def fields() -> dict[str, set[str]]:
        raise AssertionError

    assert plan.parse_assignments([], fields) == {}


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("auto.create.topics.enable=true", "is Kafka's name; here it is --set auto_create_topics=VALUE$"),
        ("node.auto.create.topics.enable=true", "here it is --set auto_create_topics=VALUE$"),
        ("controller.auto.create.topics.enable=1", "--set auto_create_topics=VALUE, which another role has$"),
        ("auto-create-topics-enable=true", "auto.create.topics.enable is Kafka's name"),
        ("log.dirs=/x", r"here it is data_dir \(one directory\); the local cluster chooses it itself"),
        ("log.retention.hours=1", "`penstock config set cluster log.retention.ms=VALUE`"),
        ("retention.ms=1", "`penstock config set cluster log.retention.ms=VALUE`"),
        ("log.cleaner.threads=1", "'log.cleaner' is no role"),
        ("log_level", "write it as key=value"),
        ("=1", "write it as key=value"),
        ("disc_threads=1", "did you mean disk_threads"),
        ("pump.log_level=DEBUG", "'pump' is no role"),
        ("gateway.disk_threads=1", "no such setting"),
        ("listeners=[]", "chooses its listeners itself; --set listeners.KEY=VALUE .* --secure makes them"),
        ("listeners.bind=[]", "chooses it itself; see --port and --secure"),
        ("node.listeners.tls={}", "chooses it itself; see --port and --secure"),
        ("listeners.max_reauth=1", "did you mean listeners.max_reauth_ms"),
        ("controller.listeners.max_reauth_ms=1", "no such setting"),
        ("node_id=1", "node_id: the local cluster chooses it"),
    ],
)
def test_bad_assignments(word: str, message: str) -> None:
    with pytest.raises(CommandError, match=message) as caught:
        plan.parse_assignments([word], lambda: FIELDS)
    assert caught.value.exit_code == 2
