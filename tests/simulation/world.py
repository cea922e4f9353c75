"""One run: the cluster, its clients, its faults, and the verdict."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock_controller.quorum.files import DamagedFile
from penstock_core.errors import PenstockError
from penstock_core.ids import NO_NODE, TopicId, TopicPartition
from penstock_core.metadata import MetadataImage
from penstock_core.metadata.image import PartitionImage
from penstock_runtime.addresses import StartupError
from penstock_runtime.grpc_tools import Probe
from penstock_storage_node.log import ReadJob
from penstock_storage_node.replication.sender import PieceSizes
from simulation import checked, group_checks, patches, txn_checks
from simulation.connections import DirectConnection, GatewayConnection
from simulation.consumer import Consumer
from simulation.faults import Faults
from simulation.groups import Groups
from simulation.hosts import Host
from simulation.invariants import Checker, Truth, Violation
from simulation.log_life import LogLife
from simulation.network import Network
from simulation.operations import MORE_US, Operator
from simulation.process import Process
from simulation.producer import Producer
from simulation.raft_net import SimSocket
from simulation.rights import Rights
from simulation.rot import LogRot
from simulation.rpc import SimServer
from simulation.scheduler import Scheduler
from simulation.settings import HEAL_US, RUN_US, Settings
from simulation.sim_os import Disks, SimOs, SimPath
from simulation.transactions import Transactions
from simulation.workload import Workload
from support.simulated_fs import SimulatedCrash

WALL_MS = 1_700_000_000_000


@dataclass(slots=True)
class Result:
    """What came of one seed."""

    seed: int
    ok: bool
    digest: int
    events: int
    simulated_s: float
    violation: str = ""
    invariant: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    injected: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    cpu_s: float = 0.0


class World:
    """Everything of one seed."""

    def __init__(self, seed: int, *, verbose: bool = False) -> None:
        self.seed = seed
        self.verbose = verbose
        self.scheduler = Scheduler(seed)
        self.rng: random.Random = self.scheduler.rng
        self.settings = Settings.draw(self.rng)
        self.network = Network(self.scheduler, self.settings.network)
        self.is_raft_tcp = self.settings.is_raft_tcp
        self.counts: Counter[str] = Counter()
        self.injected: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.violation: Violation | None = None
        self.current: Process | None = None
        self.processes: list[Process] = []
        self.servers: dict[str, SimServer] = {}
        self.raft_listeners: dict[str, SimSocket] = {}
        self.cluster_ids: dict[str, bytes] = {}
        self.disks = Disks()
        self.sim_os: SimOs = SimOs(self.disks)
        self.rights = Rights.draw(self, self.settings)  # before the hosts: it may want another gateway
        self.operator = Operator.draw(self, self.settings)  # before the hosts: it wants more nodes
        self.controller_ids = list(range(1, self.settings.controllers + 1))
        self.hosts: list[Host] = []
        self.producer_id_set: set[int] = set()
        self._number = 0
        self._boots = 0
        self._values = 0
        self.checker = Checker(self)
        for kind, count in (
            ("c", self.settings.controllers),
            ("n", self.settings.nodes),
            ("g", self.settings.gateways),
        ):
            self.hosts += [Host(self, kind, i) for i in range(1, count + 1)]
        self.host_of = {host.name: host for host in self.hosts}
        self.faults = Faults(self)
        self.rot = LogRot(self)
        self.workload = Workload(self)
        self.log_life = LogLife(self)
        if self.is_calm:
            self.rot.is_wanted = False
            self.log_life.features -= {"disk loss"}
        self.groups = Groups.draw(self, self.settings)
        self.transactions = Transactions.draw(self, self.settings)
        if self.transactions:
            self.checker.transactions = self.transactions.checker
        # Draws of its own: the rest of a seed stays what it was without it.
        dice = random.Random(f"pieces {seed}")
        self.pieces = PieceSizes()
        """What replication sends whole, and in what pieces the rest: batches here have some hundred bytes."""
        if self.settings.pieces or dice.random() < 0.5:
            self.pieces = PieceSizes(dice.choice((75, 120, 300)), dice.choice((16, 50, 130)))

    @property
    def is_calm(self) -> bool:
        """Nothing happens but what an operator plans."""
        return self.operator is not None and self.operator.is_calm

    # --- numbers and names ---------------------------------------------------------------

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def next_boot(self) -> int:
        self._boots += 1
        return self._boots

    def next_values(self, count: int) -> range:
        first = self._values
        self._values += count
        return range(first, self._values)

    def path(self, path: str) -> SimPath:
        return SimPath(self.sim_os, self.disks, path)

    def wall_ms(self, host: str) -> int:
        return WALL_MS + self.scheduler.now_us // 1000 + self.host_of[host].wall_offset_ms

    def say(self, who: str, line: str) -> None:
        """For people who replay a seed."""
        if self.verbose:
            print(f"{self.scheduler.now_us / 1e6:10.6f} {who:8s} {line}", file=sys.stderr)

    def say_for(self, who: str) -> Callable[[str], None] | None:
        return (lambda line: self.say(who, line)) if self.verbose else None

    # --- network -----------------------------------------------------------------------------

    def reachable(self, source: str, address: str, *, to_kernel: bool = False) -> Probe:
        """What an attempt to connect comes to. `to_kernel`: a stopped process counts as alive."""
        target = address.partition(":")[0]
        blocked = self.network.blocked
        if (source, target) in blocked or (target, source) in blocked:
            return Probe.SILENT
        host = self.host_of.get(target)
        if host is None or not host.is_powered:
            return Probe.SILENT
        server = self.servers.get(address)
        if server is None:
            return Probe.REFUSED
        if server.process.is_paused and not to_kernel:
            return Probe.SILENT
        return Probe.ALIVE

    def connect(self, client: Any, route: int) -> Any:
        """A Kafka connection for a client: to node `route`, or to some gateway."""
        if route:
            host = self.host_of[f"n{route}"]
            if not host.is_up or host.process.role is None or not hasattr(host.process.role, "_data"):
                return None
            return DirectConnection(host.process, lambda c: client.lost(route, c))
        up = [h for h in self.hosts if h.kind == "g" and h.is_up and h.process.is_serving]
        if not up:
            return None
        process = self.rng.choice(up).process
        return GatewayConnection(process, lambda c: client.lost(0, c))

    def partition_for(self, key: TopicPartition, leader_epoch: int) -> PartitionImage | None:
        """The partition as some live node's metadata have it, none of them older than `leader_epoch`:
        what a direct client asks for."""
        for host in self.hosts:
            if host.kind == "n" and host.is_running and host.process.manager is not None:
                image: MetadataImage = host.process.manager.registry.image
                state = image.partition(key.topic_id, key.partition)
                if state is not None and state.leader_epoch >= leader_epoch:
                    return state
        return None

    def live_partitions(self) -> list[TopicPartition]:
        return self.workload.live_partitions()

    def allocate_producer_id(self, done: Callable[[int | None], None]) -> None:
        """Ask a gateway for a producer id; None when that takes too long."""
        up = [h for h in self.hosts if h.kind == "g" and h.is_up and h.process.is_serving]
        answered = [False]

        def answer(producer_id: int | None) -> None:
            if not answered[0]:
                answered[0] = True
                done(producer_id)

        self.scheduler.after(3_000_000, answer, None)
        if not up:
            return
        process = self.rng.choice(up).process

        async def ask() -> None:
            try:
                producer_id = await process.producer_ids.allocate(2_500)
            except PenstockError:
                return
            self.scheduler.after(self.network.delay_us(), answer, producer_id)

        process.loop.call_soon(process.spawn, ask())

    def on_producer_id(self, producer_id: int) -> None:
        """A producer id was given out."""
        if producer_id in self.producer_id_set:
            self.checker.fail("producer ids are unique", f"{producer_id} was given out twice")
        self.producer_id_set.add(producer_id)

    # --- processes ------------------------------------------------------------------------------

    def on_process_failed(self, process: Process, error: BaseException) -> None:
        """A program ended itself. Is that allowed?"""
        host = self.host_of[process.name]
        self.say(process.name, f"failed: {error!r}")
        if isinstance(error, Violation):
            return
        if isinstance(error, SimulatedCrash):
            if host.process is process:
                if self.rng.random() < 0.5:
                    host.kill()
                else:
                    host.cut_power()
                host.start_later(int(self.rng.random() * 3_000_000))
            return
        expected = isinstance(error, StartupError | DamagedFile) or (
            isinstance(error, OSError) and bool(host.disk_fault)
        )
        if isinstance(error, DamagedFile) and not host.is_rotten:
            expected = False
        if not expected:
            if self.violation is None:
                self.violation = Violation(
                    "no unexpected failure", f"{process.name}: {type(error).__name__}: {error}"
                )
                self.violation.__cause__ = error
                self.scheduler.is_stopped = True
            return
        self.counts["processes that ended themselves"] += 1
        if host.process is process:
            host.kill()
            host.start_later(1_000_000)

    def on_ended(self, process: Process) -> None:
        """A program came to its own, clean end."""
        host = self.host_of[process.name]
        if host.process is process:
            self.counts["clean ends"] += 1
            self.scheduler.after(0, host.ended)
            host.start_later(100_000 + int(self.rng.random() * 2_000_000))

    def excuse_unflushed(self, host: Host, *, power: bool) -> None:
        """A node is gone. Partitions of durability `replicated` that some replica lost to a power
        cut, and that no other replica up in the ISR holds, lose their promise."""
        checker = self.checker
        newest = checker.images[max(checker.images)]
        for key, truth in checker.truths.items():
            state = newest.partition(key.topic_id, key.partition)
            if state is not None and host.number in state.replicas:
                truth.was_cut = truth.was_cut or power
                self.excuse_without_copy(key, state, gone=host)

    def excuse_without_copy(
        self, key: TopicPartition, state: PartitionImage, gone: Host | None = None
    ) -> None:
        """The controllers count on the ISR: once all of it lost power, or may have, a replica that they
        took out before, for being silent, is none that they can know to be whole."""
        truth = self.checker.truths.get(key)
        if truth is None or truth.is_fsync or truth.excused or not truth.was_cut:
            return
        holders = [
            h
            for h in self.hosts
            if h.kind == "n"
            and h is not gone
            and h.is_up
            and (h.number in state.isr or h.number in state.elr)
            and (partition := h.process.manager and h.process.manager.registry.partitions.get(key))
            is not None
            and partition.log.log_end_offset >= truth.end
        ]
        if not holders:
            self.checker.excuse(key)

    # --- the run -------------------------------------------------------------------------------------

    def run(self) -> Result:
        """The whole seed."""
        # Files that a crash left open are closed by the collector, whenever that comes by.
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        with patches.installed(self):
            checked.install(self.checker)
            group_checks.install(self.groups.checker if self.groups else None)
            txn_checks.install(self.checker.transactions)
            try:
                self._run()
            except Violation as violation:
                if self.violation is None:
                    self.violation = violation
            finally:
                checked.install(None)
                group_checks.install(None)
                txn_checks.install(None)
                events, digest = self.scheduler.events, self.scheduler.digest
                self._dispose()
                sys.unraisablehook = hook
        return self._result(events, digest)

    def _run(self) -> None:
        scheduler = self.scheduler

        for host in self.hosts:
            host.start_later(int(self.rng.random() * 500_000))
        self.workload.start()
        if not self.is_calm:
            self.faults.start()
        self.rot.start()
        self.log_life.start()
        if self.groups:
            self.groups.start()
        if self.transactions:
            self.transactions.start()
        if self.rights:
            self.rights.start()
        if self.operator:
            self.operator.start()
        if not scheduler.run(RUN_US):
            return
        self._heal()
        end_us = RUN_US + HEAL_US + (MORE_US if self.operator else 0)
        reason = ""
        while scheduler.now_us < end_us:
            if not scheduler.run(min(scheduler.now_us + 500_000, end_us)):
                return
            reason = self._why_not_well()
            if not reason:
                break
        self.counts["seconds to heal"] = (scheduler.now_us - RUN_US) // 1_000_000
        if reason:
            self.checker.fail("progress after healing", reason)
        self._compare_all()

    def _heal(self) -> None:
        self.say("FAULT", "none any more: everything heals")
        self.network.heal()
        self.checker.on_commit = None
        for host in self.hosts:
            if host.disk_fault:
                host.mend_disk()
            process = host.process
            if process is not None and process.is_up:
                host.fs.crash_countdown = None
                if process.is_paused:
                    process.resume()
                pool = getattr(process, "pool", None)
                if pool is not None:
                    pool.slowness = 1.0
                    pool.unhang()
                if host.kind == "n" and process.manager is not None and process.manager.health.failed:
                    host.cut_power()
            if host.process is None:
                host.start_later(int(self.rng.random() * 500_000))
        self.workload.finish()
        if self.groups:
            self.groups.finish()
        if self.transactions:
            self.transactions.finish()
        if self.rights:
            self.rights.finish()
        if self.operator:
            self.operator.finish()

    def _why_not_well(self) -> str:
        """What still lacks, "" when all is well."""
        controllers = [h.process for h in self.hosts if h.kind == "c" and h.is_up]
        active = [c for c in controllers if c.core.active]
        if len(active) != 1:
            return f"{len(active)} active controllers"
        image: MetadataImage = active[0].core.image
        for host in self.hosts:
            if not host.is_up:
                return f"{host.name} is not up"
            if host.kind == "c" and host.process.core.image.version != image.version:
                return f"{host.name} is behind in metadata"
            if host.kind == "n":
                node = image.nodes.get(host.number)  # type: ignore[call-overload]
                if node is None or not node.active:
                    return f"node {host.number} is not active"
                if (
                    host.process.manager is None
                    or host.process.manager.registry.image.version != image.version
                ):
                    return f"{host.name} is behind in metadata"
        for key in self.partitions():
            state = image.partition(key.topic_id, key.partition)
            if state is None:
                return f"{key} is gone"
            if state.leader == NO_NODE or set(state.isr) != set(state.replicas) or state.recovering:
                return f"partition {key.partition} of {key.topic_id.hex()[:6]}: {state}"
        groups = self.groups.why_not_done(image) if self.groups else ""
        return (
            self.workload.why_not_done()
            or self.rot.why_not_mended()
            or self.log_life.why_not_done()
            or groups
            or (self.transactions.why_not_done() if self.transactions else "")
            or (self.operator.why_not_done() if self.operator else "")
            or (self.rights.why_not_done() if self.rights else "")
        )

    def partitions(self) -> list[TopicPartition]:
        """All that are there: of the workload, of groups, of guests."""
        return [
            *self.live_partitions(),
            *(self.groups.partitions() if self.groups else ()),
            *(self.transactions.partitions() if self.transactions else ()),
            *(self.rights.partitions() if self.rights else ()),
        ]

    def _compare_all(self) -> None:
        """At rest: every replica holds the truth, byte for byte, by the shipped read path."""
        checker = self.checker
        for key in self.partitions():
            truth = checker.truth(key)
            for host in self.hosts:
                if host.kind != "n":
                    continue
                partition = host.process.manager.registry.partitions.get(key)
                if partition is None:
                    continue
                self.current = host.process
                log = partition.log
                if log.log_end_offset != truth.end:
                    checker.fail(
                        "replicas end alike",
                        f"{partition.name} on {host.name}: {log.log_end_offset}, {truth.end}",
                    )
                self._compare(log, truth, f"{partition.name} on {host.name}")
                checker.logs.at_rest(log)
                if checker.transactions is not None:
                    checker.transactions.at_rest(log)
        if checker.transactions is not None:
            checker.transactions.compare_outputs()

    def _compare(self, log: Any, truth: Truth, name: str) -> None:
        from penstock_kafka.records.batch import is_crc_valid, iter_batches

        offset, found = log.log_start_offset, []
        while offset < log.log_end_offset:
            data = log.read(offset, 1 << 20, log.log_end_offset)
            if isinstance(data, ReadJob):
                data = data.run()
            joined = b"".join(data.buffers)
            for info in iter_batches(joined):
                batch = joined[info.position : info.position + info.size_bytes]
                if not is_crc_valid(batch):
                    self.checker.fail(
                        "same bytes at the same offset", f"{name}: wrong CRC at {info.base_offset}"
                    )
                found.append(checked.entry_of(info))
            offset = data.next_offset
        expected: list[Any] = [e for e in truth.entries if e.last >= log.log_start_offset]
        if truth.key in self.checker.logs.keyed:
            expected = self.checker.logs.as_left(truth, expected, found)
        if found != expected:
            differs = next((p for p in zip(found, expected, strict=False) if p[0] != p[1]), "length")
            self.checker.fail("same bytes at the same offset", f"{name}: read {differs}")

    def _dispose(self) -> None:
        """Let go of everything that still waits, quietly."""
        asyncio._set_running_loop(None)
        if self.groups:
            self.groups.dispose()
        if self.transactions:
            self.transactions.dispose()
        for process in self.processes:
            process.is_up = False
        for process in self.processes:
            process.loop.dispose()

    def _result(self, events: int, digest: int) -> Result:
        checker = self.checker
        counts = dict(self.counts)
        counts |= {
            "acked batches": checker.acked_count,
            "partition elections": checker.elections,
            "leaderships": checker.leader_changes,
            "truncations": checker.truncations,
            "ISR changes": checker.isr_changes,
            "unclean elections": checker.unclean_elections,
            "metadata commands": len(checker.commands),
            "messages": self.network.sent,
            "messages lost": self.network.lost,
            "messages doubled": self.network.doubled,
            "messages overtaken": self.network.reordered,
            "excused partitions": sum(t.excused for t in checker.truths.values()),
            "records read": sum(c.records for c in self.workload.consumers),
        }
        violation = self.violation
        return Result(
            self.seed,
            violation is None,
            digest & (2**64 - 1),
            events,
            self.scheduler.now_us / 1e6,
            "" if violation is None else str(violation),
            "" if violation is None else violation.name,
            counts,
            dict(self.injected),
            dict(self.errors),
        )


def run_seed(seed: int, *, verbose: bool = False) -> tuple[Result, World]:
    """Run one seed in this process."""
    gc.disable()
    world = World(seed, verbose=verbose)
    return world.run(), world


__all__ = ["Consumer", "Producer", "Result", "TopicId", "World", "run_seed"]
