"""Canaries over a whole run of a secure cluster: `make canary`.

tests/cluster/test_no_secret_is_told.py has the short form. Here are 3 controllers, 2 storage nodes and 2 gateways with
all doors, logs at DEBUG and accesses in the audit log. Users are made, changed and deleted; stock clients, native ones
and HTTP come in by every mechanism, rightly and wrongly; settings and client files with a secret in the wrong place are
refused; certificates are replaced, processes killed. Then every canary, key, token and salted credential is looked for
in logs, audit logs, metrics, answers, command lines and environments of all processes, what commands said, a bundle and
all files of the cluster's directory.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from penstock.certificate_making import Leaf
from penstock.local.cluster import LocalCluster
from penstock.local.first_admin import issue_due, open_authority
from penstock.local.plan import CONTROLLER, GATEWAY, NODE, SHORT_NAMES
from penstock.local.secure import DOMAIN, NAMES, directory_of
from penstock_core.metadata.backup import decode
from penstock_core.process.native_account import Account
from penstock_core.security.client_file import ClientFile
from penstock_proto.v1 import gateway_pb2_grpc
from security.test_rotation import SAID, logs, taken
from support.cluster import running_cluster, start_ready
from support.secrets import NAMED, Session, Watch, secrets_of
from support.secure import confluent_round_trip
from support.tokens import AUDIENCE, ISSUER, Issuer
from support.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.alone,
    pytest.mark.timeout(900),
    pytest.mark.skipif("PENSTOCK_CANARY" not in os.environ, reason="takes minutes: make canary"),
]

TOPIC = "canary"
TIMEOUT_S = 60.0
WORDS = {
    "first": "canary-first-password-7f3a",
    "second": "canary-second-password-91bc",
    "wrong": "canary-wrong-password-55de",
    "basic": "canary-of-http-0d41",
    "native": "canary-of-the-native-door-c2e7",
    "key's": "canary-of-an-encrypted-key-6ab0",
    "in settings": "canary-in-the-wrong-setting-3d58",
    "in a client file": "canary-in-a-broken-client-file-e914",
}
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = (*SCRAM, "PLAIN")


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
        "listeners.sasl_mechanisms": json.dumps([*MECHANISMS, "OAUTHBEARER"]),
    }
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    native = {"security": "SASL_SSL", "tls": encrypted_key(tmp_path / "c", tmp_path / "native")}
    settings = {CONTROLLER: logs, NODE: doors, GATEWAY: {**doors, "grpc_door": json.dumps(native)}}
    with running_cluster(
        tmp_path / "c", controllers=3, nodes=2, gateways=2, secure=True, steady=True, settings=settings
    ) as cluster:
        yield Session(cluster, scratch)


def encrypted_key(cluster: Path, directory: Path) -> dict[str, str]:
    """The `tls` table of a door whose key has a password: the first gateway's, made before the cluster is."""
    made = directory_of(cluster)
    issue_due(open_authority(made, DOMAIN), [Leaf(GATEWAY, "gateway-1", NAMES)])
    leaf, password = made / f"{GATEWAY}-gateway-1", WORDS["key's"].encode()
    key = serialization.load_pem_private_key((leaf / "key.pem").read_bytes(), None)
    form, encryption = serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(password)
    directory.mkdir()
    table = {}
    for name, data in (
        ("cert", (leaf / "cert.pem").read_bytes()),
        ("key", key.private_bytes(serialization.Encoding.PEM, form, encryption)),
        ("key_password_file", password),
    ):
        path = directory / name
        path.touch(mode=0o600)
        path.write_bytes(data)
        table[name] = str(path)
    return table


class Native:
    """A native client of a gateway."""

    def __init__(self, cluster: LocalCluster, ca: Path, password: str) -> None:
        text = (
            f"security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nsasl.username=alice\n"
            f"sasl.password={password}\nssl.ca.location={ca}\n"
        )
        self._account = Account(ClientFile.parse(text, "test"))
        port = cluster.state.of_role(GATEWAY)[0].ports["grpc"]
        credentials = grpc.ssl_channel_credentials(ca.read_bytes())
        self._channel = grpc.secure_channel(f"localhost:{port}", credentials)
        self._stub: Any = gateway_pb2_grpc.GatewayStub(self._channel)

    def token(self) -> str:
        """What a session is known by. Raises RpcError where the password is wrong."""
        ((_, bearer),) = self._account.metadata(self._stub.Authenticate)
        return str(bearer).removeprefix("Bearer ")

    def close(self) -> None:
        self._channel.close()


