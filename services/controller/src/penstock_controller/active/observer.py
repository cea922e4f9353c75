"""Watches the cluster while this controller is the active one: what is amiss, and how much room there is.

What is to be said is decided by `state.observations`; here it is asked in slices, and what nodes tell is remembered for
an hour. Another active controller begins to remember anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from penstock_controller.active.command_queue import CommandQueue, NotActive
from penstock_controller.state.controllers import QuorumView
from penstock_controller.state.observations.capacity import capacity
from penstock_controller.state.observations.check import CheckView, check_steps
from penstock_controller.state.observations.history import Histories
from penstock_controller.state.observations.nodes import is_low
from penstock_controller.state.observations.processes import ControllerSaid
from penstock_controller.state.operations.reports import Reports
from penstock_core.metadata import MetadataImage
from penstock_proto.v1 import operations_pb2 as api
from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.turns import LoopTurns

LOOK_MS: Final = 1_000
"""How often new reports are remembered."""


class Observer:
    """Of one controller."""

    def __init__(self, lifecycle: Lifecycle, reports: Reports, quorum: Callable[[], QuorumView]) -> None:
        self._lifecycle = lifecycle
        self._reports = reports
        self._quorum = quorum
        self._worker: CommandQueue
        self._histories = Histories()
        self._next_look_ms = 0

    def connect(self, worker: CommandQueue) -> None:
        """Give it the queue, which knows the image and whether this controller is active."""
        self._worker = worker
        worker.is_low = lambda node_id: is_low(self._reports.node(node_id))

    def begin(self) -> None:
        """A term as the active controller begins: what nodes told an earlier one is not known."""
        self._histories = Histories()
        self._next_look_ms = 0

    def tick(self, image: MetadataImage, now_ms: int) -> None:
        """While active: remember what nodes reported when it is time."""
        if now_ms >= self._next_look_ms:
            self._next_look_ms = now_ms + LOOK_MS
            self._histories.observe(self._reports, image.nodes)

    async def check(self, controllers: Mapping[int, ControllerSaid]) -> api.CheckClusterResponse:
        """What is not as it should be. `controllers`: those that answered. Raises NotActive."""
        view = CheckView(self._reports, self._quorum(), controllers)
        response = await LoopTurns.of(self._lifecycle).run(check_steps(self._image(), view))
        self._image()
        return response

    async def capacity(self) -> api.DescribeCapacityResponse:
        """Room, growth and load of storage nodes. Raises NotActive."""
        return capacity(self._image(), self._reports, self._histories)

    def _image(self) -> MetadataImage:
        if not self._worker.active:
            raise NotActive
        return self._worker.image
