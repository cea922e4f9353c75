"""The controller role: opens the quorum, serves gRPC, stops cleanly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from penstock_controller.active.command_queue import CommandQueue
from penstock_controller.active.controller import LEADER_SILENCE_MS, Controller, CoreSettings
from penstock_controller.active.events_file import EventsFile
from penstock_controller.active.ports import ControllerPorts
from penstock_controller.active.raft_metrics import RaftMetrics
from penstock_controller.directory import DataDirectory
from penstock_controller.metrics import ControllerMetrics
from penstock_controller.quorum import Quorum, QuorumConfig, RaftPeer
from penstock_controller.quorum.events import APPEND_PERIOD_S, REST_APPEND_S, QuorumEvent
from penstock_controller.quorum.files import DamagedFile
from penstock_controller.quorum.pysyncobj_pins import WrongLibrary
from penstock_controller.quorum.quorum import QuorumPorts
from penstock_controller.rpc.changes import told_to
from penstock_controller.rpc.peer_levels import PeerLevels
from penstock_controller.rpc.service import ControllerService
from penstock_controller.settings import ControllerSettings
from penstock_controller.state.generation import Defaults
from penstock_core.errors import PenstockError
from penstock_core.ids import NodeId
from penstock_core.process.credentials import read_secret
from penstock_core.security.audit import REFUSED
from penstock_core.security.bootstrap_users import BootstrapUser, from_text
from penstock_core.security.client_file import ClientFileError
from penstock_core.security.identity import PeerIdentity
from penstock_proto.v1 import controller_pb2_grpc
from penstock_runtime.addresses import StartupError, check_bind
from penstock_runtime.audit import audit_of
from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.logs import CONSTANT
from penstock_runtime.roles import Role
from penstock_runtime.security.own_certificate import open_certificate, watch_certificate
from penstock_runtime.security.tls_files import TlsFiles
from penstock_runtime.self_description import SelfDescription
from penstock_runtime.settings import parse_address, parse_member
from penstock_runtime.tracing import Tracing, tracing_of

_GRPC_GRACE_S = 0.2
_HISTORY_S = 0.5
_SILENCE_SPREAD = 1.6
_APPENDS_IN_SILENCE = 4
"""So many of a leader's appends have to be missed at least, whatever raft_silence_ms is."""
_REAL = ControllerPorts()


async def run(settings: ControllerSettings, lifecycle: Lifecycle, ports: ControllerPorts = _REAL) -> None:
    """Serve until told to stop."""
    lifecycle.bind_identity(str(settings.controller_id))
    if settings.tls is None or settings.tls.mode != "require":
        check_bind(settings.raft_bind, "raft_bind", allow_insecure_bind=settings.plaintext)
    tls = open_certificate(
        settings.tls, ROLE.name, lambda identity: _name_fault(identity, settings.controller_id)
    )
    directory = DataDirectory(settings.data_dir, settings.controller_id)
    try:
        await _serve(settings, lifecycle, directory, ports, tls)
    finally:
        directory.close()


def _name_fault(identity: PeerIdentity, controller_id: int) -> str:
    """A certificate must say which controller it is: peers compare the name with its hello."""
    if identity.name == str(controller_id):
        return ""
    return f"it is that of controller {identity.name}, this is controller {controller_id}; give it its own"


def _first_users(settings: ControllerSettings, directory: DataDirectory) -> tuple[BootstrapUser, ...]:
    """The users of a new cluster. Where there is one the file counts no more, and need not be there."""
    path = settings.bootstrap_users
    if path is None or directory.cluster_id:
        return ()
    try:
        return from_text(read_secret(path, "file of `penstock user bootstrap`"))
    except ClientFileError as error:
        raise StartupError(f"bootstrap_users: {error}") from None
    except ValueError as error:
        raise StartupError(f"bootstrap_users: {path} {error}") from None


async def _serve(
    settings: ControllerSettings,
    lifecycle: Lifecycle,
    directory: DataDirectory,
    ports: ControllerPorts,
    tls: TlsFiles | None,
) -> None:
    metrics = ControllerMetrics(lifecycle.registry)
    core = Controller(_core_settings(settings, directory), lifecycle, ports, metrics, directory.join_cluster)
    config = quorum_config(settings, directory)
    quorum_ports = ports.quorum
    if tls is not None:
        quorum_ports = replace(quorum_ports, network=replace(quorum_ports.network, tls=tls))
    quorum = _open_quorum(config, core, lifecycle, metrics, quorum_ports)
    worker = _command_queue(settings, core, quorum, metrics, ports, tracing_of(lifecycle))
    core.connect(quorum, worker)
    await core.history.open(EventsFile(settings.data_dir))
    metrics.families_by_part.append(core.cluster_metrics.families)
    raft = RaftMetrics(quorum, lambda: core.status, len(config.peers) - 1, ports.clocks.wall_ms)
    metrics.families_by_part.append(raft.families)
    http = ports.http(settings.http_bind, lifecycle)
    addresses = settings.grpc_addresses()
    levels = PeerLevels(settings.controller_id, core.settings.member_ids, addresses, ports.channels(tls=tls))
    if tls is not None:
        core.on_image = lambda image: tls.refused.take(image.security.refused_certificates)
    service = told_to(
        audit_of(lifecycle),
        ControllerService(
            core,
            config.peers,
            addresses,
            levels,
            lifecycle.process_info(),
            lambda: "" if tls is None else tls.own_serial,
            ports.clocks.wall_ms,
            SelfDescription(lifecycle),
        ),
    )
    server = None
    try:
        server, endpoint = await ports.serve(
            settings.grpc_bind,
            lambda s: controller_pb2_grpc.add_ControllerServicer_to_server(service, s),
            allow_insecure_bind=settings.plaintext,
            tls=tls,
            bounds=settings.grpc_bounds,
        )
        http_endpoint = await http.start()
        lifecycle.log.info(
            "listening", grpc=endpoint.address, http=http_endpoint.address, raft=settings.raft_bind
        )
        watch_certificate(tls, lifecycle)
        lifecycle.create_task(worker.run(), "commands")
        lifecycle.create_task(core.run(), "controller tick")
        lifecycle.create_task(core.history.run(), "history")
        quorum.start()
        await lifecycle.stopping.wait()
    finally:
        # Leadership first, so that another controller is active before this one stops answering.
        await asyncio.to_thread(quorum.stop)
        await core.history.finish(_HISTORY_S)
        core.watchers.cut_off_all()
        if server is not None:
            await server.stop(_GRPC_GRACE_S)
        await http.stop()


