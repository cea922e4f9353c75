"""The laptop deployment keeps its promises: one address, no loss, scaling with no edit, nothing for strangers."""

from __future__ import annotations

import json
import os
import random
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from compose.conftest import BUILT
from support.kafka import (
    CALL_TIMEOUT_S,
    Load,
    check_nothing_lost,
    client_config,
    create_topic,
    produce,
    read_all,
)

pytestmark = [pytest.mark.compose, pytest.mark.alone, pytest.mark.timeout(2400)]

PARTITION_COUNT = 6
LONG = os.environ.get("PENSTOCK_COMPOSE_LONG") == "1"
ROLES = ("controller-1", "controller-2", "controller-3", "storage-node", "gateway")
CA = "/secrets/ca"
IN_USE = b"new certificate in use"
HTTP2_FRAME, HTTP2_DATA, HTTP2_HEADERS = 9, 0, 1
STRANGER = Path(__file__).with_name("stranger.py")
EVERY_PORT = (
    *("penstock:9092", "penstock:9094", "penstock:8080"),
    *("gateway:9092", "gateway:9094", "gateway:8080"),
    *("controller-1:7000", "controller-1:7001", "storage-node:7002"),
)
CONTAINER_CLIENT = """
    import asyncio, ssl, sys
    from pathlib import Path
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
    from penstock_core.process.credentials import load_client_file

    async def main(topic, count):
        file = load_client_file(Path("/run/penstock/admin-container.properties"))
        door = {
            "bootstrap_servers": file.bootstrap,
            "security_protocol": file.security_protocol,
            "ssl_context": ssl.create_default_context(cafile=file.ca_file),
            "sasl_mechanism": file.mechanism,
            "sasl_plain_username": file.username,
            "sasl_plain_password": file.password,
        }
        producer = AIOKafkaProducer(acks="all", enable_idempotence=True, **door)
        await producer.start()
        for n in range(count):
            await producer.send(topic, f"container-{n}".encode(), partition=n % 6)
        await producer.stop()
        consumer = AIOKafkaConsumer(**door)
        await consumer.start()
        partitions = [TopicPartition(topic, p) for p in range(6)]
        ends = await consumer.end_offsets(partitions)
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        seen = 0
        while seen < sum(ends.values()):
            batches = await consumer.getmany(timeout_ms=1000)
            seen += sum(len(b) for b in batches.values())
        await consumer.stop()
        print(seen)

    asyncio.run(asyncio.wait_for(main(sys.argv[1], int(sys.argv[2])), 240))
"""

MONITOR = """
    import json, ssl, sys, urllib.error, urllib.request

    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    found = {}
    for path in ("/metrics", "/readyz", "/v1/cluster"):
        request = urllib.request.Request(sys.argv[1] + path, headers={"Host": "10.0.0.1"})
        try:
            with urllib.request.urlopen(request, timeout=20, context=context) as response:
                found[path] = response.status
        except urllib.error.HTTPError as error:
            found[path] = error.code
    print(json.dumps(found))
"""


