"""Brokers for the tests of those who use Penstock: real ones, started in about a second, gone at the end.

`broker()` and `cluster()` are context managers; `penstock.pytest_plugin` makes fixtures of
them. A broker is all roles in one child process; a cluster is a process per role, which can
be killed, stopped, slowed down and given a full disk. Neither needs Docker, a JVM or root.

Data are kept in a directory of its own under the system's temporary one and removed at the
end. Nothing survives the process that asked for it: should it be killed, a janitor process
destroys its brokers.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, PartitionMetadata

from penstock import hanging_transactions
from penstock.cli import wire
from penstock.cli.kafka import Bootstrap, cluster_metadata
from penstock.connector import PLAINTEXT, Connector
from penstock.hanging_transactions import HangingTransaction
from penstock.local import ports
from penstock.local.cluster import LocalCluster
from penstock.local.janitor import Janitor
from penstock.local.plan import SINGLE, ClusterSpec
from penstock.local.processes import last_lines
from penstock_core.process.credentials import load_client_file
from penstock_core.topics import TRANSACTIONS_TOPIC
from penstock_kafka.wire.groups import transaction_partition

FAULTS_FILE = "faults"
"""In a process's directory: what its failpoints do now (`penstock_runtime.failpoints`)."""

QUICK_SETTINGS: Mapping[str, Mapping[str, str]] = {
    "controller": {"offsets_topic_num_partitions": "4", "transaction_state_log_num_partitions": "4"},
    "storage-node": {"group_initial_rebalance_delay_ms": "0"},
}
"""What differs from a deployed cluster's defaults: tests have few groups and no time to wait for members."""

READY_TIMEOUT_S = 60.0
WAIT_TIMEOUT_S = 30.0
POLL_S = 0.02
LOG_LINES = 30

Settings = Mapping[str, Mapping[str, str]]


