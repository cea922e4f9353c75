"""The controller on the event loop: follows the quorum and acts while it is active.

Events of the quorum arrive in order and set the image that requests are generated from.
While active, a tick ends sessions, probes what broke and gives leadership back to
preferred replicas; all of it goes through the same queue as everybody's requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from penstock_controller.active.cluster_metrics import ClusterMetrics
from penstock_controller.active.command_queue import CommandQueue, NotActive
from penstock_controller.active.history import History
from penstock_controller.active.metadata_stream import MetadataStreams
from penstock_controller.active.newcomers import Newcomers
from penstock_controller.active.observer import Observer
from penstock_controller.active.operations import Operations
from penstock_controller.active.ports import ControllerPorts
from penstock_controller.active.recovery import Recovery
from penstock_controller.metrics import ControllerMetrics
from penstock_controller.quorum import Applied, Proposal, Quorum, QuorumStatus, Reset
from penstock_controller.quorum.events import QuorumEvent
from penstock_controller.state import cluster, controllers, elections, gateways, nodes, session_keys
from penstock_controller.state.controllers import Connected, QuorumView
from penstock_controller.state.generation import Context, Generated
from penstock_controller.state.mutation_quotas import MutationBudget, MutationQuotas
from penstock_controller.state.sessions import Sessions
from penstock_core.errors import PenstockError
from penstock_core.failpoints import hit
from penstock_core.ids import NodeId
from penstock_core.limits import FEATURE_LEVEL
from penstock_core.metadata import MetadataImage, PartitionImage
from penstock_core.metadata.image import Endpoint
from penstock_core.security.audit import CHANGE
from penstock_core.security.bootstrap_users import BootstrapUser
from penstock_core.security.quota_dealer import QuotaDealer
from penstock_core.security.session_token import KEY_LIFETIME_MS
from penstock_proto.v1 import controller_pb2 as api
from penstock_runtime.audit import audit_of
from penstock_runtime.grpc_tools import Probe
from penstock_runtime.lifecycle import Lifecycle

R = TypeVar("R")

PROBE_TIMEOUT_MS = 500
PROBE_AGAIN_MS = 200
SUSPECT_MS_MIN = 500
REST_TICKS = 5
"""So many ticks are one while another controller is the active one."""
LAST_MS = 2_000
"""Of the time that a node waits to be let go: kept for its leadership to move."""
LEADER_SILENCE_MS = 3_000
"""As gateways' stale_after_ms."""
FOUNDING_PATIENCE_MS = 30_000
"""How long a new cluster waits for controllers that are linked to say their level."""
FOUNDING_MEMBERS_MS = 10_000
"""How long it waits for controllers that are not there yet: an older build that comes later could not take part."""
NAMED_MAX = 20
REBALANCE_CHANGES_MAX = 500
REBALANCE_SLICE_CHANGES = 20
"""Leaders changed by one request: about a millisecond of deciding."""


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """What the core needs of the role's settings."""

    controller_id: int
    session_timeout_ms: int
    heartbeat_interval_ms: int
    rebalance_interval_ms: int
    # Ids in raft_peers.
    member_ids: frozenset[int]
    # Of a cluster that is yet to be founded.
    first_users: tuple[BootstrapUser, ...] = ()
    # One that has not heard the active controller for longer is not ready; the active one, when no majority answers.
    leader_silence_ms_max: int = LEADER_SILENCE_MS


