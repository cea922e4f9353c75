"""Asks the other controllers which feature level they understand.

Nodes and gateways say it when they register. Controllers do not register, and the Raft hello of older
builds is compared byte for byte: so they are asked by gRPC, when somebody needs to know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import grpc.aio

from penstock_core.limits import FEATURE_LEVEL
from penstock_core.metadata.levels import understood
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import controller_pb2_grpc
from penstock_runtime.grpc_tools import ChannelPool
from penstock_runtime.security.methods import CONTROLLER

_TIMEOUT_S = 2.0


class PeerLevels:
    """What the controllers of the quorum understand."""

    def __init__(
        self,
        controller_id: int,
        member_ids: Iterable[int],
        addresses: Mapping[int, str],
        channels: ChannelPool,
    ) -> None:
        self._controller_id = controller_id
        self._others = sorted(set(member_ids) - {controller_id})
        self._addresses = addresses
        self._channels = channels

    @property
    def others(self) -> list[int]:
        """Ids of the other controllers of the quorum."""
        return self._others

    async def ask(self) -> dict[int, int | None]:
        """Level by controller id, this one's too; None for one that does not answer in 2 s."""
        levels = await asyncio.gather(*(self._ask(i) for i in self._others))
        return {self._controller_id: FEATURE_LEVEL, **dict(zip(self._others, levels, strict=True))}

    async def describe(self) -> dict[int, api.DescribeQuorumResponse]:
        """What each of the others says of itself, by controller id; without those that do not answer in 2 s."""
        answers = await asyncio.gather(*(self._describe(i) for i in self._others))
        return {i: answer for i, answer in zip(self._others, answers, strict=True) if answer is not None}

    async def _ask(self, controller_id: int) -> int | None:
        answer = await self._describe(controller_id)
        return None if answer is None else understood(answer.process.feature_level)

    async def _describe(self, controller_id: int) -> api.DescribeQuorumResponse | None:
        address = self._addresses.get(controller_id)
        if address is None:
            return None
        stub = controller_pb2_grpc.ControllerStub(self._channels.get(address, CONTROLLER))
        try:
            answer = await stub.DescribeQuorum(api.DescribeQuorumRequest(), timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return None
        return answer if answer.controller_id == controller_id else None
