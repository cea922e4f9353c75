"""A role's certificate: what is loaded, what is refused with which words, and new files."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock_runtime.addresses import StartupError
from penstock_runtime.security import role_tls
from penstock_runtime.security.role_tls import RoleContexts, RoleTls, load_contexts
from penstock_runtime.security.tls_files import TlsFiles
from support.certificates import DOMAIN, ClusterCa


@pytest.fixture(scope="module")
def ca() -> ClusterCa:
    return ClusterCa()


def tls_of(table: dict[str, str]) -> RoleTls:
    return RoleTls.model_validate(table)


def test_a_good_certificate_says_whose_it_is(tmp_path: Path, ca: ClusterCa) -> None:
    tls = tls_of(ca.issue(tmp_path, "controller", "3"))
    assert load_contexts(tls, "controller").identity == (DOMAIN, "controller", "3")


def test_a_key_with_a_password(tmp_path: Path, ca: ClusterCa) -> None:
    table = ca.issue(tmp_path, "gateway", "*", password=b"open sesame")
    with pytest.raises(StartupError, match=r"key\.pem has a password; give tls\.key_password_file"):
        load_contexts(tls_of(table), "gateway")
    password = tmp_path / "password"
    password.touch(0o600)
    table["key_password_file"] = str(password)
    password.write_bytes(b"wrong\n")
    with pytest.raises(StartupError, match=r"or the password in tls\.key_password_file is wrong"):
        load_contexts(tls_of(table), "gateway")
    password.write_bytes(b"open sesame\n")
    assert load_contexts(tls_of(table), "gateway").identity.name == "*"
    password.chmod(0o644)
    with pytest.raises(
        StartupError, match=r"tls\.key_password_file = .* can be read by others .*chmod 600 it"
    ):
        load_contexts(tls_of(table), "gateway")


def spoil_key(table: dict[str, str], ca: ClusterCa, other: Path) -> None:
    os.replace(ca.issue(other, "controller", "3")["key"], table["key"])  # noqa: PTH105


def spoil_mode(table: dict[str, str], ca: ClusterCa, other: Path) -> None:
    Path(table["key"]).chmod(0o640)


def spoil_ca(table: dict[str, str], ca: ClusterCa, other: Path) -> None:
    Path(table["ca"]).write_bytes(ClusterCa().pem)


def spoil_ca_text(table: dict[str, str], ca: ClusterCa, other: Path) -> None:
    Path(table["ca"]).write_bytes(b"no certificate")


def spoil_cert_text(table: dict[str, str], ca: ClusterCa, other: Path) -> None:
    Path(table["cert"]).write_bytes(b"no certificate")


def lose_cert(table: dict[str, str], ca: ClusterCa, other: Path) -> None:
    Path(table["cert"]).unlink()


def let_expire(table: dict[str, str], ca: ClusterCa, other: Path) -> None:
    table.update(ca.issue(other, "controller", "3", good_for=-datetime.timedelta(minutes=1)))


def other_role(table: dict[str, str], ca: ClusterCa, other: Path) -> None:
    table.update(ca.issue(other, "gateway", "3"))


def no_role(table: dict[str, str], ca: ClusterCa, other: Path) -> None:
    table.update(ca.issue(other, "controller", "3", uris=[]))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (spoil_key, r"tls\.cert = .*, tls\.key = .*: they do not belong together; give"),
        (spoil_mode, r"tls\.key = .* can be read by others \(mode 0640\); chmod 600 it"),
        (spoil_ca, r"tls\.cert = .* \(checked against tls\.ca = .*\); issue it anew by that CA"),
        (spoil_ca_text, r"tls\.ca = .*: no certificates in PEM"),
        (spoil_cert_text, r"tls\.cert = .*they cannot be loaded"),
        (lose_cert, r"tls\.cert = .*: No such file or directory; give a file that can be read"),
        (let_expire, r"tls\.cert = .*: certificate has expired"),
        (other_role, r"tls\.cert = .* is that of a gateway; give one of a controller"),
        (no_role, r"tls\.cert = .*names no role.*; issue one with URI:spiffe://DOMAIN/controller/NAME"),
    ],
)
def test_what_does_not_fit_is_named_with_its_mend(
    tmp_path: Path, ca: ClusterCa, spoil: Callable[[dict[str, str], ClusterCa, Path], None], said: str
) -> None:
    table = ca.issue(tmp_path / "own", "controller", "3")
    spoil(table, ca, tmp_path / "other")
    with pytest.raises(StartupError, match=said) as refused:
        load_contexts(tls_of(table), "controller")
    assert "\n" not in str(refused.value)


# --- new files -----------------------------------------------------------------------------------------


def test_new_files_are_taken_and_bad_ones_are_not(tmp_path: Path, ca: ClusterCa) -> None:
    table = ca.issue(tmp_path, "controller", "3")
    files = TlsFiles(tls_of(table), "controller")
    first = files.current
    assert not files.reload()
    ca.issue(tmp_path, "controller", "3")
    assert files.reload()
    second = files.current
    assert second is not first
    Path(table["key"]).write_bytes(b"half a ke")
    assert not files.reload()
    assert files.current is second
    assert "tls.key" in files.fault
    assert not files.reload()
    ca.issue(tmp_path, "controller", "2")
    assert not files.reload()
    assert files.current is second
    assert "is now that of spiffe://penstock.test/controller/2" in files.fault
    ca.issue(tmp_path, "controller", "3")
    assert files.reload()
    assert files.fault == ""


def test_files_that_change_while_they_are_read_are_read_again(tmp_path: Path, ca: ClusterCa) -> None:
    tls = tls_of(ca.issue(tmp_path, "controller", "3"))
    writes = [1]

    def load(tls: RoleTls, role: str) -> RoleContexts:
        found = load_contexts(tls, role)
        if not writes:
            writes.append(1)
            ca.issue(tmp_path, "controller", "3")
        return found

    files = TlsFiles(tls, "controller", load=load)
    first = files.current
    writes.clear()
    ca.issue(tmp_path, "controller", "3")
    assert not files.reload()
    assert files.current is first
    assert files.reload()


@pytest.mark.parametrize("what", ["cert", "key", "ca"])
def test_a_file_that_goes_while_it_is_loaded_is_a_fault_and_the_next_one_is_taken(
    tmp_path: Path, ca: ClusterCa, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    table = ca.issue(tmp_path, "controller", "3")
    files = TlsFiles(tls_of(table), "controller")
    first = files.current
    ca.issue(tmp_path, "controller", "3")
    kept = {path: path.read_bytes() for path in map(Path, table.values())}
    looked = role_tls._check_readable

    def goes(path: Path, name: str) -> None:
        looked(path, name)
        if name == "tls.ca":  # the last one that is looked at
            Path(table[what]).unlink()

    monkeypatch.setattr(role_tls, "_check_readable", goes)
    assert not files.reload()
    monkeypatch.setattr(role_tls, "_check_readable", looked)
    Path(table[what]).touch(0o600)
    Path(table[what]).write_bytes(kept[Path(table[what])])
    assert files.reload()
    assert files.current is not first
    assert files.fault == ""


def test_what_nobody_foresaw_ends_no_watch(tmp_path: Path, ca: ClusterCa) -> None:
    tls = tls_of(ca.issue(tmp_path, "controller", "3"))
    loads = [0]

    def load(tls: RoleTls, role: str) -> RoleContexts:
        loads[0] += 1
        if loads[0] == 2:
            raise FileNotFoundError(2, "No such file or directory")
        return load_contexts(tls, role)

    files = TlsFiles(tls, "controller", load=load)
    ca.issue(tmp_path, "controller", "3")
    assert not files.reload()
    assert files.fault == "[Errno 2] No such file or directory"
    ca.issue(tmp_path, "controller", "3")
    assert files.reload()


def test_a_password_that_is_too_long_is_named(tmp_path: Path, ca: ClusterCa) -> None:
    table = ca.issue(tmp_path, "gateway", "*", password=b"open sesame")
    password = tmp_path / "password"
    password.touch(0o600)
    password.write_bytes(b"x" * 2_000)
    table["key_password_file"] = str(password)
    with pytest.raises(StartupError, match=r"tls\.key = .*password cannot be longer than 1024 bytes"):
        load_contexts(tls_of(table), "gateway")


def test_a_mounted_file_of_the_same_size_is_seen(tmp_path: Path, ca: ClusterCa) -> None:
    """Secrets are mounted by swapping a link: the path stays, the inode does not."""
    for name in ("a", "b"):
        ca.issue(tmp_path / name, "controller", "3")
    link = tmp_path / "now"
    link.symlink_to("a")
    table = {what: str(link / f"{what}.pem") for what in ("cert", "key", "ca")}
    files = TlsFiles(tls_of(table), "controller")
    link.unlink()
    link.symlink_to("b")
    assert files.reload()
