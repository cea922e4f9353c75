"""Metadata are kept back for a moment when a leader seems to be dead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock_core.ids import NodeId
from penstock_core.metadata.image import MetadataImage
from penstock_frontend.suspected_leaders import QUIET_MS, SUSPICION_MS, SuspectedLeaders
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_runtime.metadata_client import ImageCallback

N1, N2 = NodeId(1), NodeId(2)


class Followed:
    """Stands for the metadata client: an image, who is told of it, and a clock that waiting moves."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.callbacks: list[ImageCallback] = []
        self.image = self._image(1)
        self.later: Callable[[], None] | None = None

    def _image(self, version: int, *fenced: NodeId) -> MetadataImage:
        nodes = [
            pb.MetadataRecord(node=pb.NodeRecord(node_id=n, node_epoch=1, fenced=n in fenced))
            for n in (N1, N2)
        ]
        return MetadataImage.from_records(nodes, version)

    def change(self, *fenced: NodeId) -> None:
        old, self.image = self.image, self._image(self.image.version + 1, *fenced)
        for callback in self.callbacks:
            callback(old, self.image, [])

    def on_change(self, callback: ImageCallback) -> Callable[[], None]:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    async def wait_for_version(self, version: int, timeout_ms: int) -> bool:
        await asyncio.sleep(0)
        if self.later is not None:
            later, self.later = self.later, None
            later()
        else:
            self.now_ms += timeout_ms
        return self.image.version >= version


def suspected_leaders() -> tuple[Followed, SuspectedLeaders]:
    followed = Followed()
    return followed, SuspectedLeaders(followed, lambda: followed.now_ms)  # type: ignore[arg-type]


def held_back(some: SuspectedLeaders) -> bool:
    return some.any


async def test_ends_with_the_fence() -> None:
    followed, some = suspected_leaders()
    assert not held_back(some)
    some.suspect(N1)
    assert held_back(some)
    followed.later = lambda: followed.change(N1)
    await some.settled()
    assert followed.now_ms == 1_000_000
    assert not held_back(some)


async def test_other_changes_do_not_end_it_and_time_does() -> None:
    followed, some = suspected_leaders()
    some.suspect(N1)
    followed.later = lambda: followed.change(N2)
    await some.settled()
    assert followed.now_ms == 1_000_000 + SUSPICION_MS
    assert not held_back(some)


async def test_a_node_out_of_reach_holds_up_only_the_first_answers() -> None:
    followed, some = suspected_leaders()
    some.suspect(N1)
    followed.now_ms += SUSPICION_MS
    for _ in range(5):
        followed.now_ms += QUIET_MS - 1 - SUSPICION_MS
        some.suspect(N1)
        assert not held_back(some)
    followed.now_ms += QUIET_MS
    some.suspect(N1)
    assert held_back(some)


async def test_who_is_fenced_already_is_not_suspected() -> None:
    followed, some = suspected_leaders()
    followed.change(N1)
    some.suspect(N1)
    assert not held_back(some)
