"""Transactions in files of nodes that were killed, by Kafka's own tool."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import transaction_history as told
from support.cluster import running_cluster
from support.java import needs_java
from support.kafka import wait_for_full_isr
from support.kafka_tools import check_directories, complaints, dump_log_segments
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900), needs_java]

STATE_PARTITIONS = 4
"""Of either coordinator's topic: fewer files to be read."""
STATE, OFFSETS = "__transaction_state", "__consumer_offsets"
OF_PENSTOCK = {
    "controller": {
        "offsets_topic_num_partitions": str(STATE_PARTITIONS),
        "transaction_state_log_num_partitions": str(STATE_PARTITIONS),
    }
}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Three nodes that were killed: their directories, the history in them, and what readers had found."""
    folder = tmp_path_factory.mktemp("killed")
    with running_cluster(folder, controllers=1, steady=True, settings=OF_PENSTOCK) as cluster:
        bootstrap = cluster.direct_bootstrap
        told.make_topics(bootstrap)
        history = told.write_history(bootstrap)
        for topic in (told.TOPIC, STATE, OFFSETS):
            wait_for_full_isr(bootstrap, topic)
        found = told.readings(bootstrap)
        wait_for(lambda: told.committed_offset(bootstrap) == told.STABLE_OFFSET, "the group's offset")
        cluster.kill_several(["node-1", "node-2", "node-3"])
        yield {
            "directories": [folder / f"node-{n}/data" for n in (1, 2, 3)],
            "history": history,
            "found": found,
        }


def check_files(directories: list[Path], history: told.History) -> None:
    """Markers, aborted indexes and snapshots of these data directories say what happened, and agree."""
    partitions = [data / f"{told.TOPIC}-{n}" for data in directories for n in range(told.PARTITIONS)]
    lines = told.by_file(check_directories(partitions))
    for directory in partitions:
        replayed = told.replay(directory, lines)
        assert (replayed.commits, replayed.aborts) == (history.commits, history.aborts)
        assert len(replayed.open) == 2
        index = told.aborted_rows(directory, lines)
        assert index == dict(replayed.index)
        assert sum(map(len, index.values())) == history.aborts and len(index) > 1
        snapshots = told.snapshots(directory, lines)
        assert snapshots == {offset: replayed.at[offset] for offset in snapshots}
        assert any(first is not None for rows in snapshots.values() for first in rows.values())


def test_kafkas_tool_reads_what_happened(killed: dict[str, Any]) -> None:
    check_files(killed["directories"], killed["history"])


def test_kafkas_tool_reads_what_the_coordinators_wrote(killed: dict[str, Any]) -> None:
    for topic, decoder in ((STATE, "--transaction-log-decoder"), (OFFSETS, "--offsets-decoder")):
        by_node = [[data / f"{topic}-{n}" for n in range(STATE_PARTITIONS)] for data in killed["directories"]]
        logs = [log for each in by_node for d in each for log in d.glob("*.log") if log.stat().st_size]
        output = dump_log_segments(logs, decoder)
        assert not complaints(output)
        for directories in by_node:
            rows = told.decoded(directories, told.by_file(output))
            (check_states if topic == STATE else check_offsets)(rows)


def check_states(rows: list[tuple[dict[str, Any], dict[str, Any] | None]]) -> None:
    """The last record of each id says how its last transaction ended, and where an open one is."""
    last = {key["transactionalId"]: value or {} for key, value in rows}
    last.pop("maker")
    assert {name: value["transactionStatus"] for name, value in last.items()} == told.STATUSES
    for name in ("open-old", "open-new"):
        assert {"topic": told.TOPIC, "partitionIds": [0, 1]} in last[name]["transactionPartitions"]


def check_offsets(rows: list[tuple[dict[str, Any], dict[str, Any] | None]]) -> None:
    """The group's, whatever became of their transactions."""
    found = [
        value["offset"] for key, value in rows if value and key.get("group") == told.GROUP and "topic" in key
    ]
    assert found == [told.STABLE_OFFSET, told.ABORTED_OFFSET, told.PENDING_OFFSET]
