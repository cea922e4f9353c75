"""Stock clients with the properties that `local up --secure` writes and nothing else: sessions end, processes die.

Each client produces and reads in a group through the gateways and straight from the nodes, all at once; a session
lasts 5 s (`max_reauth_ms`); a gateway and a storage node are killed and come back. Nothing is lost, and nobody fails
to sign in. `make secure-clients` does it for a minute with each mechanism of passwords.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.local import secure
from penstock.local.cluster import LocalCluster
from penstock.local.plan import GATEWAY, NODE
from support.clients import Writer, forget_leaks
from support.cluster import running_cluster, start_ready
from support.groups import GroupLedger, GroupMember
from support.java import missing_java
from support.kafka import check_nothing_lost, read_all
from support.stock_clients import STOCK_MEMBERS, STOCK_WRITERS, config_of
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1_800)]

LONG = "PENSTOCK_STOCK_CLIENTS_S"
"""How long clients go on, in s: set by `make secure-clients`."""
DURATION_S = float(os.environ.get(LONG, "15"))
MECHANISMS = ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"] if LONG in os.environ else ["SCRAM-SHA-512"]
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


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {role: {"listeners.max_reauth_ms": REAUTH_MS} for role in (GATEWAY, NODE)}
    with running_cluster(
        tmp_path_factory.mktemp("stock") / "c", controllers=1, gateways=2, settings=settings, secure=True
    ) as running:
        yield running


def bootstrap(cluster: LocalCluster, mode: str) -> str:
    return cluster.bootstrap if mode == "proxy" else cluster.direct_bootstrap


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


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_they_sign_in_again_and_again_and_lose_nothing(cluster: LocalCluster, mechanism: str) -> None:
    file, java_file = secure.admin_file(cluster.directory), secure.java_file(cluster.directory)
    configs = {client: config_of(client, file, java_file, mechanism) for client in CLIENTS}
    admin = AdminClient({**configs["confluent-kafka"], "bootstrap.servers": cluster.bootstrap})
    topics = {(client, mode): f"{client}-{mode}-{mechanism}" for client in CLIENTS for mode in MODES}
    made = admin.create_topics([NewTopic(name, PARTITIONS, 3) for name in topics.values()])
    for future in made.values():
        future.result(PATIENCE_S)
    ledgers = {which: GroupLedger() for which in topics}
    writers: dict[tuple[str, str], Writer] = {}
    members: dict[tuple[str, str], GroupMember] = {}
    with ExitStack() as reading:
        with ExitStack() as writing:
            for (client, mode), topic in topics.items():
                where, config = bootstrap(cluster, mode), configs[client]
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
                start_ready(cluster, name)
            # Two sessions more for everybody, at the least.
            time.sleep(max(2 * int(REAUTH_MS) / 1000, begun_s + DURATION_S - time.monotonic()))
            all_go_on(writers, ledgers)
            assert sign_ins(cluster, "success") > before
        for which, writer in writers.items():
            wanted = set(writer.ledger.values.values())
            wait_for(
                partial(members[which].has_read, wanted), f"the group of {which} has read all", PATIENCE_S
            )
    for which, writer in writers.items():
        records = read_all(cluster.bootstrap, topics[which], **configs["confluent-kafka"])
        check_nothing_lost(writer.ledger, records, idempotent=which[0] not in ("kcat",))
        assert not ledgers[which].gaps
    assert sign_ins(cluster, "failure") == 0
    for log in cluster.directory.glob("*/log.txt"):
        assert "sign-in failed" not in log.read_text(), log


def test_every_client_is_there() -> None:
    missing = {name: why for name, why in MISSING.items() if why}
    if missing:
        pytest.skip("; ".join(missing.values()))
