"""What `up --secure` makes in the cluster's directory."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from penstock.certificates import load_certificate, names_of
from penstock.local import secure
from penstock.local.plan import GATEWAY, NODE, ClusterState
from penstock.local.store import Store
from penstock_core.process.credentials import load_client_file
from penstock_core.security.bootstrap_users import from_text
from unit.client.test_local_plan import planned, ports_from


@pytest.fixture
def state(tmp_path: Path) -> ClusterState:
    made = planned(secure=True, controllers=1, nodes=1)
    secure.prepare(tmp_path, made)
    return made


def test_the_admin_comes_in_by_either_file_and_the_controllers_know_it(
    tmp_path: Path, state: ClusterState
) -> None:
    file = load_client_file(secure.admin_file(tmp_path))
    java = load_client_file(secure.java_file(tmp_path))
    assert (file.bootstrap, file.username, file.mechanism) == ("localhost:9092", "admin", "SCRAM-SHA-512")
    for name in ("bootstrap", "username", "password", "mechanism", "security_protocol", "ca_file"):
        assert getattr(file, name) == getattr(java, name)
    users = from_text((tmp_path / "secure" / "first-users.json").read_text())
    assert len(users) == 2
    for each in users:
        salted = each.credential.mechanism.salted_password(
            (file.password or "").encode(), each.credential.salt, each.credential.iterations
        )
        client_key = each.credential.mechanism.hmac(salted, b"Client Key")
        assert each.credential.mechanism.hash(client_key) == each.credential.stored_key


def test_the_password_is_in_the_two_files_alone_and_nobody_else_reads_what_is_secret(
    tmp_path: Path, state: ClusterState
) -> None:
    password = load_client_file(secure.admin_file(tmp_path)).password or ""
    assert len(password) >= 32
    having = {path.name for path in tmp_path.rglob("*") if path.is_file() and password in path.read_text()}
    assert having == {"admin.properties", "admin-java.properties"}
    assert stat.S_IMODE((tmp_path / "secure").stat().st_mode) == 0o700
    for path in (tmp_path / "secure").rglob("*"):
        if path.name in ("key.pem", "ca-key.pem", "first-users.json") or path.suffix == ".properties":
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_certificates_name_process_and_host(tmp_path: Path, state: ClusterState) -> None:
    gateway = names_of(load_certificate(tmp_path / "secure" / "gateway-gateway-1" / "cert.pem"))
    assert "URI:spiffe://local.penstock/gateway/gateway-1" in gateway
    assert {"DNS:localhost", "IP:127.0.0.1"} <= set(gateway)
    node = names_of(load_certificate(tmp_path / "secure" / "storage-node-node-1" / "cert.pem"))
    assert "URI:spiffe://local.penstock/storage-node/node-1" in node


def test_what_is_there_stays_and_what_is_missing_or_old_is_made(tmp_path: Path, state: ClusterState) -> None:
    def contents() -> dict[str, bytes]:
        return {str(p.relative_to(tmp_path)): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}

    before = contents()
    secure.prepare(tmp_path, state)
    assert contents() == before
    file = secure.admin_file(tmp_path)
    file.write_text(file.read_text() + "linger.ms=7\n")
    old = tmp_path / "secure" / "controller-1" / "cert.pem"
    os.utime(old, (0, 0))
    from penstock.local import plan

    plan.plan_member(state, NODE, ports_from(30_000))
    plan.plan_member(state, GATEWAY, ports_from(30_000))
    secure.prepare(tmp_path, state)
    after = contents()
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {
        *("secure/controller-1/cert.pem", "secure/controller-1/key.pem", "secure/cluster.json"),
        *("secure/admin.properties", "secure/admin-java.properties"),
    }
    assert {"secure/storage-node-node-2/key.pem", "secure/gateway-gateway-2/cert.pem"} <= after.keys()
    found = load_client_file(file)
    assert found.bootstrap == "localhost:9092,localhost:9102"
    assert found.properties["linger.ms"] == "7"


def test_wiped_with_the_rest(tmp_path: Path) -> None:
    state = planned(secure=True)
    store = Store(tmp_path / "c")
    with store.locked(create=True):
        assert stat.S_IMODE(store.directory.stat().st_mode) == 0o700
        secure.prepare(store.directory, state)
        store.save(state)
        store.wipe(state)
    assert not store.directory.exists()
