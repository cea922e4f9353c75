"""The storage node role: from its data directory to serving, and back to a clean stop.

Start: lock the directory, open and repair every log, listen, register, take roles from the metadata.
Stop: have leadership moved away, stop listening, close every log, leave the clean-shutdown marker.
A node that was removed stops without the first and the last of these: it gives its logs up. With slots its process
begins anew then, as a spare.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import TypeVar

from penstock_core.config.topic import TopicConfig
from penstock_core.errors import PenstockError
from penstock_core.ids import NodeId, TopicPartition
from penstock_core.metadata.image import Endpoint
from penstock_core.metadata.levels import transaction_version
from penstock_core.security.identity import PeerIdentity
from penstock_core.security.quota_book import QuotaBook
from penstock_frontend.acl_authorizer import AclAuthorizer
from penstock_frontend.authorizer import AllowAll, Authorizer
from penstock_frontend.cluster.apis import ApiOptions, ClusterApis
from penstock_frontend.listener.listener import KafkaListener, ListenerLimits
from penstock_frontend.listener.metrics import KafkaMetrics
from penstock_frontend.listener.quota_gate import QuotaGate
from penstock_frontend.producer_ids import ProducerIdAllocator
from penstock_frontend.sign_in.doors import HTTP, Doors
from penstock_frontend.sign_in.http import http_desk
from penstock_frontend.suspected_leaders import SuspectedLeaders
from penstock_kafka.wire import codec
from penstock_runtime.addresses import StartupError, advertised_endpoint
from penstock_runtime.audit import audit_of
from penstock_runtime.grpc_server import GrpcServer
from penstock_runtime.http import HttpServer
from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.logs import CONSTANT
from penstock_runtime.metadata_client import MetadataClient
from penstock_runtime.roles import Role
from penstock_runtime.security.callers import node_name_fault
from penstock_runtime.security.own_certificate import follow_refused, open_certificate, watch_certificate
from penstock_runtime.self_description import SelfDescription
from penstock_runtime.settings import ListenerSettings
from penstock_runtime.tracing import tracing_of
from penstock_runtime.turns import LoopTurns
from penstock_storage_node.cluster import retirement
from penstock_storage_node.cluster.coordinator_topics import CoordinatorTopics
from penstock_storage_node.cluster.handing_over import hand_over
from penstock_storage_node.cluster.isr_proposer import IsrProposer
from penstock_storage_node.cluster.node_reporter import NodeReporter
from penstock_storage_node.cluster.registration import Announcement, DirectoryRetired, Registration
from penstock_storage_node.cluster.spare import await_slot
from penstock_storage_node.kafka.dispatch import DataApis, DirectAddresses, DirectHandler
from penstock_storage_node.log import DirectoryPorts, LogDirectory, PartitionDirectory, PartitionLog
from penstock_storage_node.metrics import NodeMetrics
from penstock_storage_node.ports import NodePorts
from penstock_storage_node.replica.background import BackgroundJobs
from penstock_storage_node.replica.closing import close_logs
from penstock_storage_node.replica.compactor import Compactor
from penstock_storage_node.replica.manager import ReplicaManager
from penstock_storage_node.reporting.group_lag import LagExporter
from penstock_storage_node.reporting.node_gauges import NodeParts, add_gauges
from penstock_storage_node.reporting.partition_counts import PartitionLook
from penstock_storage_node.rpc.catch_up_throttle import CatchUpThrottle
from penstock_storage_node.rpc.fetch_range import FetchRangeService
from penstock_storage_node.rpc.forward import ForwardService
from penstock_storage_node.rpc.log_ends import LogEnds, LogEndsService
from penstock_storage_node.rpc.replicate_follower import REPLICA_CHANNEL_LIMITS, FollowerStreams
from penstock_storage_node.rpc.replicate_leader import LeaderStreams
from penstock_storage_node.rpc.replication_lanes import LaneLimits
from penstock_storage_node.rpc.service import add_storage_service
from penstock_storage_node.rpc.size_ranges import SizeRangesService
from penstock_storage_node.rpc.strays import StraysService
from penstock_storage_node.rpc.transaction_service import TransactionService
from penstock_storage_node.rpc.transaction_streams import TransactionStreams
from penstock_storage_node.rpc.units import UnitsService
from penstock_storage_node.settings import StorageNodeSettings
from penstock_storage_node.transactions.leading import LeadingSide
from penstock_storage_node.transactions.link import TransactionLink

T = TypeVar("T")
_REAL = NodePorts()

_OPENED_TOGETHER_MOST = 32
_OPENED_TOGETHER_OF = 100
"""Logs that one job of the pool opens at the start: one more for each hundred that there are."""
GRPC_GRACE_S = 0.5
LISTENER_GRACE_MS = 1_000
_GRACE_MS = 5_000
"""How much longer a node goes by old rights than its listeners: gateways have cut their clients off by then, so that
none of these is told that it has no rights."""
_NEWEST_MS = 5_000
"""How long a node that was removed waits for metadata that say so: by them it knows which topics there are."""

LIMITS = ListenerLimits(inflight_bytes_max=4 * 1024 * 1024, frames_bytes_max=64 * 1024 * 1024)
"""What direct clients may have unanswered: it is held in memory until it is on disk."""


class _Stopping(Exception):
    """TERM came before the node was up."""


class StorageNode:
    """One node; `run` is its whole life."""

    def __init__(self, settings: StorageNodeSettings, lifecycle: Lifecycle, ports: NodePorts = _REAL) -> None:
        self._settings = settings
        self._lifecycle = lifecycle
        self._ports = ports
        self._clocks = ports.clocks
        self._pool = ports.pool(settings.disk_threads)
        if not settings.has_slot_certificates:
            self._open_certificate()
        self._metrics = NodeMetrics()
        self._doors = Doors(
            settings.listeners,
            lifecycle,
            settings.oauth,
            http=settings.http_door,
            stale_ms=settings.stale_ms,
        )
        self._http: HttpServer
        self._listeners: list[KafkaListener] = []
        self._server: GrpcServer | None = None
        self._directory: LogDirectory
        self._manager: ReplicaManager
        self._links: FollowerStreams
        self._background: BackgroundJobs
        self._registration: Registration
        self._metadata: MetadataClient
        self._retired: DirectoryRetired | None = None

    async def run(self) -> None:
        """Serve until told to stop."""
        settings, lifecycle = self._settings, self._lifecycle
        if not settings.controllers:
            raise StartupError(
                "controllers is empty; name the controllers' gRPC addresses, --controllers host:port"
            )
        if settings.node_id > 0:
            lifecycle.bind_identity(str(settings.node_id))
        clean = False
        opened = False
        try:
            directory = await self._claim()
            if directory is None:
                return
            self._directory = directory
            opened = True
            retirement.refuse(directory)
            if settings.has_slot_certificates:
                clean = self._directory.was_clean  # as it was found, if there is no certificate
                self._settings = settings = self._of_slot()
                self._open_certificate()
                lifecycle.bind_identity(str(settings.node_id))
                clean = False
            await self._choose_flush()
            logs = await self._open_logs()
            self._build(logs)
            refused: StartupError | None = None
            try:
                await self._start(logs)
                await lifecycle.stopping.wait()
                if self._retired is None and not lifecycle.failed.is_set():
                    bound_ms = settings.controlled_shutdown_max_ms
                    await hand_over(self._registration, bound_ms, self._clocks.s, lifecycle.log)
            except _Stopping:
                pass
            except DirectoryRetired as news:
                self._retired = news
            except StartupError as e:
                refused = e  # the logs are closed all the same, so that the next start is quick
            if self._retired is not None:
                await self._metadata.wait_for_version(self._retired.version, _NEWEST_MS)
            await self._stop_serving()
            if self._retired is not None and not lifecycle.failed.is_set():
                await self._retire(self._retired)
            else:
                clean = await self._close_logs() if not lifecycle.failed.is_set() else False
            if refused is not None:
                raise refused
        finally:
            if opened:
                directory = self._directory
                await self._pool.run(lambda: directory.close(clean=clean))
            self._pool.stop()

    def _name_fault(self, identity: PeerIdentity) -> str:
        # Without a node_id it may be that its directory has one: the controllers look at the certificate then.
        node_id = self._settings.node_id
        return node_name_fault(identity, node_id) if node_id > 0 else ""

    # -- start --------------------------------------------------------------------

    async def _claim(self) -> LogDirectory | None:
        """The data directory, locked; None of a spare that was told to stop before it got one."""
        settings, ports = self._settings, self._ports
        clocks = ports.clocks
        directory_ports = DirectoryPorts(
            ports.fs(), clocks.wall_ms, ports.new_uuid, ports.parts.log, steady_ms=clocks.ms
        )

        def open_one() -> LogDirectory:
            if settings.slots_dir is not None:
                return LogDirectory.claim_slot(directory_ports, settings.slots_dir, node_id=settings.node_id)
            return LogDirectory.open(directory_ports, settings.data_dir)

        try:
            if settings.spare:
                files = self._doors.tls_files(HTTP)
                return await await_slot(
                    settings, self._lifecycle, self._pool, directory_ports, ports.http, files
                )
            return await self._pool.run(open_one)
        except PenstockError as e:
            raise StartupError(e.message) from None
        except OSError as e:
            name = "data_dir" if settings.slots_dir is None else "slots_dir"
            path = settings.slots_dir or settings.data_dir
            raise StartupError(f"{name} = {path}: {e.strerror}: {e.filename}") from None

    def _of_slot(self) -> StorageNodeSettings:
        directory = self._directory
        return self._settings.in_slot(directory.node_id if directory.node_id > 0 else directory.slot + 1)

    def _open_certificate(self) -> None:
        self._tls = open_certificate(self._settings.tls, ROLE.name, self._name_fault)
        self._channels = self._ports.channels(tls=self._tls)
        self._replica_channels = self._ports.channels(REPLICA_CHANNEL_LIMITS, tls=self._tls)

    async def _choose_flush(self) -> None:
        """Have commits share flushes where the filesystem allows it."""
        self._pool.on_flush = self._metrics.observe_flush
        if not self._settings.group_flush:
            return
        path, ports = str(self._directory.path), self._ports
        group, why_not = await self._pool.run(lambda: ports.group_flush(ports.fs(), path))
        self._pool.use_group_flush(group)
        if group is None:
            self._lifecycle.log.info("each log is flushed by itself", reason=why_not)
        elif group.earlier_error:
            self._lifecycle.log.warning(
                "the disk lost writes before this start; logs are checked as they are opened",
                reason=group.earlier_error,
            )

    async def _open_logs(self) -> list[tuple[PartitionDirectory, PartitionLog]]:
        """Open and repair all logs, several at a time."""
        directory, wanted = self._directory, self._settings.node_id
        if 0 < directory.node_id != wanted > 0:
            raise StartupError(
                f"data directory {directory.path} belongs to node {directory.node_id}, not {wanted};"
                f" set node_id = {directory.node_id} or choose another data_dir"
            )
        found = await self._pool.run(directory.scan)
        if directory.missing:
            self._lifecycle.log.warning(
                "logs are gone that the last process had: others lead these partitions until this node has copied them",
                count=len(directory.missing),
                partitions=", ".join(f"{topic}-{number}" for topic, number in sorted(directory.missing)[:20]),
            )
        if directory.leftovers:  # beside the opening: a full disk needs the space, nobody waits for it
            self._pool.write(directory.remove_leftovers, self._on_leftovers_removed)
        defaults = TopicConfig()

        def open_some(several: Sequence[PartitionDirectory]) -> list[PartitionLog]:
            return [directory.open_log(each, defaults) for each in several]

        # Few are opened one by one, for each may take long; of many the pool's work for each would take longest.
        size = min(_OPENED_TOGETHER_MOST, len(found) // _OPENED_TOGETHER_OF + 1)
        started_s = self._clocks.s()
        try:
            opened = await asyncio.gather(
                *(
                    self._pool.run(lambda first=first: open_some(found[first : first + size]))  # type: ignore[misc]
                    for first in range(0, len(found), size)
                )
            )
        except PenstockError as e:
            raise StartupError(e.message) from None
        logs: list[PartitionLog] = [log for several in opened for log in several]
        if found:
            self._lifecycle.log.info(
                "logs opened",
                count=len(found),
                clean=directory.was_clean,
                scanned=sum(log.recovered_from_unclean for log in logs),
                ms=round((self._clocks.s() - started_s) * 1000),
            )
        return list(zip(found, logs, strict=True))

    def _on_leftovers_removed(self, _: object, error: BaseException | None) -> None:
        if error is not None:
            self._lifecycle.log.warning("files of a deleted log remain", reason=str(error))

    def _build(self, logs: list[tuple[PartitionDirectory, PartitionLog]]) -> None:
        """Everything that the node has open, in the order in which the parts need one another."""
        settings, lifecycle, ports = self._settings, self._lifecycle, self._ports
        self._manager = manager = ReplicaManager(
            directory=self._directory,
            pool=self._pool,
            lifecycle=lifecycle,
            metrics=self._metrics,
            clocks=self._clocks,
            lag_max_ms=settings.replica_lag_time_max_ms,
            replica_class=ports.parts.replica,
        )
        manager.health.reserve_bytes = settings.disk_reserve_bytes
        manager.adopt(logs)
        owner = f"node-{settings.node_id if settings.node_id > 0 else self._directory.node_id}"
        self._controllers = ports.controllers(
            settings.controllers, owner, self._channels, clock_ms=self._clocks.ms, rng=ports.new_rng()
        )
        self._metadata = MetadataClient(
            self._controllers,
            owner,
            self._clocks.ms,
            log=lifecycle.log,
            rng=ports.new_rng(),
            freeze=ports.freeze,
        )
        by_acl = settings.acl_authorizer(lifecycle.log, audit_of(lifecycle))
        if by_acl is not None:
            self._metadata.on_change(by_acl.metadata_changed)  # first of all: nobody asks by older rights
        self._authorizer: Authorizer = by_acl or AllowAll()
        follow_refused(self._tls, self._metadata)
        self._metadata.on_change(manager.on_metadata)
        suspected_leaders = SuspectedLeaders(self._metadata, self._clocks.ms)
        self._build_replication(suspected_leaders)
        self._producer_ids = ProducerIdAllocator(self._controllers, owner)
        self._metadata.on_change(self._producer_ids.metadata_changed)
        self._build_groups()
        self._build_transactions()
        self._data = DataApis(
            manager,
            self._authorizer,
            lambda: self._registration.in_touch(),
            self._groups,
            self._transactions,
            self._transaction_link,
            tracing_of(self._lifecycle),
        )
        self._build_listeners(suspected_leaders, by_acl)
        self._register_metrics()

    def _build_replication(self, suspected_leaders: SuspectedLeaders) -> None:
        """The streams to and from other nodes, what is told of this one, and what its logs need meanwhile."""
        settings, manager, ports = self._settings, self._manager, self._ports
        limits = LaneLimits(
            credit_bytes=settings.catch_up_credit_bytes,
            bytes_per_s=settings.catch_up_bytes_per_s_max,
            pieces=ports.pieces,
            near_bytes=ports.near_bytes,
        )
        self._throttle = throttle = CatchUpThrottle(
            manager.registry, self._clocks.s, ports.throttled_message_bytes_min
        )
        self._links = FollowerStreams(
            manager, self._replica_channels, suspected_leaders.suspect, limits, throttle, ports.parts.inlet
        )
        self._streams = LeaderStreams(manager, limits, throttle)
        self._reporter = NodeReporter(manager, self._directory, throttle.hear)
        self._reporter.strays = lambda: (self._background.strays.count, self._background.strays.size_bytes)
        self._proposer = IsrProposer(manager, self._controllers)
        manager.connect(self._streams, self._links, self._proposer.propose)
        self._background = BackgroundJobs(manager, self._directory, settings, ports.tick_ms)
        self._compaction = Compactor(manager, self._directory, settings, ports.worker)

    def _build_groups(self) -> None:
        """The coordinator of consumer groups, and what tells of their lag."""
        settings, manager, ports = self._settings, self._manager, self._ports
        self._groups = ports.parts.groups(
            manager,
            self._lifecycle,
            settings.group_settings(),
            expiry_interval_ms=settings.offsets_retention_check_interval_ms,
            new_uuid=ports.new_uuid,
            tick_ms=ports.group_tick_ms,
        )
        manager.roles.watchers.append(self._groups)
        self._log_ends = LogEndsService(manager.registry)
        self._lag = LagExporter(
            manager.registry,
            self._groups,
            LogEnds(manager.registry, self._log_ends, self._channels),
            settings.lag_interval_ms,
            self._clocks.ms,
            self._clocks.wall_ms,
        )
        self._metadata.on_change(lambda old, new, _: self._groups.on_metadata(old, new))

    def _build_transactions(self) -> None:
        """The coordinator of transactions, the leaders' side, and what goes between nodes for both."""
        manager, metadata, ports = self._manager, self._metadata, self._ports
        self._transactions = ports.parts.transactions(
            manager,
            self._lifecycle,
            self._settings.transaction_settings(),
            carry_out=lambda effect: self._transaction_link.carry_out(effect),
            take_id=self._producer_ids.take,
            version=lambda: transaction_version(metadata.image),
            make_topic=CoordinatorTopics(self._controllers, self._lifecycle).make,
            tick_ms=ports.transaction_tick_ms,
        )
        self._producer_ids.on_arrival = self._transactions.ids_arrived
        manager.roles.watchers.append(self._transactions)
        leading = LeadingSide(manager)
        manager.roles.watchers.append(leading)
        leading.on_marker.append(
            lambda partition, marker: self._groups.on_marker(
                partition, marker.producer_id, marker.offset, commits=marker.commit
            )
        )
        self._transaction_link = link = TransactionLink(manager, self._transactions, leading)
        self._transaction_streams = TransactionStreams(manager, link, self._channels)
        link.connect(self._transaction_streams)
        metadata.on_change(lambda old, new, _: link.on_metadata(old, new))
        metadata.on_change(lambda _, new, __: self._transaction_streams.keep(new.nodes))

    def _build_listeners(self, suspected_leaders: SuspectedLeaders, by_acl: AclAuthorizer | None) -> None:
        """What clients come to directly, and HTTP."""
        settings, lifecycle, ports = self._settings, self._lifecycle, self._ports
        registry = self._manager.registry
        kafka_metrics = KafkaMetrics.of(lifecycle)
        self._quotas = QuotaGate(QuotaBook(), self._clocks.ms, kafka_metrics)
        self._metadata.on_change(self._quotas.metadata_changed)
        cluster = ClusterApis(
            self._metadata,
            self._controllers,
            self._producer_ids,
            DirectAddresses(settings.listeners),
            self._authorizer,
            kafka_metrics,
            ApiOptions(
                suspected_leaders=suspected_leaders,
                own_node=lambda: registry.node_id,
                auto_create=settings.auto_create_topics,
                wall_ms=self._clocks.wall_ms,
                turns=LoopTurns.of(lifecycle),
                quotas=self._quotas,
            ),
        )
        handler = DirectHandler(self._data, cluster, kafka_metrics)
        caps = settings.listener_limits(LIMITS)
        self._doors.connect(self._metadata, cluster.api_versions, by_acl, _GRACE_MS)
        door, files = self._doors.http_door(), self._doors.tls_files(HTTP)
        self._http = ports.http(settings.http_bind, lifecycle, **http_desk(door, files, self._authorizer))
        self._listeners = [
            ports.listener(each, handler, lifecycle, caps, **self._doors.of(each), quotas=self._quotas)
            for each in settings.listeners
        ]

    def _register_metrics(self) -> None:
        metrics, registry, lifecycle = self._metrics, self._manager.registry, self._lifecycle
        add_gauges(
            metrics,
            NodeParts(
                manager=self._manager,
                pool=self._pool,
                links=self._links,
                background=self._background,
                reporter=self._reporter,
                groups=self._groups,
                metadata_age_ms=self._metadata.contact_age_ms,
                disk_reserve_bytes=self._settings.disk_reserve_bytes,
            ),
        )
        turns = LoopTurns.of(lifecycle)
        look = PartitionLook(
            registry,
            self._clocks.ms,
            lambda steps: lifecycle.create_task(turns.run(steps, at_once=False), "counts of partitions"),
        )
        metrics.topics.topics_max = self._settings.metrics_topics_max
        metrics.topics.is_known = lambda name: name in registry.image.topic_ids
        metrics.families_by_part += [
            self._throttle.families,
            look.families,
            self._groups.families,
            self._transactions.families,
            self._transaction_link.families,
        ]
        metrics.register(lifecycle.registry)

    async def _start(self, logs: list[tuple[PartitionDirectory, PartitionLog]]) -> None:
        settings, lifecycle = self._settings, self._lifecycle
        codec.preload()
        bound = await self._serve_grpc()
        http = await self._http.start()
        endpoints = await self._listen()
        announcement = Announcement(
            settings.node_id,
            settings.rack,
            advertised_endpoint(settings.grpc_advertised, bound),
            advertised_endpoint("auto", http) if http.port else http,
            endpoints,
            [
                TopicPartition(found.topic_id, found.partition)
                for found, log in logs
                if log.log_end_offset < log.flush_point or log.may_lack_acked
            ],
            settings.shown_to_clients(str(self._directory.path)),
            missing=self._directory.missing,
        )
        lifecycle.log.info(
            "listening",
            grpc=bound.address,
            http=http.address,
            **{e.listener: e.address for e in endpoints},
        )
        self._registration = self._register_as(announcement)
        watch_certificate(self._tls, lifecycle)
        lifecycle.create_task(self._metadata.run(), "metadata")
        await self._unless_stopping(self._registration.register())
        self._manager.set_aside_strays()
        lifecycle.create_task(self._proposer.run(), "isr proposals")
        self._background.start()
        lifecycle.create_task(self._reporter.run(), "report")
        self._compaction.start()
        self._groups.start()
        self._transactions.start()
        lifecycle.registry.register(self._lag)
        lifecycle.create_task(self._lag.run(), "lag")
        lifecycle.create_task(self._keep_session(), "session")
        self._metadata.on_change(lambda *_: self._hasten())

    async def _serve_grpc(self) -> Endpoint:
        settings = self._settings
        forward = ForwardService(
            self._data,
            self._manager,
            self._metadata,
            settings.socket_request_max_bytes,
            settings.request_items_max,
            settings.forward_streams_per_gateway_max,
        )
        self._server, bound = await self._ports.serve(
            settings.grpc_bind,
            lambda s: add_storage_service(
                s,
                self._streams,
                forward,
                FetchRangeService(self._manager, self._authorizer),
                self._log_ends,
                StraysService(self._manager.registry, self._background.strays),
                SelfDescription(self._lifecycle),
                TransactionService(self._manager, self._transaction_link),
                UnitsService(self._transactions, self._authorizer),
                SizeRangesService(self._manager.registry),
            ),
            allow_insecure_bind=settings.plaintext,
            tls=self._tls,
            bounds=settings.grpc_bounds,
        )
        return bound

    async def _listen(self) -> list[Endpoint]:
        """Open the Kafka listeners; where clients find each."""
        settings = self._settings
        endpoints = [
            _advertised(each, await listener.start())
            for each, listener in zip(settings.listeners, self._listeners, strict=True)
        ]
        self._doors.start(self._listeners)
        for each, endpoint in zip(settings.listeners, endpoints, strict=True):
            self._doors.check_names(each.name, [endpoint.host])
        return endpoints

    def _register_as(self, announcement: Announcement) -> Registration:
        health = self._manager.health
        registration = self._ports.parts.registration(
            self._lifecycle,
            self._controllers,
            self._metadata,
            self._directory,
            self._pool,
            announcement,
            self._on_epoch,
            lambda: health.failed,
            lambda: health.space.full,
            self._quotas,
            self._reporter,
        )
        health.listeners.append(registration.wake)
        health.space_listeners.append(registration.wake)
        return registration

    async def _keep_session(self) -> None:
        try:
            await self._registration.run()
        except DirectoryRetired as news:
            self._retired = news
            self._lifecycle.request_stop("this node was removed")

    def _hasten(self) -> None:
        # The controller waits for this node's version before it lets it serve or go.
        if self._registration.fenced or self._registration.want_shutdown:
            self._registration.wake()

    def _on_epoch(self, node_id: NodeId, node_epoch: int) -> None:
        self._lifecycle.bind_identity(str(node_id))
        self._manager.start(node_id, node_epoch)
        self._links.restart()
        self._transaction_streams.restart()

    async def _unless_stopping(self, work: Awaitable[T]) -> T:
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._lifecycle.stopping.wait())
        try:
            await asyncio.wait([task, stop], return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise _Stopping
        finally:
            for each in (task, stop):
                if not each.done():
                    each.cancel()
                    await asyncio.wait([each])

    # -- stop ---------------------------------------------------------------------

    async def _retire(self, news: DirectoryRetired) -> None:
        """This node was removed: mark its directory, drop its logs, end or begin anew as a spare."""
        lifecycle, pool, directory = self._lifecycle, self._pool, self._directory
        is_marked = await retirement.mark(lifecycle, pool, directory, news)
        await self._close_logs()
        if not is_marked:
            raise StartupError(
                f"{news.message}; its data directory {directory.path} can't be marked as retired"
            )
        topics = self._manager.registry.image.topics
        await retirement.drop_logs(lifecycle, pool, directory, lambda topic_id: topic_id in topics)
        reason = f"data directory {directory.path} is retired: {news.message}"
        if self._settings.slots_dir is None:
            lifecycle.log.info(reason, **{CONSTANT: "data directory is retired"})
            lifecycle.leave(reason)
        else:
            lifecycle.start_again(f"{reason}; this process becomes a spare", "--spare")

    async def _stop_serving(self) -> None:
        await asyncio.gather(*(listener.stop(LISTENER_GRACE_MS) for listener in self._listeners))
        if self._server is not None:
            await self._server.stop(GRPC_GRACE_S)
        self._links.close()
        self._transaction_streams.close()
        self._transaction_link.close()
        await self._lifecycle.end_tasks()
        await self._producer_ids.close()
        await self._http.stop()
        await self._replica_channels.close()
        await self._channels.close()

    async def _close_logs(self) -> bool:
        return await close_logs(
            self._manager, self._directory, self._pool, self._background, self._lifecycle.log
        )


def _advertised(settings: ListenerSettings, bound: Endpoint) -> Endpoint:
    """A node tells one address per listener: that for every network, else the first given."""
    table = settings.advertised_by_network()
    address = next((a for network, a in table if network == "*"), table[0][1])
    endpoint = advertised_endpoint("auto" if address is None else str(address), bound, settings.name)
    return replace(endpoint, security=settings.security)


async def run(settings: StorageNodeSettings, lifecycle: Lifecycle) -> None:
    """The role's life."""
    await StorageNode(settings, lifecycle).run()


ROLE = Role("storage-node", StorageNodeSettings, run, "keeps partition logs on its own disk")
