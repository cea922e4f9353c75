"""`penstock cert`: what is made is what roles and OpenSSL take, and bad input is told with the mend."""

from __future__ import annotations

import datetime
import json
import shutil
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from penstock.certificates import CertificateAuthority, Leaf, load_certificate
from penstock.cli.main import run
from penstock_core.security.identity import PeerIdentity
from penstock_runtime.security.role_tls import RoleTls, load_contexts
from penstock_runtime.security.tls_files import TlsFiles

DOMAIN = "flights.test"


@pytest.fixture
def ca(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority.create(tmp_path / "ca", DOMAIN)


def tls_of(ca: CertificateAuthority, leaf: Leaf) -> RoleTls:
    return RoleTls.model_validate(ca.paths(leaf))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    "leaf",
    [
        Leaf("controller", "1"),
        Leaf("storage-node", "node-7", ("kafka.flights.test", "10.1.2.3", "::1")),
        Leaf("storage-node", "*"),
        Leaf("gateway", "gw-1", ("*.flights.test",)),
        Leaf("admin", "ann", days=7),
    ],
    ids=lambda leaf: leaf.directory,
)
def test_what_is_issued_is_what_a_role_takes(ca: CertificateAuthority, leaf: Leaf) -> None:
    paths = ca.issue(leaf)
    assert load_contexts(tls_of(ca, leaf), leaf.role).identity == PeerIdentity(DOMAIN, leaf.role, leaf.name)
    cert = load_certificate(paths["cert"])
    names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == [
        f"spiffe://{DOMAIN}/{leaf.role}/{leaf.name}",
        f"{leaf.role}.{DOMAIN}",
        *leaf.sans,
    ]
    public = cert.public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    assert public.curve.name == "secp256r1"
    lasts = cert.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(days=leaf.days - 1) < lasts <= datetime.timedelta(days=leaf.days)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not there")
