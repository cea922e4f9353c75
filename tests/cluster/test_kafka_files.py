"""Our files by Kafka's own tool, Kafka's files by our code, and compaction on a real cluster."""

from __future__ import annotations

import json
import random
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from penstock_core.config.topic import TopicConfig
from penstock_kafka.records.batch import DELETE_HORIZON_BIT, iter_batches, read_header
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_kafka.records.read import Record, read_all, read_records
from penstock_storage_node.log import DirectoryPorts, FileSystem, LogDirectory, PartitionLog, ReadJob
from penstock_storage_node.transactions import records as transactions
from penstock_storage_node.transactions.effects import TopicPartitionName
from support.cluster import running_cluster
from support.kafka import (
    Load,
    check_nothing_lost,
    client_config,
    create_topic,
    produce,
    wait_for_full_isr,
)
from support.kafka import read_all as consume_all
from support.kafka_tools import (
    check_directories,
    complaints,
    dump_log_segments,
    running_kafka,
    wait_for_kafka,
)
from support.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        shutil.which("java") is None or shutil.which("mvn") is None,
        reason="Kafka's own tools come by Maven and need a JVM: install Java 17 and maven",
    ),
]

KEYS = 40
TOMBSTONE_KEYS = 4
"""Keys that are deleted nine times of ten, so that their last record is about always a tombstone; the others
one time of a hundred. That is 10 % of all records."""
SEGMENT_BYTES = 64 * 1024
SMALL_BATCHES: dict[str, Any] = {"batch.size": 16_000}


def number_of(value: bytes | None) -> int | None:
    """What `Overwrite` has written; None is a tombstone."""
    return int(value.partition(b":")[0]) if value else None


