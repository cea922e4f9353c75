"""Stock clients with the properties that `local up --secure` writes and nothing else: sessions end, processes die.

Each client produces and reads in a group through the gateways and straight from the nodes, all at once; a session
lasts 5 s (`max_reauth_ms`); a gateway and a storage node are killed and come back. Nothing is lost, and nobody fails
to sign in. `make secure-clients` does it for a minute with each mechanism of passwords, with tokens that live for 12 s,
and with clients' certificates, for which sessions do not end.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.local import plan, ports, secure
from penstock.local.cluster import LocalCluster
from penstock.local.plan import ADMIN, GATEWAY, NODE
from support.clients import LEAKING_DIALS, Writer, forget_leaks
from support.cluster import running_cluster, start_ready
from support.groups import GroupLedger, GroupMember
from support.java import missing_java
from support.kafka import check_nothing_lost, read_all
from support.secure import ListenerFiles
from support.stock_clients import STOCK_MEMBERS, STOCK_WRITERS
from support.stock_credentials import (
    OAUTHBEARER,
    Certificates,
    Credentials,
    Passwords,
    oauth_table,
    renewed_tokens,
)
from support.tokens import Issuer
from support.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.timeout(1_800),
    LEAKING_DIALS,
]

LONG = "PENSTOCK_STOCK_CLIENTS_S"
"""How long clients go on, in s: set by `make secure-clients`."""
DURATION_S = float(os.environ.get(LONG, "15"))
SASL, CERTIFICATE = "sasl", "certificate"
LONG_WAYS = [
    *((SASL, each) for each in ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", OAUTHBEARER)),
    (CERTIFICATE, CERTIFICATE),
]
WAYS = LONG_WAYS if LONG in os.environ else LONG_WAYS[:1]
"""Kind of listener, and by what clients come in."""
MISSING = {
    "java": missing_java() or "",
    "kcat": "" if shutil.which("kcat") else "kcat is not installed",
}
CLIENTS = [name for name in STOCK_WRITERS if not MISSING.get(name)]
MODES = ("proxy", "direct")
REAUTH_MS = "5000"
RATE_PER_S = 40
PARTITIONS = 3
PATIENCE_S = 240.0


class Doors:
    """A cluster of one kind of listener."""

    def __init__(self, cluster: LocalCluster, directory: Path, issuer: Issuer) -> None:
        self.cluster, self.directory, self.issuer = cluster, directory, issuer
        self.files = ListenerFiles(directory / "certificates")
        self._ports: dict[str, list[int]] = {}

    @contextmanager
    def credentials(self, way: str) -> Iterator[Credentials]:
        """The admin's."""
        made = self.cluster.directory
        if way == CERTIFICATE:
            yield Certificates(self.files, ADMIN)
        elif way == OAUTHBEARER:
            ca = secure.directory_of(made) / "ca.pem"
            with renewed_tokens(self.issuer, ADMIN, ca, self.directory / "tokens") as tokens:
                yield tokens
        else:
            yield Passwords(secure.admin_file(made), secure.java_file(made), way)

    def bootstrap(self, mode: str) -> str:
        """Addresses of the gateways' listeners."""
        if self._ports:
            gateways = self.cluster.state.of_role(GATEWAY)
            return ",".join(f"localhost:{self._ports[m.name][MODES.index(mode)]}" for m in gateways)
        return self.cluster.bootstrap if mode == "proxy" else self.cluster.direct_bootstrap

    def start(self, name: str) -> None:
        """Start a process that was killed."""
        if name in self._ports:
            self._add_listeners(name)
        start_ready(self.cluster, name)

    def open_to_certificates(self) -> None:
        """Add listeners for certificates to all gateways and nodes."""
        state = self.cluster.state
        members = [*state.of_role(GATEWAY), *state.of_role(NODE)]
        free = ports.choose_free(2 * len(members), ports_of(state))
        self._ports = {m.name: [free.pop(), free.pop()] for m in members}
        for member in members:
            self.cluster.kill(member.name, signal.SIGTERM)
            self.start(member.name)

    def _add_listeners(self, name: str) -> None:
        # What is set is set for a role, and read at a start: each process gets its own before it.
        with self.cluster.store.locked():
            state = self.cluster.store.load()
            member = state.member(name)
            settings = state.settings.setdefault(member.role, {})
            settings.pop("listeners", None)
            own = plan.member_settings(state, member, self.cluster.directory)["listeners"]
            added = [
                {
                    "name": f"CERTIFIED-{mode.upper()}",
                    "mode": mode,
                    "bind": f"127.0.0.1:{port}",
                    "advertised": f"localhost:{port}",
                    "security": "SSL",
                    "tls": self.files.table("required"),
                    "principal_mapping_rules": "RULE:^.*CN=([^,]+).*$/$1/",
                }
                for mode, port in zip(MODES, self._ports[name], strict=True)
                if mode == "direct" or member.role == GATEWAY
            ]
            settings["listeners"] = json.dumps([*own, *added])
            self.cluster.store.save(state)