def test_openssl_finds_nothing_wrong(ca: CertificateAuthority) -> None:
    leaf = Leaf("gateway", "*", ("kafka.flights.test",))
    paths = ca.issue(leaf)
    for purpose in ("sslserver", "sslclient"):
        done = subprocess.run(
            [
                *("openssl", "verify", "-x509_strict", "-purpose", purpose),
                *("-verify_hostname", "kafka.flights.test", "-CAfile", str(paths["ca"]), str(paths["cert"])),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_keys_are_the_owners_alone(ca: CertificateAuthority) -> None:
    paths = ca.issue(Leaf("controller", "1"))
    assert mode(ca.directory) == mode(paths["key"].parent) == 0o700
    assert mode(ca.directory / "ca-key.pem") == mode(paths["key"]) == 0o600
    assert not list(ca.directory.rglob(".*")), "nothing half written is left"


def test_a_ca_whose_key_others_can_read_signs_nothing(
    ca: CertificateAuthority, capsys: pytest.CaptureFixture[str]
) -> None:
    issue = ["cert", "issue", str(ca.directory), "--role", "controller", "--name", "1"]
    for path, good in ((ca.directory / "ca-key.pem", 0o600), (ca.directory, 0o700)):
        path.chmod(0o755)
        assert run(issue) == 1
        assert f"is open to others (mode 0755); chmod {good:o} it" in capsys.readouterr().err
        path.chmod(good)
    assert run(issue) == 0


def test_a_rotation_leaves_nobody_out(ca: CertificateAuthority, capsys: pytest.CaptureFixture[str]) -> None:
    """At each step every process can talk to every other one, whichever of them have the new files."""
    one, two = Leaf("controller", "1"), Leaf("controller", "2")
    directory = str(ca.directory)
    for leaf in (one, two):
        ca.issue(leaf)
    files = {leaf: TlsFiles(tls_of(ca, leaf), "controller") for leaf in (one, two)}
    assert run(["cert", "rotate", directory, "--remove"]) == 0  # one CA alone: nothing to remove
    assert run(["cert", "rotate", directory, "--add"]) == 0
    ca = CertificateAuthority(ca.directory)
    old, new = reversed(ca.authorities())
    assert all(files[leaf].reload() for leaf in files), "both CAs are trusted with the certificates of before"
    assert run(["cert", "rotate", directory, "--remove"]) == 1
    assert "is not known to be signed by the new CA; first `penstock cert renew" in capsys.readouterr().err
    # One has its new certificate, the other one has not.
    assert run(["cert", "renew", directory, "--name", "1", "--all"]) == 0
    assert files[one].reload()
    assert load_certificate(ca.paths(one)["cert"]).issuer == new.subject
    assert load_certificate(ca.paths(two)["cert"]).issuer == old.subject
    assert run(["cert", "renew", directory, "--all"]) == 0
    assert run(["cert", "rotate", directory, "--remove"]) == 0
    assert ca.authorities() == [new]
    assert x509.load_pem_x509_certificates(ca.paths(two)["ca"].read_bytes()) == [new]
    assert all(files[leaf].reload() for leaf in files)


def test_only_what_needs_it_is_renewed(
    ca: CertificateAuthority, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = str(ca.directory)
    short, long = Leaf("admin", "ann", ("h.test",), 1), Leaf("gateway", "*")
    for leaf in (short, long):
        ca.issue(leaf)
    assert run(["cert", "renew", directory]) == 0
    assert "nothing to renew" in capsys.readouterr().err
    before = {leaf: load_certificate(ca.paths(leaf)["cert"]).serial_number for leaf in (short, long)}

    class Later(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return datetime.datetime.fromtimestamp(time.time() + 20 * 3600, tz)

    with monkeypatch.context() as patched:
        patched.setattr("penstock.certificates.datetime.datetime", Later)
        assert run(["cert", "renew", directory, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["file"] for row in rows] == [str(ca.paths(short)["cert"])]
    assert "DNS:h.test" in rows[0]["names"]
    after = {leaf: load_certificate(ca.paths(leaf)["cert"]).serial_number for leaf in (short, long)}
    assert after[long] == before[long]
    assert after[short] != before[short]
    # What was moved away is issued again.
    ca.paths(short)["cert"].unlink()
    assert run(["cert", "renew", directory]) == 0
    assert ca.paths(short)["cert"].exists()


def test_show_tells_the_state(
    ca: CertificateAuthority, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = ca.issue(Leaf("gateway", "*", ("kafka.test",)))
    assert run(["cert", "show", str(ca.directory), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["state"] for row in rows] == ["good", "good"]
    assert rows[1]["names"] == [f"URI:spiffe://{DOMAIN}/gateway/*", f"DNS:gateway.{DOMAIN}", "DNS:kafka.test"]
    assert run(["cert", "show", str(paths["cert"].parent)]) == 0
    assert "good" in capsys.readouterr().out
    other = CertificateAuthority.create(tmp_path / "other", DOMAIN)
    shutil.copy(other.directory / "ca.pem", paths["ca"])
    assert run(["cert", "show", str(paths["cert"]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == "of another CA"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["init", "{ca}"], 1, "has a CA already; use it"),
        (
            ["init", "{new}", "--domain", "Not A Domain"],
            2,
            "--domain Not A Domain is no domain name; use small",
        ),
        (["init", "/proc/nowhere"], 1, "choose a directory that can be written"),
        (["issue", "{new}", "--role", "gateway", "--name", "x"], 1, "make one with `penstock cert init"),
        (["issue", "{ca}", "--role", "king", "--name", "x"], 2, "--role"),
        (["issue", "{ca}", "--role", "gateway", "--name", "a/b"], 2, "--name a/b is no name"),
        (["issue", "{ca}", "--role", "gateway", "--name", "../x"], 2, "--name ../x is no name"),
        (
            ["issue", "{ca}", "--role", "controller", "--name", "one"],
            2,
            "a controller's name is its id; use --name 1",
        ),
        (["issue", "{ca}", "--role", "controller", "--name", "*"], 1, "a controller has a name of its own"),
        (["issue", "{ca}", "--role", "storage-node", "--name", "disk"], 2, "use --name node-7"),
        (["issue", "{ca}", "--role", "gateway", "--name", "g", "--days", "0"], 2, "use 1 to 825"),
        (
            ["issue", "{ca}", "--role", "gateway", "--name", "g", "--san", "a b"],
            2,
            "--san a b is no host name",
        ),
        (["renew", "{ca}", "--role", "gateway"], 1, "nothing of that kind was issued"),
        (["rotate", "{ca}"], 2, "say --add or --remove"),
        (["show", "{file}"], 1, "not readable as PEM; give a certificate in PEM"),
    ],
)
def test_bad_input_is_told_with_the_mend(
    ca: CertificateAuthority,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    said: str,
) -> None:
    file = tmp_path / "file"
    file.write_text("no certificate")
    words = [word.format(ca=ca.directory, new=tmp_path / "new", file=file) for word in arguments]
    assert run(["cert", *words]) == code
    shown = capsys.readouterr().err
    assert said in shown
    assert "Traceback" not in shown


def test_broken_files_are_named(ca: CertificateAuthority, capsys: pytest.CaptureFixture[str]) -> None:
    issue = ["cert", "issue", str(ca.directory), "--role", "controller", "--name", "1"]
    for name, text, said in (
        ("ca-key.pem", "no key", "ca-key.pem: not readable as PEM; restore it from a copy"),
        ("ca.pem", "", "ca.pem: not readable as PEM; restore it from a copy"),
        ("cluster.json", "{}", "cluster.json cannot be read"),
    ):
        path = ca.directory / name
        good = path.read_bytes()
        path.write_text(text)
        assert run(issue) == 1
        assert said in capsys.readouterr().err
        path.write_bytes(good)
    other = CertificateAuthority.create(ca.directory / "other", DOMAIN)
    shutil.copy(other.directory / "ca-key.pem", ca.directory / "ca-key.pem")
    assert run(issue) == 1
    assert "is the key of no CA in" in capsys.readouterr().err
