"""`penstock local up --secure`: commands come in by the file that it wrote, and nobody comes in without."""

from __future__ import annotations

import base64
import json
import socket
import sys
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from subprocess import run

import pytest

from penstock.connector import Connector, NoTls, Refused, call, load
from penstock.errors import ExitCode
from penstock.local.cluster import LocalCluster
from penstock.local.plan import CONTROLLER, GATEWAY, NODE
from penstock_core.metadata.backup import decode
from penstock_core.security.client_file import ClientFile
from support.cluster import running_cluster, start_ready
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

METADATA = 3
COMMAND_TIMEOUT_S = 120.0
TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("secure") / "c"
    with running_cluster(directory, controllers=1, nodes=2, secure=True, steady=True) as running:
        yield running


def penstock(
    cluster: LocalCluster, *words: str, expect: int = 0, typed: str = "", here: bool = True
) -> tuple[str, str]:
    """What a command prints that finds the cluster by `--dir`, or that does not."""
    more = ["--dir", str(cluster.directory)] if here else []
    done = run(
        [sys.executable, "-m", "penstock.cli.main", *words, *more],
        input=typed,
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
        cwd=cluster.directory.parent,
    )
    assert done.returncode == expect, (words, done)
    return done.stdout, done.stderr


def properties(cluster: LocalCluster, **changes: str | None) -> ClientFile:
    """The admin's file with other values."""
    assert cluster.client_file is not None
    lines = dict(
        line.split("=", 1) for line in cluster.client_file.read_text().splitlines() if line[0] != "#"
    )
    changed = lines | {key.replace("_", "."): value for key, value in changes.items()}
    text = "".join(f"{key}={value}\n" for key, value in changed.items() if value is not None)
    return ClientFile.parse(text, "changed.properties")


def ask(cluster: LocalCluster, file: ClientFile, use: str = "kafka") -> bytes:
    """Metadata of nothing, as that client."""
    port = cluster.state.of_role(GATEWAY)[0].ports[use]
    connector = Connector(file)
    with connector.open("localhost", port, TIMEOUT_S) as connection:
        connector.sign_in(connection)
        return call(connection, METADATA, 4, b"\x00\x00\x00\x00\x00")


def test_every_kind_of_command_finds_the_cluster_and_comes_in(cluster: LocalCluster) -> None:
    penstock(cluster, "topic", "create", "flights", "--partitions", "2")
    penstock(cluster, "produce", "flights", typed="".join(f"{n}\n" for n in range(100)))
    read, _ = penstock(cluster, "consume", "flights", "--from", "earliest", "--until-end")
    assert sorted(map(int, read.split())) == list(range(100))
    assert json.loads(penstock(cluster, "user", "list", "--json")[0])[0]["user"] == "admin"
    penstock(cluster, "acl", "add", "User:alice", "read", "topic:flights")
    assert "User:alice" in penstock(cluster, "acl", "list")[0]
    penstock(cluster, "config", "set", "topic", "flights", "retention.ms=100000")
    assert "active" in penstock(cluster, "controller", "list")[0]
    assert "flights" in penstock(cluster, "topic", "list", "--bootstrap", cluster.direct_bootstrap)[0]


def test_another_place_needs_the_file_and_says_so(cluster: LocalCluster, tmp_path: Path) -> None:
    _, said = penstock(
        cluster, "topic", "list", "-b", cluster.bootstrap, here=False, expect=ExitCode.UNREACHABLE
    )
    assert "does it want TLS (--client-config FILE)?" in said
    assert cluster.client_file is not None
    for file in (cluster.client_file, cluster.client_file.with_name("admin-java.properties")):
        penstock(cluster, "topic", "list", "--client-config", str(file), here=False)
    wrong = tmp_path / "wrong.properties"
    wrong.touch(mode=0o600)
    wrong.write_text(cluster.client_file.read_text().replace("sasl.password=", "sasl.password=x"))
    _, said = penstock(cluster, "topic", "list", "--client-config", str(wrong), here=False, expect=1)
    assert f"user 'admin' of {wrong} cannot sign in" in said and said.count("\n") == 1
    wrong.chmod(0o640)
    _, said = penstock(cluster, "topic", "list", "--client-config", str(wrong), here=False, expect=2)
    assert f"run `chmod 600 {wrong}`" in said


