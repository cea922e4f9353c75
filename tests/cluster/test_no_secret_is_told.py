"""Passwords, tokens and keys of a secure cluster stand in the files that are named here, and nowhere else.

A cluster with everything on (logs at DEBUG, an audit log with accesses, tokens) is signed in to rightly and wrongly in
every way; then logs, audit logs, metrics, whatever commands printed, all files of the cluster's directory, and command
lines and environments of all processes (looked at all the while) are searched for every secret.
"""

from __future__ import annotations

import base64
import json
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.local.plan import CONTROLLER, GATEWAY, NODE
from support.cluster import running_cluster
from support.secrets import NAMED, Session, Watch, secrets_of
from support.tokens import AUDIENCE, ISSUER, Issuer

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

FIRST, SECOND = "canary-first-password-7f3a", "canary-second-password-91bc"
CORE_SIZE = re.compile(r"^Max core file size +[01] ", re.MULTILINE)
WRONG, BASIC = "canary-wrong-password-55de", "canary-of-http-0d41"


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
    words = {"first": FIRST, "second": SECOND, "wrong": WRONG, "basic": BASIC}
    secrets = secrets_of(cluster, words, good, foreign)

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
    for process in cluster.state.processes:
        # One that crashes writes nothing of what it holds.
        assert CORE_SIZE.search(Path(f"/proc/{process.pid}/limits").read_text()), process.name
    for folder in (cluster.directory, *cluster.directory.glob("*-1")):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder
