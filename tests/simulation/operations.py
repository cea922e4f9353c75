"""An operator, in a part of the seeds: starts operations, pauses, resumes, throttles and cancels them at any moment.

Everything goes through the controllers' service, as gateways pass it on, while the faults of the seed go on. What the
operator knows is the newest metadata: an answer that was lost is no loss. Nodes that were removed try to come back with
their old directory until somebody gives them an empty one. When faults are over, whatever waits for a person is resumed
or cancelled, and the rest has to end by itself; then all nodes are taken back.

A part of these seeds has racks (paths of up to three levels), small disks, or nodes and gateways of an older build in a
cluster of a lower level. Some are *calm*: nothing happens there but what the operator plans, and whoever restarts
processes for it; so what goes wrong for a client is the operations' doing.

Draws from a generator of its own: seeds without an operator stay what they were.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

from penstock_controller.state import directories
from penstock_core.ids import NodeId
from penstock_core.limits import FEATURE_LEVEL
from penstock_core.metadata import MetadataImage, PartitionImage
from penstock_core.metadata.operations import ENDED
from penstock_proto.v1 import controller_pb2 as controller_api
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_proto.v1 import operations_pb2 as api
from simulation.hosts import Host
from simulation.network import NetworkProfile
from simulation.old_disks import OldDisks
from simulation.operation_checks import target_of
from simulation.operation_goals import FullFollowers
from simulation.restarts import Builds, Restarts
from simulation.settings import RUN_US
from simulation.throttle_checks import ThrottleChecks

if TYPE_CHECKING:
    from simulation.settings import Settings
    from simulation.world import World

S: Final = 1_000_000
CHANCE: Final = 1 / 3
"""Of a seed to have an operator."""
MORE_US: Final = 60 * S
"""What operations may take to run out, beside what every seed has to be well again."""
LIVE_MAX: Final = 3
STEP_CRASH_CHANCE: Final = 0.02

_KINDS: Final[tuple[tuple[int, str], ...]] = (
    (4, "node-drain"),
    (3, "node-uncordon"),
    (2, "node-add"),
    (3, "rebalance"),
    (4, "set-replication-factor"),
    (2, "node-remove"),
    (1, "node-replace"),
    (1, "leader-elect"),
    (3, "rolling-restart"),
)
FEATURES: Final = ("racks", "calm", "small disks", "old builds")
"""What `Settings.operations` may ask for; also "old disks", "slow copies", "slots"."""
OLD_DISKS_CHANCE: Final = 0.2
SLOTS_CHANCE: Final = 0.25
DISKS_BYTES: Final = (150_000, 400_000)
"""Small ones: logs here have some ten thousand bytes."""
_RACKS: Final = (
    ("a", "b", "c"),
    ("a", "b"),
    ("a/1", "a/2", "b/1", "b/2"),
    ("a/x/1", "a/y/1", "b/x/1", "b/x/2"),
)
_RATES: Final = (0, 0, 2_000, 20_000, 1 << 20)
_CONTROLS: Final = (
    (3, api.OPERATION_CONTROL_PAUSE),
    (3, api.OPERATION_CONTROL_RESUME),
    (2, api.OPERATION_CONTROL_CANCEL),
    (2, api.OPERATION_CONTROL_THROTTLE),
)


class Operator:
    """See the module."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world = world
        self.rng = rng
        self._pause_s = rng.choice((0.4, 1.0, 2.0))
        self.gives_way = rng.random() < 0.3
        """Whether somebody else reassigns partitions as well."""
        self._busy: set[int] = set()
        """Numbers of hosts that are about to get an empty directory."""
        self._is_finishing = False
        self._executors: list[Restarts] = []
        self._racks: dict[int, str] = {}
        self.is_calm = False
        """Nothing happens but what is planned."""
        self.disk_bytes: int | None = None
        """Of each node's disk where they are small."""
        self._builds: Builds | None = None
        """Where older ones are about."""
        self._full_followers: FullFollowers
        self._old_disks: OldDisks | None = None
        self._rates: tuple[int, ...] = _RATES
        self._kinds = _KINDS
        self._is_resolute = False
        """Nobody interferes with what was begun."""
        self.has_slots = False
        """Whether nodes have slots in the place of one directory."""
        self.throttles = ThrottleChecks(world)

    @classmethod
    def draw(cls, world: World, settings: Settings) -> Operator | None:
        """That of this seed, None when it has none."""
        rng = random.Random(f"{world.seed}-operator")
        if not (rng.random() < CHANCE or settings.with_operations):
            return None
        settings.nodes = rng.choice((3, 4, 4, 4, 5))
        operator = cls(world, rng)
        operator._shape(settings)
        return operator

    def _shape(self, settings: Settings) -> None:
        """What kind of cluster it is. By a generator of its own, too."""
        dice = random.Random(f"{self.world.seed}-operator-shape")
        if "slow copies" in settings.operations:
            settings.nodes = 5
        has = {
            name: dice.random() < chance or name in settings.operations
            for name, chance in zip(FEATURES, (0.5, 0.3, 0.15, 0.2), strict=True)
        }
        racks = dice.choice(_RACKS)
        disk_bytes, level = dice.choice(DISKS_BYTES), dice.choice((1, 2))
        begin_us = int(dice.uniform(5, 25) * S)
        if has["racks"]:
            self._racks = {n: racks[n % len(racks)] for n in range(1, settings.nodes + 1)}
        if has["calm"]:
            self.is_calm, self.gives_way = True, False
            settings.network = NetworkProfile(
                delay_us_max=dice.choice((1_000, 5_000)),
                slow_probability=0,
                loss_probability=0,
                duplicate_probability=0,
                reorder_probability=0,
            )
            # Two, so that one may restart; and nobody is found late for a controller that restarts.
            settings.gateways = 2
            settings.lag_max_ms = max(settings.lag_max_ms, 1_500)
        elif has["small disks"]:
            self.disk_bytes = disk_bytes
        if has["old builds"]:
            # Users came with level 2.
            self._builds = Builds(self, 2 if self.world.rights else level, begin_us)
        # By one more of its own: other seeds stay what they were.
        disks = random.Random(f"{self.world.seed}-operator-old-disks")
        is_drawn = disks.random() < OLD_DISKS_CHANCE or "old disks" in settings.operations
        if is_drawn and not self.is_calm and self._builds is None:
            self._old_disks = OldDisks(self, disks)
        if "slow copies" in settings.operations:
            # A node that is emptied and filled again is fed by several others, and nobody has second thoughts.
            self._kinds = ((1, "node-drain"), (1, "node-add"))
            self._rates = (1_000,)
            self._is_resolute = True
            # Whole logs would be one message else, and go at once.
            settings.throttled_message_bytes = 512
            settings.near_bytes = 600
        dice = random.Random(f"{self.world.seed}-operator-slots")
        self.has_slots = dice.random() < SLOTS_CHANCE or "slots" in settings.operations
        if "slots" in settings.operations:
            self._kinds = (*_KINDS, (20, "node-remove"))

    def rack_of(self, number: int) -> str:
        """Of a storage node."""
        return self._racks.get(number, "")

    def first_level_of(self, kind: str) -> int:
        """What the first build on a host understands. Controllers are new: it is they who found the cluster."""
        return FEATURE_LEVEL if self._builds is None or kind == "c" else self._builds.level

    @property
    def founding_level(self) -> int:
        """Of the cluster."""
        return FEATURE_LEVEL if self._builds is None else self._builds.level

    # --- the run

    def start(self) -> None:
        """The first request comes when there is something to move."""
        self._full_followers = FullFollowers(self.world.checker)
        self._later(self.rng.uniform(4, 10) * S, self._act)
        self._later(S, self._look_after_hosts)
        self._later(S, self._look_at_full)
        if self._builds is not None:
            self._builds.start()
        if self._old_disks is not None:
            self._old_disks.start()

    def _look_at_full(self) -> None:
        self._full_followers.look()
        self.throttles.look()
        if not self._is_finishing:
            self._later(S, self._look_at_full)

    def _later(self, delay_us: float, call: Any, *args: Any) -> None:
        self.world.scheduler.after(int(delay_us) + 1, call, *args)

    def newest(self) -> MetadataImage:
        """The newest committed metadata."""
        return self._image()

    def _image(self) -> MetadataImage:
        images = self.world.checker.images
        return images[max(images)]

    def _live(self) -> list[pb.OperationRecord]:
        return [o for o in self._image().operations.operations.values() if o.state not in ENDED]

    def _act(self) -> None:
        if self._is_finishing or self.world.scheduler.now_us >= RUN_US - S:
            return
        self._later(self.rng.expovariate(1) * self._pause_s * S, self._act)
        live = self._live()
        if self.rng.random() < 0.2:
            self._look_after_rolling(live)
        if self.gives_way and self.rng.random() < 0.05:
            self._reassign()
        elif not live or (len(live) < LIVE_MAX and self.rng.random() < 0.4):
            self._start(self._wanted())
        elif self.rng.random() < 0.5 and not self._is_resolute:
            record = self.rng.choice(live)
            self._control(record.operation_id, self._pick(_CONTROLS))

    def _pick(self, table: Any) -> Any:
        return self.rng.choices([what for _, what in table], [weight for weight, _ in table])[0]

    # --- requests

    def _wanted(self) -> api.PlanRequest:
        rng, image = self.rng, self._image()
        kind = self._pick(self._kinds)
        if kind == "set-replication-factor" and not self._may_change_factors():
            kind = "rebalance"
        request = api.PlanRequest(kind=kind, throttle=self._throttle())
        nodes = sorted(image.nodes)
        cordoned = [n for n in nodes if image.operations.is_cordoned(n)]
        asked = request.parameters
        if kind in ("node-uncordon", "node-add"):
            asked.node_ids.append(rng.choice(cordoned or nodes or [NodeId(1)]))
        elif kind.startswith("node-"):
            asked.node_ids.append(rng.choice(nodes or [NodeId(1)]))
            if kind == "node-replace":
                asked.replacement_node_id = rng.choice([n for n in nodes if n not in asked.node_ids] or [1])
        elif kind == "set-replication-factor":
            names = sorted(topic.name for topic in image.topics.values())
            asked.topics.extend(rng.sample(names, min(len(names), rng.choice((1, 1, 2, 5)))))
            asked.replication_factor = rng.choice((2, 2, 3, 3, 4))
        elif kind == "rebalance":
            asked.goals.extend(rng.choice(((), (), ("replicas",), ("leaders",), ("replicas", "bytes"))))
        elif kind == "rolling-restart":
            roles = ((), (), ("storage-node",), ("controller",), ("gateway", "controller"))
            asked.roles.extend(rng.choice(roles))
            asked.step_timeout_s = rng.choice((0, 8))
        if rng.random() < 0.3 and not self.is_calm:
            request.allowed_gates.append("health")
        return request

    def _may_change_factors(self) -> bool:
        """A lower factor has a lower min ISR: then what a disk forgets may be the only copy."""
        forgets = "disk loss" in self.world.log_life.features or self._old_disks is not None
        return not forgets and not self.world.rot.is_wanted

    def _throttle(self) -> pb.OperationThrottle:
        rate = self.rng.choice(self._rates)
        return pb.OperationThrottle(auto=not rate, bytes_per_s=rate)

    def start_one(self, request: api.PlanRequest) -> None:
        """Ask for an operation; somebody may have second thoughts about it."""
        self._start(request)

    def _start(self, request: api.PlanRequest) -> None:
        def done(response: Any) -> None:
            if response is None:
                outcome = "not answered"
            elif response.HasField("operation"):
                outcome = "begun"
            else:
                blocking = sorted(gate.name for gate in response.plan.gates if gate.blocking)
                outcome = f"refused ({', '.join(blocking) or response.error.code})"
            self.world.counts[f"operations {outcome}"] += 1
            self._say(f"{request.kind} {list(request.parameters.node_ids)}: {outcome}")
            if response is not None and response.error.message:
                self._say(response.error.message)
            if outcome == "begun" and request.kind == "rolling-restart":
                self._execute(response.operation.record.operation_id)
            hesitates = outcome == "begun" and not self._is_finishing and self.rng.random() < 0.6
            if hesitates and not self._is_resolute:
                # Most are short here: so somebody has second thoughts at once.
                delay_us = self.rng.random() ** 2 * 2 * S
                self._later(
                    delay_us, self._control, response.operation.record.operation_id, self._pick(_CONTROLS)
                )

        started = api.StartOperationRequest(request=request, principal="User:operator")
        self.world.workload._call("StartOperation", started, done)

    def _execute(self, operation_id: int) -> None:
        """Somebody runs the command that restarts processes; it may not live long."""
        executor = Restarts(self, operation_id)
        self._executors = [e for e in self._executors if not e.is_over] + [executor]
        if not self._is_finishing and self.rng.random() < 0.3:
            self._later(self.rng.random() * 15 * S, executor.kill)

    def _look_after_rolling(self, live: list[pb.OperationRecord]) -> None:
        """Operations that restart processes go on only with the command."""
        for record in live:
            is_carried_out = any(
                e.operation_id == record.operation_id and not e.is_over for e in self._executors
            )
            if record.steps and not is_carried_out:
                self._execute(record.operation_id)
                self._control(record.operation_id, api.OPERATION_CONTROL_RESUME)

    def _control(self, operation_id: int, control: Any) -> None:
        request = api.ControlOperationRequest(
            operation_id=operation_id, control=control, principal="User:operator"
        )
        if control == api.OPERATION_CONTROL_THROTTLE:
            request.throttle.CopyFrom(self._throttle())
        word = api.OperationControl.Name(control).removeprefix("OPERATION_CONTROL_").lower()

        def done(response: Any) -> None:
            if response is not None and not response.error.code:
                self.world.counts[f"operations told to {word}"] += 1

        self._say(f"{word} {operation_id}")
        self.world.workload._call("ControlOperation", request, done)

    def _reassign(self) -> None:
        """Somebody else moves a partition, by Kafka's request."""
        rng, image = self.rng, self._image()
        moved = [key for moves in image.operations.moves.values() for key in moves]
        keys = moved or [p.key for t in image.topics.values() for p in t.partitions.values()]
        nodes = [n for n, node in sorted(image.nodes.items()) if node.active]
        if not keys:
            return
        state = image.partition(*rng.choice(keys))
        if state is None or state.factor > len(nodes):
            return
        asked = controller_api.Reassignment(
            topic=image.topics[state.topic_id].name,
            partition=state.partition,
            replicas=rng.sample(nodes, state.factor),
        )
        self._say(f"somebody else moves {asked.topic}-{asked.partition} to {list(asked.replicas)}")
        request = controller_api.AlterReassignmentsRequest(reassignments=[asked])
        self.world.counts["partitions moved by somebody else"] += 1
        self.world.workload._call("AlterReassignments", request, lambda _: None)

    def _say(self, line: str) -> None:
        self.world.say("OPERATOR", line)

    # --- faults at the worst moment

    def on_step(self, state: PartitionImage) -> None:
        """A partition was just aimed at other replicas: now and then somebody who is needed dies."""
        world, rng = self.world, self.rng
        if self.is_calm or world.scheduler.now_us >= RUN_US - S or rng.random() >= STEP_CRASH_CHANCE:
            return
        needed = {state.leader, *state.adding_replicas}
        hosts = [h for h in world.hosts if h.kind == "n" and h.number in needed and h.is_up]
        hosts += [h for h in world.hosts if h.kind == "c" and h.is_running and h.process.core.active]
        if hosts:
            self._later(rng.random() ** 2 * 200_000, self._kill, rng.choice(hosts))

    def _kill(self, host: Host) -> None:
        if host.is_up:
            self.world.injected["killed at an operation's step"] += 1
            host.kill()
            host.start_later(int(self.rng.random() ** 2 * 5 * S))

    # --- nodes that were removed

    def _look_after_hosts(self) -> None:
        """A node that is out of the cluster gets an empty directory after a while."""
        self._later(S, self._look_after_hosts)
        nodes = self._image().nodes
        for host in self.world.hosts:
            if host.kind == "n" and self._is_removed(host, nodes) and host.number not in self._busy:
                self._busy.add(host.number)
                self._later(self.rng.uniform(0, 3 if self._is_finishing else 10) * S, self._empty, host)

    def _is_removed(self, host: Host, nodes: Any) -> bool:
        if NodeId(host.number) in nodes:
            return False
        return any(r.node_id == host.number for r in directories.all_retired(self._image()))

    def _empty(self, host: Host) -> None:
        self._busy.discard(host.number)
        if not self._is_removed(host, self._image().nodes):
            return
        self.world.counts["removed nodes made anew"] += 1
        if self.has_slots:
            # Somebody wants one more node: a process that starts empties a retired slot.
            self._say(f"{host.name} is started as a new node")
            host.kill()
            host.is_spare = False
        else:
            self._say(f"{host.name} gets an empty directory")
            host.kill()
            host.replace_disk()
        self.world.checker.logs.on_wiped(host.name)
        host.start_later(int(self.rng.random() * S))

    # --- the end

    def finish(self) -> None:
        """Faults are over."""
        self._is_finishing = True
        self.disk_bytes = None
        for host in self.world.hosts:
            if host.disk_bytes is not None:
                host.enlarge_disk()
        self._wind_up()

    def _wind_up(self) -> None:
        """What waits for a person hears of one; then nodes are taken back, one after another."""
        self._later(S, self._wind_up)
        live, operations = self._live(), self._image().operations
        self._look_after_rolling(live)
        for record in live:
            late = any(s.reason and s.state == pb.OPERATION_STEP_STATE_RUNNING for s in record.steps)
            # Whose factor was lowered to its min ISR meanwhile stays so until a person changes one of them.
            in_vain = record.reason.startswith("min-isr") and self._is_all_in_sync()
            waits = record.paused_by_hand or record.reason.startswith("conflict") or late or in_vain
            if record.state == pb.OPERATION_STATE_PAUSED and waits:
                choice = (api.OPERATION_CONTROL_RESUME, api.OPERATION_CONTROL_CANCEL)
                self._control(record.operation_id, self.rng.choice(choice))
            elif not record.throttle.auto and not record.steps:
                self._control(record.operation_id, api.OPERATION_CONTROL_THROTTLE)
        cordoned = sorted(n for n in operations.policies if operations.is_cordoned(n))
        if not live and cordoned and not self._why_not_right():
            kind = self.rng.choice(("node-uncordon", "node-add"))
            request = api.PlanRequest(kind=kind, throttle=pb.OperationThrottle(auto=True))
            request.parameters.node_ids.append(cordoned[0])
            self._start(request)

    def _is_all_in_sync(self) -> bool:
        """Nothing is to be waited for."""
        topics = self._image().topics.values()
        return all(set(p.isr) >= set(p.replicas) for topic in topics for p in topic.partitions.values())

    def why_not_done(self) -> str:
        """What still lacks, "" when operations have ended and left nothing behind."""
        for record in self._live():
            return (
                f"operation {record.operation_id} ({record.kind}) has not ended: state {record.state}, "
                f"{record.phase}, {record.reason}"
            )
        image = self._image()
        if self._builds is not None and (why := self._builds.why_not_done(image)):
            return why
        if why := self._why_not_right():
            return why
        if self._old_disks is not None and (why := self._old_disks.why_not_done()):
            return why
        for node_id in image.operations.policies:
            return (
                f"node {node_id} is cordoned, by operation {image.operations.policies[node_id].operation_id}"
            )
        for topic in image.topics.values():
            for state in topic.partitions.values():
                if state.reassigning:
                    return f"{topic.name}-{state.partition} is on its way to {target_of(state)}"
        return ""

    def _why_not_right(self) -> str:
        """Cordons are those of operations that emptied their nodes."""
        operations = self._image().operations
        for node_id, policy in operations.policies.items():
            owner = operations.operations.get(policy.operation_id)
            if policy.draining and (owner is None or owner.state in ENDED):
                return f"node {node_id} is draining, and operation {policy.operation_id} has ended"
            if owner is None or owner.state == pb.OPERATION_STATE_CANCELLED:
                return f"operation {policy.operation_id}, which cordons node {node_id}, was cancelled"
        return ""