@pytest.mark.parametrize("use", ["kafka", "direct"])
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
def test_the_admin_has_every_mechanism_of_passwords(cluster: LocalCluster, mechanism: str, use: str) -> None:
    assert len(ask(cluster, properties(cluster, sasl_mechanism=mechanism), use)) > 20


def test_who_is_not_known_or_is_somebody_else_is_refused(cluster: LocalCluster, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="invalid credentials"):
        ask(cluster, properties(cluster, sasl_username="nobody"))
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("a.b.c")
    oauth = properties(cluster, sasl_mechanism="OAUTHBEARER", **{"sasl.oauthbearer.token.file": str(token)})
    with pytest.raises(Refused, match="it takes no OAUTHBEARER, but SCRAM-SHA-256, SCRAM-SHA-512, PLAIN"):
        ask(cluster, oauth)
    with pytest.raises(NoTls, match=r"its certificate is refused: .*local issuer"):
        ask(cluster, properties(cluster, ssl_ca_location=None))
    with socket.create_server(("127.0.0.1", 0)) as plain:
        connector = load(cluster.client_file or Path())
        with pytest.raises(OSError, match="timed out"):
            connector.open("localhost", plain.getsockname()[1], 0.2)
    controller = cluster.state.of_role(CONTROLLER)[0].ports["http"]
    with pytest.raises(NoTls, match=r"speaks no TLS|closed"):
        connector.open("localhost", controller, TIMEOUT_S)


def test_each_process_has_an_audit_log_that_nobody_else_may_read(cluster: LocalCluster) -> None:
    penstock(cluster, "topic", "create", "audited")
    made = cluster.directory / "secure"
    logs = {each.name: each for each in made.glob("*-audit.log")}
    assert logs.keys() == {f"{name}-audit.log" for name in ("controller-1", "node-1", "node-2", "gateway-1")}
    assert {path.stat().st_mode & 0o777 for path in logs.values()} == {0o600}

    def told(process: str, **wanted: str) -> bool:
        lines = logs[f"{process}-audit.log"].read_text().splitlines()
        return any(wanted.items() <= json.loads(line).items() for line in lines)

    change = {"event": "change", "principal": "User:admin", "api": "CreateTopics", "resource": "audited"}
    wait_for(lambda: told("controller-1", **change), "the change is told", TIMEOUT_S)
    wait_for(lambda: told("gateway-1", event="login", outcome="success"), "the login is told", TIMEOUT_S)
    assert told("controller-1", event="change", principal="bootstrap_users", resource="admin")


def test_processes_are_killed_started_and_added_and_up_again_changes_nothing(cluster: LocalCluster) -> None:
    assert cluster.client_file is not None
    before = cluster.client_file.read_text()
    for name in ("node-1", "gateway-1", "controller-1"):
        cluster.kill(name)
        start_ready(cluster, name)
    penstock(cluster, "topic", "list")
    _, said = penstock(cluster, "local", "up", "--secure")
    assert "it was running already" in said and str(cluster.client_file) in said
    cluster.down()
    penstock(cluster, "local", "up")
    assert cluster.client_file.read_text() == before
    assert cluster.add(GATEWAY) == "gateway-2"
    penstock(cluster, "topic", "list", "--bootstrap", cluster.bootstrap.rpartition(",")[2])
    _, said = penstock(cluster, "local", "status")
    assert "password" not in said


def test_receipts_come_by_the_native_api_and_strangers_get_none(cluster: LocalCluster) -> None:
    penstock(cluster, "topic", "create", "receipts")
    out, _ = penstock(cluster, "produce", "receipts", "--receipt", "--json", typed="one\ntwo\n")
    assert json.loads(out)["records"] == 2
    gateway = f"localhost:{cluster.state.of_role(GATEWAY)[0].ports['grpc']}"
    words = ("produce", "receipts", "--receipt", "--gateway", gateway)
    penstock(cluster, *words, typed="x\n", here=False, expect=ExitCode.UNREACHABLE)


