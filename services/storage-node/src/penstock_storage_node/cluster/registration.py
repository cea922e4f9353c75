"""The node's membership: registration with the controllers, and the session that keeps it.

A node registers once per start, and again when the controllers no longer know its epoch. Its
session is a stream of heartbeats to the active controller that carry the progress of event loop
and disk; replies of a controller whose term is lower than one already heard are refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.failpoints import hit
from penstock_core.ids import NodeId, TopicPartition
from penstock_core.metadata.image import Endpoint
from penstock_frontend.listener.quota_gate import QuotaGate
from penstock_kafka.wire.apis import SUPPORTED
from penstock_proto.v1 import common_pb2
from penstock_proto.v1 import controller_pb2 as pb
from penstock_runtime.addresses import StartupError
from penstock_runtime.controller_client import ControllerClient, ControllerStream
from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.metadata_client import MetadataClient
from penstock_storage_node.cluster.heartbeat_freshness import HeartbeatFreshness
from penstock_storage_node.cluster.node_reporter import NodeReporter
from penstock_storage_node.disk.pool import DiskPool
from penstock_storage_node.log import LogDirectory

REGISTER_TIMEOUT_MS = 5_000
DUPLICATE_PATIENCE_MS = 10_000
"""How long a node tries to take over its own id from a process that may still count as alive."""
RETRY_PAUSE_MS = 100


@dataclass(frozen=True, slots=True)
class Announcement:
    """What the node says of itself when it registers."""

    node_id: int
    rack: str
    grpc: Endpoint
    http: Endpoint
    listeners: Sequence[Endpoint]
    damaged: Sequence[TopicPartition]
    settings: Mapping[str, str] = field(default_factory=dict)
    """Those of the process that clients may see, where they are not the defaults."""
    missing: Sequence[tuple[str, int]] = ()
    """(topic, partition) of logs that the last process had and that are gone; their topics' ids say the metadata."""


class DirectoryRetired(StartupError):
    """This node was removed from the cluster: its directory never holds a role again."""

    def __init__(self, operation_id: int, version: int, message: str) -> None:
        super().__init__(message)
        self.operation_id = operation_id
        self.version = version
        """Of metadata that say so."""


