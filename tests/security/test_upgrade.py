"""From a build of before, in plaintext, to this one and to SASL_SSL alone, under load of stock clients.

`make upgrade-secure BEFORE=DIR`, DIR a checkout of a build that knows no metadata.level 2 (4ca86dc, say) with a .venv
of its own. The steps are those of docs/security.md, "In a cluster of before", one process after another; users and ACLs
are made by the commands that stand there. On the way processes of the build of before come back, and are refused.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.local import ports
from penstock.local.cluster import LocalCluster
from penstock.local.plan import GATEWAY, NODE
from penstock.local.processes import ProcessState, process_state, send_signal
from penstock_core.limits import FEATURE_LEVEL
from support.clients import LEAKING_DIALS, Writer, forget_leaks
from support.cluster import wait_until_ready
from support.groups import GroupLedger, GroupMember
from support.java import missing_java
from support.kafka import check_nothing_lost, create_topic, read_all
from support.moving import Moving
from support.stock_clients import STOCK_MEMBERS, STOCK_WRITERS, KcatWriter, config_of
from support.waiting import wait_for
from support.watched import watched

BEFORE = os.environ.get("PENSTOCK_BEFORE", "")
pytestmark = [
    pytest.mark.skipif(not BEFORE, reason="wants a checkout of before: make upgrade-secure BEFORE=DIR"),
    pytest.mark.timeout(3_600),
    LEAKING_DIALS,
]

PATIENCE_S = 240.0
RATE_PER_S = 40
PARTITIONS = 3
USER, PASSWORD, MECHANISM = "alice", "correct horse", "SCRAM-SHA-512"
MISSING = {"java": bool(missing_java()), "kcat": shutil.which("kcat") is None}
CLIENTS = [name for name in STOCK_WRITERS if not MISSING.get(name)]
NEWER_LOG = "the Raft log holds a record of a newer version; upgrade this controller"
REFUSED = f"this build understands metadata.level 1, the cluster has {FEATURE_LEVEL}; install a newer build"


def penstock(root: Path | None, *words: str, code: int = 0) -> str:
    """What a command says; that of another checkout, or ours."""
    binary = (root / ".venv/bin/penstock") if root else Path(sys.executable).with_name("penstock")
    done = subprocess.run(
        [str(binary), *words], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == code or (code < 0 and done.returncode), (words, done.stdout, done.stderr)
    return done.stderr if code else done.stdout


@pytest.fixture(autouse=True)
def nothing_unclosed_is_left() -> Iterator[None]:
    """kafka-python leaves sockets of dials that failed; what the test itself held is free only now."""
    yield
    forget_leaks()


@pytest.fixture
def moving(tmp_path: Path) -> Iterator[Moving]:
    """A cluster of the build of before."""
    directory, root = tmp_path / "cluster", Path(BEFORE).resolve()
    counts = ("--controllers", "3", "--nodes", "3", "--gateways", "2", "--port", str(ports.choose_base()))
    cluster = LocalCluster(directory)
    try:
        with watched(directory):
            penstock(root, "local", "up", "--dir", str(directory), *counts)
            yield Moving(cluster, tmp_path)
    finally:
        if cluster.store.exists():
            cluster.down()


class Clients:
    """A writer and a member of a group of each stock client, each with a topic of its own."""

    def __init__(self, where: str, kind: str, configs: dict[str, dict[str, Any]]) -> None:
        self._where, self._configs = where, configs
        self.topics = {client: f"moved-{kind}-{client}" for client in CLIENTS}
        self.ledgers = {client: GroupLedger() for client in CLIENTS}
        self.writers: dict[str, Writer] = {}
        self.members: dict[str, GroupMember] = {}

    @contextmanager
    def at_work(self) -> Iterator[Clients]:
        """Until left; then no request may have failed."""
        with ExitStack() as stack:
            for client in CLIENTS:
                config, topic = self._configs[client], self.topics[client]
                self.members[client] = STOCK_MEMBERS[client](
                    self._where, topic, f"g-{topic}", self.ledgers[client], **config
                )
                stack.callback(self.members[client].stop)
            with ExitStack() as writing:
                for client in CLIENTS:
                    writer = STOCK_WRITERS[client](
                        self._where, self.topics[client], rate_per_s=RATE_PER_S, **self._configs[client]
                    )
                    self.writers[client] = writing.enter_context(writer)
                yield self
            for client, writer in self.writers.items():
                assert not isinstance(writer, KcatWriter) or not writer.given_up, writer.given_up
                written = set(writer.ledger.values.values())
                wait_for(
                    partial(self.members[client].has_read, written), f"{client} has read all", PATIENCE_S
                )

    def go_on(self) -> None:
        """Everybody gets more acks, and reads more."""
        wanted = {client: ledger.count + 20 for client, ledger in self.ledgers.items()}
        for client, writer in self.writers.items():
            writer.wait_for_acks(20, PATIENCE_S)
            self.members[client].check()
            wait_for(
                lambda client=client: self.ledgers[client].count >= wanted[client],  # type: ignore[misc]
                f"{client} reads",
                PATIENCE_S,
            )


def refused(moving: Moving, name: str, words: str) -> str:
    """Start a process of the build of before in the place of ours: the line of its log with those words."""
    moving.cluster.kill(name, signal.SIGTERM)
    begun = len(moving.log(name))

    def said() -> str:
        lines = moving.log(name)[begun:].splitlines()
        return next((line for line in lines if words in line), "")

    command = [
        str(Path(BEFORE).resolve() / ".venv/bin/penstock"),
        *("local", "start", name, "--dir", str(moving.cluster.directory)),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as starting:
        found = wait_for(said, f"{name} of the build of before is refused", PATIENCE_S)
        # That command has the directory's lock, and waits for a process that will never be ready.
        record = moving.cluster.store.load().process(name)
        send_signal(record.pid, record.identity, signal.SIGKILL)
        starting.wait(PATIENCE_S)
    # One that still runs is left alone by who starts it.
    wait_for(
        lambda: process_state(record.pid, record.identity) is ProcessState.DEAD, f"{name} is gone", PATIENCE_S
    )
    return found


def client_files(directory: Path, ca: Path) -> tuple[Path, Path]:
    """Those of the user, as docs/security.md has them, and in Java's names."""
    common = {"bootstrap.servers": "unused:1", "security.protocol": "SASL_SSL", "sasl.mechanism": MECHANISM}
    jaas = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{USER}" password="{PASSWORD}";'
    )
    told = {"sasl.username": USER, "sasl.password": PASSWORD, "ssl.ca.location": str(ca)}
    java = {"sasl.jaas.config": jaas, "ssl.truststore.type": "PEM", "ssl.truststore.location": str(ca)}
    files = directory / "alice.properties", directory / "alice-java.properties"
    for file, more in zip(files, (told, java), strict=True):
        file.touch(0o600)
        file.write_text("".join(f"{key}={value}\n" for key, value in (common | more).items()))
    return files


