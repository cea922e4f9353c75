"""Bad input gets the field's own error, is counted, and loses nothing; no stack trace reaches a log."""

from __future__ import annotations

import os
import re
import socket
import struct
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.local import ports
from penstock.local.cluster import LocalCluster
from penstock_core.errors import ErrorCode
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.produce import (
    ProducePartition,
    ProduceResult,
    ProduceSkim,
    decode_produce_response,
    encode_produce_request,
)
from support.cluster import running_cluster
from support.kafka import check_nothing_lost, client_config, create_topic, produce, read_all

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PRODUCE_VERSION = 9
GOOD = bytes(build_batch([NewRecord(None, b"good")]))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Its logs are checked for stack traces when it goes down."""
    with running_cluster(tmp_path_factory.mktemp("bad"), controllers=1, steady=True) as running:
        create_topic(running.bootstrap, "target", 1, 3, max_message_bytes="100000")
        # Raw requests are sent once: the leader knows that it leads by then.
        produce(running.bootstrap, "target", 1)
        yield running


@pytest.fixture(params=["proxy", "direct"])
def leader(request: pytest.FixtureRequest, cluster: LocalCluster) -> str:
    """An address at which Produce for partition 0 of `target` is answered."""
    if request.param == "proxy":
        return cluster.bootstrap
    metadata = AdminClient(client_config(cluster.direct_bootstrap)).list_topics("target", timeout=60)
    broker = metadata.brokers[metadata.topics["target"].partitions[0].leader]
    return f"{broker.host}:{broker.port}"


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("closed by the server")
        data += part
    return data


def is_closed(connection: socket.socket) -> bool:
    """Whether the server closes without an answer."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True  # it had not read all that was sent


def call(address: str, frame: bytes) -> bytes:
    with closing(connect(address)) as connection:
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", receive(connection, 4))
        return receive(connection, size)


def send_batch(
    address: str, records: bytes, topic: str = "target", partition: int = 0, acks: int = -1
) -> ProduceResult:
    item = ProducePartition(topic, None, partition, memoryview(records))
    request = encode_produce_request(PRODUCE_VERSION, 7, "raw", ProduceSkim(None, acks, 10_000, [item]))
    return decode_produce_response(call(address, b"".join(request)), PRODUCE_VERSION).results[0]


def flipped(batch: bytes, position: int) -> bytes:
    return batch[:position] + bytes([batch[position] ^ 1]) + batch[position + 1 :]


BAD_BATCHES = {
    "a flipped bit in a record": (flipped(GOOD, len(GOOD) - 2), ErrorCode.CORRUPT_MESSAGE),
    "a batch cut short": (GOOD[:-3], ErrorCode.INVALID_RECORD),
    "nothing at all": (b"", ErrorCode.INVALID_RECORD),
    "two batches": (GOOD + GOOD, ErrorCode.INVALID_RECORD),
    "an old magic": (GOOD[:16] + b"\x01" + GOOD[17:], ErrorCode.INVALID_RECORD),
    "garbage": (os.urandom(16) + b"\x09" + os.urandom(200), None),
    "too large": (bytes(build_batch([NewRecord(None, b"x" * 100_001)])), ErrorCode.MESSAGE_TOO_LARGE),
}


@pytest.mark.parametrize("what", BAD_BATCHES)
def test_bad_batch_is_refused_and_the_log_goes_on(cluster: LocalCluster, leader: str, what: str) -> None:
    batch, code = BAD_BATCHES[what]
    before = len(read_all(cluster.bootstrap, "target"))
    result = send_batch(leader, batch)
    assert result.error != 0
    if code is not None:
        assert result.error == code, ErrorCode(result.error).name
    assert result.error_message, "the answer says what is wrong"
    assert send_batch(leader, GOOD).error == 0
    assert len(read_all(cluster.bootstrap, "target")) == before + 1


def test_wrong_acks_and_wrong_partition(leader: str) -> None:
    assert send_batch(leader, GOOD, acks=2).error == ErrorCode.INVALID_REQUIRED_ACKS
    assert send_batch(leader, GOOD, topic="nowhere").error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert send_batch(leader, GOOD, partition=99).error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_unsupported_version_of_api_versions_is_answered(leader: str) -> None:
    """KIP-511: the answer is in form 0, so that any client can read it and ask again."""
    # Header of form 2, as every version since 3 has: no client id, no tagged fields.
    answer = call(leader, struct.pack(">hhihB", ApiKey.API_VERSIONS, 99, 5, -1, 0))
    correlation_id, error = struct.unpack_from(">ih", answer)
    assert (correlation_id, error) == (5, ErrorCode.UNSUPPORTED_VERSION)


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\xff" * 64, struct.pack(">i", 2_000_000_000), b"\0\0\0\x08" + b"\x7f" * 8,
     struct.pack(">ihhi", 10, 0, 99, 1) + b"\xff\xff"],
    ids=["http", "negative length", "huge length", "unknown api", "unsupported version"],
)  # fmt: skip
def test_garbage_closes_the_connection_and_nothing_else(
    cluster: LocalCluster, leader: str, garbage: bytes
) -> None:
    with closing(connect(leader)) as connection:
        connection.sendall(garbage)
        assert is_closed(connection)
    assert send_batch(leader, GOOD).error == 0


def test_garbage_is_counted(cluster: LocalCluster) -> None:
    with closing(connect(cluster.bootstrap)) as connection:
        connection.sendall(b"\xff" * 64)
        assert is_closed(connection)
    with urllib.request.urlopen(f"{cluster.http}/metrics", timeout=60) as response:
        metrics = response.read().decode()
    counts = re.findall(r"^penstock_kafka_bad_frames_total\S* (\S+)$", metrics, re.MULTILINE)
    assert sum(map(float, counts)) >= 1, metrics[:500]


