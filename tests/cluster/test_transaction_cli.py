"""`penstock transaction` against a cluster: what there is, and an end for what hangs."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from penstock.cli.main import run
from penstock.local.cluster import LocalCluster
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_kafka.wire.produce import (
    ProducePartition,
    ProduceSkim,
    decode_produce_response,
    encode_produce_request,
)
from support.cluster import running_cluster
from support.kafka import client_config, create_topic, read_all
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

HOUR_MS = 3_600_000
VERIFICATION = "transaction.partition.verification.enable"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("transaction-cli")
    settings = {"controller": {"transaction_state_log_num_partitions": "4"}}
    with running_cluster(directory, controllers=1, nodes=3, settings=settings, steady=True) as found:
        yield found


class Cli:
    """Runs commands; what they print."""

    def __init__(self, bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._bootstrap = bootstrap
        self._capsys = capsys

    def __call__(self, *words: str, expect: int = 0) -> str:
        code = run([*words, "--bootstrap", self._bootstrap])
        out = self._capsys.readouterr()
        assert code == expect, out.err
        return out.out if code == 0 and "--json" in words else out.out + out.err

    def json(self, *words: str) -> Any:
        return json.loads(self("transaction", *words, "--json"))


def produce_unseen(bootstrap: str, topic: str, producer_id: int) -> int:
    """A transactional batch of an hour ago that no coordinator knows of; its offset. Only a leader that does not ask
    takes it."""
    now_ms = time.time_ns() // 1_000_000
    records = [NewRecord(None, b"unseen", now_ms - HOUR_MS)]
    batch = build_batch(
        records, producer_id=producer_id, producer_epoch=3, base_sequence=0, transactional=True
    )
    item = ProducePartition(topic, None, 0, memoryview(batch))
    skim = ProduceSkim("nobody", -1, 30_000, [item])
    frame = b"".join(encode_produce_request(9, 7, "test", skim))
    host, _, port = bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), 30) as connection:
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        file = connection.makefile("rb")
        (size,) = struct.unpack(">i", file.read(4))
        (result,) = decode_produce_response(file.read(size), 9).results
    assert result.error == 0, result
    return int(result.base_offset)


def values(bootstrap: str, topic: str) -> list[bytes]:
    committed: dict[str, Any] = {"isolation.level": "read_committed"}
    return [record.value for record in read_all(bootstrap, topic, **committed)]


@pytest.mark.parametrize("way", ["proxy", "direct"])
def test_transactions_are_listed_and_described(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str], way: str
) -> None:
    bootstrap = cluster.bootstrap if way == "proxy" else cluster.direct_bootstrap
    cli, topic = Cli(bootstrap, capsys), f"listed-{way}"
    create_topic(bootstrap, topic, 3)
    names = [f"{way}-{number}" for number in range(6)]
    producers = []
    for name in names:
        producer = Producer(client_config(bootstrap, **{"transactional.id": name}))
        producer.init_transactions(60)
        producers.append(producer)
    for number in (0, 1):
        producers[number].begin_transaction()
        producers[number].produce(topic, b"x", partition=number)
        producers[number].flush(60)
    producers[1].commit_transaction(60)
    found = cli.json("list", "--pattern", f"{way}-.*")["transactions"]
    assert [each["transactional_id"] for each in found] == names
    assert [each["state"] for each in found[:3]] == ["Ongoing", found[1]["state"], "Empty"]
    (only,) = cli.json("list", "--pattern", f"{way}-.*", "--state", "Ongoing")["transactions"]
    assert only["transactional_id"] == names[0]
    assert cli.json("list", "--producer-id", str(only["producer_id"]))["transactions"] == [only]
    assert names[0] in cli("transaction", "list")
    assert "no such state: Nonsense" in cli("transaction", "list", "--state", "Nonsense", expect=2)
    assert "regular expression" in cli("transaction", "list", "--pattern", "(", expect=1)
    (one, two) = cli.json("describe", names[0], names[2])["transactions"]
    assert one["partitions"] == [{"topic": topic, "partition": 0}]
    assert (one["state"], two["state"], two["start_ms"], two["partitions"]) == ("Ongoing", "Empty", None, [])
    assert "no coordinator knows it" in cli("transaction", "describe", "nobody", expect=1)
    assert "Ongoing" in cli("transaction", "describe", names[0])
    producers[0].abort_transaction(60)
    ended = "CompleteAbort"
    wait_for(lambda: cli.json("describe", names[0])["transactions"][0]["state"] == ended, ended)


@pytest.mark.parametrize("way", ["proxy", "direct"])
def test_what_hangs_is_found_and_ended(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str], way: str
) -> None:
    bootstrap = cluster.bootstrap if way == "proxy" else cluster.direct_bootstrap
    cli, topic = Cli(bootstrap, capsys), f"hanging-{way}"
    create_topic(bootstrap, topic)
    producer = Producer(client_config(bootstrap, **{"transactional.id": f"alive-{way}"}))
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"alive", partition=0)
    producer.flush(60)
    cli("config", "set", "cluster", f"{VERIFICATION}=false")
    try:
        # The proxy knows the way to the leader.
        offset = wait_for(lambda: _unseen(cluster.bootstrap, topic), "a batch that nobody was asked about")
    finally:
        cli("config", "set", "cluster", f"{VERIFICATION}=true")
    producer.commit_transaction(60)
    (hanging,) = cli.json("find-hanging", "--topic", topic)["hanging"]
    assert (hanging["start_offset"], hanging["producer_epoch"]) == (offset, 3)
    assert hanging["idle_ms"] > HOUR_MS / 2
    assert str(offset) in cli("transaction", "find-hanging")
    assert values(bootstrap, topic) == [b"alive"]
    place = ("transaction", "abort", topic, "0")
    assert "begins at offset 77" in cli(*place, "--start-offset", "77", expect=1)
    assert "would abort" in cli(*place, "--start-offset", str(offset))
    assert "would abort" in cli(*place, "--start-offset", str(offset), "--yes", "--dry-run")
    assert cli.json("find-hanging", "--topic", topic)["hanging"] == [hanging | {"idle_ms": _any}]
    assert "is aborted" in cli(*place, "--start-offset", str(offset), "--yes")
    assert cli.json("find-hanging", "--topic", topic)["hanging"] == []
    # Readers go on.
    producer.begin_transaction()
    producer.produce(topic, b"later", partition=0)
    producer.commit_transaction(60)
    # A commit is answered once it is decided; readers are given it when its markers are written, a moment later.
    wait_for(lambda: values(bootstrap, topic) == [b"alive", b"later"], "what was committed is read")


def test_what_its_coordinator_knows_is_not_ended_by_hand(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    bootstrap = cluster.bootstrap
    cli = Cli(bootstrap, capsys)
    create_topic(bootstrap, "known")
    producer = Producer(client_config(bootstrap, **{"transactional.id": "known"}))
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("known", b"x", partition=0)
    producer.flush(60)
    out = cli("transaction", "abort", "known", "0", "--start-offset", "0", "--yes", expect=1)
    assert "Ongoing of transactional id 'known'" in out
    producer.commit_transaction(60)
    wait_for(lambda: values(bootstrap, "known") == [b"x"], "what was committed is read")


class _Any:
    def __eq__(self, _: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


_any = _Any()


def _unseen(bootstrap: str, topic: str) -> int | None:
    """None while the leader has not heard that it need not ask."""
    try:
        return produce_unseen(bootstrap, topic, 1_000_000)
    except AssertionError:
        return None
