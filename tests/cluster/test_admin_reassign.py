"""Replicas are moved, added and removed under load, by kafka-python's admin client; nothing is lost.

librdkafka has no such requests, so confluent-kafka produces and reads. Four nodes, of which the
last is killed for what needs one that is gone.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import urllib.request
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import TopicPartition
from kafka import errors as kafka_errors
from kafka.admin import KafkaAdminClient

from penstock.cli.main import run
from penstock.cli.replicas import under_replicated
from penstock.local.cluster import LocalCluster
from penstock.local.plan import GATEWAY, Member
from support.clients import forget_leaks
from support.cluster import running_cluster, start_ready, wait_until_ready
from support.kafka import (
    CALL_TIMEOUT_S,
    Load,
    check_nothing_lost,
    client_config,
    describe,
    node_address,
    produce,
    read_all,
    wait_for_full_isr,
)
from support.waiting import wait_for

GONE = 4
UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_REPLICA_ASSIGNMENT = 39
ELECTION_NOT_NEEDED = 84
NO_REASSIGNMENT_IN_PROGRESS = 85
TIMEOUT_S = 180.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    # Tests name leaders, and kill those that are to lose what they lead.
    with running_cluster(
        tmp_path_factory.mktemp("moves"), nodes=4, racks=("a", "b", "c", "d"), steady=True
    ) as cluster:
        yield cluster


@pytest.fixture(params=["proxy", "direct"])
def bootstrap(cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    return cluster.bootstrap if request.param == "proxy" else node_address(cluster.direct_bootstrap)


@pytest.fixture
def admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    yield client
    client.close()
    forget_leaks()


def create(bootstrap: str, topic: str, assignment: list[list[int]]) -> None:
    admin = AdminClient(client_config(bootstrap))
    new = NewTopic(topic, num_partitions=len(assignment), replica_assignment=assignment)
    admin.create_topics([new], operation_timeout=CALL_TIMEOUT_S)[topic].result(CALL_TIMEOUT_S)


def replicas(bootstrap: str, topic: str) -> dict[int, list[int]]:
    return {number: list(p.replicas) for number, p in sorted(describe(bootstrap, topic).items())}


def move(admin: KafkaAdminClient, bootstrap: str, topic: str, wanted: dict[int, list[int]]) -> None:
    """Reassign and wait until it is done."""
    results = admin.alter_partition_reassignments(
        {TopicPartition(topic, number): nodes for number, nodes in wanted.items()}
    )
    assert set(results.values()) == {None}, results

    def done() -> bool:
        state = describe(bootstrap, topic)
        return all(
            sorted(state[n].replicas) == sorted(nodes) == sorted(state[n].isrs) for n, nodes in wanted.items()
        )

    wait_for(done, f"replicas {wanted}", TIMEOUT_S)
    # By another node, maybe, than the one that was asked for the replicas.
    wait_for(lambda: admin.list_partition_reassignments({topic: list(wanted)}) == {}, "done", TIMEOUT_S)


def test_moves_under_load_lose_nothing(bootstrap: str, admin: KafkaAdminClient) -> None:
    topic = f"moved-{uuid4()}"
    create(bootstrap, topic, [[1], [2]])
    with Load(bootstrap, topic, rate_per_s=1_000) as load:
        load.wait_for_acks(500)
        # More replicas; then other ones only, the leader's own among the removed; then fewer.
        for wanted in (
            {0: [1, 2, 3], 1: [2, 3, 1]},
            {0: [3, 2], 1: [3, 1, 2]},
            {0: [1], 1: [2, 1]},
        ):
            move(admin, bootstrap, topic, wanted)
            load.wait_for_acks(500)
    check_nothing_lost(load.ledger, read_all(bootstrap, topic))
    assert replicas(bootstrap, topic) == {0: [1], 1: [2, 1]}


def operations(cluster: LocalCluster) -> list[dict[str, Any]]:
    """What `penstock operation list` shows, newest first."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert run(["operation", "list", "--all", "--json", "--gateway", cluster.gateway]) == 0
    found: list[dict[str, Any]] = json.loads(out.getvalue())
    return found