class Broker:
    """A running broker: its addresses, and topics."""

    def __init__(self, local: LocalCluster, ready_in_s: float) -> None:
        self.local = local
        """The cluster object behind `penstock local`."""
        self.ready_in_s = ready_in_s
        """From the call that started it until it served Kafka clients, in s."""
        self.bootstrap = local.bootstrap
        """Kafka address, `host:port`: what `bootstrap.servers` wants."""
        self.direct_bootstrap = local.direct_bootstrap
        """Kafka address of the listener whose clients talk to the storage nodes themselves."""
        self.gateway = local.gateway
        """gRPC address, which the Spark data source wants."""
        self.http = local.http
        self.client_file = local.client_file
        """The admin's client file of a secure broker (docs/security.md); None of one that lets everybody in."""
        self.client_config: dict[str, str] = {"bootstrap.servers": self.bootstrap}
        """Settings of confluent-kafka's clients that come in here, as the admin if it is a secure one."""
        if self.client_file is not None:
            self.client_config |= load_client_file(self.client_file).librdkafka()
        self._client: AdminClient | None = None
        self._hanging: list[HangingTransaction] = []

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int = -1,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic; it can be written when this returns. -1 is the broker's default."""
        topic = NewTopic(
            name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            config=dict(config or {}),
        )
        self._admin().create_topics([topic], operation_timeout=WAIT_TIMEOUT_S)[name].result(WAIT_TIMEOUT_S)
        self._until(
            lambda: all(self._leader_id(name, index) is not None for index in range(partitions)),
            f"topic {name} has no leader for every partition",
        )

    def logs(self) -> dict[str, list[str]]:
        """The last lines of each process's log, by name."""
        return {
            process.name: last_lines(self.local.log_file(process.name), LOG_LINES)
            for process in self.local.state.processes
        }

    def wait_for_isr(self, topic: str, partition: int = 0) -> None:
        """Wait until every replica of a partition is in sync."""

        def whole() -> bool:
            found = cluster_metadata(self._admin(), self.bootstrap, topic).topics[topic]
            state = found.partitions.get(partition)
            return state is not None and len(state.isrs) == len(state.replicas)

        self._until(whole, f"{topic}-{partition} has replicas that are not in sync")

    # --- transactions ----------------------------------------------------------------------------

    def hang_transaction(
        self, topic: str, partition: int = 0, value: bytes = b"never decided"
    ) -> HangingTransaction:
        """Write a record in a transaction that no coordinator knows: readers of committed records stop there until
        `end_transaction`, or an operator, aborts it. What a fault of a client or of another broker would leave."""
        made = hanging_transactions.hang(
            self._bootstrap(), topic, partition, value, within_s=WAIT_TIMEOUT_S, pause_s=POLL_S
        )
        self._hanging.append(made)
        return made

    def end_transaction(self, hanging: HangingTransaction) -> None:
        """Abort a transaction that hangs."""
        hanging_transactions.end(self._bootstrap(), hanging, within_s=WAIT_TIMEOUT_S, pause_s=POLL_S)
        self._hanging.remove(hanging)

    def transaction_coordinator(self, transactional_id: str) -> str:
        """The node that coordinates a transactional id. The first producer with any has the coordinators made: before
        that there is none, and this waits for it."""
        return f"node-{self._coordinator(transactional_id)[1].leader}"

    def move_coordinator(self, transactional_id: str) -> str:
        """Have the coordinator of a transactional id read its log anew: at another node, whose name is returned, or,
        where no other has a replica, after a restart of its own process (kill -9)."""
        partition, state = self._coordinator(transactional_id)
        if len(state.replicas) == 1:
            self._restart_leader(state.leader)
            return self.transaction_coordinator(transactional_id)
        self.wait_for_isr(TRANSACTIONS_TOPIC, partition)
        partition, state = self._coordinator(transactional_id)
        chosen = min(node for node in state.replicas if node != state.leader)
        order = [chosen, *(node for node in state.replicas if node != chosen)]
        refused = wire.alter_reassignments(self._bootstrap(), {(TRANSACTIONS_TOPIC, partition): order})
        if refused:
            raise RuntimeError(f"the coordinator does not move: {refused}")

        def moved() -> bool:
            if self._coordinator(transactional_id)[1].leader == chosen:
                return True
            place = TopicPartition(TRANSACTIONS_TOPIC, partition)
            self._admin().elect_leaders(ElectionType.PREFERRED, [place]).result(WAIT_TIMEOUT_S)
            return False

        self._until(moved, f"node-{chosen} does not lead {TRANSACTIONS_TOPIC}-{partition}")
        return f"node-{chosen}"

    def _coordinator(self, transactional_id: str) -> tuple[int, PartitionMetadata]:
        """The partition that keeps the id, and what is known of it."""
        found: list[tuple[int, PartitionMetadata]] = []

        def look() -> bool:
            topics = cluster_metadata(self._admin(), self.bootstrap).topics
            states = topics[TRANSACTIONS_TOPIC].partitions if TRANSACTIONS_TOPIC in topics else {}
            if states:
                partition = transaction_partition(transactional_id, len(states))
                found[:] = [(partition, states[partition])]
            return bool(states) and found[0][1].leader >= 0

        self._until(look, f"transactional id {transactional_id} has no coordinator")
        return found[0]

    def _restart_leader(self, node: int) -> None:
        del node  # everything is one process
        self.local.kill(SINGLE)
        self.local.start(SINGLE)

    # --- inside ----------------------------------------------------------------------------------

    def _bootstrap(self) -> Bootstrap:
        """For raw requests."""
        connector = PLAINTEXT if self.client_file is None else Connector(load_client_file(self.client_file))
        return Bootstrap(self.bootstrap, "", connector)

    def _admin(self) -> AdminClient:
        if self._client is None:
            self._client = AdminClient(dict(self.client_config))
        return self._client

    def _leader_id(self, topic: str, partition: int) -> int | None:
        found = cluster_metadata(self._admin(), self.bootstrap, topic).topics[topic]
        state = found.partitions.get(partition)
        if state is None:
            return None
        return state.leader if state.leader >= 0 else None

    def _until(self, holds: Callable[[], bool], otherwise: str) -> None:
        deadline_s = time.monotonic() + WAIT_TIMEOUT_S
        while not holds():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{otherwise} after {WAIT_TIMEOUT_S:.0f} s")
            time.sleep(POLL_S)