def _core_settings(settings: ControllerSettings, directory: DataDirectory) -> CoreSettings:
    return CoreSettings(
        settings.controller_id,
        settings.node_session_timeout_ms,
        settings.node_heartbeat_interval_ms,
        settings.leader_rebalance_interval_ms,
        frozenset(parse_member(member)[0] or 0 for member in settings.raft_peers),
        _first_users(settings, directory),
        max(LEADER_SILENCE_MS, 2 * settings.raft_silence_ms),
    )


def _command_queue(
    settings: ControllerSettings,
    core: Controller,
    quorum: Quorum,
    metrics: ControllerMetrics,
    ports: ControllerPorts,
    tracing: Tracing | None,
) -> CommandQueue:
    return CommandQueue(
        quorum,
        settings.controller_id,
        Defaults(
            settings.default_partition_count,
            settings.default_replication_factor,
            settings.offsets_topic_num_partitions,
            settings.transaction_state_log_num_partitions,
        ),
        ports.new_rng(),
        ports.clocks.wall_ms,
        lambda node_id: _alive(core, node_id),
        _commit_observer(metrics, tracing, ports.clocks.s),
        ports.commit_timeout_ms,
    )


def _commit_observer(
    metrics: ControllerMetrics, tracing: Tracing | None, clock_s: Callable[[], float]
) -> Callable[[float], None]:
    if tracing is None:
        return metrics.commit_s.observe

    def observe(took_s: float) -> None:
        metrics.commit_s.observe(took_s)
        now_s = clock_s()
        tracing.tell("controller.command", now_s - took_s, now_s)

    return observe


def _alive(core: Controller, node_id: NodeId) -> bool:
    return core.sessions.alive(node_id, core.clock_ms())


def quorum_config(settings: ControllerSettings, directory: DataDirectory) -> QuorumConfig:
    """The quorum's settings from the role's."""
    members = [parse_member(member) for member in settings.raft_peers]
    peers = tuple(RaftPeer(member_id or 0, address.host, address.port) for member_id, address in members)
    me = next(p for p in peers if p.controller_id == settings.controller_id)
    bind = parse_address(settings.raft_bind)
    silence_s = settings.raft_silence_ms / 1000
    return QuorumConfig(
        controller_id=settings.controller_id,
        peers=peers,
        bind_host=bind.host,
        bind_port=bind.port or me.port,
        directory=settings.data_dir,
        directory_id=directory.directory_id,
        cluster_id=directory.cluster_id,
        append_period_s=min(APPEND_PERIOD_S, silence_s / _APPENDS_IN_SILENCE),
        rest_append_s=min(REST_APPEND_S, silence_s / _APPENDS_IN_SILENCE),
        silence_min_s=silence_s,
        silence_max_s=silence_s * _SILENCE_SPREAD,
        leader_fallback_s=silence_s * 1.2,
        snapshot_every_count=settings.raft_snapshot_every,
    )


def _open_quorum(
    config: QuorumConfig,
    core: Controller,
    lifecycle: Lifecycle,
    metrics: ControllerMetrics,
    ports: QuorumPorts,
) -> Quorum:
    loop = asyncio.get_running_loop()

    def on_loop(call: object, *args: object) -> None:
        try:
            loop.call_soon_threadsafe(call, *args)  # type: ignore[arg-type]
        except RuntimeError:
            # The loop is closed: the process ends, and nobody waits for news any more.
            return

    def deliver(events: list[QuorumEvent]) -> None:
        on_loop(take, events)

    def take(events: list[QuorumEvent]) -> None:
        try:
            core.on_events(events)
        except Exception as error:  # a fault here would leave the image behind for good
            lifecycle.fail_with(error)

    try:
        return Quorum(
            config,
            deliver,
            lambda error: on_loop(_fail, lifecycle, error),
            lambda line: on_loop(partial(lifecycle.log.warning, line, **{CONSTANT: "quorum warns"})),
            metrics.meters(
                lambda reason: audit_of(lifecycle).tell(
                    {"event": REFUSED, "outcome": "refused", "api": "raft", "reason": reason}
                )
            ),
            ports,
        )
    except (DamagedFile, WrongLibrary) as error:
        raise StartupError(str(error)) from None
    except PenstockError as error:
        raise StartupError(error.message) from None
    except OSError as error:
        raise StartupError(f"data_dir = {config.directory}: {error.strerror}: {error.filename}") from None


def _fail(lifecycle: Lifecycle, error: BaseException) -> None:
    if isinstance(error, OSError):
        lifecycle.fatal(
            f"the Raft log cannot be written: {error.strerror or error}; mend the disk, then start again"
        )
    else:
        lifecycle.fail_with(error)


ROLE = Role("controller", ControllerSettings, run, "keeps the cluster's metadata in a Raft quorum")
