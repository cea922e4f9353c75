"""compose.yaml and the Kubernetes manifests: what they promise, and that each role takes the settings they give it."""

from __future__ import annotations

import importlib.resources
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml  # type: ignore[import-untyped]

from penstock_controller.settings import ControllerSettings
from penstock_gateway.settings import GatewaySettings
from penstock_runtime.settings import RoleSettings, load_settings
from penstock_storage_node.settings import StorageNodeSettings

ROOT = Path(__file__).parents[3]
COMPOSE = ROOT / "deploy" / "compose"
KUBERNETES = ROOT / "deploy" / "kubernetes"
ROLES: dict[str, type[RoleSettings]] = {
    "controller": ControllerSettings,
    "storage-node": StorageNodeSettings,
    "gateway": GatewaySettings,
}
POD_NAMES = {"controller": "controller-1", "storage-node": "storage-node-4", "gateway": "gateway-5d4f-x7"}
GRACE_S = 60
ROLE_USER = 10001
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*(?:\][^}]*)?))?\}")


def settings_of(role: str, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> RoleSettings:
    """As the role's process reads its environment."""
    for name in list(os.environ):
        if name.startswith("PENSTOCK_"):
            monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return load_settings(ROLES[role], [], role)


# --- compose -------------------------------------------------------------------------


def compose(name: str = "compose.yaml") -> Any:
    return yaml.safe_load((COMPOSE / name).read_text())


def role_of(service: str) -> str:
    return service.rstrip("-123")


def compose_environment(service: str, *, plaintext: bool = False) -> dict[str, str]:
    given = dict(compose()["services"][service]["environment"])
    if plaintext:
        given |= compose("compose.plaintext.yaml")["services"][service]["environment"]
    return {name: _VARIABLE.sub(lambda found: found[2] or "", str(value)) for name, value in given.items()}


PROFILES = ("observability", "demo", "spark", "cli")
COMPOSE_ROLES = ["controller-1", "controller-2", "controller-3", "storage-node", "gateway"]


@pytest.mark.parametrize("plaintext", [False, True])
@pytest.mark.parametrize("service", COMPOSE_ROLES)
def test_a_role_takes_what_compose_gives_it(
    service: str, plaintext: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = compose_environment(service, plaintext=plaintext)
    settings = settings_of(role_of(service), environment, monkeypatch)
    assert settings.http_bind == "0.0.0.0:8080", "where Prometheus finds it"
    assert (settings.tls is None) == plaintext
    door = getattr(settings, "http_door", None)
    assert role_of(service) == "controller" or (door is not None and door.metrics_public) or plaintext


def test_compose_gives_no_privileges() -> None:
    for name, service in compose()["services"].items():
        assert service.get("cap_drop") == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service.get("read_only") is True, name
        assert not {"privileged", "pid", "ipc", "env_file"} & service.keys(), name
        assert not any("docker.sock" in str(volume) for volume in service.get("volumes", [])), name
    assert not (COMPOSE / ".env").exists()


def test_profiles_are_left_out_unless_named() -> None:
    by_profile: dict[str, set[str]] = {}
    for name, service in compose()["services"].items():
        by_profile.setdefault(",".join(service.get("profiles", [])), set()).add(name)
    assert by_profile[""] == {"secrets", *COMPOSE_ROLES, "edge"}
    assert by_profile["observability"] == {"prometheus", "grafana"}
    assert by_profile["demo"] == {"demo-producer", "demo-group"}
    assert by_profile["spark"] == {"spark", "spark-secret", "spark-master", "spark-worker"}


def test_spark_is_reached_by_nobody_without_its_secret() -> None:
    services = {name: one for name, one in compose()["services"].items() if name.startswith("spark")}
    for name, service in services.items():
        assert not {"ports", "expose"} & service.keys(), name
        where = "/conf" if name == "spark-secret" else "/etc/spark:ro"
        assert f"spark-conf:{where}" in service["volumes"], name
        if name != "spark-secret":
            assert service["environment"]["SPARK_CONF_DIR"] == "/etc/spark", name
        if name in ("spark-master", "spark-worker"):
            assert "until [ -s /etc/spark/spark-defaults.conf ]" in service["entrypoint"][2], name
    after = services["spark"]["depends_on"]
    assert after["spark-secret"]["condition"] == "service_completed_successfully"
    assert {"spark-master", "spark-worker"} < after.keys()
    (script,) = services["spark-secret"]["command"]
    assert services["spark-secret"]["network_mode"] == "none"
    for line in ("spark.authenticate true", "spark.authenticate.secret {secrets.token_hex(32)}"):
        assert line in script


def test_what_a_profile_depends_on_depends_on_none_of_the_profile() -> None:
    services = compose()["services"]
    for name, service in services.items():
        for needed in service.get("depends_on", ()):
            deeper = services[needed].get("depends_on", ())
            assert not [one for one in deeper if services[one].get("profiles")], (
                f"docker-compose 1.29 refuses {name} -> {needed} -> {', '.join(deeper)}"
            )


def test_the_secret_of_spark_is_made_once(tmp_path: Path) -> None:
    (script,) = compose()["services"]["spark-secret"]["command"]
    told = []
    for _ in range(2):
        subprocess.run([sys.executable, "-c", script.replace("/conf/", f"{tmp_path}/")], check=True)
        told.append((tmp_path / "spark-defaults.conf").read_text())
    assert told[0] == told[1]
    assert (tmp_path / "spark-defaults.conf").stat().st_mode & 0o777 == 0o600


def test_ports_are_published_on_loopback_unless_it_is_said_otherwise() -> None:
    for name, service in compose()["services"].items():
        for port in service.get("ports", []):
            assert port.startswith("${PENSTOCK_PUBLISH:-127.0.0.1}:"), (name, port)


def test_files_that_compose_mounts_are_there() -> None:
    for name in ("compose.yaml", "compose.plaintext.yaml"):
        for service, settings in compose(name)["services"].items():
            for volume in settings.get("volumes", []):
                source = volume.partition(":")[0]
                assert not source.startswith(".") or (COMPOSE / source).exists(), (service, volume)


def test_a_gateway_that_is_told_to_stop_keeps_its_connections_until_it_has_answered() -> None:
    """New ones go to another (NOLB); of one that answers no more they are cut."""
    backends = (COMPOSE / "haproxy.cfg").read_text().split("\nbackend ")[1:]
    assert len(backends) == 3
    for backend in backends:
        assert "http-check expect status 200 error-status L7OKC" in backend
    delay_ms = int(compose()["services"]["gateway"]["environment"]["PENSTOCK_DRAIN_DELAY_MS"])
    assert delay_ms >= 2 * 500, "two looks of the edge"


def test_health_checks_start_no_python() -> None:
    edge = compose()["services"]["edge"]["healthcheck"]
    checks = {"edge": (" ".join(edge["test"]), edge["interval"], edge["start_period"])}
    for role in ROLES:
        text = (ROOT / "services" / role / "Dockerfile").read_text()
        (line,) = re.findall(r"^HEALTHCHECK .*\n.*$", text, re.MULTILINE)
        options = dict(word.lstrip("-").split("=") for word in shlex.split(line) if word.startswith("--"))
        checks[role] = (line, options["interval"], options["start-period"])
    for name, (command, interval, start) in checks.items():
        assert "/dev/tcp/127.0.0.1/" in command, name
        assert "python" not in command, name
        assert (interval, start) == ("5s", "30s"), name


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose 1.29 is not installed")
@pytest.mark.parametrize("files", [["compose.yaml"], ["compose.yaml", "compose.plaintext.yaml"]])
def test_docker_compose_1_29_takes_it(files: list[str]) -> None:
    named = [word for file in files for word in ("-f", file)]
    profiles = [word for profile in PROFILES for word in ("--profile", profile)]
    done = subprocess.run(
        ["docker-compose", *named, *profiles, "config", "--quiet"],
        cwd=COMPOSE,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def compose_spec() -> Any:
    """The grammar of `docker compose` v2, as the specification has it."""
    schemas = importlib.resources.files("check_jsonschema") / "builtin_schemas" / "vendor"
    schema = json.loads((schemas / "compose-spec.json").read_text())
    return jsonschema.validators.validator_for(schema)(schema)


@pytest.mark.parametrize("name", ["compose.yaml", "compose.plaintext.yaml"])
def test_docker_compose_v2_takes_it(name: str, compose_spec: Any) -> None:
    errors = [f"{error.json_path}: {error.message}" for error in compose_spec.iter_errors(compose(name))]
    assert not errors, errors


def test_the_grammar_of_v2_would_refuse_what_is_wrong(compose_spec: Any) -> None:
    """What it takes is known because of what it does not take."""
    wrong = compose()
    wrong["services"]["gateway"]["scales"] = 2
    wrong["services"]["edge"]["healthcheck"]["interval"] = []
    paths = {error.json_path for error in compose_spec.iter_errors(wrong)}
    assert {"$.services.gateway", "$.services.edge.healthcheck.interval"} <= paths


def test_nothing_is_named_that_v2_reads_otherwise_than_1_29() -> None:
    """Both take the file; these they take differently, or one of them not at all."""
    document = compose()
    assert "version" not in document, "v2 warns; 1.29 reads a file without one as the specification has it"
    for name, service in document["services"].items():
        assert "deploy" not in service, (
            name,
            "1.29 heeds it in swarms alone: `scale` and `pids_limit` say it",
        )
        assert "container_name" not in service, (name, "their separators differ, and --scale needs none")
        assert not {"links", "volumes_from", "extends", "develop", "include"} & service.keys(), name
        needed = service.get("depends_on", {})
        for other, how in needed.items() if isinstance(needed, dict) else ():
            assert set(how) == {"condition"}, (name, other, "`restart` and `required` are not in 1.29")
    assert not {"include", "name", "models"} & document.keys(), "not in 1.29"


# --- Kubernetes ------------------------------------------------------------------------


def manifests() -> list[Any]:
    return [
        each for file in sorted(KUBERNETES.glob("*.yaml")) for each in yaml.safe_load_all(file.read_text())
    ]


def workloads() -> dict[str, Any]:
    return {
        each["metadata"]["labels"]["app.kubernetes.io/component"]: each
        for each in manifests()
        if each["kind"] in ("StatefulSet", "Deployment")
    }


def pod_environment(role: str) -> dict[str, str]:
    """As the kubelet makes it, of a machine in no zone."""
    fields = {
        "metadata.name": POD_NAMES[role],
        "metadata.labels['apps.kubernetes.io/pod-index']": POD_NAMES[role].rpartition("-")[2],
        "metadata.labels['topology.kubernetes.io/zone']": "",
    }
    (container,) = workloads()[role]["spec"]["template"]["spec"]["containers"]
    found: dict[str, str] = {}
    for each in container["env"]:
        value = each["value"] if "value" in each else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        # Only variables that stand before are known.
        found[each["name"]] = re.sub(r"\$\((\w+)\)", lambda name: found[name[1]], value)
    del found["POD_NAME"]
    return found


@pytest.mark.parametrize("role", ROLES)
def test_a_role_takes_what_kubernetes_gives_it(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(role, pod_environment(role), monkeypatch)
    assert settings.tls is not None
    assert settings.health_bind == "0.0.0.0:8081"
    assert settings.shutdown_timeout_ms < GRACE_S * 1000
    assert settings.rack == ""
    if isinstance(settings, ControllerSettings):
        assert settings.controller_id == 1
        assert settings.grpc_advertised == "controller-1.controller:7001"
    if isinstance(settings, StorageNodeSettings):
        assert settings.node_id == 4, "the ordinal is the identity"
        assert settings.slots_dir is None
    if isinstance(settings, GatewaySettings):
        assert settings.gateway_id == POD_NAMES[role]


@pytest.mark.parametrize("role", ROLES)
def test_pods_are_kept_in(role: str) -> None:
    pod = workloads()[role]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == GRACE_S
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False, "PENSTOCK_PORT would be a setting"
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == ROLE_USER
    for container in (*pod["containers"], *pod["initContainers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "limits" in container["resources"]
    spread = {each["topologyKey"] for each in pod["topologySpreadConstraints"]}
    assert spread == {"topology.kubernetes.io/zone", "kubernetes.io/hostname"}
    (container,) = pod["containers"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_workloads_are_of_the_kinds_that_keep_their_identity() -> None:
    kinds = {role: (each["kind"], each["spec"]["replicas"]) for role, each in workloads().items()}
    assert kinds == {
        "controller": ("StatefulSet", 3),
        "storage-node": ("StatefulSet", 3),
        "gateway": ("Deployment", 2),
    }
    services = {each["metadata"]["name"]: each["spec"] for each in manifests() if each["kind"] == "Service"}
    for role in ("controller", "storage-node"):
        spec = workloads()[role]["spec"]
        assert spec["ordinals"] == {"start": 1}
        assert spec["volumeClaimTemplates"][0]["metadata"]["name"] == "data", "scale --via print names it"
        assert services[spec["serviceName"]]["publishNotReadyAddresses"] is True
    budgets = {
        each["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"]: each["spec"]["maxUnavailable"]
        for each in manifests()
        if each["kind"] == "PodDisruptionBudget"
    }
    assert budgets == dict.fromkeys(ROLES, 1)


def test_selectors_fit_the_pods() -> None:
    for each in manifests():
        selector = each["spec"]["selector"]
        labels = selector.get("matchLabels", selector)
        role = labels["app.kubernetes.io/component"]
        pod = workloads()[role]["spec"]["template"]["metadata"]["labels"]
        assert labels.items() <= pod.items(), each["metadata"]["name"]
        ports = {p["name"] for p in workloads()[role]["spec"]["template"]["spec"]["containers"][0]["ports"]}
        for port in each["spec"].get("ports", []):
            assert port["name"] in ports