def test_what_is_reassigned_is_an_operation(
    cluster: LocalCluster, bootstrap: str, admin: KafkaAdminClient
) -> None:
    topic = f"recorded-{uuid4()}"
    create(bootstrap, topic, [[1, 2], [2, 3], [3, 1]])
    before = {each["operation_id"] for each in operations(cluster)}
    # The order alone is changed at once, and is no operation.
    move(admin, bootstrap, topic, {2: [1, 3]})
    assert {each["operation_id"] for each in operations(cluster)} == before
    move(admin, bootstrap, topic, {0: [1, 3], 1: [2, 1]})

    def ended() -> Any:
        (found,) = [each for each in operations(cluster) if each["operation_id"] not in before]
        return found if found["state"] not in ("running", "pending") else None

    made = wait_for(ended, "the operation ends", TIMEOUT_S)
    assert (made["kind"], made["state"], made["reason"]) == ("reassignment", "done", None)
    assert made["created_by"] == "User:ANONYMOUS"
    assert 0 < made["created_ms"] <= made["finished_ms"]
    progress = made["progress"]
    assert (progress["moves_total"], progress["moves_done"], progress["moves_skipped"]) == (2, 2, 0)


def test_elections_by_hand(bootstrap: str, admin: KafkaAdminClient) -> None:
    topic = f"elected-{uuid4()}"
    create(bootstrap, topic, [[1, 2], [3, 1]])
    # The order alone: nobody is added or removed, and the leader stays until it is asked.
    move(admin, bootstrap, topic, {0: [2, 1]})
    response = admin.elect_leaders(0, {topic: [0, 1, 9]}, raise_errors=False)
    codes = {
        p.partition_id: p.error_code for t in response.replica_election_results for p in t.partition_result
    }
    assert codes.pop(0) in (0, ELECTION_NOT_NEEDED)  # the controllers may have come first
    assert codes == {1: ELECTION_NOT_NEEDED, 9: UNKNOWN_TOPIC_OR_PARTITION}
    wait_for(lambda: describe(bootstrap, topic)[0].leader == 2, "the preferred leader leads", TIMEOUT_S)


def test_refused_moves(bootstrap: str, admin: KafkaAdminClient) -> None:
    topic = f"refused-{uuid4()}"
    create(bootstrap, topic, [[1, 2]])
    place, missing = TopicPartition(topic, 0), TopicPartition(f"{topic}-not", 0)
    for where, nodes, code in (
        (place, [1, 77], INVALID_REPLICA_ASSIGNMENT),
        (place, [1, 1], INVALID_REPLICA_ASSIGNMENT),
        (place, None, NO_REASSIGNMENT_IN_PROGRESS),
        (missing, [1], UNKNOWN_TOPIC_OR_PARTITION),
    ):
        (error,) = admin.alter_partition_reassignments({where: nodes}).values()
        assert error is kafka_errors.for_code(code)


def test_the_quorum_is_described(bootstrap: str, admin: KafkaAdminClient) -> None:
    def described() -> Any:
        found = admin.describe_metadata_quorum()
        (partition,) = found["topics"][0]["partitions"]
        voters = {v["replica_id"]: v["log_end_offset"] for v in partition["current_voters"]}
        assert sorted(voters) == [1, 2, 3]
        # Not while an election is on, or before a follower told the new leader how far it is.
        known = partition["leader_id"] in voters and all(end > 0 for end in voters.values())
        return found if known else None

    found = wait_for(described, "a leader and everyone's log end", TIMEOUT_S)
    assert sorted(n["node_id"] for n in found["nodes"]) == [1, 2, 3]