class Registration:
    """Registers and keeps the session. `on_epoch(node_id, node_epoch)` is called at each grant.

    Heartbeats carry what this node's own listeners want of `quotas`, and their answers what they get; and what
    `reporter` has to tell of the disk and the replicas.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        controllers: ControllerClient,
        metadata: MetadataClient,
        directory: LogDirectory,
        pool: DiskPool,
        announcement: Announcement,
        on_epoch: Callable[[NodeId, int], None],
        disk_failed: Callable[[], bool],
        disk_full: Callable[[], bool],
        quotas: QuotaGate | None = None,
        reporter: NodeReporter | None = None,
    ) -> None:
        self._lifecycle = lifecycle
        self._controllers = controllers
        self._metadata = metadata
        self._directory = directory
        self._pool = pool
        self._announcement = announcement
        self._on_epoch = on_epoch
        self._disk_failed = disk_failed
        self._disk_full = disk_full
        self._quotas = quotas or QuotaGate.idle()
        self._reporter = reporter
        self._node_id = announcement.node_id if announcement.node_id >= 0 else directory.node_id
        self._node_epoch = -1
        self._interval_ms = 250
        self._silence_max_ms = 1_000
        self._doubt_ms = 1_000
        self._registered_before = False
        self._wake = asyncio.Event()
        self._stream: ControllerStream[pb.NodeHeartbeat, pb.NodeHeartbeatReply] | None = None
        self._freshness = HeartbeatFreshness()
        self.registration_version = 0
        self.want_shutdown = False
        self._shutdown_due_ms = 0
        self.fenced = True
        self.may_shutdown = asyncio.Event()

    def wake(self) -> None:
        """Send a heartbeat now: something of it has changed."""
        self._wake.set()

    def leave(self, within_ms: int = 0) -> None:
        """Ask for leadership to be moved away; `may_shutdown` is set when it has. After `within_ms` this node goes all
        the same; until then the controllers may have it wait for replicas that come back."""
        self.want_shutdown = True
        self._shutdown_due_ms = round(_now_ms()) + within_ms
        self.wake()

    def _shutdown_left_ms(self) -> int:
        return max(0, self._shutdown_due_ms - round(_now_ms())) if self.want_shutdown else 0

    def silence_ms(self) -> float:
        """How long no controller has answered a heartbeat."""
        return _now_ms() - self._freshness.heard_ms

    def in_touch(self) -> bool:
        """Whether this node may take it that it leads what its metadata say: not while it is fenced, or there
        are newer ones, or the controllers have not heard from it for half of the time that they allow."""
        version = self._metadata.image.version
        return not self.fenced and self._freshness.is_recent(version, self._doubt_ms, _now_ms())

    # -- registration -------------------------------------------------------------

    async def register(self) -> None:
        """Get a node id and an epoch. Raises StartupError when this node cannot be let in, and DirectoryRetired."""
        hit("node.register.before_call")
        response = await self._ask()
        hit("node.register.after_answer")
        self._controllers.note_term(response.controller_term)
        node_id = NodeId(response.node_id)
        directory, cluster_id = self._directory, response.cluster_id

        def keep() -> None:
            directory.set_identity(cluster_id=cluster_id, node_id=node_id)
            directory.reported()

        try:
            await self._pool.run(keep)
        except PenstockError as e:
            raise StartupError(e.message) from None
        except OSError as e:
            raise StartupError(f"data directory {directory.path} cannot be written: {e}") from None
        hit("node.register.after_identity")
        self._node_id, self._node_epoch = node_id, response.node_epoch
        self.registration_version = response.version
        self._interval_ms = response.heartbeat_interval_ms or self._interval_ms
        # A successor fences those who have not come to it within a session timeout.
        self._silence_max_ms = max(response.session_timeout_ms // 2, 3 * self._interval_ms)
        self._doubt_ms = response.session_timeout_ms // 2 or self._doubt_ms
        self._registered_before = True
        self.fenced = True
        self._lifecycle.log.info(
            "registered", node_id=node_id, node_epoch=response.node_epoch, version=response.version
        )
        # The roles of the registration's version or later: an older image may name this
        # node as a leader of times before its restart.
        await self._have_metadata(response.version)
        self._on_epoch(node_id, response.node_epoch)

    async def _have_metadata(self, version: int) -> None:
        while not await self._metadata.wait_for_version(version, 60_000):
            self._lifecycle.log.warning("no metadata of the registration yet", version=version)

    async def _ask(self) -> pb.RegisterNodeResponse:
        loop = asyncio.get_running_loop()
        started = loop.time()
        waiting = False
        while True:
            request = self._request()
            try:
                response: pb.RegisterNodeResponse = await self._controllers.call(
                    "RegisterNode", request, timeout_ms=REGISTER_TIMEOUT_MS
                )
            except PenstockError as e:
                if e.code != ErrorCode.REQUEST_TIMED_OUT:
                    raise StartupError(f"registration failed: {e.message}") from None
                if not waiting:
                    self._lifecycle.log.warning("waiting for a controller", reason=e.message)
                waiting = True
                continue
            error = response.error
            if not error.code and await self._has_told_all(request, response.version):
                return response
            if not error.code:
                continue  # nothing was elected meanwhile: a node that registers is fenced
            if response.retired_by_operation:
                raise DirectoryRetired(response.retired_by_operation, response.version, error.message)
            again = error.code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
            if not again or (loop.time() - started) * 1000 > DUPLICATE_PATIENCE_MS:
                raise StartupError(f"data directory {self._directory.path} was refused: {error.message}")
            await asyncio.sleep(RETRY_PAUSE_MS / 1000)

    async def _has_told_all(self, request: pb.RegisterNodeRequest, version: int) -> bool:
        """Whether a request has named all logs that are missing, by their ids as of that version."""
        if self._registered_before or not self._announcement.missing:
            return True
        await self._have_metadata(version)
        told = {(each.topic_id, each.partition) for each in request.damaged}
        return all((each.topic_id, each.partition) in told for each in self._gone())

    def _gone(self) -> list[pb.TopicPartitionId]:
        topic_ids = self._metadata.image.topic_ids
        return [
            pb.TopicPartitionId(topic_id=topic_ids[topic], partition=partition)
            for topic, partition in self._announcement.missing
            if topic in topic_ids
        ]

    def _request(self) -> pb.RegisterNodeRequest:
        told = self._announcement
        gone = [] if self._registered_before else self._gone()
        damaged = [] if self._registered_before else told.damaged
        return pb.RegisterNodeRequest(
            cluster_id=self._directory.cluster_id,
            node_id=self._node_id,
            directory_id=self._directory.directory_id,
            process=self._lifecycle.process_info(),
            rack=told.rack,
            grpc=told.grpc.to_pb(),
            http=told.http.to_pb(),
            listeners=[e.to_pb() for e in told.listeners],
            apis=[
                common_pb2.ApiRange(api_key=key, min_version=low, max_version=high)
                for key, (low, high) in SUPPORTED.items()
            ],
            # Registered anew by the same process: nothing was lost in between.
            clean_shutdown=self._directory.was_clean or self._directory.is_new or self._registered_before,
            damaged=[
                *(pb.TopicPartitionId(topic_id=k.topic_id, partition=k.partition) for k in damaged),
                *gone,
            ],
            settings=told.settings,
            gone=gone,
        )

    # -- session ------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the session for ever. Raises DirectoryRetired when its node was removed."""
        while True:
            try:
                self._stream = await self._controllers.session("NodeSession")
                stale = await self._session(self._stream)
            except PenstockError as e:
                self._lifecycle.log.info("session ended", reason=e.message)
                await asyncio.sleep(RETRY_PAUSE_MS / 1000)
                continue
            finally:
                if self._stream is not None:
                    self._stream.close()
                    self._stream = None
            if stale:
                await self.register()

    async def _session(self, stream: ControllerStream[pb.NodeHeartbeat, pb.NodeHeartbeatReply]) -> bool:
        """Beat until the stream ends (PenstockError) or the registration is over (True)."""
        self._freshness.begin()
        if self._reporter is not None:
            self._reporter.begin()
        beats = asyncio.ensure_future(self._beat(stream))
        try:
            while True:
                reply = await self._reply(stream)
                if not self._controllers.note_term(reply.controller_term):
                    raise PenstockError(
                        ErrorCode.STALE_CONTROLLER_EPOCH,
                        f"controller of term {reply.controller_term}, heard of {self._controllers.heard_term}",
                    )
                self._freshness.answered(reply.metadata_version, _now_ms())
                if reply.error.code:
                    self._lifecycle.log.warning("session refused", reason=reply.error.message)
                    self.fenced = True
                    return not self.want_shutdown or self.may_shutdown.is_set()
                self._take(reply)
        finally:
            beats.cancel()
            await asyncio.wait([beats])

    async def _reply(
        self, stream: ControllerStream[pb.NodeHeartbeat, pb.NodeHeartbeatReply]
    ) -> pb.NodeHeartbeatReply:
        """The next one. A controller that hangs keeps its connections: it has to be left."""
        try:
            async with asyncio.timeout(self._silence_max_ms / 1000):
                return await stream.read()
        except TimeoutError:
            raise PenstockError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"controller {stream.address} was silent for {self._silence_max_ms} ms",
            ) from None

    def _take(self, reply: pb.NodeHeartbeatReply) -> None:
        if self._reporter is not None:
            self._reporter.answered(reply)
        if reply.HasField("quota_shares"):
            self._quotas.take_shares(reply.quota_shares)
        if reply.may_shutdown:
            self.may_shutdown.set()
        if reply.fenced != self.fenced:
            self.fenced = reply.fenced
            self._lifecycle.log.info("fenced" if self.fenced else "active")
        if self._disk_failed():
            return
        if self.fenced:
            self._lifecycle.set_not_ready("the controller has fenced this node")
        else:
            self._lifecycle.set_ready()

    async def _beat(self, stream: ControllerStream[pb.NodeHeartbeat, pb.NodeHeartbeatReply]) -> None:
        while True:
            self._wake.clear()
            hit("node.session.before_beat")
            self._freshness.sent(_now_ms())
            await stream.write(
                pb.NodeHeartbeat(
                    node_id=self._node_id,
                    node_epoch=self._node_epoch,
                    metadata_version=self._metadata.image.version,
                    loop_ticks=self._lifecycle.loop_ticks,
                    disk_jobs_done=self._pool.jobs_done,
                    disk_jobs_waiting=self._pool.jobs_waiting,
                    want_shutdown=self.want_shutdown,
                    shutdown_left_ms=self._shutdown_left_ms(),
                    disk_failed=self._disk_failed(),
                    disk_full=self._disk_full(),
                    quota_report=self._quotas.report(),
                    report=None if self._reporter is None else self._reporter.next_report(),
                )
            )
            # While fenced, ask sooner: readiness waits for it.
            pause_ms = self._interval_ms if not self.fenced else min(self._interval_ms, 50)
            if self.want_shutdown:
                pause_ms = min(pause_ms, 50)
            try:
                async with asyncio.timeout(pause_ms / 1000):
                    await self._wake.wait()
            except TimeoutError:
                pass


def _now_ms() -> float:
    return asyncio.get_running_loop().time() * 1000
