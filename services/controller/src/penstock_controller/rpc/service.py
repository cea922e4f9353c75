"""The gRPC service of a controller. Thin: parse, ask the core, answer.

Another controller than the active one answers UNAVAILABLE and names the active one in
trailing metadata. The active one answers UNAVAILABLE, too, until the cluster is founded.
"""

# ruff: noqa: N802 - names are those of the base class
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio
from google.protobuf.json_format import MessageToJson

from penstock_controller.active.command_queue import NotActive
from penstock_controller.active.controller import Controller
from penstock_controller.active.metadata_stream import CutOff
from penstock_controller.active.operations import Operations
from penstock_controller.quorum import RaftPeer
from penstock_controller.rpc.admissions import Admissions
from penstock_controller.rpc.peer_levels import PeerLevels
from penstock_controller.rpc.upgrades import Upgrades
from penstock_controller.state import (
    acls,
    cluster,
    configs,
    controllers,
    elections,
    features,
    gateways,
    isr,
    nodes,
    quotas,
    reassignments,
    refused_certificates,
    topics,
    users,
)
from penstock_controller.state.generation import Context, Generated, make_error
from penstock_controller.state.mutation_quotas import MutationBudget
from penstock_controller.state.observations.processes import ControllerSaid
from penstock_controller.state.operations.engine.kinds import CONTROLLER_REPLACE
from penstock_controller.state.operations.plans.upgrade import UPGRADE
from penstock_controller.state.operations.processes import ControllerSeen, QuorumSeen
from penstock_controller.state.sessions import RequestedTransition
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.failpoints import hit
from penstock_core.ids import NodeId
from penstock_core.metadata.levels import too_old
from penstock_proto.v1 import common_pb2 as common
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import controller_pb2_grpc
from penstock_proto.v1 import operations_pb2 as operations
from penstock_runtime.security.callers import gateway_fault, node_fault
from penstock_runtime.self_description import SelfDescription

R = TypeVar("R")
M = TypeVar("M", api.CreateTopicsRequest, api.DeleteTopicsRequest, api.CreatePartitionsRequest)
ServicerContext = grpc.aio.ServicerContext[Any, Any]

ACTIVE_CONTROLLER_KEY = "penstock-active-controller"
LEADER_SILENCE_MAX_MS = 5_000