def librdkafka(session: Session, mechanism: str, password: str) -> dict[str, Any]:
    gateway = session.cluster.state.of_role(GATEWAY)[1]
    return {
        "bootstrap.servers": f"localhost:{gateway.ports['kafka']}",
        "broker.address.family": "v4",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": password,
        "ssl.ca.location": str(session.cluster.directory / "secure" / "ca.pem"),
    }


def come_in(session: Session, issuer: Issuer) -> list[str]:
    """By every mechanism and every door, rightly and wrongly; returns the tokens."""
    cluster, first = session.cluster, WORDS["first"]
    for mechanism in MECHANISMS:
        assert session.sign_in(mechanism, "alice", first)
        assert not session.sign_in(mechanism, "alice", WORDS["wrong"])
        assert not session.sign_in(mechanism, "nobody", WORDS["wrong"])
        assert len(confluent_round_trip(librdkafka(session, mechanism, first), TOPIC, 20)) >= 20
    good, foreign = issuer.token("alice"), Issuer().token("alice")
    worn_out, shared = issuer.token("alice", lifetime_s=-3600), issuer.shared_secret("alice")
    assert session.sign_in("OAUTHBEARER", "", good)
    for bad in (foreign, worn_out, shared, issuer.unsigned("alice")):
        assert not session.sign_in("OAUTHBEARER", "", bad)
    ca = cluster.directory / "secure" / "ca.pem"
    native, guessing = Native(cluster, ca, first), Native(cluster, ca, WORDS["native"])
    given = native.token()
    with pytest.raises(Exception) as refused:
        guessing.token()
    session.said += [str(refused.value), repr(refused.value)]
    native.close()
    guessing.close()
    basics = [base64.b64encode(f"alice:{word}".encode()).decode() for word in (first, WORDS["basic"])]
    bearers = (good, foreign, worn_out, shared, given)
    metrics = ""
    for member in cluster.state.members:
        metrics += session.http(member, "/metrics")
        for shown in (*(f"Basic {basic}" for basic in basics), *(f"Bearer {token}" for token in bearers)):
            session.http(member, "/v1/topics", shown)
            session.http(member, "/metrics", shown)
    assert "penstock_" in metrics
    return [*bearers]