def test_log_directories_and_producers(
    cluster: LocalCluster, bootstrap: str, admin: KafkaAdminClient
) -> None:
    topic = f"sized-{uuid4()}"
    create(bootstrap, topic, [[1, 2], [3, 1]])
    produce(bootstrap, topic, 200)
    wait_for_full_isr(bootstrap, topic)
    found = admin.describe_producers([TopicPartition(topic, 0), TopicPartition(topic, 1)])
    assert "producer_id" in str(found)
    if bootstrap == cluster.bootstrap:
        # Nobody can tell which node is meant; tools that only look go on all the same.
        assert all(
            "behind a gateway" in directory["log_dir"] and not directory["topics"]
            for entry in admin.describe_log_dirs()
            for directory in entry["log_dirs"]
        )
        return
    sizes = {
        (entry["broker"], t["name"], p["partition_index"]): p["partition_size"]
        for entry in admin.describe_log_dirs()
        for d in entry["log_dirs"]
        for t in d["topics"]
        for p in t["partitions"]
        if t["name"] == topic
    }
    assert sorted(sizes) == [(1, topic, 0), (1, topic, 1), (2, topic, 0), (3, topic, 1)]
    # A client may send all of a short run to one partition.
    assert sizes[1, topic, 0] == sizes[2, topic, 0]
    assert sizes[1, topic, 1] == sizes[3, topic, 1]
    assert sum(sizes.values()) > 0


def test_a_move_goes_on_when_nodes_are_killed(cluster: LocalCluster) -> None:
    bootstrap, topic = cluster.bootstrap, "moved-and-killed"
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        create(bootstrap, topic, [[1, 2, 3], [2, 3, 1]])
        with Load(bootstrap, topic, rate_per_s=1_000, value_bytes=1_000) as load:
            load.wait_for_acks(1_000)
            # The leader of one goes away, and a new replica of both dies before it has everything.
            wanted = {TopicPartition(topic, 0): [GONE, 2, 3], TopicPartition(topic, 1): [GONE, 3, 1]}
            assert set(admin.alter_partition_reassignments(wanted).values()) == {None}
            cluster.kill("node-1")
            cluster.kill(f"node-{GONE}")
            load.wait_for_acks(500)
            cluster.start("node-1", f"node-{GONE}")
            wait_for(lambda: admin.list_partition_reassignments() == {}, "the moves are done", TIMEOUT_S)
            load.wait_for_acks(500)
        check_nothing_lost(load.ledger, read_all(bootstrap, topic))
        assert replicas(bootstrap, topic) == {0: [GONE, 2, 3], 1: [GONE, 3, 1]}
        # What follows counts on every node.
        wait_until_ready(cluster)
    finally:
        admin.close()
        forget_leaks()


@pytest.mark.parametrize("way", ["proxy", "direct"])
def test_consumers_read_from_the_replica_of_their_rack(cluster: LocalCluster, way: str) -> None:
    bootstrap = cluster.bootstrap if way == "proxy" else cluster.direct_bootstrap
    topic = f"near-{way}"
    create(bootstrap, topic, [[1, 2, 3]])
    ledger = produce(bootstrap, topic, 2_000, value_bytes=500)
    wait_for_full_isr(bootstrap, topic)
    wait_for(lambda: describe(bootstrap, topic)[0].leader == 1, "the preferred leader leads", TIMEOUT_S)
    assert [metric(cluster, node, "acked_unflushed_bytes") for node in (1, 2, 3)] == [0, 0, 0]
    before = {node: metric(cluster, node, "fetched_bytes_total") for node in (1, 2)}
    rack: dict[str, Any] = {"client.rack": "b"}
    records = read_all(bootstrap, topic, **rack)
    check_nothing_lost(ledger, records)
    read = {node: metric(cluster, node, "fetched_bytes_total") - before[node] for node in (1, 2)}
    near, far = (2, 1) if way == "direct" else (1, 2)
    # Behind a gateway there is one way in, and the leader answers.
    assert read[near] > 1_000_000 > read[far]