def ports_of(state: plan.ClusterState) -> set[int]:
    return plan.reserved_ports(state.port) | {p for m in state.members for p in m.ports.values()}


@pytest.fixture(scope="module")
def doors(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    directory = tmp_path_factory.mktemp(request.param)
    issuer = Issuer()
    settings = {"listeners.max_reauth_ms": REAUTH_MS}
    if len(WAYS) > 1:
        settings |= {
            "listeners.sasl_mechanisms": json.dumps([way for kind, way in WAYS if kind == SASL]),
            "oauth": oauth_table(issuer.write_jwks(directory / "jwks.json")),
        }
    with running_cluster(
        directory / "c",
        controllers=1,
        gateways=2,
        settings={role: dict(settings) for role in (GATEWAY, NODE)},
        secure=True,
    ) as running:
        made = Doors(running, directory, issuer)
        if request.param == CERTIFICATE:
            made.open_to_certificates()
        yield made


def sign_ins(cluster: LocalCluster, outcome: str) -> int:
    """How often, by the audit logs of all processes; a last line may be half written."""
    logs = list((cluster.directory / "secure").glob("*-audit.log"))
    assert logs
    found = [
        json.loads(line) for log in logs for line in log.read_text().splitlines(True) if line.endswith("\n")
    ]
    return sum(1 for each in found if each["event"] == "login" and each["outcome"] == outcome)


def all_go_on(writers: dict[tuple[str, str], Writer], ledgers: dict[tuple[str, str], GroupLedger]) -> None:
    """Everybody gets more acks, and reads more."""
    wanted = {which: ledger.count + 20 for which, ledger in ledgers.items()}
    for which, writer in writers.items():
        writer.wait_for_acks(20, PATIENCE_S)
        wait_for(lambda which=which: ledgers[which].count >= wanted[which], f"{which} reads", PATIENCE_S)  # type: ignore[misc]


@pytest.fixture(autouse=True)
def nothing_unclosed_is_left() -> Iterator[None]:
    """kafka-python leaves sockets of dials that failed; what the test itself held is free only now."""
    yield
    forget_leaks()


@pytest.mark.parametrize(("doors", "way"), WAYS, ids=[way for _, way in WAYS], indirect=["doors"])
def test_they_sign_in_again_and_again_and_lose_nothing(doors: Doors, way: str) -> None:
    with doors.credentials(way) as credentials:
        run(doors, credentials, way)


def run(doors: Doors, credentials: Credentials, way: str) -> None:
    """All clients at once."""
    cluster, proxy = doors.cluster, doors.bootstrap("proxy")
    configs = {client: credentials.config(client) for client in CLIENTS}
    admin = AdminClient({**configs["confluent-kafka"], "bootstrap.servers": proxy})
    topics = {(client, mode): f"{client}-{mode}-{way}" for client in CLIENTS for mode in MODES}
    made = admin.create_topics([NewTopic(name, PARTITIONS, 3) for name in topics.values()])
    for future in made.values():
        future.result(PATIENCE_S)
    ledgers = {which: GroupLedger() for which in topics}
    writers: dict[tuple[str, str], Writer] = {}
    members: dict[tuple[str, str], GroupMember] = {}
    with ExitStack() as reading:
        with ExitStack() as writing:
            for (client, mode), topic in topics.items():
                where, config = doors.bootstrap(mode), configs[client]
                ledger = ledgers[client, mode]
                member = members[client, mode] = STOCK_MEMBERS[client](
                    where, topic, f"g-{topic}", ledger, **config
                )
                reading.callback(member.stop)
                writer = STOCK_WRITERS[client](where, topic, rate_per_s=RATE_PER_S, **config)
                writers[client, mode] = writing.enter_context(writer)
            begun_s = time.monotonic()
            all_go_on(writers, ledgers)
            before = sign_ins(cluster, "success")
            for name in ("gateway-1", "node-2"):
                cluster.kill(name)
                all_go_on(writers, ledgers)
                doors.start(name)
            # Two sessions more for everybody, at the least.
            time.sleep(max(2 * int(REAUTH_MS) / 1000, begun_s + DURATION_S - time.monotonic()))
            all_go_on(writers, ledgers)
            assert way == CERTIFICATE or sign_ins(cluster, "success") > before
        for which, writer in writers.items():
            wanted = set(writer.ledger.values.values())
            try:
                wait_for(
                    partial(members[which].has_read, wanted), f"the group of {which} has read all", PATIENCE_S
                )
            except AssertionError as error:
                raise AssertionError(f"{error}: {members[which].unread(writer.ledger)}") from None
    for which, writer in writers.items():
        records = read_all(proxy, topics[which], **configs["confluent-kafka"])
        check_nothing_lost(writer.ledger, records, idempotent=which[0] not in ("kcat",))
        assert not ledgers[which].gaps
    assert sign_ins(cluster, "failure") == 0
    for log in cluster.directory.glob("*/log.txt"):
        assert "sign-in failed" not in log.read_text(), log


def test_every_client_is_there() -> None:
    missing = {name: why for name, why in MISSING.items() if why}
    if missing:
        pytest.skip("; ".join(missing.values()))
