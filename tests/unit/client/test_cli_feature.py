"""`penstock feature`: real processes, with a real listener at the other end and the controller's own decisions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock_controller.state import features
from penstock_controller.state.generation import Context
from penstock_core.limits import FEATURE_LEVEL
from unit.client.test_cli_security import session
from unit.runtime.fake_controllers import FakeController

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    async def update(self: FakeController, request: Any, _context: Any) -> Any:
        context = Context(self.cluster.image, random.Random(0))
        made = features.update_features(context, request, {1: FEATURE_LEVEL})
        if made.records:
            made.reply.version = self.cluster.commit(*made.records)
        return made.reply

    monkeypatch.setattr(FakeController, "UpdateFeatures", update, raising=False)
    return asyncio.run


def test_features_are_listed_and_set(run: Any) -> None:
    async def main() -> None:
        async with session(level=FEATURE_LEVEL) as s:
            out = await s.run("feature", "list")
            assert [line.split() for line in out.splitlines()[:3]] == [
                ["FEATURE", "LEVEL", "KNOWN"],
                ["metadata.level", str(FEATURE_LEVEL), "1", "to", str(FEATURE_LEVEL)],
                ["transaction.version", "0", "0", "to", "2"],
            ]
            before = (await s.json("feature", "list"))["epoch"]
            checked = await s.run("feature", "set", "transaction.version=2", "--dry-run")
            assert "may become 2" in checked
            assert "transaction.version" not in s.cluster.image.features
            assert "is now 2" in await s.run("feature", "set", "transaction.version=2")
            told = await s.json("feature", "list")
            row = {"name": "transaction.version", "level": 2, "lowest": 0, "highest": 2}
            assert told["epoch"] > before and row in told["features"]
            refused = await s.run("feature", "set", "transaction.version=1", expect=1)
            assert "does not go back unless a downgrade" in refused
            assert "is now 1" in await s.run("feature", "set", "transaction.version=1", "--downgrade")
            assert s.cluster.image.features["transaction.version"] == 1
            refused = await s.run("feature", "set", "no.such=1", expect=1)
            assert "does not support the given feature: no.such" in refused

    run(main())


def test_what_is_no_level_is_said_before_anybody_is_asked(run: Any) -> None:
    async def main() -> None:
        async with session(level=FEATURE_LEVEL) as s:
            for words in (
                ("transaction.version",),
                ("transaction.version=x",),
                ("=1",),
                ("transaction.version=99999",),
                ("transaction.version=1", "transaction.version=2"),
            ):
                await s.run("feature", "set", *words, expect=2)

    run(main())


def test_a_cluster_of_a_lower_level_says_what_to_do(run: Any) -> None:
    async def main() -> None:
        async with session(level=3) as s:
            out = await s.run("feature", "set", "transaction.version=2", expect=1)
            assert "run `penstock cluster upgrade` first" in out

    run(main())