def metric(cluster: LocalCluster, node: int, name: str) -> float:
    port = cluster.state.member(f"node-{node}").ports["http"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
        found = re.search(rf"^penstock_node_{name} (\S+)$", response.read().decode(), re.MULTILINE)
    assert found is not None
    return float(found[1])


def test_replicas_leave_a_dead_node_which_comes_back(cluster: LocalCluster) -> None:
    bootstrap, topic = cluster.bootstrap, "left-a-dead-node"
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        create(bootstrap, topic, [[GONE, 1]])
        ledger = produce(bootstrap, topic, 500)
        wait_for_full_isr(bootstrap, topic)
        cluster.kill(f"node-{GONE}")
        move(admin, bootstrap, topic, {0: [3, 1]})
        produce(bootstrap, topic, 500, first=500, ledger=ledger)
        start_ready(cluster, f"node-{GONE}")
        # It has a copy that nobody counts on any more.
        produce(bootstrap, topic, 500, first=1_000, ledger=ledger)
        wait_for_full_isr(bootstrap, topic)
        assert replicas(bootstrap, topic) == {0: [3, 1]}
        check_nothing_lost(ledger, read_all(bootstrap, topic))
    finally:
        admin.close()
        forget_leaks()


def lacking(cluster: LocalCluster, topic: str) -> tuple[int, int, int]:
    """Partitions with too few replicas: of the topic by the command's count and by REST; and by how many node 1 tells
    of others than those that it leads and that lack one for another reason."""
    found = AdminClient(client_config(cluster.bootstrap)).list_topics(timeout=CALL_TIMEOUT_S).topics
    listed = under_replicated(cluster.bootstrap, {topic: found[topic]})[topic]
    others = [p for name, t in found.items() if name != topic for p in t.partitions.values()]
    really = sum(p.leader == 1 and len(p.isrs) < len(p.replicas) for p in others)

    def get(member: Member, path: str) -> bytes:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{member.ports['http']}/{path}", timeout=60
        ) as response:
            body: bytes = response.read()
        return body

    told = json.loads(get(cluster.state.of_role(GATEWAY)[0], f"v1/topics/{topic}"))
    text = get(cluster.state.member("node-1"), "metrics").decode()
    metric = re.search(r"^penstock_node_under_replicated_partitions (\S+)$", text, re.MULTILINE)
    assert metric is not None
    return listed, told["under_replicated_partition_count"], int(float(metric[1])) - really


def test_a_move_to_a_dead_node_is_cancelled(cluster: LocalCluster) -> None:
    bootstrap, topic = cluster.bootstrap, "to-nowhere"
    cluster.kill(f"node-{GONE}")
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        create(bootstrap, topic, [[1, 2]])
        place = TopicPartition(topic, 0)
        assert admin.alter_partition_reassignments({place: [1, GONE, 3]}) == {place: None}
        ongoing = admin.list_partition_reassignments()
        assert ongoing[place] == {
            "replicas": [1, GONE, 3, 2],
            "adding_replicas": [GONE, 3],
            "removing_replicas": [2],
        }
        # It does not hold up anybody who writes.
        ledger = produce(bootstrap, topic, 500)
        wait_for(lambda: lacking(cluster, topic) == (0, 0, 0), "a move is no lack (KIP-352)", TIMEOUT_S)
        # Another target takes the place of the first, and what nobody wants any more is dropped.
        assert admin.alter_partition_reassignments({place: [1, GONE]}) == {place: None}
        assert GONE in admin.list_partition_reassignments()[place]["adding_replicas"]
        assert admin.alter_partition_reassignments({place: None}) == {place: None}
        assert admin.list_partition_reassignments() == {}
        assert sorted(replicas(bootstrap, topic)[0]) == [1, 2]
        check_nothing_lost(ledger, read_all(bootstrap, topic))
    finally:
        admin.close()
        cluster.start(f"node-{GONE}")
        forget_leaks()
