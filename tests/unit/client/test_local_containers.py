"""What the compose file's service `secrets` makes and hands out."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from penstock.certificates import CertificateAuthority, load_certificate, names_of
from penstock.errors import CommandError
from penstock.local import containers
from penstock.local.containers import Asked, Owner
from penstock_core.process.credentials import load_client_file

MINE = Owner(os.getuid(), os.getgid())


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    (tmp_path / "clients").mkdir(mode=0o755)
    made = Asked(tmp_path, node_certificates=4, role_owner=MINE)
    containers.make(made)
    return made


def contents(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_each_role_gets_its_own_and_no_more(asked: Asked) -> None:
    root = asked.root
    files = contents(root)
    for number in (1, 2, 3):
        own = {name for name in files if name.startswith(f"controller-{number}/")}
        assert {Path(name).name for name in own} == {"cert.pem", "key.pem", "ca.pem", "first-users.json"}
        names = names_of(load_certificate(root / f"controller-{number}" / "cert.pem"))
        assert f"URI:spiffe://compose.penstock/controller/{number}" in names
    for number in (1, 2, 3, 4):
        names = names_of(load_certificate(root / "storage-nodes" / f"node-{number}" / "cert.pem"))
        assert f"URI:spiffe://compose.penstock/storage-node/node-{number}" in names
    gateway = names_of(load_certificate(root / "gateways" / "cert.pem"))
    assert {
        "URI:spiffe://compose.penstock/gateway/*",
        "DNS:localhost",
        "DNS:penstock",
        "IP:127.0.0.1",
    } <= set(gateway)
    ca_key = files["ca/ca-key.pem"]
    assert [name for name, content in files.items() if content == ca_key] == ["ca/ca-key.pem"]


def test_nobody_else_reads_any_of_it(asked: Asked) -> None:
    for path in asked.root.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        if path.is_relative_to(asked.root / "ca") and path.is_file() and "key" not in path.name:
            continue  # in a directory that is closed
        assert mode & 0o077 == 0, (path, oct(mode))


def test_the_admins_password_is_with_people_and_the_ca_alone(asked: Asked) -> None:
    password = load_client_file(asked.root / "clients" / "admin.properties").password or ""
    assert len(password) >= 32
    having = {name for name, content in contents(asked.root).items() if password.encode() in content}
    files = ("admin.properties", "admin-java.properties", "admin-container.properties")
    assert having == {f"{where}/{file}" for where in ("ca", "clients") for file in files}


def test_client_files_work_where_they_are(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    clients = asked.root / "clients"
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    file = load_client_file(clients / "admin.properties")
    assert (file.bootstrap, file.ca_file) == ("localhost:9092", str(clients / "ca.pem"))
    assert file.librdkafka()["ssl.ca.location"] == str(clients / "ca.pem")
    inside = load_client_file(clients / "admin-container.properties")
    assert (inside.bootstrap, inside.ca_file) == ("penstock:9092", "/run/penstock/ca.pem")
    monkeypatch.chdir(clients)
    assert load_client_file(Path("admin-java.properties")).ca_file == "ca.pem"


def test_what_is_there_stays_and_what_is_old_or_missing_is_made(asked: Asked) -> None:
    root = asked.root
    before = contents(root)
    containers.make(asked)
    assert contents(root) == before
    file = root / "clients" / "admin.properties"
    file.write_text(file.read_text().replace("sasl.password=", "sasl.password=another"))
    edited = file.read_bytes()
    os.utime(root / "ca" / "controller-2" / "cert.pem", (0, 0))
    (root / "gateways" / "key.pem").unlink()
    containers.make(asked)
    after = contents(root)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {
        *(f"{where}/{name}.pem" for where in ("ca/controller-2", "controller-2") for name in ("cert", "key")),
        "clients/admin.properties",
    }
    assert after["clients/admin.properties"] == edited


def test_another_address_is_in_certificate_and_files(asked: Asked) -> None:
    containers.make(Asked(asked.root, "laptop.lan:19092", "/srv/secrets", 4, MINE))
    assert "DNS:laptop.lan" in names_of(load_certificate(asked.root / "gateways" / "cert.pem"))
    assert load_client_file(asked.root / "clients" / "admin.properties").bootstrap == "laptop.lan:19092"


def test_another_cluster_writes_its_own_files(asked: Asked) -> None:
    """`down --volumes` takes the CA; what is on the host is of no use then."""
    clients = asked.root / "clients"
    before = (clients / "admin.properties").read_bytes()
    for path in sorted((asked.root / "ca").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    containers.make(asked)
    assert (clients / "admin.properties").read_bytes() != before
    assert (clients / "ca.pem").read_bytes() == (asked.root / "ca" / "ca.pem").read_bytes()


def test_a_new_ca_keeps_the_files(asked: Asked) -> None:
    edited = asked.root / "clients" / "admin.properties"
    edited.write_text(edited.read_text() + "linger.ms=7\n")
    CertificateAuthority(asked.root / "ca").add_authority()
    containers.make(asked)
    assert "linger.ms=7" in edited.read_text()
    assert (asked.root / "gateways" / "ca.pem").read_bytes().count(b"BEGIN CERTIFICATE") == 2


def test_a_ca_that_others_can_read_is_refused(asked: Asked) -> None:
    (asked.root / "ca" / "ca-key.pem").chmod(0o644)
    (asked.root / "ca" / "gateway-any" / "cert.pem").unlink()
    with pytest.raises(CommandError, match="open to others"):
        containers.make(asked)


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("PENSTOCK_ADVERTISED_TO_HOST", "localhost", "no host:port"),
        ("PENSTOCK_NODE_CERTIFICATES", "many", "use 1 to 1000"),
        ("PENSTOCK_NODE_CERTIFICATES", "0", "use 1 to 1000"),
    ],
)
def test_what_cannot_be_asked_for(variable: str, value: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=said):
        Asked.of({variable: value}, tmp_path)


def test_what_compose_leaves_empty_has_its_default(tmp_path: Path) -> None:
    assert Asked.of({"PENSTOCK_SECRETS": "", "PENSTOCK_NODE_CERTIFICATES": ""}, tmp_path) == Asked(tmp_path)
    assert Asked.of({"PENSTOCK_SECRETS": "/srv/s"}, tmp_path).host_directory == "/srv/s"
    assert Asked.of({"PENSTOCK_SECRETS": "./s"}, tmp_path).host_directory == ""
