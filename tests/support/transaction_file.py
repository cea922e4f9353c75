"""What transactions leave behind in a partition's file, for tests of those who read it.

While a client's transactions are refused, a dead node's file gets the batches of them, as a crash leaves them: the node
finds by itself what they say.
"""

from __future__ import annotations

from pathlib import Path

from penstock.local.cluster import LocalCluster
from penstock_kafka.records.batch import BatchInfo, read_header
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_kafka.records.markers import Marker, build_marker
from support.cluster import start_ready
from support.kafka import create_topic, produce

ENDING, ABORTING, OPEN = 9_000_001, 9_000_002, 9_000_003


def leave_transactions(
    cluster: LocalCluster, directory: Path, topic: str
) -> tuple[Path, list[str], list[str]]:
    """In a new topic of one partition on node-1, which is killed and started: the file; the values from offset 1
    on that everybody sees; those that readers of committed records see."""
    create_topic(cluster.bootstrap, topic, 1, 1)
    produce(cluster.bootstrap, topic, 1)
    cluster.kill("node-1")
    (log,) = directory.glob(f"node-1/**/{topic}-0/00000000000000000000.log")
    data, everything, committed = batches(read_header(log.read_bytes()))
    with log.open("ab") as file:
        file.write(data)
    start_ready(cluster, "node-1")
    return log, everything, committed


def batches(before: BatchInfo) -> tuple[bytes, list[str], list[str]]:
    """What follows a batch; the values behind it that everybody sees; those that readers of committed records see."""
    data = bytearray()
    offset, leader_epoch, now_ms = before.next_offset, before.leader_epoch, before.max_timestamp
    seen: list[tuple[str, int]] = []
    sequences: dict[int, int] = {}

    def write(producer_id: int, *values: str) -> None:
        nonlocal offset
        rows = [NewRecord(b"k", value.encode(), now_ms) for value in values]
        if producer_id < 0:
            data.extend(build_batch(rows, base_offset=offset, leader_epoch=leader_epoch))
        else:
            data.extend(
                build_batch(
                    rows,
                    base_offset=offset,
                    leader_epoch=leader_epoch,
                    producer_id=producer_id,
                    producer_epoch=0,
                    base_sequence=sequences.get(producer_id, 0),
                    transactional=True,
                )
            )
            sequences[producer_id] = sequences.get(producer_id, 0) + len(values)
        seen.extend((value, producer_id) for value in values)
        offset += len(values)

    def end(producer_id: int, *, commits: bool) -> None:
        nonlocal offset
        marker = bytearray(build_marker(producer_id, 0, Marker(commits, 0), now_ms, base_offset=offset))
        marker[12:16] = leader_epoch.to_bytes(4, "big")
        data.extend(marker)
        offset += 1

    for number in range(40):
        write(ENDING, f"kept-{number}", f"kept-{number}-too")
        write(ABORTING, f"gone-{number}")
        write(-1, f"plain-{number}")
        if number % 3 == 0:
            end(ABORTING, commits=False)
        if number % 5 == 0:
            end(ENDING, commits=True)
    end(ABORTING, commits=False)
    end(ENDING, commits=True)
    decided = len(seen)
    write(OPEN, "undecided")
    write(-1, "behind it")
    committed = [value for value, producer_id in seen[:decided] if producer_id != ABORTING]
    return bytes(data), [value for value, _ in seen], committed
