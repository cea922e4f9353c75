"""ISR proposals on their way to the controller: all that wait go in one call."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.failpoints import hit
from penstock_core.metadata.image import PartitionImage
from penstock_proto.v1 import controller_pb2 as pb
from penstock_runtime.controller_client import ControllerClient
from penstock_storage_node.replica.manager import ReplicaManager
from penstock_storage_node.replication.leadership import IsrProposal, Leadership
from penstock_storage_node.replication.replica import PartitionReplica
from penstock_storage_node.replication.state import ReplicaState

PROPOSALS_PER_CALL_MAX = 2000
CALL_TIMEOUT_MS = 5000
RETRY_PAUSE_MS = 50

_Sent = tuple[PartitionReplica, Leadership, IsrProposal]


class IsrProposer:
    """Sends what leaders propose and takes the answers back to them."""

    def __init__(self, manager: ReplicaManager, controllers: ControllerClient) -> None:
        self._manager = manager
        self._controllers = controllers
        self._waiting: dict[ReplicaState, None] = {}
        self._wake = asyncio.Event()

    def propose(self, replicas: Iterable[ReplicaState]) -> None:
        """These have a proposal to send."""
        self._waiting.update(dict.fromkeys(replicas))
        self._wake.set()

    async def run(self) -> None:
        """Send for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                sent = self._take()
                if sent and not await self._send(sent):
                    await asyncio.sleep(RETRY_PAUSE_MS / 1000)

    def _take(self) -> list[_Sent]:
        sent: list[_Sent] = []
        for state in list(self._waiting)[:PROPOSALS_PER_CALL_MAX]:
            del self._waiting[state]
            partition = self._manager.registry.partitions.get(state.key)
            if partition is None or partition.replica.state is not state:
                continue  # deleted meanwhile, perhaps made again
            replica = partition.replica
            leadership = replica.leadership
            proposal = leadership.take_proposal() if leadership is not None else None
            if leadership is not None and proposal is not None:
                if proposal.behind_offset >= 0:
                    log = partition.log
                    low = max(proposal.behind_offset, log.log_start_offset)
                    proposal.lag_bytes = log.bytes_between(low, log.log_end_offset)
                sent.append((replica, leadership, proposal))
        return sent

    async def _send(self, sent: list[_Sent]) -> bool:
        manager = self._manager
        manager.metrics.isr_proposals += len(sent)
        request = pb.AlterPartitionsRequest(
            node_id=manager.registry.node_id, node_epoch=manager.registry.node_epoch
        )
        for replica, leadership, proposal in sent:
            item = request.proposals.add(
                topic_id=replica.key.topic_id,
                partition=replica.key.partition,
                leader_epoch=leadership.epoch,
                partition_epoch=proposal.partition_epoch,
                recovered=proposal.recovered,
                reason=proposal.reason,
                lag_ms=proposal.lag_ms,
                lag_bytes=proposal.lag_bytes,
            )
            for node, epoch in zip(proposal.isr, proposal.node_epochs, strict=True):
                item.new_isr.add(
                    node_id=node,
                    node_epoch=manager.registry.node_epoch if node == manager.registry.node_id else epoch,
                )
        hit("isr.before_propose")
        try:
            response: pb.AlterPartitionsResponse = await self._controllers.call(
                "AlterPartitions", request, timeout_ms=CALL_TIMEOUT_MS
            )
        except PenstockError as e:
            manager.lifecycle.log.warning("ISR proposals not answered", count=len(sent), reason=str(e))
            self._unknown(sent)
            return False
        if response.error.code or len(response.results) != len(sent):
            manager.lifecycle.log.info(
                "ISR proposals refused", count=len(sent), reason=response.error.message or response.error.code
            )
            self._unknown(sent)
            return False
        hit("isr.after_propose")
        now_ms = manager.clock_ms()
        for (replica, leadership, proposal), result in zip(sent, response.results, strict=True):
            if replica.leadership is not leadership:
                continue
            if result.error.code == ErrorCode.NONE:
                state = PartitionImage.from_pb(result.state)
                if state.leader_epoch == leadership.epoch:
                    manager.configs.before(state)
                    leadership.update(state, now_ms)
            else:
                leadership.on_proposal_refused(proposal, _code(result.error.code), now_ms)
        manager.drain.schedule()
        return True

    def _unknown(self, sent: list[_Sent]) -> None:
        for replica, leadership, proposal in sent:
            if replica.leadership is leadership:
                leadership.on_proposal_unknown(proposal)
        self._manager.drain.schedule()


def _code(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR  # of a newer controller
