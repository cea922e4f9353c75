"""Rolling restarts and new builds, as the operator of a seed has them: see `operations`.

`Restarts` is the command that restarts processes, as `penstock cluster rolling-restart` is: it asks the controllers for
the next step, ends that process by SIGTERM and starts it, once for each step. It may be killed at any moment; then the
lease runs out, and somebody resumes the operation with another one.

`Builds` are hosts whose nodes and gateways understand less than the controllers do, until they are started with a new
build; only then may the level of the cluster rise.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

from penstock_core.limits import FEATURE_LEVEL
from penstock_core.metadata import MetadataImage
from penstock_core.metadata.operations import ENDED
from penstock_proto.v1 import controller_pb2 as controller_api
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_proto.v1 import operations_pb2 as api
from simulation.hosts import Host

if TYPE_CHECKING:
    from simulation.operations import Operator

S: Final = 1_000_000
ASK_US: Final = S // 2
PATIENCE_US: Final = 12 * S
"""How long a process that was told to end may take."""


class Restarts:
    """One run of the command."""

    def __init__(self, operator: Operator, operation_id: int) -> None:
        self.operation_id = operation_id
        self.is_over = False
        self._operator = operator
        self._world = operator.world
        self._executor_id = f"{operator.rng.getrandbits(64):016x}"
        self._begun: set[tuple[str, bytes]] = set()
        self._ask()

    def kill(self) -> None:
        """It asks no more, and says nothing."""
        self.is_over = True

    def _ask(self) -> None:
        record = self._operator.newest().operations.operations.get(self.operation_id)
        if self.is_over or (record is not None and record.state in ENDED):
            self.is_over = True
            return
        self._world.scheduler.after(ASK_US, self._ask)
        request = api.ExecuteOperationRequest(
            operation_id=self.operation_id, executor_id=self._executor_id, via="local"
        )
        self._world.workload._call("ExecuteOperation", request, self._on_answer)

    def _on_answer(self, response: Any) -> None:
        if self.is_over or response is None or not response.HasField("step"):
            return
        step = response.step
        key = step.name, step.boot_id_before
        if key in self._begun:
            return
        self._begun.add(key)
        host = self._host(step)
        # Another run of the command may have restarted it already, and may have been killed then.
        if host.is_up and host.process.boot_id != step.boot_id_before:
            return
        self._world.say("OPERATOR", f"restarts {step.name}")
        self._world.counts["processes restarted for a step"] += 1
        restart(host, self._operator.rng)

    def _host(self, step: pb.OperationStep) -> Host:
        kind = {"storage-node": "n", "controller": "c"}.get(step.role)
        name = step.name if kind is None else kind + step.name.rpartition("-")[2]
        return self._world.host_of[name]


def restart(host: Host, rng: random.Random) -> None:
    """SIGTERM, SIGKILL when that has not ended it in time, and start it once it has ended."""
    scheduler, process = host.world.scheduler, host.process
    if not host.end_gently(PATIENCE_US) and process is not None:
        # Stopped (SIGSTOP): the gentle signal waits in it, the other does not.
        scheduler.after(PATIENCE_US, lambda: host.kill() if host.process is process else None)
    give_up_us = scheduler.now_us + 2 * PATIENCE_US

    def start() -> None:
        if host.process is None or scheduler.now_us > give_up_us:
            host.start()
        else:
            scheduler.after(100_000, start)

    scheduler.after(100_000 + int(rng.random() * S), start)


class Builds:
    """Old builds on nodes and gateways, a cluster of a low level, and its way up."""

    def __init__(self, operator: Operator, level: int, begin_us: int) -> None:
        self.level = level
        """Of the cluster when it is founded, and what old builds understand."""
        self._operator = operator
        self._world = operator.world
        self._begin_us = begin_us
        self._is_asked = False

    def start(self) -> None:
        """New builds come after a while; somebody raises the level before that, and is to be refused."""
        self._world.scheduler.after(self._begin_us // 2, self._raise)
        self._world.scheduler.after(self._begin_us, self._renew)

    def why_not_done(self, image: MetadataImage) -> str:
        """What still lacks; "" once the cluster has the level of this build."""
        level = image.features.get("metadata.level", 1)
        return "" if level == FEATURE_LEVEL else f"metadata.level is {level}"

    def _old(self) -> list[Host]:
        return [host for host in self._world.hosts if host.feature_level < FEATURE_LEVEL]

    def _renew(self) -> None:
        """One host after another."""
        old, rng = self._old(), self._operator.rng
        if not old:
            self._raise_until_done()
            return
        whole = all(host.is_running for host in self._world.hosts)
        if self._operator.is_calm:
            # Nothing happens but planned steps, and these wait until all replicas are in sync.
            image = self._operator.newest()
            states = [state for topic in image.topics.values() for state in topic.partitions.values()]
            whole = whole and all(len(state.isr) == len(state.replicas) for state in states)
        if whole or (not self._operator.is_calm and rng.random() < 0.2):
            host = rng.choice(old)
            host.feature_level = FEATURE_LEVEL
            self._world.say("OPERATOR", f"{host.name} gets the new build")
            restart(host, rng)
        self._world.scheduler.after(int(rng.uniform(0.3, 2) * S), self._renew)

    def _raise_until_done(self) -> None:
        if self.why_not_done(self._operator.newest()):
            self._raise()
            self._world.scheduler.after(2 * S, self._raise_until_done)
        else:
            self._world.counts["levels raised"] += 1

    def _raise(self) -> None:
        rng = self._operator.rng

        def done(response: Any) -> None:
            if response is not None:
                said = "refused" if response.error.code else "not refused"
                self._world.counts[f"upgrades of the level {said}"] += 1

        level = FEATURE_LEVEL if rng.random() < 0.7 else min(self.level + 1, FEATURE_LEVEL)
        if rng.random() < 0.5:
            request = api.PlanRequest(kind="upgrade", parameters=pb.OperationParameters(level=level))
            started = api.StartOperationRequest(request=request, principal="User:operator")
            self._world.workload._call("StartOperation", started, done)
            return
        update = controller_api.FeatureUpdate(name="metadata.level", level=level)
        self._world.workload._call(
            "UpdateFeatures", controller_api.UpdateFeaturesRequest(updates=[update]), done
        )