@pytest.mark.parametrize("name", ["../evil", "a b", "", "x" * 250, ".."])
def test_bad_topic_names(cluster: LocalCluster, name: str) -> None:
    admin = AdminClient(client_config(cluster.bootstrap))
    with pytest.raises((KafkaException, ValueError)) as caught:
        admin.create_topics([NewTopic(name, 1, 1)])[name].result(60)
    if isinstance(caught.value, KafkaException):
        assert caught.value.args[0].code() == KafkaError.TOPIC_EXCEPTION


def test_oversized_record_by_a_client(cluster: LocalCluster) -> None:
    refused: list[KafkaError | None] = []
    producer = Producer(client_config(cluster.bootstrap, **{"message.max.bytes": 10_000_000}))
    producer.produce("target", b"x" * 2_000_000, on_delivery=lambda error, _m: refused.append(error))
    assert producer.flush(120) == 0
    assert [error and error.code() for error in refused] == [KafkaError.MSG_SIZE_TOO_LARGE]


def run_role(role: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"penstock_{role}", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--no-such-flag", "1"], "no-such-flag"),
        (["--log-level", "LOUD"], "log"),
        (["--http-bind", "nonsense"], "http"),
        (["--grpc-bind", "0.0.0.0:0"], "allow"),
        (["--listeners", '[{"name": "S", "bind": "127.0.0.1:0", "mode": "proxy", "security": "SSL"}]'], "SSL"),
    ],
)  # fmt: skip
def test_bad_settings_are_one_line(arguments: list[str], named: str) -> None:
    done = run_role("gateway", "--controllers", "127.0.0.1:1", "--gateway-id", "g", *arguments)
    assert done.returncode not in (0, 1)
    assert named in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 3, done.stderr


def test_taken_port_is_named(cluster: LocalCluster) -> None:
    port = cluster.bootstrap.rpartition(":")[2]
    listener = f'[{{"name": "P", "bind": "127.0.0.1:{port}", "mode": "proxy"}}]'
    controllers = ",".join(f"127.0.0.1:{c.ports['grpc']}" for c in cluster.state.of_role("controller"))
    done = run_role(
        "gateway", "--controllers", controllers, "--gateway-id", "g2", "--listeners", listener,
        "--grpc-bind", "127.0.0.1:0", "--http-bind", "127.0.0.1:0",
    )  # fmt: skip
    assert done.returncode != 0
    assert port in done.stderr
    assert "Traceback" not in done.stderr


def test_directory_of_another_cluster_or_a_newer_format(cluster: LocalCluster, tmp_path: Path) -> None:
    def node(folder: Path) -> subprocess.CompletedProcess[str]:
        controllers = ",".join(f"127.0.0.1:{c.ports['grpc']}" for c in cluster.state.of_role("controller"))
        return run_role(
            "storage_node", "--data-dir", str(folder), "--controllers", controllers, "--node-id", "77",
            "--grpc-bind", "127.0.0.1:0", "--http-bind", "127.0.0.1:0", "--listeners", "[]",
        )  # fmt: skip

    with running_cluster(tmp_path / "other", controllers=1, nodes=1) as other:
        properties = next(other.directory.glob("node-1/**/meta.properties"))
        foreign = tmp_path / "foreign"
        foreign.mkdir()
        (foreign / "meta.properties").write_text(re.sub("node.id=.*", "node.id=77", properties.read_text()))
        done = node(foreign)
    assert done.returncode != 0
    assert "cluster" in done.stderr
    assert "Traceback" not in done.stderr
    text = (foreign / "meta.properties").read_text()
    (foreign / "meta.properties").write_text(re.sub("version=.*", "version=999", text))
    done = node(foreign)
    assert done.returncode != 0
    assert "999" in done.stderr
    assert "Traceback" not in done.stderr


@contextmanager
def small_disk(folder: Path, size_mib: int) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(path: Path) -> None:
    """Write until the disk has no space left."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"\0" * 65536):
            pass


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_full_disk_refuses_and_recovers(tmp_path: Path) -> None:
    # Steady: a node that is fenced for its slowness is said by the gateway to lead nothing.
    with (
        small_disk(tmp_path / "disk", 64) as disk,
        running_cluster(disk, controllers=1, nodes=1, steady=True) as cluster,
    ):
        create_topic(cluster.bootstrap, "full", 1, 1)
        ledger = produce(cluster.bootstrap, "full", 500)
        filler = disk / "filler"
        fill(filler)
        refused: list[KafkaError | None] = []
        config = {"message.timeout.ms": 8000, "enable.idempotence": False, "retries": 0}
        producer = Producer(client_config(cluster.bootstrap, **config))
        for _ in range(20):
            producer.produce("full", b"y" * 60_000, on_delivery=lambda error, _m: refused.append(error))
        assert producer.flush(120) == 0
        codes = {error.code() for error in refused if error is not None}
        assert codes, "a full disk must refuse"
        assert codes <= {ErrorCode.KAFKA_STORAGE_ERROR, KafkaError._MSG_TIMED_OUT}, codes
        filler.unlink()
        produce(cluster.bootstrap, "full", 500, first=500, ledger=ledger)
        check_nothing_lost(
            ledger, [r for r in read_all(cluster.bootstrap, "full") if not r.value.startswith(b"y")]
        )


def test_ports_helper_gives_free_ports() -> None:
    assert all(ports.is_free(port) for port in ports.choose_free(3, set()))