class ControllerService(controller_pb2_grpc.ControllerServicer):
    """Answers nodes, gateways and tools."""

    def __init__(
        self,
        core: Controller,
        peers: tuple[RaftPeer, ...],
        addresses: dict[int, str],
        levels: PeerLevels,
        process: common.ProcessInfo,
        own_serial: Callable[[], str] = lambda: "",
        wall_ms: Callable[[], int] = lambda: 0,
        itself: SelfDescription | None = None,
    ) -> None:
        """`own_serial` is that of this controller's certificate; "" without one. Of `wall_ms` ends of
        certificates are counted, and by it operations are dated, in ms since 1970."""
        self._core = core
        self._peers = peers
        self._addresses = addresses
        self._levels = levels
        self._process = process
        self._upgrades = Upgrades(core, levels, process, wall_ms)
        self._admissions = Admissions(core, wall_ms)
        self._own_serial = own_serial
        self._wall_ms = wall_ms
        core.ask_levels = levels.ask
        self._itself = itself
        if itself is not None:
            itself.more["quorum"] = self._quorum_document
        core.operations.rolling.ask_controllers = self._look_at_controllers

    # --- helpers ------------------------------------------------------------------------

    async def _not_active(self, context: ServicerContext) -> NoReturn:
        leader_id = self._core.status.leader_id
        here = leader_id == self._core.settings.controller_id
        address = "" if here else self._addresses.get(leader_id, "")
        context.set_trailing_metadata(((ACTIVE_CONTROLLER_KEY, address),))
        await context.abort(
            grpc.StatusCode.UNAVAILABLE,
            f"controller {self._core.settings.controller_id} is not the active one; that is "
            + (f"controller {leader_id} at {address}" if address else "not known yet"),
        )
        raise AssertionError  # abort raises

    async def _do(self, context: ServicerContext, generate: Callable[[Context], Generated[R]]) -> R:
        return await self._ask(context, self._core.submit(generate))

    async def _ask(self, context: ServicerContext, answer: Coroutine[Any, Any, R]) -> R:
        if self._core.active and not self._core.image.cluster_id:
            # No id and no metadata.level yet: it would be answered as by a cluster of the first level.
            answer.close()
            await context.abort(
                grpc.StatusCode.UNAVAILABLE,
                f"controller {self._core.settings.controller_id} is founding the cluster; try again",
            )
        try:
            return await answer
        except NotActive:
            await self._not_active(context)
        except PenstockError as error:
            if error.code is ErrorCode.REQUEST_TIMED_OUT:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, error.message)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.message)
            raise AssertionError from None  # abort raises

    async def _look_at_controllers(self) -> QuorumSeen:
        """Every controller as it says it is: those that may not be missed while another one restarts."""
        core = self._core
        me, answers = core.settings.controller_id, await self._levels.describe()
        status = core.status
        seen = {
            i: ControllerSeen(
                answer.process.boot_id,
                answer.voter,
                max(0, status.commit_index - answer.applied_index),
                answer.directory_id,
            )
            for i, answer in answers.items()
        }
        own = next((p.directory_id for p in status.peers if p.controller_id == me), b"")
        seen[me] = ControllerSeen(self._process.boot_id, not status.not_voting_reason, directory_id=own)
        return QuorumSeen(frozenset(p.controller_id for p in self._peers), me, seen)

    async def _controllers_said(self) -> dict[int, ControllerSaid]:
        """Every controller that answers, this one too."""
        said = {
            i: ControllerSaid(answer.process.version, answer.process.feature_level, answer.not_voting_reason)
            for i, answer in (await self._levels.describe()).items()
        }
        mine = self._process
        said[self._core.settings.controller_id] = ControllerSaid(mine.version, mine.feature_level)
        return said

    # --- nodes ----------------------------------------------------------------------------

    async def RegisterNode(
        self, request: api.RegisterNodeRequest, context: ServicerContext
    ) -> api.RegisterNodeResponse:
        core = self._core
        await _refuse(context, node_fault(request.node_id))
        reply = await self._do(context, lambda ctx: nodes.register_node(ctx, request))
        if not reply.error.code:
            core.registered(NodeId(reply.node_id), reply.node_epoch)
            reply.controller_term = core.status.term
            reply.session_timeout_ms = core.settings.session_timeout_ms
            reply.heartbeat_interval_ms = core.settings.heartbeat_interval_ms
        return reply

    async def NodeSession(
        self, requests: AsyncIterator[api.NodeHeartbeat], context: ServicerContext
    ) -> AsyncIterator[api.NodeHeartbeatReply]:
        core = self._core
        if not core.active:
            await self._not_active(context)
        beat: api.NodeHeartbeat | None = None
        ended = core.active_ended
        try:
            async for said in _until(requests, ended):
                await _refuse(context, node_fault(said.node_id))
                beat = said
                yield self._node_beat(beat)
        finally:
            if beat is not None:
                core.suspect(NodeId(beat.node_id), beat.node_epoch)
        if ended.is_set():
            await self._not_active(context)

    def _node_beat(self, beat: api.NodeHeartbeat) -> api.NodeHeartbeatReply:
        core = self._core
        node_id, epoch = NodeId(beat.node_id), beat.node_epoch
        term = core.status.term
        wish = core.sessions.node_heartbeat(beat, core.image, core.clock_ms())
        node = core.image.nodes.get(node_id)
        if wish is None or node is None:
            error = make_error(
                ErrorCode.BROKER_ID_NOT_REGISTERED if node is None else ErrorCode.STALE_BROKER_EPOCH,
                f"node {node_id} has no registration with epoch {epoch}; register again",
            )
            return api.NodeHeartbeatReply(
                error=error,
                fenced=True,
                controller_term=term,
                retired_by_operation=nodes.retired_by(core.image, node_id),
            )
        if wish is RequestedTransition.UNFENCE:
            core.once("unfence", node_id, epoch, lambda ctx: nodes.unfence_node(ctx, node_id, epoch))
        elif wish is RequestedTransition.DRAIN:
            if not core.must_wait(node_id, beat):
                core.once(
                    "drain",
                    node_id,
                    epoch,
                    lambda ctx: nodes.drain_node(ctx, node_id, epoch, disk_failed=beat.disk_failed),
                )
        elif wish is RequestedTransition.NOTE_SPACE:
            core.once(
                "disk full" if beat.disk_full else "disk has room",
                node_id,
                epoch,
                lambda ctx: nodes.note_space(ctx, node_id, epoch, disk_full=beat.disk_full),
            )
        may_shutdown = beat.want_shutdown and (
            node.fenced
            or (node.in_controlled_shutdown and core.may_leave(node_id) and not core.still_leads(node_id))
        )
        reply = api.NodeHeartbeatReply(
            fenced=node.fenced,
            may_shutdown=may_shutdown,
            controller_term=term,
            metadata_version=core.image.version,
        )
        core.operations.heartbeat(beat, reply)
        core.recovery.heartbeat(beat)
        if beat.HasField("quota_report"):
            reply.quota_shares.CopyFrom(core.deal_quotas(f"node {node_id}", beat.quota_report))
        return reply

    async def AlterPartitions(
        self, request: api.AlterPartitionsRequest, context: ServicerContext
    ) -> api.AlterPartitionsResponse:
        await _refuse(context, node_fault(request.node_id))
        hit("controller.isr.before")
        return await self._do(context, lambda ctx: isr.alter_partitions(ctx, request))

    # --- gateways ----------------------------------------------------------------------------

    async def RegisterGateway(
        self, request: api.RegisterGatewayRequest, context: ServicerContext
    ) -> api.RegisterGatewayResponse:
        core = self._core
        await _refuse(context, gateway_fault(request.gateway_id))
        reply = await self._do(context, lambda ctx: gateways.register_gateway(ctx, request))
        if not reply.error.code:
            core.registered(request.gateway_id, reply.gateway_epoch)
            reply.controller_term = core.status.term
            reply.session_timeout_ms = core.settings.session_timeout_ms
            reply.heartbeat_interval_ms = core.settings.heartbeat_interval_ms
        return reply

    async def GatewaySession(
        self, requests: AsyncIterator[api.GatewayHeartbeat], context: ServicerContext
    ) -> AsyncIterator[api.GatewayHeartbeatReply]:
        core = self._core
        if not core.active:
            await self._not_active(context)
        beat: api.GatewayHeartbeat | None = None
        ended = core.active_ended
        try:
            async for said in _until(requests, ended):
                await _refuse(context, gateway_fault(said.gateway_id))
                beat = said
                yield self._gateway_beat(beat)
        finally:
            if beat is not None:
                core.suspect(beat.gateway_id, beat.gateway_epoch)
        if ended.is_set():
            await self._not_active(context)

    def _gateway_beat(self, beat: api.GatewayHeartbeat) -> api.GatewayHeartbeatReply:
        core = self._core
        term = core.status.term
        wish = core.sessions.gateway_heartbeat(beat, core.image, core.clock_ms())
        if wish is RequestedTransition.FENCE:
            core.remove_gateway(beat.gateway_id, beat.gateway_epoch, "it is stopping")
            return api.GatewayHeartbeatReply(controller_term=term)
        if wish is None:
            if beat.want_shutdown:
                return api.GatewayHeartbeatReply(
                    controller_term=term, may_shutdown=core.may_leave(beat.gateway_id)
                )
            error = make_error(
                ErrorCode.STALE_BROKER_EPOCH,
                f"gateway {beat.gateway_id} has no registration with epoch {beat.gateway_epoch}; register again",
            )
            return api.GatewayHeartbeatReply(error=error, controller_term=term)
        reply = api.GatewayHeartbeatReply(controller_term=term)
        if beat.HasField("quota_report"):
            reply.quota_shares.CopyFrom(core.deal_quotas(f"gateway {beat.gateway_id}", beat.quota_report))
        return reply

    # --- topics and the rest -------------------------------------------------------------------

    async def CreateTopics(
        self, request: api.CreateTopicsRequest, context: ServicerContext
    ) -> api.CreateTopicsResponse:
        return await self._mutate(context, request, topics.create_topics)

    async def DeleteTopics(
        self, request: api.DeleteTopicsRequest, context: ServicerContext
    ) -> api.DeleteTopicsResponse:
        return await self._mutate(context, request, topics.delete_topics)

    async def CreatePartitions(
        self, request: api.CreatePartitionsRequest, context: ServicerContext
    ) -> api.CreatePartitionsResponse:
        return await self._mutate(context, request, topics.create_partitions)

    async def _mutate(
        self,
        context: ServicerContext,
        request: M,
        generate: Callable[[Context, M, MutationBudget], Generated[R]],
    ) -> R:
        """As `_do`, for what a quota of mutations counts."""
        core = self._core
        budget = core.mutation_budget(request.quota if request.HasField("quota") else None)

        def decide(ctx: Context) -> Generated[R]:
            budget.begin(core.clock_ms())
            return generate(ctx, request, budget)

        return await self._do(context, decide)

    async def AlterConfigs(
        self, request: api.AlterConfigsRequest, context: ServicerContext
    ) -> api.AlterConfigsResponse:
        return await self._do(context, lambda ctx: configs.alter_configs(ctx, request))

    async def AllocateProducerIds(
        self, request: api.AllocateProducerIdsRequest, context: ServicerContext
    ) -> api.AllocateProducerIdsResponse:
        return await self._do(context, lambda ctx: cluster.allocate_producer_ids(ctx, request))

    async def ElectLeaders(
        self, request: api.ElectLeadersRequest, context: ServicerContext
    ) -> api.ElectLeadersResponse:
        return await self._do(context, lambda ctx: elections.elect_leaders(ctx, request))

    async def AlterReassignments(
        self, request: api.AlterReassignmentsRequest, context: ServicerContext
    ) -> api.AlterReassignmentsResponse:
        bytes_of = self._core.operations.reports.partition_bytes
        return await self._do(
            context,
            lambda ctx: reassignments.alter_reassignments(ctx, request, self._wall_ms(), bytes_of),
        )

    async def UnregisterNode(
        self, request: api.UnregisterNodeRequest, context: ServicerContext
    ) -> api.UnregisterNodeResponse:
        return await self._do(context, lambda ctx: nodes.unregister_node(ctx, request))

    async def ReplaceController(
        self, request: api.ReplaceControllerRequest, context: ServicerContext
    ) -> api.ReplaceControllerResponse:
        core = self._core
        if core.active:
            # Without them nothing is committed, not even what a refusal would have to wait for.
            reason = controllers.absent_voters(core.image, request.controller_id, core.quorum_view())
            if reason:
                return api.ReplaceControllerResponse(error=make_error(ErrorCode.INVALID_REQUEST, reason))
        reply = await self._do(
            context, lambda ctx: controllers.replace_controller(ctx, request, core.quorum_view())
        )
        if not reply.error.code:
            core.log_replaced(
                request.controller_id, reply.old_directory_id, reply.new_directory_id, request.principal
            )
        return reply

    async def UpdateFeatures(
        self, request: api.UpdateFeaturesRequest, context: ServicerContext
    ) -> api.UpdateFeaturesResponse:
        # Asked of those alone that would decide: another controller's answer is thrown away.
        levels = await self._levels.ask() if self._core.active else {}
        return await self._do(context, lambda ctx: features.update_features(ctx, request, levels))

    # --- operations -------------------------------------------------------------------------------

    async def PlanOperation(
        self, request: operations.PlanRequest, context: ServicerContext
    ) -> operations.PlanResponse:
        return await self._ask(context, self._planner(request.kind).plan(request))

    async def StartOperation(
        self, request: operations.StartOperationRequest, context: ServicerContext
    ) -> operations.StartOperationResponse:
        return await self._ask(context, self._planner(request.request.kind).start(request))

    def _planner(self, kind: str) -> Upgrades | Admissions | Operations:
        """Who plans and begins operations of a kind."""
        if kind == UPGRADE:
            return self._upgrades
        return self._admissions if kind == CONTROLLER_REPLACE else self._core.operations

    async def ControlOperation(
        self, request: operations.ControlOperationRequest, context: ServicerContext
    ) -> operations.ControlOperationResponse:
        return await self._ask(context, self._core.operations.control(request))

    async def DescribeOperations(
        self, request: operations.DescribeOperationsRequest, context: ServicerContext
    ) -> operations.DescribeOperationsResponse:
        return await self._ask(context, self._core.operations.describe(request))

    async def ExecuteOperation(
        self, request: operations.ExecuteOperationRequest, context: ServicerContext
    ) -> operations.ExecuteOperationResponse:
        return await self._ask(context, self._core.operations.execute(request))

    async def DescribeNodes(
        self, request: operations.DescribeNodesRequest, context: ServicerContext
    ) -> operations.DescribeNodesResponse:
        return await self._ask(context, self._core.operations.nodes())

    async def CheckCluster(
        self, _request: operations.CheckClusterRequest, context: ServicerContext
    ) -> operations.CheckClusterResponse:
        # Asked of those alone that would decide, as in UpdateFeatures.
        said = await self._controllers_said() if self._core.active else {}
        return await self._ask(context, self._core.observer.check(said))

    async def DescribeCapacity(
        self, _request: operations.DescribeCapacityRequest, context: ServicerContext
    ) -> operations.DescribeCapacityResponse:
        return await self._ask(context, self._core.observer.capacity())

    async def RecoverTopics(
        self, request: operations.RecoverTopicsRequest, context: ServicerContext
    ) -> operations.RecoverTopicsResponse:
        return await self._ask(context, self._core.recovery.recover(request))

    # --- security ---------------------------------------------------------------------------------

    async def AlterUserCredentials(
        self, request: api.AlterUserCredentialsRequest, context: ServicerContext
    ) -> api.AlterUserCredentialsResponse:
        return await self._do(context, lambda ctx: users.alter_user_credentials(ctx, request))

    async def AlterAcls(
        self, request: api.AlterAclsRequest, context: ServicerContext
    ) -> api.AlterAclsResponse:
        return await self._do(context, lambda ctx: acls.alter_acls(ctx, request))

    async def AlterQuotas(
        self, request: api.AlterQuotasRequest, context: ServicerContext
    ) -> api.AlterQuotasResponse:
        return await self._do(context, lambda ctx: quotas.alter_quotas(ctx, request))

    async def AlterRefusedCertificates(
        self, request: api.AlterRefusedCertificatesRequest, context: ServicerContext
    ) -> api.AlterRefusedCertificatesResponse:
        own, now_ms = self._own_serial(), self._wall_ms()
        return await self._do(
            context, lambda ctx: refused_certificates.alter_refused_certificates(ctx, request, own, now_ms)
        )

    # --- answered by every controller --------------------------------------------------------------

    async def WatchMetadata(
        self, request: api.WatchMetadataRequest, context: ServicerContext
    ) -> AsyncIterator[api.WatchMetadataResponse]:
        core = self._core
        old = too_old(core.image, request.feature_level)
        if old is not None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, old.message)
        if request.from_version > core.image.version:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"controller {core.settings.controller_id} is at version {core.image.version}, behind "
                f"{request.from_version}; watch another one",
            )
        if core.leader_silence_ms() > LEADER_SILENCE_MAX_MS:
            await context.abort(
                grpc.StatusCode.UNAVAILABLE,
                f"controller {core.settings.controller_id} has no contact with an active one; watch another one",
            )
        try:
            async for message in core.watchers.watch(request.from_version):
                yield message
                if core.leader_silence_ms() > LEADER_SILENCE_MAX_MS:
                    raise CutOff("this controller lost contact with the active one; watch another one")
        except CutOff as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))

    async def ReadEvents(
        self, request: operations.ReadEventsRequest, context: ServicerContext
    ) -> operations.ReadEventsResponse:
        return await self._core.history.read(request)

    async def DescribeProcess(
        self, request: operations.DescribeProcessRequest, context: ServicerContext
    ) -> AsyncIterator[operations.DescribeProcessResponse]:
        if self._itself is not None:
            async for piece in self._itself.describe(request, context):
                yield piece

    def _quorum_document(self) -> str:
        return MessageToJson(self._quorum(), preserving_proto_field_name=True)

    async def DescribeQuorum(
        self, request: api.DescribeQuorumRequest, context: ServicerContext
    ) -> api.DescribeQuorumResponse:
        return self._quorum()

    def _quorum(self) -> api.DescribeQuorumResponse:
        core = self._core
        status = core.status
        me = core.settings.controller_id
        said = {p.controller_id: p.directory_id for p in status.peers}
        # A leader that has not caught up with its own log yet is not active yet.
        active_id = me if core.active else (-1 if status.leader_id == me else status.leader_id)
        return api.DescribeQuorumResponse(
            controller_id=me,
            active_controller_id=active_id,
            active_address=self._addresses.get(active_id, ""),
            term=status.term,
            commit_index=status.commit_index,
            applied_index=status.applied_index,
            version=core.image.version,
            members=[
                api.QuorumMember(
                    controller_id=p.controller_id,
                    address=p.address,
                    reachable=p.controller_id == me or p.controller_id in status.reachable,
                    directory_id=core.image.controllers.get(p.controller_id, b""),
                    connected_directory_id=said.get(p.controller_id, b""),
                    grpc_address=self._addresses.get(p.controller_id, ""),
                )
                for p in self._peers
            ],
            cluster_id=core.image.cluster_id,
            last_log_index=max(status.last_log_index, status.applied_index),
            directory_id=said.get(me, b""),
            voter=not status.not_voting_reason,
            not_voting_reason=status.not_voting_reason,
            process=self._process,
        )


async def _refuse(context: ServicerContext, fault: str) -> None:
    """End the call when the caller may not say what it says."""
    if fault:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, fault)


async def _until(requests: AsyncIterator[R], ended: asyncio.Event) -> AsyncIterator[R]:
    """Requests until the stream or this controller's activity ends."""
    stop = asyncio.ensure_future(ended.wait())
    try:
        while True:
            following = asyncio.ensure_future(anext(requests, None))
            await asyncio.wait((following, stop), return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                following.cancel()
                return
            request = following.result()
            if request is None:
                return
            yield request
    finally:
        stop.cancel()