class Cluster(Broker):
    """A cluster of processes that can be hurt. Names are those of `penstock local`: node-1, controller-2, gateway-1."""

    def __init__(self, local: LocalCluster, ready_in_s: float, seed: int) -> None:
        super().__init__(local, ready_in_s)
        self.seed = seed
        self.random = random.Random(seed)  # noqa: S311 (nothing secret)
        """For what a test leaves to chance: the same seed chooses the same."""
        self._faults: dict[str, dict[str, str]] = {}

    @property
    def nodes(self) -> list[str]:
        """Names of the storage nodes."""
        return [f"node-{member.id}" for member in self.local.state.of_role("storage-node")]

    def leader(self, topic: str, partition: int = 0) -> str:
        """The node that leads a partition; waits until there is one."""
        found: list[int] = []

        def look() -> bool:
            leader = self._leader_id(topic, partition)
            found[:] = [] if leader is None else [leader]
            return bool(found)

        self._until(look, f"{topic}-{partition} has no leader")
        return f"node-{found[0]}"

    def followers(self, topic: str, partition: int = 0) -> list[str]:
        """The nodes that hold a replica and do not lead."""
        leader = self.leader(topic, partition)
        state = cluster_metadata(self._admin(), self.bootstrap, topic).topics[topic].partitions[partition]
        return [name for name in (f"node-{replica}" for replica in state.replicas) if name != leader]

    # --- faults ----------------------------------------------------------------------------------

    def kill(self, name: str) -> None:
        """kill -9. Returns when the process is gone."""
        self.local.kill(name)

    def kill_leader(self, topic: str, partition: int = 0) -> str:
        """kill -9 of the node that leads a partition; its name."""
        name = self.leader(topic, partition)
        self.kill(name)
        return name

    def stop(self, name: str) -> None:
        """The process hangs (SIGSTOP) until `resume`."""
        self.local.kill(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """A stopped process goes on."""
        self.local.kill(name, signal.SIGCONT)

    def start(self, *names: str) -> None:
        """Start killed processes again, with their data; returns when they are ready."""
        self.local.start(*names)

    def delay_replica(self, name: str, delay_ms: int) -> None:
        """Each write of a storage node's logs takes that much longer, in ms; 0 ends it."""
        self._arm(name, "log.append.after_write", f"pause:{delay_ms}" if delay_ms else "")

    def fill_disk(self, name: str) -> None:
        """A storage node's logs find no space on the disk, until `free_disk`."""
        self._arm(name, "log.append.before_write", "enospc")

    def free_disk(self, name: str) -> None:
        """There is space again."""
        self._arm(name, "log.append.before_write", "")

    def heal(self) -> None:
        """End all faults, start what was killed, wait until all of it is ready, abort what hangs."""
        for name in list(self._faults):
            for failpoint in list(self._faults[name]):
                self._arm(name, failpoint, "")
        self.local.start(*(process.name for process in self.local.state.processes))
        for hanging in list(self._hanging):
            self.end_transaction(hanging)

    def _restart_leader(self, node: int) -> None:
        self.kill(f"node-{node}")
        self.start(f"node-{node}")

    def _arm(self, name: str, failpoint: str, action: str) -> None:
        if name not in self.nodes:
            raise ValueError(f"{name!r} is no storage node; there are {', '.join(self.nodes)}")
        faults = self._faults.setdefault(name, {})
        if action:
            faults[failpoint] = action
        else:
            faults.pop(failpoint, None)
        file = self.local.directory / name / FAULTS_FILE
        scratch = file.with_suffix(".new")
        scratch.write_text(";".join(f"{point}={what}" for point, what in faults.items()))
        scratch.replace(file)


@contextmanager
def broker(*, settings: Settings | None = None, secure: bool = False) -> Iterator[Broker]:
    """All roles in one child process.

    `settings` by role (`controller`, `storage-node`, `gateway`), as in their settings files. `secure`: as
    `penstock local up --secure`; its `client_config` comes in as the admin.
    """
    with _running(ClusterSpec(1, 1, 1, single=True, secure=secure), settings) as (local, ready_in_s):
        yield Broker(local, ready_in_s)


@contextmanager
def cluster(
    *,
    nodes: int = 3,
    controllers: int = 1,
    gateways: int = 1,
    settings: Settings | None = None,
    seed: int | None = None,
    secure: bool = False,
) -> Iterator[Cluster]:
    """A process per role, with fault calls; `secure` as of `broker`."""
    spec = ClusterSpec(controllers, nodes, gateways, secure=secure)
    with _running(spec, settings) as (local, ready_in_s):
        chosen = random.SystemRandom().randrange(1, 2**31) if seed is None else seed
        yield Cluster(local, ready_in_s, chosen)


_janitors: dict[int, Janitor] = {}
"""By process id: a forked process has to have its own."""


def _janitor() -> Janitor:
    pid = os.getpid()
    if pid not in _janitors:
        _janitors[pid] = Janitor()
    return _janitors[pid]


def dismiss_janitor() -> None:
    """End this process's janitor; the next broker gets a new one."""
    janitor = _janitors.pop(os.getpid(), None)
    if janitor is not None:
        janitor.close()


@contextmanager
def _running(spec: ClusterSpec, settings: Settings | None) -> Iterator[tuple[LocalCluster, float]]:
    started_s = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix="penstock-"))
    janitor = _janitor()
    janitor.watch(directory)
    armed = {"PENSTOCK_FAILPOINTS": f"@{FAULTS_FILE}", "PENSTOCK_ALLOW_FAILPOINTS": "true"}
    local = LocalCluster(directory, environment=armed)
    try:
        local.up(_placed(spec, settings), timeout_s=READY_TIMEOUT_S)
        yield local, time.monotonic() - started_s
    finally:
        if local.store.exists():
            local.destroy()
        _remove_empty(directory)
        janitor.forget(directory)


def _remove_empty(directory: Path) -> None:
    """A start that failed leaves its logs, which its error names."""
    if directory.exists() and not any(directory.iterdir()):
        directory.rmdir()


def _placed(spec: ClusterSpec, settings: Settings | None) -> ClusterSpec:
    merged = {role: dict(values) for role, values in QUICK_SETTINGS.items()}
    for role, values in (settings or {}).items():
        merged.setdefault(role, {}).update(values)
    return ClusterSpec(
        spec.controllers,
        spec.nodes,
        spec.gateways,
        port=ports.choose_base(),
        single=spec.single,
        secure=spec.secure,
        settings=merged,
    )


__all__ = ["Broker", "Cluster", "HangingTransaction", "broker", "cluster", "dismiss_janitor"]