def test_from_a_build_of_before_to_secure_without_a_failed_request(moving: Moving, tmp_path: Path) -> None:
    cluster, begun_s = moving.cluster, time.monotonic()
    here = ("--dir", str(cluster.directory))
    plain = moving.bootstrap("kafka")
    old = Clients(plain, "plain", {client: {} for client in CLIENTS})
    figures: dict[str, Any] = {"clients": CLIENTS, "refused": {}, "steps_s": {}}

    def step(what: str, load: Clients) -> None:
        load.go_on()
        figures["steps_s"][what] = round(time.monotonic() - begun_s)

    for topic in old.topics.values():
        create_topic(plain, topic, PARTITIONS)
    with ExitStack() as plaintext:
        plaintext.enter_context(old.at_work())
        step("at work, all of before", old)
        # 1. The new build on every process; the level is raised last.
        *first, last = moving.names()
        for name in first:
            moving.restart(name)
        assert f"has to wait for gateway {last}" in penstock(
            None, "cluster", "upgrade", "--yes", *here, code=-1
        )
        moving.restart(last)
        step("the new build everywhere", old)
        told = json.loads(penstock(None, "cluster", "upgrade", "--yes", "--json", *here))
        assert (told["level"], told["raised"]) == (FEATURE_LEVEL, True)
        step(f"metadata.level {FEATURE_LEVEL}", old)
        for name, words in (
            ("gateway-2", REFUSED),
            ("node-3", REFUSED),
            ("controller-3", NEWER_LOG),
        ):
            figures["refused"][name] = refused(moving, name, words)
            cluster.start(name)
            wait_until_ready(cluster)
            step(f"{name} of before was refused", old)
        # 2., 3., 4. Certificates.
        for mode in ("allow", "prefer", "require"):
            moving.mode = mode
            moving.round()
            step(f"tls, {mode}", old)
        # 5. Another listener, ACLs that count; then users and rights.
        moving.listeners = ("PROXY", "SECURE")
        for role in (GATEWAY, NODE):
            admins = json.dumps(["User:admin", "User:ANONYMOUS"])
            moving.more[role] = {"authorizer": "acl", "super_users": admins}
        moving.round(GATEWAY, NODE)
        password = tmp_path / "password"
        password.touch(0o600)
        password.write_text(PASSWORD)
        penstock(None, "user", "add", USER, "--password-file", str(password), "-b", plain)
        penstock(None, "acl", "add", f"User:{USER}", "read,write", "topic:moved-", "--prefixed", "-b", plain)
        penstock(None, "acl", "add", f"User:{USER}", "read", "group:g-", "--prefixed", "-b", plain)
        step("SASL_SSL beside plaintext, ACLs on", old)
        # 6. Clients move: first there, then no more here.
        files = client_files(tmp_path, moving.files.ca)
        secure = {client: config_of(client, *files, MECHANISM) for client in CLIENTS}
        new = Clients(moving.bootstrap("direct"), "secure", secure)
        for topic in new.topics.values():
            create_topic(plain, topic, PARTITIONS)
        with new.at_work():
            step("clients on both", new)
            plaintext.close()
            step("clients on SASL_SSL alone", new)
            # 7. Without plaintext.
            moving.listeners = ("SECURE",)
            for role in (GATEWAY, NODE):
                moving.more[role]["super_users"] = json.dumps(["User:admin"])
            moving.round(GATEWAY, NODE)
            step("no plaintext any more", new)
    counts = {}
    for side in (old, new):
        for client, topic in side.topics.items():
            mine = secure["confluent-kafka"] | {"group.id": "g-unused"}
            records = read_all(moving.bootstrap("direct"), topic, **mine)
            check_nothing_lost(side.writers[client].ledger, records, idempotent=client != "kcat")
            assert not side.ledgers[client].gaps
            counts[topic] = len(records)
    figures["records"] = counts
    print(json.dumps(figures, indent=1))
