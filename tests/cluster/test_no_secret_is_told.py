"""Passwords, tokens and keys of a secure cluster stand in the files that are named here, and nowhere else.

A cluster with everything on (logs at DEBUG, an audit log with accesses, tokens) is signed in to rightly and wrongly in
every way; then logs, audit logs, metrics, whatever commands printed, all files of the cluster's directory, and command
lines and environments of all processes (looked at all the while) are searched for every secret.
"""

from __future__ import annotations

import base64
import contextlib
import json
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from subprocess import run

import pytest

from penstock.connector import PLAINTEXT, Connector, Refused, call, load
from penstock.local.cluster import LocalCluster
from penstock.local.plan import CONTROLLER, GATEWAY, NODE, Member
from penstock_core.security.client_file import ClientFile
from support.cluster import running_cluster
from support.tokens import AUDIENCE, ISSUER, Issuer

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

TIMEOUT_S = 60.0
COMMAND_TIMEOUT_S = 120.0
FIRST, SECOND = "canary-first-password-7f3a", "canary-second-password-91bc"
WRONG, BASIC = "canary-wrong-password-55de", "canary-of-http-0d41"
NAMED = {"admin.properties", "admin-java.properties", "key.pem", "ca-key.pem"}
"""Files that are there to hold secrets; each is its owner's alone."""


class Watch:
    """Looks at command lines and environments of all processes until it is ended."""

    def __init__(self) -> None:
        self.seen: set[bytes] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            for process in Path("/proc").glob("[0-9]*"):
                for file in ("cmdline", "environ"):
                    with contextlib.suppress(OSError):
                        self.seen.add((process / file).read_bytes())


class Session:
    """Commands against a cluster, and what they printed."""

    def __init__(self, cluster: LocalCluster, scratch: Path) -> None:
        self.cluster = cluster
        self.said: list[str] = []
        self._scratch = scratch

    def penstock(self, *words: str, expect: int = 0) -> None:
        done = run(
            [sys.executable, "-m", "penstock.cli.main", *words, "--dir", str(self.cluster.directory)],
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
            stdin=None,
        )
        assert done.returncode == expect, (words, done)
        self.said += [done.stdout, done.stderr]

    def file(self, text: str) -> str:
        """A file with a secret."""
        path = self._scratch / f"secret-{len(list(self._scratch.iterdir()))}"
        path.touch(mode=0o600)
        path.write_text(text)
        return str(path)

    def sign_in(self, mechanism: str, name: str, secret: str) -> bool:
        """As a client at both listeners; whether it was let in."""
        gateway = self.cluster.state.of_role(GATEWAY)[0]
        lines = [
            f"bootstrap.servers=localhost:{gateway.ports['kafka']}",
            "security.protocol=SASL_SSL",
            f"sasl.mechanism={mechanism}",
            f"ssl.ca.location={self.cluster.directory / 'secure' / 'ca.pem'}",
        ]
        if mechanism == "OAUTHBEARER":
            lines.append(f"sasl.oauthbearer.token.file={self.file(secret)}")
        else:
            lines += [f"sasl.username={name}", f"sasl.password={secret}"]
        connector = Connector(ClientFile.parse("\n".join(lines), "client.properties"))
        ok = True
        for use in ("kafka", "direct"):
            with connector.open("localhost", gateway.ports[use], TIMEOUT_S) as connection:
                try:
                    connector.sign_in(connection)
                except Refused as error:
                    self.said.append(str(error))
                    ok = False
                else:
                    call(connection, 3, 4, b"\x00\x00\x00\x00\x00")
        return ok

    def http(self, member: Member, path: str, authorization: str = "") -> str:
        """What an HTTP port says, as it says it."""
        port = member.ports["http"]
        admin = load(self.cluster.directory / "secure" / "admin.properties")
        connector = PLAINTEXT if member.role == CONTROLLER else admin
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n"
        if authorization:
            head += f"Authorization: {authorization}\r\n"
        told = b""
        with (
            contextlib.suppress(OSError),
            connector.open("127.0.0.1", port, TIMEOUT_S) as connection,
        ):
            connection.sendall(head.encode() + b"\r\n")
            while part := connection.recv(65_536):
                told += part
        self.said.append(told.decode("utf-8", "replace"))
        return self.said[-1]