def be_refused(session: Session) -> None:
    """Settings and client files that have a secret where none belongs, or are broken behind it."""
    word, directory = WORDS["in settings"], session.cluster.directory.parent
    for number, text in enumerate(
        (
            f'oauth = {{ issuer = "https://i.test", audiences = ["a"], client_secret = "{word}" }}',
            f'grpc_door = {{ security = "SASL_SSL", tls = {{ cert = "c", key = "k", key_password = "{word}" }} }}',
            f'password = "{word}"',
            f'grpc_bind = "{word}"x',
        )
    ):
        file = directory / f"bad-{number}.toml"
        file.write_text(f'gateway_id = "bad"\ncontrollers = ["1@127.0.0.1:9"]\n{text}\n')
        done = subprocess.run(
            [sys.executable, "-m", "penstock_gateway", "--config", str(file)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode != 0, text
        session.said += [done.stdout, done.stderr]
    word = WORDS["in a client file"]
    login = "org.apache.kafka.common.security.scram.ScramLoginModule"
    for text in (
        f"security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config={login} required password='{word}",
        f"security.protocol=SASL_SSL\nsasl.mechanism=NONE\nsasl.username=alice\nsasl.password={word}",
        f"security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.password={word}",
        f"security.protocol=NONE\nsasl.password={word}",
    ):
        session.penstock("topic", "list", "--client-config", session.file(text), expect=None)
    open_to_all = session.file(
        f"security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=alice\nsasl.password={word}"
    )
    Path(open_to_all).chmod(0o644)
    session.penstock("topic", "list", "--client-config", open_to_all, expect=None)


def kept(session: Session) -> dict[str, bytes]:
    """Salted credentials, and the cluster's own secret: controllers keep them."""
    file = session.cluster.directory.parent / "metadata.backup"
    session.penstock("cluster", "export", str(file), "--with-secrets")
    found: dict[str, bytes] = {}
    for record in decode(file.read_bytes(), "backup").image.to_records():
        if record.HasField("user_credential"):
            one = record.user_credential
            name = f"{one.user} {one.mechanism}"
            found |= {f"stored key of {name}": one.stored_key, f"server key of {name}": one.server_key}
        if record.HasField("cluster_secret"):
            found[f"cluster's secret {len(found)}"] = record.cluster_secret.value
    assert len(found) >= 4
    return found


def spelled(secrets: dict[str, bytes]) -> dict[str, bytes]:
    """Bytes as a log may show them."""
    found: dict[str, bytes] = {}
    for name, value in secrets.items():
        found |= {name: value, f"{name}, hex": value.hex().encode()}
        found |= {f"{name}, base64": base64.b64encode(value), f"{name}, Python's": repr(value).encode()}
    return found


def key_scalars(cluster: LocalCluster) -> dict[str, bytes]:
    """Keys of the cluster as numbers: a log would not have them as PEM."""
    found = {}
    for path in (cluster.directory / "secure").rglob("*key.pem"):
        key = serialization.load_pem_private_key(path.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        number = key.private_numbers().private_value
        found[f"{path.parent.name}/{path.name}"] = number.to_bytes(32, "big")
    return found


def test_no_canary_is_anywhere_after_a_whole_run(session: Session, issuer: Issuer) -> None:
    cluster = session.cluster
    bundle = cluster.directory.parent / "bundle.tar.gz"
    with Watch() as watch:
        session.penstock("user", "add", "alice", "--password-file", session.file(WORDS["first"]))
        session.penstock("user", "add", "carol", "--password-file", session.file(WORDS["second"]))
        session.penstock("topic", "create", TOPIC)
        for resource in (f"topic:{TOPIC}", "group:*", "cluster"):
            session.penstock("acl", "add", "User:alice", "all", resource)
        session.penstock("quota", "set", "producer_byte_rate=100000000", "--user", "alice")
        session.penstock("produce", TOPIC, "--receipt", "--file", session.file("hello\n"))
        tokens = come_in(session, issuer)
        be_refused(session)
        first = secrets_of(cluster, WORDS, *tokens), key_scalars(cluster)
        session.penstock("debug", "bundle", "-o", str(bundle), "--metrics-interval", "0")
        salted = kept(session)
        session.penstock("user", "password", "alice", "--password-file", session.file(WORDS["second"]))
        assert not session.sign_in("PLAIN", "alice", WORDS["first"])
        secure = str(cluster.directory / "secure")
        for step in (["rotate", secure, "--add"], ["renew", secure, "--all"], ["rotate", secure, "--remove"]):
            before = logs(cluster, SAID)
            session.penstock("cert", *step)
            wait_for(partial(taken, cluster, before), f"all use what {step[0]} made", TIMEOUT_S)
        for role in (CONTROLLER, NODE, GATEWAY):
            name = f"{SHORT_NAMES[role]}-1"
            cluster.kill(name)
            start_ready(cluster, name)
        assert session.sign_in("SCRAM-SHA-512", "alice", WORDS["second"])
        for words in (["user", "list", "--json"], ["acl", "list"], ["quota", "list"], ["local", "status"]):
            session.penstock(*words)
        session.penstock("user", "delete", "carol")
        session.penstock("user", "add", "bob", "--password-file", str(cluster.directory), expect=2)
    plain = {f"{name} at first": value for name, value in first[0].items()}
    plain |= secrets_of(cluster, WORDS, *tokens)
    scalars = {f"{name} at first": value for name, value in first[1].items()} | key_scalars(cluster)
    credentials = spelled(salted)
    secrets = plain | credentials | spelled(scalars)

    def told_by(data: bytes, but: frozenset[str] = frozenset()) -> list[str]:
        return [name for name, secret in secrets.items() if secret in data and name not in but]

    for said in session.said:
        assert told_by(said.encode()) == [], said
    assert len(watch.seen) > 50
    for data in watch.seen:
        assert told_by(data) == [], data
    with tarfile.open(bundle) as archive:
        for member in archive:
            content = archive.extractfile(member)
            assert content is None or told_by(content.read()) == [], member.name
    audited = 0
    for path in cluster.directory.rglob("*"):
        if path.is_dir():
            continue
        data, mode = path.read_bytes(), stat.S_IMODE(path.stat().st_mode)
        where = path.relative_to(cluster.directory).parts
        if path.name in NAMED:
            assert mode == 0o600, (path, oct(mode))
        elif path.name == "first-users.json" or (where[0].startswith("controller-") and where[1] == "data"):
            # Controllers keep what is salted, and their directories are nobody else's.
            assert told_by(data, frozenset(credentials)) == [], path
            assert not told_by(data) or mode & 0o077 == 0, (path, oct(mode))
        else:
            assert told_by(data) == [], path
        audited += path.name == "audit.log" and b"alice" in data
    assert audited >= 4, "both gateways and both nodes"
    print(
        f"{len(secrets)} spellings of secrets not found in {len(session.said)} answers, {len(watch.seen)} command lines"
        f" and environments"
    )
    with contextlib.suppress(OSError):
        bundle.unlink()