def test_http_is_for_those_who_sign_in(cluster: LocalCluster) -> None:
    admin = load(cluster.directory / "secure" / "admin.properties")
    assert admin.file is not None
    for role, path in ((GATEWAY, "/v1/topics"), (GATEWAY, "/metrics"), (NODE, "/metrics")):
        url = f"https://localhost:{cluster.state.of_role(role)[0].ports['http']}{path}"
        request = urllib.request.Request(url)
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            urllib.request.urlopen(request, context=admin.context, timeout=TIMEOUT_S)
        refused.value.close()
        said = f"{admin.file.username}:{admin.file.password}".encode()
        request.add_header("Authorization", f"Basic {base64.b64encode(said).decode()}")
        with urllib.request.urlopen(request, context=admin.context, timeout=TIMEOUT_S) as answer:
            assert answer.status == 200


@pytest.mark.parametrize("anonymous", [False, True])
def test_a_bundle_holds_no_secret(cluster: LocalCluster, tmp_path: Path, anonymous: bool) -> None:
    admin = load(cluster.directory / "secure" / "admin.properties")
    assert admin.file is not None and admin.file.password
    penstock(cluster, "topic", "create", f"canary-{anonymous}", "-p", "1")
    backup, file = tmp_path / "backup", tmp_path / "bundle.tar.gz"
    penstock(cluster, "cluster", "export", str(backup), "--with-secrets")
    options = ["--anonymous"] if anonymous else []
    penstock(cluster, "debug", "bundle", "-o", str(file), "--metrics-interval", "0", *options)

    image = decode(backup.read_bytes(), "backup").image
    kept: list[bytes] = []
    for record in image.to_records():
        if record.HasField("user_credential"):
            kept += [record.user_credential.stored_key, record.user_credential.server_key]
        if record.HasField("cluster_secret"):
            kept.append(record.cluster_secret.value)
    assert len(kept) >= 3, "there is something to be kept"
    secrets = [admin.file.password.encode()]
    for value in kept:
        secrets += [value, value.hex().encode(), base64.b64encode(value)]
    found: dict[str, bytes] = {}
    with tarfile.open(file) as archive:
        for member in archive:
            data = archive.extractfile(member)
            assert data is not None
            found[member.name.partition("/")[2]] = data.read()
    assert {"metadata.json", "quorum.json", "nodes.json", "operations.json", "versions.json"} <= found.keys()
    missing = json.loads(found["manifest.json"])["missing"]
    assert image.gateways
    processes = ["controller-1", "node-1", "node-2", *image.gateways]
    for process in processes:
        own = {"settings.json", "log.jsonl", "stacks.txt"}
        own |= set() if process in image.gateways else {"directory.txt"}  # gateways keep nothing
        own |= {"quorum.json"} if process.startswith("controller") else set()
        assert {name.rpartition("/")[2] for name in found if name.startswith(f"processes/{process}/")} == own
        assert {f"metrics/{process}-1.txt", f"metrics/{process}-2.txt"} <= found.keys()
        assert b"penstock_loop_cpu_seconds_total" in found[f"metrics/{process}-2.txt"]
        started = [json.loads(line) for line in found[f"processes/{process}/log.jsonl"].splitlines()]
        assert "starting" in {line["event"] for line in started}
        settings = json.loads(found[f"processes/{process}/settings.json"])
        assert settings["log_level"]
        assert settings["tls"]["mode"] == "require"
        stacks = found[f"processes/{process}/stacks.txt"].decode()
        assert "thread MainThread" in stacks
        assert "task(s)" in stacks
    assert not [name for name in missing if name != "metadata.backup"], missing
    listed = found["processes/node-1/directory.txt"] + found["processes/node-2/directory.txt"]
    assert (b"\tcanary-False-0/" in listed) is not anonymous
    quorum = json.loads(found["processes/controller-1/quorum.json"])
    assert (quorum["controller_id"], quorum["voter"]) == (1, True)
    for name, content in found.items():
        assert not [secret for secret in secrets if secret in content], name
        if anonymous:
            assert b"canary-True" not in content, name
    assert file.stat().st_mode & 0o777 == 0o600