def run_in_container(stack: Any, *arguments: str, volumes: Sequence[str] = ()) -> str:
    """Python in a new container on the stack's network; what it prints. As root: the files belong to this user."""
    mounts = [part for volume in volumes for part in ("--volume", volume)]
    image = stack.containers("gateway")[0].image.id
    done = subprocess.run(
        ["docker", "run", "--rm", "--network", f"{stack.project}_penstock", "--user", "0:0", *mounts,
         "--entrypoint", "python3", image, *arguments],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_host_and_container_use_the_one_address(stack: Any) -> None:
    create_topic(stack.bootstrap, "one-address", PARTITION_COUNT, 3)
    with Load(stack.bootstrap, "one-address") as load:
        load.wait_for_acks(1000)
    program = textwrap.dedent(CONTAINER_CLIENT)
    volume = f"{stack.secrets}:/run/penstock:ro"
    seen = run_in_container(stack, "-c", program, "one-address", "600", volumes=[volume])
    assert int(seen) == len(load.ledger.acked) + 600
    records = read_all(stack.bootstrap, "one-address")
    assert len(records) == len({record.value for record in records}) == len(load.ledger.acked) + 600
    check_nothing_lost(load.ledger, [r for r in records if not r.value.startswith(b"container-")])
    topics = json.loads(stack.compose("run", "--rm", "-T", "cli", "topic", "list", "--json"))
    assert "one-address" in str(topics), "the command line of the stack comes in by itself"


def test_secrets_are_where_they_belong(stack: Any) -> None:
    names = {path.name for path in stack.secrets.iterdir()}
    files = {"admin.properties", "admin-java.properties", "admin-container.properties"}
    assert names == {*files, "ca.pem", "admin"}
    for path in (stack.secrets, *stack.secrets.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    password = stack.client_file.password
    roles = [each for name in (*BUILT, "edge") for each in stack.containers(name)]
    assert len(roles) >= 10
    for container in roles:
        told = container.attrs
        assert password not in json.dumps(told), container.name
        having = {mount.get("Name", "") for mount in told["Mounts"]}
        is_maker = told["Config"]["Labels"]["com.docker.compose.service"] == "secrets"
        assert (f"{stack.project}_ca" in having) == is_maker, container.name
        assert password.encode() not in container.logs(), container.name


def test_a_stranger_on_the_network_gets_nothing(stack: Any) -> None:
    volume = f"{STRANGER}:/stranger.py:ro"
    found = json.loads(run_in_container(stack, "/stranger.py", *EVERY_PORT, volumes=[volume]))
    assert len(found) >= 200
    faults = [
        f"{address}: {how}: {bytes.fromhex(back)[:80]!r}"
        for address, how, back, _ in found
        if not is_nothing(bytes.fromhex(back))
    ]
    assert not faults, faults
    unreached = {address for address, *_, error in found if error == "ConnectionRefusedError"}
    assert not unreached, "they have to be there for this to say anything"
    assert any(bytes.fromhex(back).startswith(b"HTTP/1.1 401") for *_, back, _ in found), "it was understood"


def is_nothing(back: bytes) -> bool:
    """Whether it has no data: silence, a refusal of the HTTP port, or frames that begin every HTTP/2 connection."""
    if back.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 401 ")):
        return b"controller" not in back and b"storage" not in back
    while len(back) >= HTTP2_FRAME:
        if back[3] in (HTTP2_DATA, HTTP2_HEADERS):
            return False
        back = back[HTTP2_FRAME + int.from_bytes(back[:3], "big") :]
    return not back


def test_killed_storage_container_loses_nothing(stack: Any) -> None:
    create_topic(stack.bootstrap, "killed", PARTITION_COUNT, 3)
    with Load(stack.bootstrap, "killed") as load:
        load.wait_for_acks(2000)
        victim = stack.containers("storage-node")[0]
        victim.kill()
        load.wait_for_acks(2000)
        stack.wait("the node counts as gone", lambda: stack.live_node_count() == 2)
        victim.start()
        stack.wait("the node is back", lambda: stack.live_node_count() == 3)
        load.wait_for_acks(1000)
    check_nothing_lost(load.ledger, read_all(stack.bootstrap, "killed"))

    def whole() -> bool:
        partitions = stack.get_json("/v1/topics/killed")["partitions"]
        return all(len(p["isr"]) == 3 for p in partitions)

    stack.wait("every replica in sync again", whole)


def penstock(stack: Any, *words: str, code: int = 0) -> Any:
    """What a command on this machine prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", *words, "--json",
         "--gateway", f"localhost:{stack.environment['PENSTOCK_GRPC_PORT']}",
         "--client-config", str(stack.secrets / "admin.properties")],
        env=stack.environment, capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == code, (words, done.returncode, done.stdout[-3000:], done.stderr[-3000:])
    return json.loads(done.stdout)


def by_compose(stack: Any) -> list[str]:
    """Options of a command that starts and stops containers, with what the stack was started with."""
    files = [word for word in stack.command if word.endswith(".yaml")]
    return [
        *("--via", "compose", "--project", stack.project),
        *(word for file in files for word in ("--compose-file", file)),
    ]


def scale(stack: Any, target: str) -> Any:
    return penstock(stack, "scale", target, *by_compose(stack), "--yes", "--wait", "300")


class Calls:
    """API calls in a thread, by a client that keeps its connections. Use as a context manager."""

    def __init__(self, bootstrap: str) -> None:
        self.made = 0
        self.failed: list[str] = []
        self._admin = AdminClient(client_config(bootstrap))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="calls", daemon=True)

    def __enter__(self) -> Calls:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            self.made += 1
            try:
                self._admin.list_topics(timeout=CALL_TIMEOUT_S)
                self._admin.list_consumer_groups(request_timeout=CALL_TIMEOUT_S).result(CALL_TIMEOUT_S)
            except Exception as error:  # told by who looks at it
                self.failed.append(str(error))


def test_the_command_scales_up_and_down_and_no_call_fails(stack: Any) -> None:
    create_topic(stack.bootstrap, "by-command", PARTITION_COUNT, 3)

    def used() -> set[int]:
        partitions = stack.get_json("/v1/topics/by-command")["partitions"]
        return {node for partition in partitions for node in partition["replicas"]}

    with Load(stack.bootstrap, "by-command") as load, Calls(stack.bootstrap) as calls:
        load.wait_for_acks(500)
        told = scale(stack, "storage-node=5")
        assert (told["from"], told["to"], len(told["started"])) == (3, 5, 2)
        assert [(each["kind"], each["state"]) for each in told["operations"]] == [("node-add", "done")]
        assert len(used()) == 5, "they have got their share"
        plan = penstock(stack, "cluster", "rebalance", "--dry-run")
        held = {node["node_id"]: node["replicas"]["before"] for node in plan["nodes"]}
        assert len(held) == 5
        assert max(held.values()) - min(held.values()) <= 1, held
        load.wait_for_acks(500)
        told = scale(stack, "storage-node=3")
        assert [(each["kind"], each["state"]) for each in told["operations"]] == [("node-remove", "done")]
        assert len(told["removed_nodes"]) == len(told["stopped"]) == 2
        load.wait_for_acks(500)
        assert stack.live_node_count() == 3
        assert used().isdisjoint(told["removed_nodes"])
        told = scale(stack, "gateway=3")
        assert (told["from"], len(told["started"])) == (2, 1)
        told = scale(stack, "gateway=2")
        assert len(told["stopped"]) == 1
        load.wait_for_acks(500)
    assert len(stack.containers("storage-node")) == 3
    assert len(stack.containers("gateway")) == 2
    assert calls.made > 0
    assert not calls.failed, calls.failed[:3]
    assert not load.ledger.errors, load.ledger.errors[:3]
    check_nothing_lost(load.ledger, read_all(stack.bootstrap, "by-command"))


@pytest.mark.skipif(not LONG, reason="of the long form: make ops-test")
def test_every_container_is_made_anew_and_no_call_fails(stack: Any) -> None:
    create_topic(stack.bootstrap, "anew", PARTITION_COUNT, 3)

    def ids() -> set[str]:
        return {each.id for name in ROLES for each in stack.containers(name)}

    before = ids()
    with Load(stack.bootstrap, "anew", rate_per_s=300) as load, Calls(stack.bootstrap) as calls:
        load.wait_for_acks(100)
        done = penstock(
            stack, "cluster", "rolling-restart", *by_compose(stack), "--recreate", "--yes", "--wait", "900"
        )
        load.wait_for_acks(100)
    assert done["state"] == "done", done
    assert {step["state"] for step in done["steps"]} == {"done"}, done["steps"]
    assert len(done["steps"]) == len(before) == len(ids())
    assert before.isdisjoint(ids())
    assert calls.made > 0
    assert not calls.failed, calls.failed[:3]
    assert not load.ledger.errors, load.ledger.errors[:3]
    check_nothing_lost(load.ledger, read_all(stack.bootstrap, "anew"))


def test_monitoring_reaches_every_role_and_finds_health_and_metrics_alone(stack: Any) -> None:
    program = textwrap.dedent(MONITOR)
    for host in ("controller-1", "controller-2", "controller-3", "storage-node"):
        found = json.loads(run_in_container(stack, "-c", program, f"http://{host}:8080"))
        assert found == {"/metrics": 200, "/readyz": 200, "/v1/cluster": 404}, host
    found = json.loads(run_in_container(stack, "-c", program, "https://gateway:8080"))
    assert found == {"/metrics": 200, "/readyz": 200, "/v1/cluster": 401}
    for service in ("controller-1", "storage-node", "gateway", "edge"):
        for container in stack.containers(service):

            def is_healthy(container: Any = container) -> bool:
                container.reload()
                return bool(container.attrs["State"]["Health"]["Status"] == "healthy")

            stack.wait(f"{container.name} is healthy", is_healthy)


def test_scaling_needs_no_edit(stack: Any) -> None:
    create_topic(stack.bootstrap, "scaled", PARTITION_COUNT, 3)
    with Load(stack.bootstrap, "scaled") as load:
        load.wait_for_acks(500)
        stack.compose("up", "-d", "--no-recreate", "--scale", "storage-node=5", "--scale", "gateway=3")
        stack.wait("five live nodes", lambda: stack.live_node_count() == 5)
        stack.wait("three gateways", lambda: len(stack.get_json("/v1/cluster")["gateways"]) == 3)
        load.wait_for_acks(500)
    stack.wait("five live nodes", lambda: stack.live_node_count() == 5)
    create_topic(stack.bootstrap, "wide", PARTITION_COUNT, 3)
    used: set[int] = set()

    def is_known() -> bool:
        # The gateway that is asked need not be the one that made it.
        used.update(n for p in stack.get_json("/v1/topics/wide")["partitions"] for n in p["replicas"])
        return bool(used)

    stack.wait("a gateway tells of the topic", is_known)
    assert len(used) == 5, "new topics spread over all five nodes"


@pytest.mark.skipif(not LONG, reason="of the long form: make ops-test")
def test_whichever_containers_are_stopped_the_nodes_that_stay_are_taken_over(stack: Any) -> None:
    """Two nodes of five are removed; any two containers are stopped at once: versions of compose differ in which."""
    seed = int(os.environ.get("PENSTOCK_COMPOSE_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"PENSTOCK_COMPOSE_SEED={seed}")
    dice = random.Random(seed)
    stack.compose("up", "-d", "--no-recreate", "--scale", "storage-node=5")
    stack.wait("five live nodes", lambda: stack.live_node_count() == 5)
    create_topic(stack.bootstrap, "whichever", PARTITION_COUNT, 3)
    live = sorted(
        node["node_id"] for node in stack.get_json("/v1/cluster")["nodes"] if node["state"] == "live"
    )
    removed = set(dice.sample(live, 2))
    ledger = produce(stack.bootstrap, "whichever", 500)
    told = penstock(stack, "node", "remove", ",".join(map(str, sorted(removed))), "--yes", "--wait", "300")
    assert told["state"] == "done", told
    stopped = dice.sample(stack.containers("storage-node"), 2)
    print(f"nodes {sorted(removed)} are removed, {sorted(each.name for each in stopped)} stopped")
    with ThreadPoolExecutor(len(stopped)) as aside:
        list(aside.map(lambda each: each.stop(timeout=20), stopped))
    for each in stopped:
        each.remove()

    def is_whole() -> bool:
        nodes = {node["node_id"]: node["state"] for node in stack.get_json("/v1/cluster")["nodes"]}
        partitions = stack.get_json("/v1/topics/whichever")["partitions"]
        return all(nodes.get(node) == "live" for node in set(live) - removed) and all(
            len(partition["isr"]) == 3 and removed.isdisjoint(partition["replicas"])
            for partition in partitions
        )

    stack.wait("the three that stay live in the three containers that are left", is_whole)
    produce(stack.bootstrap, "whichever", 100, first=500, ledger=ledger)
    check_nothing_lost(ledger, read_all(stack.bootstrap, "whichever"))


def test_the_ca_is_replaced_as_the_runbook_says(stack: Any) -> None:
    roles = [each for name in BUILT for each in stack.containers(name) if each.status == "running"]
    before = {each.id: each.logs().count(IN_USE) for each in roles}
    first = (stack.secrets / "ca.pem").read_text()
    tool = ["run", "--rm", "-T", "--entrypoint", "penstock", "secrets", "cert"]
    steps = (["rotate", CA, "--add"], ["renew", CA, "--all"], ["rotate", CA, "--remove"])
    for number, step in enumerate(steps, 1):
        stack.compose(*tool, *step)
        stack.compose("run", "--rm", "-T", "secrets")

        def all_have_it(number: int = number) -> bool:
            return all(each.logs().count(IN_USE) >= before[each.id] + number for each in roles)

        stack.wait(f"step {number} in use everywhere", all_have_it)
    last = (stack.secrets / "ca.pem").read_text()
    assert first.count("BEGIN") == last.count("BEGIN") == 1
    assert first != last
    create_topic(stack.bootstrap, "another-ca", PARTITION_COUNT, 3)
    ledger = produce(stack.bootstrap, "another-ca", 500)
    check_nothing_lost(ledger, read_all(stack.bootstrap, "another-ca"))


def come_back_with_fewer(stack: Any) -> None:
    """The check names the slots that nobody opens."""
    stack.compose("up", "-d")
    stack.wait("three live nodes", lambda: stack.live_node_count() == 3)

    def unclaimed() -> list[Any]:
        found = penstock(stack, "cluster", "check", code=1)["findings"]
        return [each for each in found if each["code"] == "slot-unclaimed"]

    stack.wait("the check names the slots that nobody opens", lambda: bool(unclaimed()))
    (finding,) = unclaimed()
    print(finding)
    assert "scale storage-node to 5" in finding["hint"], finding


def test_stopped_stack_comes_back_with_its_data_in_plaintext_too(stack: Any) -> None:
    """Plain text by the second file alone; without it the same data are behind the door again.

    Beside it, in the long form, what must never cost data: `--scale` down without a drain, `down`, `up` with fewer.
    """
    # Five, whatever ran before: a partition comes back with the nodes that hold it, not with others.
    five = ["up", "-d", "--scale", "storage-node=5"]
    stack.compose(*five)
    stack.wait("five live nodes", lambda: stack.live_node_count() == 5)
    create_topic(stack.bootstrap, "kept", PARTITION_COUNT, 3)
    with Load(stack.bootstrap, "kept") as load:
        load.wait_for_acks(500)
    if LONG:
        stack.compose("up", "-d", "--no-recreate", "--scale", "storage-node=3")
        assert len(stack.containers("storage-node")) == 3
    stack.compose("down", "--timeout", "20")
    stack.plaintext = True
    try:
        stack.compose(*five)
        stack.wait("five live nodes in plain text", lambda: stack.live_node_count() == 5)
        produce(stack.bootstrap, "kept", 100, first=10**6, ledger=load.ledger)
        check_nothing_lost(load.ledger, read_all(stack.bootstrap, "kept"))
        stack.compose("down", "--timeout", "20")
    finally:
        stack.plaintext = False
    if LONG:
        come_back_with_fewer(stack)
    stack.compose(*five)
    stack.wait("five live nodes again", lambda: stack.live_node_count() == 5)
    check_nothing_lost(load.ledger, read_all(stack.bootstrap, "kept"))
    with pytest.raises(KafkaException):
        AdminClient(client_config(str(stack.bootstrap))).list_topics(timeout=5)
