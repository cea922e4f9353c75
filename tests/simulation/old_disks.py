"""A storage node whose disk is replaced in its place, and the old disk, which is found and mounted again: in a part of
the seeds with an operator.

The disk is lost, the node comes back with an empty one, and somebody runs `node replace` for it, before or after. Once
everything is in sync with the new disk, the old one takes its place while the node is down. Where the operation is done
it has to be refused; where it was cancelled, or is not done, it is let in, and counts from then on. In the first case
the good disk comes back after a while.

Each exchange is one disk lost: none before what was there is elsewhere, as `log_life` has it, and no factor is lowered.

Draws from a generator of its own, and only where it is wanted: seeds without it stay what they were.
"""

from __future__ import annotations

import random
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from penstock_controller.state import directories
from penstock_core.ids import NodeId
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_proto.v1 import operations_pb2 as api
from simulation.hosts import Host
from simulation.settings import RUN_US

if TYPE_CHECKING:
    from simulation.operations import Operator
    from support.simulated_fs import SimulatedFileSystem

S: Final = 1_000_000
LOOK_US: Final = S // 2


class Phase(Enum):
    """How far it is."""

    NONE = 0
    REFILLED = 1
    """The node has an empty disk, and fetches what it had."""
    WHOLE = 2
    """It has everything; the old disk is yet to come back."""
    OLD = 3
    """The node has the old disk."""
    GOOD_AGAIN = 4
    """It has the good disk again, or the old one was let in: it has to have everything once more."""


class OldDisks:
    """See the module. One disk at a time."""

    def __init__(self, operator: Operator, dice: random.Random) -> None:
        self._operator = operator
        self._world = operator.world
        self._dice = dice
        self._phase = Phase.NONE
        self._host: Host
        self._old: SimulatedFileSystem
        self._good: SimulatedFileSystem
        self._old_id = self._good_id = b""
        self._since_version = 0
        self._until_us = 0

    def start(self) -> None:
        """The first disk is lost once there is something on it."""
        self._later(self._dice.uniform(6, 20) * S, self._lose)

    def why_not_done(self) -> str:
        """What is left of it, "" when nothing is."""
        return "" if self._phase is Phase.NONE else f"{self._host.name} is {self._phase.name} of its disks"

    def _later(self, delay_us: float, call: Any) -> None:
        self._world.scheduler.after(int(delay_us) + 1, call)

    @property
    def _is_late(self) -> bool:
        return self._world.scheduler.now_us >= RUN_US - S

    # --- the disk is lost

    def _lose(self) -> None:
        if self._is_late:
            return
        hosts = [h for h in self._world.hosts if h.kind == "n" and self._may_lose_disk(h)]
        if not hosts:
            self._later(LOOK_US, self._lose)
            return
        self._host = self._dice.choice(hosts)
        self._old_id = self._directory()
        self._since_version = self._operator.newest().version
        self._world.injected["node disk replaced in its place"] += 1
        self._old = self._exchange(None)
        self._phase = Phase.REFILLED
        self._later(LOOK_US, self._look)

    def _may_lose_disk(self, host: Host) -> bool:
        """Whether another disk has what it has, and nothing else is the matter with disks."""
        world = self._world
        node = self._operator.newest().nodes.get(NodeId(host.number))
        return (
            node is not None
            and host.is_powered
            and not host.disk_fault
            and "disk loss" not in world.log_life.features
            # A topic of min.insync.replicas=1 may have a last member that has lost its disk already.
            and "lone" not in world.workload.topics
            and not world.rot.why_not_mended()
            and world.log_life.has_copies(host)
        )

    def _exchange(self, fs: SimulatedFileSystem | None) -> SimulatedFileSystem:
        """Another disk in the place of the one that is there, which is returned. None: an empty one."""
        host, world = self._host, self._world
        host.cut_power()
        kept = host.fs
        if fs is None:
            host.replace_disk()
        else:
            host.insert_disk(fs)
        world.checker.logs.on_wiped(host.name)
        host.start_later(int(self._dice.random() ** 2 * 3 * S))
        return kept

    # --- what becomes of it

    def _directory(self) -> bytes:
        node = self._operator.newest().nodes.get(NodeId(self._host.number))
        return b"" if node is None else node.directory_id

    def _look(self) -> None:
        directory_id = self._directory()
        if not directory_id:
            # The node was removed meanwhile: it gets an empty directory from whoever looks after such.
            self._phase = Phase.NONE
        if self._phase is Phase.REFILLED:
            if directory_id != self._old_id and self._is_whole():
                self._good_id, self._phase = directory_id, Phase.WHOLE
                self._until_us = self._world.scheduler.now_us + int(self._dice.uniform(0, 6) * S)
            self._ask()
        elif self._phase is Phase.WHOLE:
            self._bring_back()
        elif self._phase is Phase.OLD:
            self._look_at_old(directory_id)
        elif self._phase is Phase.GOOD_AGAIN and self._is_whole():
            self._phase = Phase.NONE
        self._later(
            *((LOOK_US, self._look) if self.why_not_done() else (self._dice.uniform(1, 15) * S, self._lose))
        )

    def _is_whole(self) -> bool:
        states = [s for t in self._operator.newest().topics.values() for s in t.partitions.values()]
        return all(self._host.number in s.isr for s in states if self._host.number in s.replicas)

    def _ask(self) -> None:
        """Somebody runs the command, until it is heard."""
        operations = self._operator.newest().operations.operations.values()
        if self._is_late or self._dice.random() > 0.3 or any(self._is_ours(record) for record in operations):
            return
        request = api.PlanRequest(kind="node-replace", throttle=pb.OperationThrottle(auto=True))
        request.parameters.node_ids.append(self._host.number)
        request.allowed_gates.append("health")
        self._operator.start_one(request)

    def _is_ours(self, record: pb.OperationRecord) -> bool:
        return (
            record.kind == "node-replace"
            and not record.parameters.replacement_node_id
            and list(record.parameters.node_ids) == [self._host.number]
            and record.operation_id > self._since_version
        )

    def _bring_back(self) -> None:
        if self._is_late:
            self._phase = Phase.GOOD_AGAIN
        elif self._world.scheduler.now_us >= self._until_us and self._may_lose_disk(self._host):
            self._world.injected["replaced disk that came back"] += 1
            self._good = self._exchange(self._old)
            self._phase = Phase.OLD
            self._until_us = self._world.scheduler.now_us + int(self._dice.uniform(2, 8) * S)

    def _look_at_old(self, directory_id: bytes) -> None:
        if directory_id == self._old_id:
            self._world.counts["replaced disks let in"] += 1
            self._phase = Phase.GOOD_AGAIN
        elif self._world.scheduler.now_us >= self._until_us:
            if directories.retired(self._operator.newest(), self._old_id) is not None:
                self._world.counts["replaced disks refused"] += 1
            self._exchange(self._good)
            self._phase = Phase.GOOD_AGAIN
