"""What 10,000 ACLs and 1,000 users cost small produces on a real cluster, beside somebody whose rights nobody asks for.

    .venv/bin/python -m bench.rights_live [--rounds 10] [--json FILE]

One secure cluster of three nodes; a super user (before whom no ACL is looked at) and one of the 1,000 users take turns,
by the nodes' own listeners and through a gateway. Records of 100 B, each a request of its own, acks=all; throughput
with 5 requests in flight, times of acks at 300 a second. Read the ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from bench.compare import Running, create_topic, note_ack, penstock
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)
from rich.console import Console
from rich.table import Table

USERS, ACLS = 1_000, 10_000
TOPIC, PASSWORD = "rights", "of-a-throw-away-cluster"
AT_ONCE = 500
RECORD = b"x" * 100
RATE_PER_S = 300
RATED_RECORDS = 1_500
TIMEOUT_S = 120


def user_name(number: int) -> str:
    """Of one user; the first is who produces."""
    return f"user-{number:04}"


def binding(number: int) -> AclBinding:
    """One of all ACLs: the users' in turn, on topics of their own, literal and prefixed; the first user's first is
    on the topic of the bench."""
    owner = user_name(number % USERS)
    pattern = ResourcePatternType.PREFIXED if number % 3 == 2 else ResourcePatternType.LITERAL
    name = TOPIC if number == 0 else f"{owner}-topic-{number}"
    return AclBinding(
        ResourceType.TOPIC,
        name,
        pattern if number else ResourcePatternType.LITERAL,
        f"User:{owner}",
        "*",
        AclOperation.WRITE,
        AclPermissionType.ALLOW,
    )


def fill(running: Running) -> None:
    """Make users and ACLs."""
    admin = AdminClient({"bootstrap.servers": running.bootstrap, **running.client})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    for begin in range(0, USERS, AT_ONCE):
        wanted: list[UserScramCredentialAlteration] = [
            UserScramCredentialUpsertion(user_name(number), info, PASSWORD.encode())
            for number in range(begin, begin + AT_ONCE)
        ]
        for made in admin.alter_user_scram_credentials(wanted, request_timeout=TIMEOUT_S).values():
            made.result(TIMEOUT_S)
    for begin in range(0, ACLS, AT_ONCE):
        bindings = [binding(number) for number in range(begin, begin + AT_ONCE)]
        for made in admin.create_acls(bindings, request_timeout=TIMEOUT_S).values():
            made.result(TIMEOUT_S)


class Side:
    """A producer of one user; warm."""

    def __init__(self, bootstrap: str, client: Mapping[str, str]) -> None:
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "batch.num.messages": 1,
             "max.in.flight.requests.per.connection": 5, "log_level": 0, **client}
        )  # fmt: skip
        self.per_s(500)

    def per_s(self, count: int) -> float:
        """Records acknowledged in a second."""
        took: list[float] = []
        began_s = time.perf_counter()
        for _ in range(count):
            self._producer.produce(TOPIC, RECORD, partition=0, on_delivery=partial(note_ack, took, began_s))
        self._producer.flush(TIMEOUT_S)
        assert len(took) == count
        return count / (time.perf_counter() - began_s)

    def acks_ms(self) -> list[float]:
        """Times of acks at a fixed rate, sorted."""
        took: list[float] = []
        began_s = time.perf_counter()
        for number in range(RATED_RECORDS):
            while time.perf_counter() < began_s + number / RATE_PER_S:
                self._producer.poll(0.0005)
            self._producer.produce(
                TOPIC, RECORD, partition=0, on_delivery=partial(note_ack, took, time.perf_counter())
            )
        self._producer.flush(TIMEOUT_S)
        return sorted(took)


def measure(running: Running, rounds: int, count: int) -> list[dict[str, float]]:
    """Ratios of every round: the user by the super user."""
    own = {**running.client, "sasl.username": user_name(0), "sasl.password": PASSWORD}
    sides = {"super": Side(running.bootstrap, running.client), "user": Side(running.bootstrap, own)}
    found: list[dict[str, float]] = []
    for number in range(rounds):
        order = list(sides) if number % 2 else list(reversed(sides))
        speed = {name: sides[name].per_s(count) for name in order}
        acks = {name: sides[name].acks_ms() for name in order}
        p99 = {name: took[int(len(took) * 0.99)] for name, took in acks.items()}
        p50 = {name: statistics.median(took) for name, took in acks.items()}
        found.append(
            {
                "produces per s": speed["super"],
                "throughput ratio": speed["user"] / speed["super"],
                "p50 ms": p50["super"],
                "p50 ratio": p50["user"] / p50["super"],
                "p99 ms": p99["super"],
                "p99 ratio": p99["user"] / p99["super"],
            }
        )
        print(json.dumps(found[-1]), flush=True)
    return found


def main() -> int:
    """Exit code 0 when every run came to its end."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--records", type=int, default=5_000, help="records of one run of throughput")
    parser.add_argument("--json", type=Path, help="write every round here")
    options = parser.parse_args()
    result: dict[str, list[dict[str, float]]] = {}
    for name, address in (("direct", "direct_bootstrap"), ("gateway", "bootstrap")):
        with (
            tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch,
            penstock(Path(scratch), address, secure=True) as running,
        ):
            create_topic(running.bootstrap, TOPIC, {"min.insync.replicas": "2"}, client=running.client)
            fill(running)
            result[name] = measure(running, options.rounds, options.records)
    table = Table(
        title=f"{ACLS:,} ACLs of {USERS:,} users; medians (lowest to highest) of {options.rounds} rounds"
    )
    table.add_column("")
    columns = list(result["direct"][0])
    for column in columns:
        table.add_column(column, justify="right")
    for name, rounds in result.items():
        cells = []
        for column in columns:
            values = sorted(each[column] for each in rounds)
            cells.append(f"{statistics.median(values):.2f} ({values[0]:.2f} to {values[-1]:.2f})")
        table.add_row(name, *cells)
    Console(width=170).print(table)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
