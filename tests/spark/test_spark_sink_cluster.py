"""One task of the sink against real clusters: whoever dies, all rows are there; and who may not write is told so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
from confluent_kafka.admin import AclOperation

from conformance.wire import leaders_known
from penstock.local.cluster import LocalCluster
from penstock_kafka.wire.groups import transaction_partition
from penstock_proto.v1 import gateway_pb2
from pyspark_penstock.errors import GatewayError
from pyspark_penstock.sink.options import SinkOptions
from pyspark_penstock.sink.units import Task
from pyspark_penstock.sink.writer import StreamWriter, write_rows
from support.cluster import running_cluster
from support.doors import PASSWORD, Doors, client_file_text, doors_cluster
from support.kafka import create_topic, describe, read_all, wait_for_full_isr
from support.spark import WAIT_S
from support.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(900)]

TOKEN_LIFETIME_MS = 1_000
ROWS = 4_000


def rows_of(number: int) -> Any:
    """Enough to be sent at once, without waiting for more."""
    first = number * ROWS
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([b"%d" % (at % 50) for at in range(first, first + ROWS)], pa.binary()),
            "value": pa.array(
                [b"%09d " % at + b"x" * 1100 for at in range(first, first + ROWS)], pa.binary()
            ),
        }
    )


def test_a_leader_and_a_gateway_die_and_every_row_is_there_in_order(tmp_path: Path) -> None:
    with running_cluster(tmp_path, gateways=2) as cluster:
        create_topic(cluster.bootstrap, "copies", 3, 3)
        for address in cluster.bootstrap.split(","):
            known = partial(leaders_known, address, "copies")
            wait_for(lambda: known() == 3, f"copies known at {address}", WAIT_S)  # noqa: B023
        write_rows(SinkOptions(tuple(cluster.gateway.split(",")), "copies", "lz4"), troubled(cluster))
        wait_for_full_isr(cluster.bootstrap, "copies", WAIT_S)
        found = read_all(cluster.bootstrap, "copies", WAIT_S)
    by_partition: dict[int, list[int]] = {}
    for record in sorted(found, key=lambda record: record.offset):
        by_partition.setdefault(record.partition, []).append(int(record.value[:9]))
    firsts = {partition: list(dict.fromkeys(numbers)) for partition, numbers in by_partition.items()}
    assert Counter(number for numbers in firsts.values() for number in numbers) == Counter(range(12 * ROWS))
    assert all(numbers == sorted(numbers) for numbers in firsts.values())


def test_a_stage_outlives_leader_gateway_and_coordinator_and_each_row_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One task, whose attempt is the only one: nothing that dies costs it."""
    monkeypatch.setattr("pyspark_penstock.sink.writer.current_task", lambda: Task(query="q"))
    with running_cluster(tmp_path, gateways=2) as cluster:
        create_topic(cluster.bootstrap, "copies", 3, 3)
        for address in cluster.bootstrap.split(","):
            known = partial(leaders_known, address, "copies")
            wait_for(lambda: known() == 3, f"copies known at {address}", WAIT_S)  # noqa: B023
        gateways = tuple(cluster.gateway.split(","))
        writer = StreamWriter(SinkOptions(gateways, "copies", "lz4", exactly_once=True, sink="copy"))
        message = writer.write(troubled(cluster))
        places = describe(cluster.bootstrap, "__transaction_state")
        coordinator = f"node-{places[transaction_partition('copy', len(places))].leader}"
        cluster.kill(coordinator)
        writer.commit([message], 0)
        cluster.start(coordinator)
        wait_for_full_isr(cluster.bootstrap, "copies", WAIT_S)
        found = read_all(cluster.bootstrap, "copies", WAIT_S, **{"isolation.level": "read_committed"})
    by_partition: dict[int, list[int]] = {}
    for record in sorted(found, key=lambda record: record.offset):
        by_partition.setdefault(record.partition, []).append(int(record.value[:9]))
    assert Counter(number for numbers in by_partition.values() for number in numbers) == Counter(
        range(12 * ROWS)
    )
    assert all(numbers == sorted(numbers) for numbers in by_partition.values())


def troubled(cluster: LocalCluster) -> Iterator[Any]:
    for number in range(12):
        if number == 4:
            leaders = Counter(part.leader for part in describe(cluster.bootstrap, "copies").values())
            victim = f"node-{leaders.most_common(1)[0][0]}"
            cluster.kill(victim)
        if number == 8:
            cluster.start(victim)
            cluster.kill("gateway-1")
        yield rows_of(number)
    cluster.start("gateway-1")


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    with doors_cluster(tmp_path_factory.mktemp("doors"), TOKEN_LIFETIME_MS) as made:
        yield made


def options(doors: Doors, directory: Path, user: str) -> SinkOptions:
    path = directory / f"{user}.properties"
    path.touch(0o600)
    path.write_text(client_file_text(user, PASSWORD, doors.files.ca))
    return SinkOptions(tuple(doors.addresses("grpc")), "open", credentials_file=str(path))


def test_a_task_goes_on_over_many_tokens(doors: Doors, tmp_path: Path) -> None:
    alice = doors.client("alice")

    def has_ended(token: Any) -> bool:
        try:
            alice.stub.Describe(gateway_pb2.DescribeRequest(), metadata=token)
        except grpc.RpcError as error:
            return error.code() is grpc.StatusCode.UNAUTHENTICATED
        return False

    def slow() -> Iterator[Any]:
        yield rows_of(0)
        for number in range(1, 4):
            # Newer than the one that the task has shown with its stream.
            token = doors.client("alice").metadata()
            wait_for(partial(has_ended, token), "a token ends", WAIT_S)
            yield rows_of(number)

    write_rows(options(doors, tmp_path, "alice"), slow())
    found = Counter(record.value[:9] for record in read_all(doors.kafka, "open") if len(record.value) > 1000)
    assert found.keys() == {b"%09d" % at for at in range(4 * ROWS)}


def test_who_may_not_write_is_told_which_right_is_missing(doors: Doors, tmp_path: Path) -> None:
    with pytest.raises(GatewayError, match="not allowed to describe topic open"):
        write_rows(options(doors, tmp_path, "nobody"), iter([rows_of(0)]))
    doors.set_user("reader", PASSWORD)
    doors.allow("reader", AclOperation.READ, "open")
    wait_for(lambda: "first" in str(doors.client("reader").read("open")), "the reader has its right", WAIT_S)
    with pytest.raises(
        GatewayError,
        match=r"not allowed to write to topic open \(.*\); User reader of .*reader.* needs the right Write",
    ) as caught:
        write_rows(options(doors, tmp_path, "reader"), iter([rows_of(0)]))
    assert len(str(caught.value).splitlines()) == 1


def test_who_may_not_write_under_a_sinks_name_is_told_so(
    doors: Doors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_penstock.sink.writer.current_task", lambda: Task(query="q"))
    chosen = replace(options(doors, tmp_path, "nobody"), exactly_once=True, sink="copy")
    with pytest.raises(
        GatewayError,
        match=r"^not allowed to write as sink copy \(.*\); User nobody of .* needs the right Write on the trans",
    ) as caught:
        StreamWriter(chosen).write(iter([rows_of(0)]))
    assert len(str(caught.value).splitlines()) == 1