class Controller:
    """State of one controller process on its event loop."""

    def __init__(
        self,
        settings: CoreSettings,
        lifecycle: Lifecycle,
        ports: ControllerPorts,
        metrics: ControllerMetrics,
        on_cluster_id: Callable[[bytes], None],
    ) -> None:
        self.settings = settings
        self.status = QuorumStatus()
        self.image = MetadataImage()
        self.on_image: Callable[[MetadataImage], None] = lambda _: None
        """Called for each image, before anybody is told of it."""
        self.sessions = Sessions(settings.session_timeout_ms, ports.tick_ms)
        self.ask_levels: Callable[[], Awaitable[Mapping[int, int | None]]] = self._own_level
        """The feature level of every controller, asked now; set by who can ask the others."""
        self.clock_ms = ports.clocks.ms
        self._mutations = MutationQuotas()
        self._dealer = QuotaDealer()
        self._ports = ports
        self.worker: CommandQueue
        self.watchers: MetadataStreams
        self._quorum: Quorum
        self._lifecycle = lifecycle
        self._metrics = metrics
        self._on_cluster_id = on_cluster_id
        self._next_rebalance_ms = 0
        self._rebalancing: asyncio.Task[None] | None = None
        self._next_key_ms = 0
        self._suspect_after_ms = max(SUSPECT_MS_MIN, 3 * settings.heartbeat_interval_ms)
        self._suspects: set[tuple[NodeId | str, int]] = set()
        # Node or gateway -> version whose arrival at the others lets it stop.
        self._leaving: dict[NodeId | str, int] = {}
        self._still_leads: dict[NodeId, tuple[int, bool]] = {}
        # Node -> metadata version and leaving nodes of the last look, and what its leaving would harm.
        self._harmed: dict[NodeId, tuple[int, frozenset[NodeId], list[str]]] = {}
        self._in_hand: set[tuple[str, NodeId | str, int]] = set()
        self.active_ended = asyncio.Event()
        self._due = asyncio.Event()
        """A tick is due."""
        self.operations = Operations(
            lifecycle,
            ports.clocks,
            lambda node_id: self.sessions.alive(node_id, self.clock_ms()),
            self._quorum_gate,
        )
        self.newcomers = Newcomers(lifecycle, ports.clocks, self.sessions.steady, self.operations)
        self.recovery = Recovery(lifecycle, lambda node_id: self.sessions.alive(node_id, self.clock_ms()))
        self.cluster_metrics = ClusterMetrics(lifecycle, self.operations)
        self.observer = Observer(lifecycle, self.operations.reports, self.quorum_view)
        self.history = History(ports.clocks.wall_ms, lifecycle.log.warning)

    def connect(self, quorum: Quorum, worker: CommandQueue) -> None:
        """Give the core its quorum (made after it, because the quorum reports to it)."""
        self._quorum = quorum
        self.worker = worker
        self.operations.connect(worker)
        self.newcomers.connect(worker)
        self.observer.connect(worker)
        self.recovery.connect(worker)
        self.watchers = watchers = MetadataStreams(quorum.leader_contact, self._ports.keepalive_s)
        self._metrics.follow(lambda: self.image, lambda: watchers.count, lambda: worker.waiting_count)

    @property
    def active(self) -> bool:
        return self.worker.active

    def leader_silence_ms(self) -> int:
        """Time since the active controller was last heard of; on itself, since a majority was."""
        return self._quorum.leader_contact()[0]

    # --- events of the quorum -----------------------------------------------------------

    def on_events(self, events: list[QuorumEvent]) -> None:
        """In order, on the event loop."""
        for event in events:
            if isinstance(event, Applied):
                self._metrics.applied(self.image, event)
                self.cluster_metrics.applied(self.image, event.records)
                self.history.applied(self.image, event)
                self._take_image(event.image)
                self.watchers.applied(event.image, event.records)
            elif isinstance(event, Proposal):
                self.worker.proposal_ended(event.token, event.outcome)
            elif isinstance(event, QuorumStatus):
                self._on_status(event)
            elif isinstance(event, Reset):
                self.history.jumped(event.image)
                self._take_image(event.image)
                self.watchers.reset(event.image)
                # A whole image came, and has no cycles: no collection needs to look at it.
                self._ports.freeze()

    def _take_image(self, image: MetadataImage) -> None:
        is_first = bool(image.cluster_id and not self.image.cluster_id)
        if is_first:
            self._on_cluster_id(image.cluster_id)
        self.image = self.worker.image = image
        self.on_image(image)
        if is_first:
            self._judge_ready()

    def _on_status(self, status: QuorumStatus) -> None:
        old, self.status = self.status, status
        if status.leader_id != old.leader_id or status.active != old.active:
            self._lifecycle.log.info(
                "quorum", leader=status.leader_id, term=status.term, active=status.active
            )
        # A change of term while active means that another leader was there in between.
        if self.active and (not status.active or status.term != old.term):
            self.worker.set_active(False)
            self.cluster_metrics.end()
            self.active_ended.set()
        if status.active and not self.active:
            self._begin()
        self._metrics.is_active.set(float(status.active))
        self._judge_ready()

    def _judge_ready(self) -> None:
        # Who asks before it stands keeps the leader that it knew for as long as nobody answers (pre-vote).
        is_led = (
            self.status.leader_id >= 0 and self.leader_silence_ms() <= self.settings.leader_silence_ms_max
        )
        if not is_led:
            self._lifecycle.set_not_ready("no active controller is known; a majority of raft_peers must run")
        elif self.status.not_voting_reason:
            self._lifecycle.set_not_ready(self.status.not_voting_reason)
        elif self.image.cluster_id:
            self._lifecycle.set_ready()

    def _begin(self) -> None:
        hit("controller.active.begin")
        self.active_ended = asyncio.Event()
        self._leaving.clear()
        self._still_leads.clear()
        self._harmed.clear()
        now_ms = self.clock_ms()
        self._next_rebalance_ms = now_ms + self.settings.rebalance_interval_ms
        self._next_key_ms = now_ms + KEY_LIFETIME_MS
        self.sessions.begin(self.image, now_ms)
        self._mutations = MutationQuotas()
        self._dealer = QuotaDealer()
        self.operations.begin()
        self.newcomers.begin()
        self.recovery.begin()
        self.cluster_metrics.begin(self.image)
        self.observer.begin()
        self.worker.set_active(True)
        self._due.set()
        if not self.image.cluster_id:
            self.spawn(self._found_cluster(), "found cluster")

    async def _found_cluster(self) -> None:
        try:
            first_users = self.settings.first_users
            level = min(await self._founding_level(), self._ports.founding_level)
            founded = await self.submit(lambda ctx: cluster.found_cluster(ctx, level, first_users))
        except NotActive:
            return
        if founded:
            names = sorted({each.user for each in first_users})
            self._lifecycle.log.info("new cluster", cluster_id=self.image.cluster_id.hex(), users=names)
            version = self.image.version
            audit_of(self._lifecycle).tell_changes(
                lambda: (
                    {
                        "event": CHANGE,
                        "outcome": "ok",
                        "principal": "bootstrap_users",
                        "api": "found the cluster",
                        "type": "user",
                        "operation": "set",
                        "resource": name,
                        "version": version,
                    }
                    for name in names
                )
            )
        self._lifecycle.set_ready()

    async def _own_level(self) -> Mapping[int, int | None]:
        return {self.settings.controller_id: FEATURE_LEVEL}

    async def _founding_level(self) -> int:
        """What every controller that is linked understands. Raises NotActive.

        A quorum is founded once, mostly with all its controllers started together: those that are not linked yet are
        waited for a little. One that is linked answers by gRPC too, but for a wrong address: it is not waited for
        without an end.
        """
        began_ms = self.clock_ms()
        while self.active and not self.image.cluster_id:
            levels = await self.ask_levels()
            linked = self.status.reachable | {self.settings.controller_id}
            level, silent = cluster.founding_level(linked, levels)
            waited_ms = self.clock_ms() - began_ms
            if not silent and (linked >= self.settings.member_ids or waited_ms > FOUNDING_MEMBERS_MS):
                return level
            if waited_ms > FOUNDING_PATIENCE_MS:
                self._lifecycle.log.warning(
                    "founded without the level of all controllers",
                    level=level,
                    silent=_some([*map(str, silent)]),
                )
                return level
            await asyncio.sleep(PROBE_AGAIN_MS / 1000)
        raise NotActive

    # --- the controllers themselves ---------------------------------------------------------

    def quorum_view(self) -> QuorumView:
        """The members of the quorum, and which are there."""
        connected = {p.controller_id: Connected(p.directory_id, p.joined) for p in self.status.peers}
        return QuorumView(self.settings.controller_id, self.settings.member_ids, connected)

    def _quorum_gate(self) -> tuple[bool, str]:
        """Whether a majority of the voters is there, as this controller sees it; and if not, who is missing."""
        missing = sorted(
            self.settings.member_ids - self.status.reachable - {self.settings.controller_id},
        )
        if len(missing) * 2 < max(1, len(self.settings.member_ids)):
            return True, ""
        names = ", ".join(map(str, missing))
        return False, f"controllers {names} cannot be reached; start them, or see `penstock controller list`"

    def log_replaced(self, controller_id: int, old: bytes, new: bytes, by: str) -> None:
        """A controller votes with another directory from now on."""
        self._lifecycle.log.warning(
            "controller replaced",
            controller=controller_id,
            old_directory=old.hex(),
            new_directory=new.hex(),
            by=by,
        )

    def _record_controllers(self) -> None:
        if all(p.controller_id in self.image.controllers for p in self.status.peers):
            return
        found = controllers.unrecorded(self.image, self.quorum_view())
        if found and self.image.cluster_id:
            names = ",".join(str(i) for i in sorted(found))
            self.once("record controllers", names, 0, lambda ctx: controllers.record_controllers(ctx, found))

    # --- requests -------------------------------------------------------------------------

    async def submit(self, generate: Callable[[Context], Generated[R]]) -> R:
        """See CommandQueue.submit."""
        return await self.worker.submit(generate)

    async def submit_quietly(self, generate: Callable[[Context], Generated[R]]) -> R | None:
        """For our own wishes: None when this controller is no longer active or overloaded.

        Whoever is active then, or the next tick, comes to the same wish by itself.
        """
        try:
            return await self.submit(generate)
        except (NotActive, PenstockError):
            return None

    def spawn(self, coro: object, name: str) -> None:
        self._lifecycle.create_task(coro, name)  # type: ignore[arg-type]

    def once(
        self, kind: str, name: NodeId | str, epoch: int, generate: Callable[[Context], Generated[bool]]
    ) -> None:
        """Submit a wish about a node or gateway unless the same one is in hand."""
        key = (kind, name, epoch)
        if key not in self._in_hand:
            self._in_hand.add(key)
            self.spawn(self._do_once(key, generate), f"{kind} {name}")

    async def _do_once(
        self, key: tuple[str, NodeId | str, int], generate: Callable[[Context], Generated[bool]]
    ) -> None:
        try:
            if await self.submit_quietly(generate):
                self._lifecycle.log.info(key[0], name=key[1], epoch=key[2], version=self.image.version)
                if key[0] in ("drain", "remove"):
                    self._leaving[key[1]] = self.image.version
        finally:
            self._in_hand.discard(key)

    def mutation_budget(self, whose: api.MutationQuota | None) -> MutationBudget:
        """What a client may spend who makes or deletes partitions."""
        return self._mutations.budget(self.image.security.quotas, whose, self.clock_ms())

    def deal_quotas(self, process: str, report: api.QuotaReport) -> api.QuotaShares:
        """What a process with a session gets of the quotas that its clients use."""
        demands = {each.bucket: each.part for each in report.demands}
        dealt = self._dealer.report(process, demands, self.clock_ms())
        return api.QuotaShares(
            shares=[api.QuotaPart(bucket=bucket, part=part) for bucket, part in dealt.items()]
        )

    def registered(self, name: NodeId | str, epoch: int) -> None:
        """A node or gateway has a new registration: its session begins."""
        self._leaving.pop(name, None)
        if isinstance(name, str):
            self.sessions.gateway_registered(name, epoch, self.clock_ms())
        else:
            self.sessions.node_registered(name, epoch, self.clock_ms())

    def fence(self, node_id: NodeId, epoch: int, reason: str) -> None:
        node = self.image.nodes.get(node_id)
        if node is not None and not node.fenced and node.node_epoch == epoch:
            self._lifecycle.log.info("node lost", node=node_id, reason=reason)
            if ("fence", node_id, epoch) not in self._in_hand:
                self._metrics.session_lost("node", reason, left=node.in_controlled_shutdown)
            hit("controller.fence.before")
            self.once("fence", node_id, epoch, lambda ctx: nodes.fence_node(ctx, node_id, epoch, reason))

    def remove_gateway(self, gateway_id: str, epoch: int, reason: str) -> None:
        gateway = self.image.gateways.get(gateway_id)
        if gateway is not None and gateway.gateway_epoch == epoch:
            self._lifecycle.log.info("gateway lost", gateway=gateway_id, reason=reason)
            if ("remove", gateway_id, epoch) not in self._in_hand:
                self._metrics.session_lost("gateway", reason, left=False)
            self.once(
                "remove",
                gateway_id,
                epoch,
                lambda ctx: gateways.remove_gateway(ctx, gateway_id, epoch, reason),
            )

    def may_leave(self, name: NodeId | str) -> bool:
        """Whether everybody knows by now that the leaving node or gateway is out."""
        # A controller that became active in between starts from what it knows now.
        version = self._leaving.setdefault(name, self.image.version)
        node_id = None if isinstance(name, str) else name
        return self.sessions.seen_by_others(self.image, node_id, version)

    def still_leads(self, node_id: NodeId) -> bool:
        """Whether a draining node leads what others could lead; looked up once a version."""
        known = self._still_leads.get(node_id)
        if known is None or known[0] != self.image.version:
            known = self._still_leads[node_id] = (
                self.image.version,
                nodes.still_leads(self.image, node_id),
            )
        return known[1]

    def must_wait(self, node_id: NodeId, beat: api.NodeHeartbeat) -> bool:
        """Whether a node that wants to stop is to serve on for a while: partitions would fall below min ISR, and other
        members of theirs may come back. One node drains at a time, so that each sees what the one before left."""
        if beat.disk_failed:
            return False
        if any(kind == "drain" and name != node_id for kind, name, _ in self._in_hand):
            return True
        leaving = self.sessions.leaving()
        known = self._harmed.get(node_id)
        if known is None or known[:2] != (self.image.version, leaving):
            harmed = nodes.harmed_by_leaving(self.image, node_id, leaving)
            if harmed and (known is None or not known[2]):
                self._lifecycle.log.info("node waits to stop", node=node_id, partitions=_some(harmed))
            known = self._harmed[node_id] = (self.image.version, leaving, harmed)
        if not known[2]:
            return False
        if beat.shutdown_left_ms > LAST_MS:
            return True
        self._lifecycle.log.warning("node stops below min isr", node=node_id, partitions=_some(known[2]))
        return False

    # --- suspicion ------------------------------------------------------------------------

    def suspect(self, name: NodeId | str, epoch: int) -> None:
        """A session stream broke, or some heartbeats are missing: look whether the process is there.

        A refused connection proves it dead; silence proves nothing, the session timeout decides.
        """
        key = (name, epoch)
        if self.active and key not in self._suspects:
            self._suspects.add(key)
            self.spawn(self._probe(name, epoch), f"probe {name}")

    async def _probe(self, name: NodeId | str, epoch: int) -> None:
        try:
            while self.active and (where := self._address_of(name, epoch)) is not None:
                began_ms = self.clock_ms()
                result = await self._ports.probe(where.host, where.port, PROBE_TIMEOUT_MS)
                if (self.sessions.heard_ms(name) or 0) > began_ms:
                    return
                if result is Probe.REFUSED:
                    self.sessions.end(name, epoch, "connection refused")
                    self._lost(name, epoch, "connection refused")
                    return
                await asyncio.sleep(PROBE_AGAIN_MS / 1000)
        finally:
            self._suspects.discard((name, epoch))

    def _address_of(self, name: NodeId | str, epoch: int) -> Endpoint | None:
        """gRPC address of a node or gateway that counts as up in this registration."""
        if isinstance(name, str):
            gateway = self.image.gateways.get(name)
            if gateway is None or gateway.gateway_epoch != epoch:
                return None
            return Endpoint.from_pb(gateway.record.grpc)
        node = self.image.nodes.get(name)
        return None if node is None or node.fenced or node.node_epoch != epoch else node.grpc

    def _lost(self, name: NodeId | str, epoch: int, reason: str) -> None:
        if isinstance(name, str):
            self.remove_gateway(name, epoch, reason)
        else:
            self.fence(name, epoch, reason)

    # --- the tick ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Tick for ever."""
        while True:
            await self._tick_due()
            if self.active:
                self._tick(self.clock_ms())
            self._judge_ready()

    async def _tick_due(self) -> None:
        """Until the next tick; seldom where another controller is the active one, whose silence is to be noticed."""
        ticks = 1 if self.active else REST_TICKS
        self._due.clear()
        timer = asyncio.get_running_loop().call_later(ticks * self._ports.tick_ms / 1000, self._due.set)
        try:
            await self._due.wait()
        finally:
            timer.cancel()

    def _tick(self, now_ms: int) -> None:
        for lost in self.sessions.tick(self.image, now_ms):
            self._lost(lost.name, lost.epoch, lost.reason)
        for silent in self.sessions.silent(self.image, self._suspect_after_ms, now_ms):
            self.suspect(silent.name, silent.epoch)
        self._record_controllers()
        self._renew_key(now_ms)
        self.operations.tick(now_ms)
        self.newcomers.tick(now_ms)
        self.recovery.tick(now_ms)
        self.cluster_metrics.tick(self.image, now_ms)
        self.observer.tick(self.image, now_ms)
        interval_ms = self.settings.rebalance_interval_ms
        if interval_ms and now_ms >= self._next_rebalance_ms:
            self._next_rebalance_ms = now_ms + interval_ms
            if self._rebalancing is None or self._rebalancing.done():
                self._rebalancing = self._lifecycle.create_task(self._rebalance(), "rebalance")

    def _renew_key(self, now_ms: int) -> None:
        """A new key for tokens of the native API, each hour of this controller's being the active one."""
        due = now_ms >= self._next_key_ms
        if due:
            self._next_key_ms = now_ms + KEY_LIFETIME_MS
        if self.image.cluster_id and (due or session_keys.lacks_key(self.image)):
            newest = session_keys.newest_key(self.image)
            self.once("new token key", "", newest, lambda ctx: session_keys.rotate(ctx, newest))

    async def _rebalance(self) -> None:
        """Give leadership back to preferred replicas; the look at all partitions is in slices."""
        interval_ms = self.settings.rebalance_interval_ms

        def steady(node_id: NodeId) -> bool:
            return self.sessions.steady(node_id, interval_ms, self.clock_ms())

        found: list[PartitionImage] = []
        for partition in elections.scan_not_preferred(self.image):
            if partition is None:
                await asyncio.sleep(0)
            elif steady(partition.replicas[0]):
                found.append(partition)
            if len(found) >= REBALANCE_CHANGES_MAX:
                break
        # Decided on what was seen; a look with nothing to do commits no barrier.
        while found and self.active:
            some, found = found[:REBALANCE_SLICE_CHANGES], found[REBALANCE_SLICE_CHANGES:]
            changed = await self.submit_quietly(_electing(some, steady))
            if changed:
                self._lifecycle.log.info("leaders rebalanced", partitions=changed)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more


def _electing(
    some: list[PartitionImage], may_lead: Callable[[NodeId], bool]
) -> Callable[[Context], Generated[int]]:
    return lambda ctx: elections.elect_preferred_among(ctx, some, may_lead, len(some))


__all__ = ["LEADER_SILENCE_MS", "Controller", "CoreSettings"]
