"""SizeRanges at a node: what it bounds, and how a range fails alone."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from penstock_core.errors import ErrorCode, PenstockError
from penstock_proto.v1 import storage_pb2 as pb
from penstock_storage_node.log import PartitionLog
from penstock_storage_node.rpc import size_ranges
from penstock_storage_node.rpc.size_ranges import RANGES_MAX, SizeRangesService
from unit.storage_node.log.log_model import filled

TOPIC_ID = b"t" * 16


class Registry:
    """One partition with a real log, whose high watermark lies below its end; it leads partition 0 alone."""

    def __init__(self) -> None:
        self.log, _ = filled()
        self.high_watermark = self.log.log_end_offset - 7

    def locate(self, topic: str, topic_id: bytes, partition: int) -> Any:
        if (topic, topic_id) != ("", TOPIC_ID):
            raise PenstockError(ErrorCode.UNKNOWN_TOPIC_ID, "no such topic")

        def require_leader() -> None:
            if partition:
                raise PenstockError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another node leads")

        replica = SimpleNamespace(require_leader=require_leader, high_watermark=self.high_watermark)
        return SimpleNamespace(replica=replica, log=self.log, look_up=self.look_up)

    async def look_up(self, run: Callable[[], Any]) -> Any:
        return run()


async def test_ranges_are_bounded_and_fail_alone() -> None:
    registry = Registry()
    log, end = registry.log, registry.high_watermark
    wanted = [
        (TOPIC_ID, 0, 0, 1 << 40),
        (TOPIC_ID, 1, 0, 5),
        (b"x" * 16, 0, 0, 5),
        (TOPIC_ID, 0, end, end + 5),
    ]
    ranges = [pb.NodeRange(topic_id=i, partition=p, start=a, end=b) for i, p, a, b in wanted]
    service = SizeRangesService(registry)  # type: ignore[arg-type]
    got = await service.size_ranges(pb.NodeSizeRangesRequest(ranges=ranges, cut_bytes=500), None)
    assert [each.error.code for each in got.ranges] == [0, 6, 100, 0]
    whole = log.size_range(0, end, 500, 1_000)
    assert (got.ranges[0].size_bytes, list(got.ranges[0].cuts)) == (whole.size_bytes, whole.cuts)
    assert whole.cuts
    assert max(whole.cuts) < end
    assert got.ranges[3].size_bytes == 0


async def test_too_many_ranges_are_refused() -> None:
    one = pb.NodeRange(topic_id=TOPIC_ID, start=0, end=1)
    service = SizeRangesService(Registry())  # type: ignore[arg-type]
    got = await service.size_ranges(pb.NodeSizeRangesRequest(ranges=[one] * (RANGES_MAX + 1)), None)
    assert [each.error.code for each in got.ranges[-2:]] == [0, ErrorCode.INVALID_REQUEST]


async def test_all_cuts_of_a_call_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry()
    whole = registry.log.size_range(0, registry.high_watermark, 1, 1_000)
    most = 2 * len(whole.cuts) + 1
    monkeypatch.setattr(size_ranges, "CUTS_IN_ALL_MAX", most)
    asked: list[int] = []
    size_range = PartitionLog.size_range

    def noted(log: PartitionLog, start: int, end: int, cut_bytes: int, cuts_max: int) -> Any:
        asked.append(cut_bytes)
        return size_range(log, start, end, cut_bytes, cuts_max)

    monkeypatch.setattr(PartitionLog, "size_range", noted)
    one = pb.NodeRange(topic_id=TOPIC_ID, start=0, end=1 << 40)
    service = SizeRangesService(registry)  # type: ignore[arg-type]
    got = await service.size_ranges(pb.NodeSizeRangesRequest(ranges=[one] * 5, cut_bytes=1), None)
    counts = [len(each.cuts) for each in got.ranges]
    assert counts == [len(whole.cuts), len(whole.cuts), 1, 0, 0]
    assert {each.size_bytes for each in got.ranges} == {whole.size_bytes}
    assert asked == [1, 1, 1, 0, 0]  # without cuts no index is read