class Overwrite:
    """Writes and deletes the same few keys for ever, in a thread; knows the last acked value of each."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._last: dict[bytes, tuple[int, int | None]] = {}
        self.acked = 0
        self._producer = Producer(
            client_config(
                bootstrap,
                **{
                    "enable.idempotence": True,
                    "acks": "all",
                    "linger.ms": 5,
                    "compression.type": "lz4",
                    **SMALL_BATCHES,
                    "message.timeout.ms": 240_000,
                },
            )
        )
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.errors: list[str] = []

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        self.acked += 1
        number = number_of(message.value())
        key, offset = message.key(), message.offset()
        if offset >= self._last.get(key, (-1, None))[0]:
            self._last[key] = offset, number

    @property
    def last(self) -> dict[bytes, int]:
        """By key, but for those that are deleted."""
        return {key: number for key, (_, number) in self._last.items() if number is not None}

    def _run(self) -> None:
        rng, number = random.Random(1), 0
        while not self._stop.is_set():
            for _ in range(50):
                which = rng.randrange(KEYS)
                key = b"key-%d" % which
                deletes = rng.random() < (0.9 if which < TOMBSTONE_KEYS else 0.01)
                value = None if deletes else b"%d:" % number + rng.randbytes(200)
                while True:
                    try:
                        self._producer.produce(
                            self._topic, value, key, partition=0, on_delivery=self._delivered
                        )
                        break
                    except BufferError:  # nothing is acknowledged for a while
                        self._producer.poll(0.05)
                number += 1
            self._producer.poll(0.01)
            self._stop.wait(0.02)

    def __enter__(self) -> Overwrite:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(120) == 0
        assert not self.errors, self.errors[:3]

    def wait_for_acks(self, more: int) -> None:
        wanted = self.acked + more
        wait_for(lambda: self.acked >= wanted, f"{more} more acknowledgements", 240)


def log_bytes(directory: Path) -> int:
    found = 0
    for file in directory.glob("*.log"):
        with suppress(FileNotFoundError):  # just compacted or deleted
            found += file.stat().st_size
    return found


def open_logs(data: Path, *, compacted: str = "") -> tuple[LogDirectory, dict[str, PartitionLog]]:
    """Every log of a data directory; Kafka leaves gaps between the segments of the topic `compacted`."""
    directory = LogDirectory.open(DirectoryPorts(FileSystem(), lambda: 0), data)
    logs = {}
    for found in directory.scan():
        policy = frozenset({"compact" if found.topic == compacted else "delete"})
        settings = TopicConfig(cleanup_policy=policy)
        logs[f"{found.topic}-{found.partition}"] = directory.open_log(found, settings)
    return directory, logs


def stored_batches(log: PartitionLog) -> list[bytes]:
    batches: list[bytes] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, 1 << 20, log.log_end_offset)
        data = data.run() if isinstance(data, ReadJob) else data
        assert data.next_offset > offset
        joined = b"".join(data.buffers)
        batches += [joined[i.position : i.position + i.size_bytes] for i in iter_batches(joined)]
        offset = data.next_offset
    return batches


def last_numbers(log: PartitionLog) -> dict[bytes | None, int]:
    """By key, but for those that are deleted."""
    found = {}
    for batch in stored_batches(log):
        for record in read_records(batch):
            found[record.key] = number_of(record.value)
    return {key: number for key, number in found.items() if number is not None}


def horizon_batches(log: PartitionLog) -> int:
    """Batches that keep a tombstone until their delete horizon (attribute bit 6, KIP-534)."""
    return sum(bool(read_header(batch).attributes & DELETE_HORIZON_BIT) for batch in stored_batches(log))


def test_files_after_load_crashes_and_compaction(tmp_path: Path) -> None:
    settings = {
        "storage-node": {
            "compaction_interval_ms": "300",
            "retention_check_interval_ms": "500",
            "checkpoint_interval_ms": "1000",
        }
    }
    with running_cluster(tmp_path, controllers=1, settings=settings) as cluster:
        bootstrap = cluster.bootstrap
        small = {"segment_bytes": str(SEGMENT_BYTES), "index_interval_bytes": "1024"}
        create_topic(
            bootstrap, "plain", 1, 3, segment_bytes=str(4 * SEGMENT_BYTES), index_interval_bytes="1024"
        )
        create_topic(
            bootstrap,
            "compacted",
            1,
            3,
            cleanup_policy="compact",
            min_cleanable_dirty_ratio="0.2",
            max_compaction_lag_ms="600000",
            # Horizons pass while it runs; what the last run of a node has stamped stays.
            delete_retention_ms="3000",
            **small,
        )
        create_topic(bootstrap, "sized", 1, 3, retention_bytes=str(3 * SEGMENT_BYTES), **small)
        create_topic(bootstrap, "timed", 1, 3, retention_ms="1500", **small)
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            produce(
                bootstrap, "plain", 300, first=10**6, keys=9, **{"compression.type": codec, **SMALL_BATCHES}
            )
        produce(bootstrap, "sized", 3_000, value_bytes=200, **SMALL_BATCHES)
        produce(bootstrap, "timed", 1_500, value_bytes=200, **SMALL_BATCHES)
        with (
            Load(bootstrap, "plain", rate_per_s=800, **SMALL_BATCHES) as load,
            Overwrite(bootstrap, "compacted") as overwrite,
        ):
            for name in ("node-1", "node-2", "node-3"):
                load.wait_for_acks(500)
                overwrite.wait_for_acks(500)
                cluster.kill(name)
                load.wait_for_acks(200)
                cluster.start(name)
                wait_for_full_isr(bootstrap, "plain")
                wait_for_full_isr(bootstrap, "compacted")
            overwrite.wait_for_acks(1_000)
        # What is looked for in the files of every node below is there.
        for topic in ("plain", "compacted", "sized", "timed"):
            wait_for_full_isr(bootstrap, topic)
        seen = {r.key: number_of(r.value) for r in consume_all(bootstrap, "compacted")}
        assert {key: number for key, number in seen.items() if number is not None} == overwrite.last
        # Bounded: what is left is about the active segment and one that is dirty.
        copies = [tmp_path / f"node-{n}" for n in (1, 2, 3)]
        data = [next(c.rglob("compacted-0")).parent for c in copies]
        wait_for(
            lambda: all(log_bytes(d / "compacted-0") < 4 * SEGMENT_BYTES for d in data),
            "disk use of the compacted topic bounded",
            240,
        )
        wait_for(
            lambda: all(log_bytes(d / "sized-0") <= 4 * SEGMENT_BYTES for d in data), "retention by size", 240
        )
        wait_for(lambda: all(log_bytes(d / "timed-0") == 0 for d in data), "retention by time", 240)
        check_nothing_lost(load.ledger, consume_all(bootstrap, "plain"), idempotent=False)
    horizons = []
    for node in data:
        directory, logs = open_logs(node)
        horizons.append(horizon_batches(logs["compacted-0"]))
        assert last_numbers(logs["compacted-0"]) == overwrite.last
        # Whole segments went: what is left begins where a file begins.
        for name in ("sized-0", "timed-0"):
            assert logs[name].log_start_offset == logs[name].first_segment_offset > 0
        for log in logs.values():
            log.close(clean=False)
        directory.close(clean=False)
    assert all(horizons), horizons
    check_directories([d / "plain-0" for d in data] + [d / "sized-0" for d in data])
    output = check_directories([d / "compacted-0" for d in data], gaps_allowed=True)
    assert output.count("deleteHorizonMs: OptionalLong[") == sum(horizons)


def test_a_directory_written_by_kafka(tmp_path: Path) -> None:
    sent: dict[str, dict[int, tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]]] = {}
    with running_kafka(tmp_path) as kafka:
        wait_for_kafka(kafka)
        plain = {"segment_bytes": str(1 << 20)}
        create_topic(kafka.bootstrap, "plain", 1, 1, **plain)
        create_topic(kafka.bootstrap, "stamped", 1, 1, message_timestamp_type="LogAppendTime", **plain)
        create_topic(
            kafka.bootstrap,
            "compacted",
            1,
            1,
            cleanup_policy="compact",
            min_cleanable_dirty_ratio="0.01",
            segment_ms="500",
            max_compaction_lag_ms="1000",
            **plain,
        )
        for topic in ("plain", "stamped", "compacted"):
            sent[topic] = _send_to_kafka(kafka.bootstrap, topic)
        data = tmp_path / "kafka-1/data"
        wait_for(lambda: _was_compacted(data, kafka.bootstrap), "Kafka compacts", 300)
    directories = [data / f"{topic}-0" for topic in sent]
    # The wart of the tool: Kafka's own second segments "follow -1".
    second = sorted(directories[0].glob("*.log"))[1]
    output = dump_log_segments([second], "--deep-iteration")
    assert "-1 is followed by" in output and not complaints(output)

    ours = tmp_path / "ours"
    ours.mkdir()
    for directory in directories:
        shutil.copytree(directory, ours / directory.name)
    opened, logs = open_logs(
        ours, compacted="compacted"
    )  # nothing says that Kafka stopped cleanly: every batch is checked
    for topic, expected in sent.items():
        log = logs[f"{topic}-0"]
        assert log.segment_count > 1
        end = max(expected) + 1
        assert log.log_end_offset >= end
        found: dict[int, Record] = {}
        for batch in stored_batches(log):
            found |= {record.offset: record for record in read_all(batch)}
        if topic != "compacted":
            assert set(found) == set(expected)
        else:
            assert len(found) < len(expected)
            last = {key: offset for offset, (key, _, _) in expected.items()}
            assert all(offset in found for key, offset in last.items() if expected[offset][1] is not None)
        for offset, record in found.items():
            if offset in expected:
                assert (record.key, record.value, record.headers) == expected[offset]
        if topic == "stamped":
            assert len({r.timestamp_ms for r in found.values()}) > 1
        log.close(clean=False)
    opened.close(clean=False)


def _send_to_kafka(
    bootstrap: str, topic: str
) -> dict[int, tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]]:
    rows: dict[int, tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]] = {}
    errors: list[str] = []
    rng = random.Random(topic)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = Producer(
            client_config(
                bootstrap,
                **{"compression.type": codec, "enable.idempotence": codec != "gzip", "batch.size": 20_000},
            )
        )
        for number in range(700):
            key = b"key-%d" % rng.randint(1, 50)  # key-0 is for rolling
            value = None if topic == "compacted" and rng.random() < 0.1 else rng.randbytes(rng.randrange(800))
            headers: list[tuple[str, Any]] = [("h", b"%d" % number)] if number % 10 == 0 else []

            def done(error: Any, message: Any, row: Any = (key, value, headers)) -> None:
                if error is not None:
                    errors.append(str(error))
                else:
                    rows[message.offset()] = row

            producer.produce(topic, value, key, partition=0, headers=headers, on_delivery=done)
            producer.poll(0)
        assert producer.flush(180) == 0
    assert not errors, errors[:3]
    return dict(sorted(rows.items()))


def _was_compacted(data: Path, bootstrap: str) -> bool:
    checkpoint = data / "cleaner-offset-checkpoint"
    if checkpoint.exists():
        rows = [line.split() for line in checkpoint.read_text().splitlines()[2:]]
        if any(row[0] == "compacted" and int(row[2]) > 1000 for row in rows):
            return True
    produce(
        bootstrap, "compacted", 1, keys=1, first=10**9
    )  # rolls by time, so that there is a segment to clean
    return False


def test_the_dump_says_what_is_wrong() -> None:
    bad = "\n".join(
        [
            "Found timestamp mismatch in :/x/0.timeindex",
            "Mismatches in :/x/0.index",
            "Non-consecutive offsets in /x/0.log",
            "  7 is followed by 9",
            "baseOffset: 0 lastOffset: 0 count: 1 crc: 1 isvalid: false",
        ]
    )
    assert len(complaints(bad)) == 4
    assert not complaints("baseOffset: 0 isvalid: true\n| offset: 0 key: error\nDumping /failed/0.log")
    assert json.dumps(complaints("  7 is followed by 9", gaps_allowed=True)) == "[]"


def test_kafkas_tool_reads_records_of_the_transaction_coordinator(tmp_path: Path) -> None:
    """Both versions of a value, a tombstone, and the tag that is ours."""
    shop = transactions.TransactionValue(
        transactions.Status.ONGOING,
        500,
        3,
        60_000,
        update_ms=10,
        partitions=frozenset({TopicPartitionName("b", 1), TopicPartitionName("a", 7)}),
        start_ms=11,
        previous_id=1,
        next_id=2,
        client_version=2,
        last_epoch=5,
    )
    new = transactions.TransactionValue(transactions.Status.EMPTY, 1, 0, 1, 10)
    values = [
        (transactions.put_key("shop"), transactions.put_value(shop, 1)),
        (transactions.put_key("plain"), transactions.put_value(shop, 0)),
        (transactions.put_key("new"), transactions.put_value(new, 1)),
        (transactions.put_key("gone"), None),
    ]
    directory = tmp_path / "__transaction_state-0"
    directory.mkdir()
    log = directory / "00000000000000000000.log"
    log.write_bytes(build_batch([NewRecord(key, value, 1000) for key, value in values], leader_epoch=0))
    output = dump_log_segments([log], "--transaction-log-decoder")
    assert not complaints(output)
    common = {
        "producerId": 500,
        "producerEpoch": 3,
        "transactionTimeoutMs": 60_000,
        "transactionStatus": 1,
        "transactionPartitions": [{"topic": "a", "partitionIds": [7]}, {"topic": "b", "partitionIds": [1]}],
        "transactionLastUpdateTimestampMs": 10,
        "transactionStartTimestampMs": 11,
    }
    tagged = {"previousProducerId": 1, "nextProducerId": 2, "clientTransactionVersion": 2}
    payloads = [line.partition(" payload: ")[2] for line in output.splitlines() if " payload: " in line]
    assert json.loads(payloads[0]) == {"version": "1", "data": common | tagged}
    assert json.loads(payloads[1]) == {"version": "0", "data": common}
    assert json.loads(payloads[2])["data"]["transactionPartitions"] is None
    assert payloads[3] == "<DELETE>"
