"""One controller: the shipped quorum, state machine, worker, core and service.

Stand-ins: the tick thread (events of the scheduler call `RaftNode.tick`, which waits in
`SimPoller`), the snapshot thread, the clock and chance of the quorum (`QuorumPorts`), gRPC, files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock_controller.active.controller import Controller, CoreSettings
from penstock_controller.active.ports import ControllerPorts
from penstock_controller.quorum import Quorum, QuorumConfig, RaftPeer
from penstock_controller.quorum.events import QuorumEvent, QuorumMeters
from penstock_controller.quorum.files import Files
from penstock_controller.quorum.quorum import QuorumPorts
from penstock_controller.rpc.peer_levels import PeerLevels
from penstock_controller.rpc.service import ControllerService
from penstock_controller.state.generation import Defaults
from penstock_core.ids import NodeId
from penstock_core.limits import FEATURE_LEVEL
from penstock_proto.v1 import controller_pb2_grpc
from simulation.checked import CheckedCommandQueue, CheckedMachine
from simulation.process import Process
from simulation.raft_net import RAFT_PORT, SimPeerConnection, SimPoller, address_of, sim_network
from simulation.rpc import SimChannelPool, SimServer, probe
from simulation.scheduler import Timer
from simulation.settings import OFFSETS_PARTITIONS, TRANSACTIONS_PARTITIONS

if TYPE_CHECKING:
    from simulation.world import World

GRPC_PORT = 5001
WAKE_US = 30


class NullMetrics:
    """Nobody scrapes."""

    class _Value:
        def set(self, _: float) -> None:
            return None

        inc = observe = set

    is_active = _Value()
    commit_s = _Value()

    def applied(self, _old: object, _event: object) -> None:
        return None

    def follow(self, _image: object, _watchers: object, _waiting: object) -> None:
        return None

    def session_lost(self, _kind: str, _reason: str, *, left: bool) -> None:
        return None

    def meters(self) -> QuorumMeters:
        return QuorumMeters()


class _NoSlices:
    """A job that is no thread holds up nobody."""

    def breathe(self) -> None:
        """Go on."""


class ControllerProcess(Process):
    """A run of the controller on host `c<id>`."""

    def __init__(self, world: World, controller_id: int, directory_id: bytes) -> None:
        super().__init__(world, f"c{controller_id}")
        self.controller_id = controller_id
        self.poller = SimPoller(self)
        self.raft_links: dict[SimPeerConnection, None] = {}
        self.seen_commit = 1
        self.seen_term = 0
        self._tick_timer: Timer | None = None
        self._tick_at_us = 0
        settings = world.settings
        peers = tuple(RaftPeer(i, address_of(f"c{i}"), RAFT_PORT) for i in world.controller_ids)
        self.config = QuorumConfig(
            controller_id=controller_id,
            peers=peers,
            bind_host=address_of(self.name),
            bind_port=RAFT_PORT,
            directory=world.path(f"/{self.name}"),  # type: ignore[arg-type]
            directory_id=directory_id,
            cluster_id=world.cluster_ids.get(self.name, b""),
            append_period_s=settings.append_period_s,
            rest_append_s=max(settings.append_period_s, 0.3 * settings.silence_s),
            rest_s=settings.rest_s,
            tick_s=settings.tick_s,
            silence_min_s=settings.silence_s,
            silence_max_s=settings.silence_s * settings.silence_spread,
            leader_fallback_s=settings.silence_s * settings.fallback_silences,
            snapshot_every_count=settings.snapshot_every,
        )
        self.core = Controller(
            CoreSettings(
                controller_id,
                settings.session_timeout_ms,
                settings.heartbeat_ms,
                settings.rebalance_ms,
                frozenset(world.controller_ids),
            ),
            self.lifecycle,
            self._ports(),
            NullMetrics(),  # type: ignore[arg-type]
            self._join_cluster,
        )

    def _ports(self) -> ControllerPorts:
        world = self.world
        quorum: dict[str, Any] = {
            "clock_s": self._clock_s,
            "rng": world.rng,
            "spawn": self._spawn_job,
            "slicer": _NoSlices,
            "machine_class": CheckedMachine,
            "files": Files(world.sim_os),
            "network": sim_network(self),
        }
        return ControllerPorts(
            clocks=self.clocks,
            new_rng=self.new_rng,
            freeze=lambda: None,
            probe=lambda *where: probe(world, self, *where),
            quorum=QuorumPorts(**quorum),
            # A tick of the product looks at nothing that is due, many thousand times a run; these are still
            # short beside what they look after.
            tick_ms=200,
            keepalive_s=0.9,
            commit_timeout_ms=world.settings.commit_timeout_ms,
            founding_level=FEATURE_LEVEL if world.operator is None else world.operator.founding_level,
        )

    def start(self) -> None:
        """Open the files, bind, serve. Raises DamagedFile."""
        world = self.world
        world.current = self
        ports = self._ports()
        self.quorum = Quorum(self.config, self._deliver, self._fatal, lambda _: None, ports=ports.quorum)
        self.worker = CheckedCommandQueue(
            self.quorum,
            self.controller_id,
            Defaults(1, 3, OFFSETS_PARTITIONS, TRANSACTIONS_PARTITIONS),
            ports.new_rng(),
            ports.clocks.wall_ms,
            lambda node_id: self._alive(node_id),
            commit_timeout_ms=ports.commit_timeout_ms,
        )
        self.worker.checker = world.checker
        self.core.connect(self.quorum, self.worker)
        addresses = {i: f"c{i}:{GRPC_PORT}" for i in world.controller_ids}
        levels = PeerLevels(self.controller_id, addresses, addresses, SimChannelPool(self))  # type: ignore[arg-type]
        process = self.lifecycle.process_info()
        service = ControllerService(self.core, self.config.peers, addresses, levels, process)
        self.server = SimServer(self, addresses[self.controller_id])
        controller_pb2_grpc.add_ControllerServicer_to_server(service, self.server)  # type: ignore[arg-type]
        self.spawn(self.worker.run())
        self.spawn(self.core.run())
        self.raft = self.quorum._raft
        world.checker.rafts[self.controller_id] = self.raft
        world.checker.on_reset(self.name, self.quorum.image)
        self.raft_wake()

    def _alive(self, node_id: NodeId) -> bool:
        return self.core.sessions.alive(node_id, self.clock_ms())

    def _join_cluster(self, cluster_id: bytes) -> None:
        self.world.cluster_ids[self.name] = cluster_id

    def _deliver(self, events: list[QuorumEvent]) -> None:
        self.loop.call_soon(self.core.on_events, events)

    def _fatal(self, error: BaseException) -> None:
        self.failed(error)

    def _clock_s(self) -> float:
        return (self.world.scheduler.now_us + self.loop._base_us) / 1_000_000

    def _spawn_job(self, job: Callable[[], None], _name: str) -> None:
        """A thread that writes or checks a snapshot, or cuts the journal."""

        def run() -> None:
            self.world.current = self
            job()
            self.raft_wake()

        self.after(int(self.world.rng.random() * 300_000), run)

    # --- the tick thread

    def raft_wake(self) -> None:
        """Tick soon."""
        self._tick_in(WAKE_US)

    def _tick_in(self, delay_us: int) -> None:
        at_us = self.world.scheduler.now_us + delay_us
        if self._tick_timer is not None:
            if self._tick_at_us <= at_us:
                return
            self._tick_timer.cancel()
        self._tick_at_us = at_us
        self._tick_timer = self.after(delay_us, self._tick)

    def _tick(self) -> None:
        self._tick_timer = None
        world = self.world
        world.current = self
        if self.quorum._failed:
            return
        try:
            calls = self.quorum._calls
            while calls:
                calls.popleft()()
            self.raft.tick()
        except Exception as error:  # as Quorum._run has it
            self.quorum._fail(error)
            return
        world.checker.on_tick(self)
        self._tick_in(max(int(self.poller.wait_s * 1_000_000), 1_000))

    def raft_event(self, call: Callable[..., Any], *args: Any) -> None:
        """Something came in for the tick thread."""
        self._due(self._on_event, (call, args))

    def _on_event(self, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.world.current = self
        if self.quorum._failed:
            return
        try:
            call(*args)
        except Exception as error:
            self.quorum._fail(error)
            return
        self.raft_wake()

    # --- the end

    def resign(self) -> None:
        """As `Quorum.stop` begins: hand leadership over."""
        self.world.network.disturb(self.name)
        self.raft.resigning = True
        self._hand_over()

    def _hand_over(self) -> None:
        if self.is_up and self.raft._isLeader():
            self.quorum._calls.append(self.raft.transferLeadership)
            self.raft_wake()
            self.after(20_000, self._hand_over)

    def end(self, *, silently: bool) -> None:
        """SIGKILL, or power cut (`silently`)."""
        self.kill()
        self.world.checker.on_controller_end(self.name)
        for link in list(self.raft_links):
            link.die(silently=silently)
        listener = self.world.raft_listeners.get(self.name)
        if listener is not None and listener.process is self:
            del self.world.raft_listeners[self.name]
        if hasattr(self, "server"):
            self.server.stop()