@pytest.fixture
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
def session(tmp_path: Path, issuer: Issuer) -> Iterator[Session]:
    oauth = {"issuer": ISSUER, "audiences": [AUDIENCE], "jwks": str(issuer.write_jwks(tmp_path / "jwks"))}
    logs = {"log_level": "DEBUG", "audit_log": "audit.log"}
    doors = {
        **logs,
        "audit_access": "true",
        "oauth": json.dumps(oauth),
        "listeners.sasl_mechanisms": json.dumps(["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER"]),
    }
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    settings = {CONTROLLER: logs, NODE: doors, GATEWAY: doors}
    with running_cluster(
        tmp_path / "c", controllers=1, nodes=1, secure=True, steady=True, settings=settings
    ) as cluster:
        yield Session(cluster, scratch)


def secrets_of(cluster: LocalCluster, *tokens: str) -> dict[str, bytes]:
    """Every secret, by what it is."""
    made = cluster.directory / "secure"
    (password,) = [
        line.partition("=")[2]
        for line in (made / "admin.properties").read_text().splitlines()
        if line.startswith("sasl.password=")
    ]
    words = {"admin's password": password, "first": FIRST, "second": SECOND, "wrong": WRONG, "basic": BASIC}
    found = {name: word.encode() for name, word in words.items()}
    found |= {f"{name}, base64": base64.b64encode(word)[:-4] for name, word in found.items()}
    # A token is worth nothing without its signature.
    found |= {f"token {number}": token.rpartition(".")[2].encode() for number, token in enumerate(tokens)}
    keys = list(made.rglob("*key.pem"))
    assert len(keys) >= 5
    for path in keys:
        body = [line for line in path.read_bytes().splitlines() if b"-----" not in line]
        found[f"{path.parent.name}/{path.name}"] = max(body, key=len)
    return found


def test_secrets_stand_in_their_files_alone(session: Session, issuer: Issuer) -> None:
    cluster = session.cluster
    good, foreign = issuer.token("alice"), Issuer().token("alice")
    basic = "Basic " + base64.b64encode(f"alice:{BASIC}".encode()).decode()
    with Watch() as watch:
        session.penstock("user", "add", "alice", "--password-file", session.file(FIRST))
        session.penstock("acl", "add", "User:alice", "read,write", "topic:canary")
        session.penstock("topic", "create", "canary")
        session.penstock("produce", "canary", "--receipt", "--file", session.file("hello\n"))
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"):
            assert session.sign_in(mechanism, "alice", FIRST)
            assert not session.sign_in(mechanism, "alice", WRONG)
        assert session.sign_in("OAUTHBEARER", "", good)
        assert not session.sign_in("OAUTHBEARER", "", foreign)
        session.penstock("user", "password", "alice", "--password-file", session.file(SECOND))
        session.penstock("user", "list", "--json")
        session.penstock("acl", "list")
        session.penstock("local", "status")
        session.penstock("user", "add", "bob", "--password-file", str(cluster.directory), expect=2)
        metrics = ""
        for member in cluster.state.members:
            metrics += session.http(member, "/metrics")
            for authorization in (basic, f"Bearer {foreign}", f"Bearer {good}"):
                session.http(member, "/v1/topics", authorization)
        cluster.kill("gateway-1")
        cluster.start("gateway-1")
        session.penstock("user", "delete", "alice")
    assert "penstock_" in metrics
    secrets = secrets_of(cluster, good, foreign)

    def told_by(data: bytes) -> list[str]:
        return [name for name, secret in secrets.items() if secret in data]

    for said in session.said:
        assert told_by(said.encode()) == [], said
    assert len(watch.seen) > 5
    for data in watch.seen:
        assert told_by(data) == [], data
    audited = 0
    for path in cluster.directory.rglob("*"):
        if path.is_dir():
            continue
        data, mode = path.read_bytes(), stat.S_IMODE(path.stat().st_mode)
        if path.name in NAMED:
            assert mode == 0o600, (path, oct(mode))
            assert told_by(data), path
        else:
            assert told_by(data) == [], path
        if path.name in ("settings.toml", "first-users.json") or path == cluster.store.state_file:
            assert mode == 0o600, (path, oct(mode))
        audited += path.name == "audit.log" and b"alice" in data
    assert audited
    for folder in (cluster.directory, *cluster.directory.glob("*-1")):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder
