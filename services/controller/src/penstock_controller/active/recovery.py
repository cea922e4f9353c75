"""Recovery on the active controller: hears what nodes have, elects by it after an import, takes topics on demand.

After an import it waits until every node of the backup has told what it has; from then on each of its partitions has a
leader within a moment. A node that never comes back is left out by an operator's word alone (`RecoverTopics`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from penstock_controller.active.command_queue import CommandQueue, NotActive
from penstock_controller.state.coordinator_topics import COORDINATOR_TOPICS
from penstock_controller.state.generation import error_pb, make_error
from penstock_controller.state.recovery import Offers, adopt, confirm, offered, scan_unconfirmed
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import NodeId, TopicPartition
from penstock_core.metadata import MetadataImage
from penstock_proto.v1 import controller_pb2
from penstock_proto.v1 import operations_pb2 as api
from penstock_runtime.lifecycle import Lifecycle

LOOK_MS = 500
TOLD_MS = 10_000
"""How often the log says who is waited for."""
CONFIRMED_PER_COMMAND = 100
"""Partitions: about a millisecond of deciding."""


class Recovery:
    """One per controller; its state counts while that one is active."""

    def __init__(self, lifecycle: Lifecycle, alive: Callable[[NodeId], bool]) -> None:
        self._lifecycle = lifecycle
        self._alive = alive
        self._worker: CommandQueue
        self._offers = Offers()
        self._looking: asyncio.Task[None] | None = None
        self._next_look_ms = self._next_told_ms = 0
        self._done_for = 0
        """The restored version all of whose partitions were seen with a leader."""

    def connect(self, worker: CommandQueue) -> None:
        """Give it the queue that its commands go through."""
        self._worker = worker

    def begin(self) -> None:
        """A term as the active controller begins: what nodes told an earlier one is not known."""
        self._offers.clear()
        self._next_look_ms = self._next_told_ms = self._done_for = 0

    def heartbeat(self, beat: controller_pb2.NodeHeartbeat) -> None:
        """A node with a session was heard."""
        report = beat.report
        if beat.HasField("report") and (
            report.first_of_unknown or report.unknown_replicas or report.last_of_unknown
        ):
            self._offers.take(NodeId(beat.node_id), beat.node_epoch, report)

    # --- partitions of a backup ---------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """While active: see whether partitions of a backup can get their leaders."""
        restored_version = self._worker.image.restored_version
        if not restored_version or self._done_for == restored_version or now_ms < self._next_look_ms:
            return
        if self._looking is None or self._looking.done():
            self._next_look_ms = now_ms + LOOK_MS
            self._looking = self._lifecycle.create_task(self._look(now_ms), "restored partitions")

    async def _look(self, now_ms: int) -> None:
        image = self._worker.image
        found: list[TopicPartition] = []
        for partition in scan_unconfirmed(image):
            if partition is None:
                await asyncio.sleep(0)
            else:
                found.append(partition.key)
        if not found:
            self._done_for = image.restored_version
            return
        if missing := self._offers.missing(image, image.nodes):
            if now_ms >= self._next_told_ms:
                self._next_told_ms = now_ms + TOLD_MS
                self._lifecycle.log.warning(
                    "restored partitions wait until every storage node has told what it has; "
                    "`penstock cluster recover --from-nodes` goes without those that never come back",
                    partitions=len(found),
                    nodes=",".join(map(str, missing)),
                )
            return
        try:
            count = 0
            for at in range(0, len(found), CONFIRMED_PER_COMMAND):
                some = found[at : at + CONFIRMED_PER_COMMAND]
                count += await self._worker.submit(lambda ctx, some=some: confirm(ctx, some, self._offers))  # type: ignore[misc]
        except (NotActive, PenstockError):
            return
        if count:
            self._lifecycle.log.info("restored partitions have leaders", partitions=count)

    # --- by an operator's word ----------------------------------------------------------------

    async def recover(self, request: api.RecoverTopicsRequest) -> api.RecoverTopicsResponse:
        """Take what nodes offer, or only say it. Raises NotActive, or PenstockError when overloaded."""
        if not self._worker.active:
            raise NotActive
        image = self._worker.image
        response = api.RecoverTopicsResponse(version=image.version)
        if missing := self._offers.missing(image, self._there(image)):
            names = ", ".join(map(str, missing))
            response.error.CopyFrom(
                make_error(
                    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                    f"storage node {names} has not told yet what it has; try again in some seconds, or stop it to go "
                    "without what it has",
                )
            )
            return response
        found = offered(image, self._offers, list(request.topics))
        # Coordinators act on what their logs say of other topics as soon as they have read them: those come first.
        for told in sorted(found, key=lambda told: told.name in COORDINATOR_TOPICS):
            if not told.error.code and not request.dry_run:
                try:
                    if not await self._take(told):
                        told.error.CopyFrom(
                            make_error(
                                ErrorCode.INVALID_REQUEST,
                                f"{told.name}: it was changed meanwhile; look again",
                            )
                        )
                except PenstockError as error:
                    told.error.CopyFrom(error_pb(error))
        response.topics.extend(found)
        response.version = self._worker.image.version
        if not request.dry_run:
            self._done_for = 0
            names = ",".join(t.name for t in response.topics if not t.error.code)
            self._lifecycle.log.warning("topics recovered from nodes", topics=names, by=request.principal)
        return response

    def _there(self, image: MetadataImage) -> list[NodeId]:
        """Fenced ones too: after an import each is, until it has caught up, and may be the one that is ahead."""
        return [node_id for node_id in image.nodes if self._alive(node_id)]

    def _take(self, told: api.RecoveredTopic) -> Awaitable[bool]:
        return self._worker.submit(lambda ctx: adopt(ctx, told, self._offers))


__all__ = ["Recovery"]
