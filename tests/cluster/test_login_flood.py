"""Logins of one address while another one floods its listener with wrong passwords."""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Iterator
from urllib.request import urlopen

import pytest

from penstock.local.plan import GATEWAY
from support.login_flood import flood, logins
from support.secure import SecureCluster, secure_cluster
from support.waiting import wait_for

pytestmark = pytest.mark.alone

IS_LONG = "PENSTOCK_QUOTA_SECONDS" in os.environ
ROUNDS, LOGINS = (12, 20) if IS_LONG else (1, 10)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureCluster]:
    with secure_cluster(tmp_path_factory.mktemp("flooded")) as made:
        made.set_user("alice", "right")
        yield made


def failures(secure: SecureCluster) -> float:
    """Logins that the gateway refused."""
    port = secure.cluster.state.of_role(GATEWAY)[0].ports["http"]
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    lines = re.findall(r"^penstock_kafka_sign_ins_total\{(.*)\} (.*)$", text, re.MULTILINE)
    return sum(float(count) for labels, count in lines if 'outcome="failure"' in labels)


def test_a_flood_of_logins_leaves_those_of_others_alone(secure: SecureCluster) -> None:
    """They succeed at once; in the long form they take at most twice their time without a flood, in turns with it."""
    port, ca = int(secure.bootstrap("SECURE").rpartition(":")[2]), str(secure.files.ca)
    logins(port, ca, LOGINS, "alice", "right")  # the first are slower
    quiet: list[float] = []
    flooded: list[float] = []
    with flood(port, ca) as attack:
        attack.go_on()
        wait_for(lambda: failures(secure) > 40, "the flood is there")
        for _ in range(ROUNDS):
            before = failures(secure)
            flooded += logins(port, ca, LOGINS, "alice", "right")
            wait_for(lambda before=before: failures(secure) > before, "it was there meanwhile")  # type: ignore[misc]
            attack.pause()
            quiet += logins(port, ca, LOGINS, "alice", "right")
            attack.go_on()
    ratio = statistics.median(flooded) / statistics.median(quiet)
    print(
        f"median login {statistics.median(quiet) * 1000:.0f} ms, {statistics.median(flooded) * 1000:.0f} ms in a flood:"
        f" {ratio:.1f} times"
    )
    if IS_LONG:
        assert ratio <= 2
