"""Rights that are too old count no more, and count again with the first word of a controller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock_core.metadata.image import ImageBuilder, MetadataImage
from penstock_core.security.acl import AclOperation, ResourceType
from penstock_core.security.principal import Identity, user
from penstock_frontend.acl_authorizer import AclAuthorizer
from penstock_frontend.sign_in.doors import Doors
from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.metadata_client import NEVER_MS
from penstock_runtime.settings import ListenerSettings
from support.waiting import eventually

ROOT = Identity(user("root"), "10.0.0.1")
LIMIT_MS, GRACE_MS = 30_000, 5_000


class News:
    """The metadata, as far as doors look at them."""

    def __init__(self) -> None:
        self.age_ms = NEVER_MS
        self.image = MetadataImage()
        self._callbacks: list[Callable[..., None]] = []

    def contact_age_ms(self) -> int:
        return self.age_ms

    def on_change(self, callback: Callable[..., None]) -> None:
        self._callbacks.append(callback)

    def come(self) -> None:
        """A change."""
        self.age_ms = 0
        for callback in self._callbacks:
            callback(self.image, self.image, [])


@contextmanager
def watched() -> Iterator[tuple[News, Callable[[], bool]]]:
    news, authorizer = News(), AclAuthorizer([user("root")])
    life = Lifecycle("test")
    doors = Doors([], life, stale_ms=(5_000, LIMIT_MS))
    fake: Any = news
    doors.connect(fake, lambda *_: b"", authorizer, GRACE_MS)
    assert doors._news is not None
    task = asyncio.create_task(doors._watch_news(doors._news, []))
    try:
        yield (
            news,
            lambda: authorizer.authorize(ROOT, AclOperation.WRITE, ResourceType.TOPIC, "flights"),
        )
    finally:
        task.cancel()


async def test_a_process_that_has_just_begun_denies_its_super_users_nothing() -> None:
    """A gateway may bring it requests as soon as it has the metadata: nobody is told that he has no right."""
    with watched() as (news, may):
        await asyncio.sleep(0.6)  # the watch has looked, twice
        assert may()
        news.come()
        assert may()


async def test_rights_count_again_with_the_news_and_not_only_at_the_next_look() -> None:
    with watched() as (news, may):
        news.come()
        news.age_ms = LIMIT_MS + GRACE_MS
        await asyncio.sleep(0.6)  # nothing is to happen before the grace is over
        assert may()
        news.age_ms += 1
        await eventually(lambda: not may(), "rights of before count no more")
        news.come()
        assert may()


async def test_nobody_comes_before_the_first_metadata() -> None:
    """A node's listeners are open before it is registered: its clients were told of a cluster without a topic."""
    news = News()
    fake: Any = news
    settings = ListenerSettings(name="DIRECT", bind="127.0.0.1:0")
    doors = Doors([settings], Lifecycle("test"))
    doors.connect(fake, lambda *_: b"")
    keeps_out = doors.of(settings)["keeps_out"]
    assert keeps_out() == "no metadata came yet"
    news.image = ImageBuilder(MetadataImage()).finish(1)
    assert not keeps_out()
    news.age_ms = NEVER_MS
    assert not keeps_out(), "without users and rights old metadata are better than none"
