"""What a process tells of itself: whole, in pieces, without secrets, and without standing still for it."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

from penstock_proto.v1 import operations_pb2 as pb
from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.logs import configure_logs
from penstock_runtime.self_description import PIECE_BYTES, SelfDescription, listing, stacks


async def told(itself: SelfDescription, *parts: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    async for piece in itself.describe(pb.DescribeProcessRequest(parts=parts)):
        assert len(piece.data) <= PIECE_BYTES
        found[piece.part] = found.get(piece.part, b"") + piece.data
    return found


async def test_all_parts_or_those_that_are_asked_for(tmp_path: Path) -> None:
    configure_logs("INFO", "json", io.StringIO())
    lifecycle = Lifecycle("gateway", "gateway-1")
    lifecycle.settings = {"gateway_id": "gateway-1", "password": "***"}
    lifecycle.directory = tmp_path
    (tmp_path / "meta.properties").write_text("x" * 17)
    lifecycle.log.info("something happened", node=3)
    itself = SelfDescription(lifecycle)
    itself.more["quorum"] = lambda: "é" * PIECE_BYTES
    found = await told(itself)
    assert found.keys() == {"settings", "log", "stacks", "directory", "metrics", "quorum"}
    assert json.loads(found["settings"]) == lifecycle.settings
    lines = [json.loads(line) for line in found["log"].splitlines()]
    assert [(line["event"], line["node"]) for line in lines] == [("something happened", 3)]
    assert b"penstock_ready 0.0" in found["metrics"]
    assert found["quorum"].decode() == "é" * PIECE_BYTES
    assert b"17\t" in found["directory"]
    assert (await told(itself, "metrics", "no such part")).keys() == {"metrics"}


def test_a_listing_has_sizes_of_files_and_sums_of_directories(tmp_path: Path) -> None:
    (tmp_path / "t-0" / "deep").mkdir(parents=True)
    (tmp_path / "t-0" / "00.log").write_text("x" * 100)
    (tmp_path / "t-0" / "deep" / "f").write_text("x" * 7)
    rows = {row.split("\t")[2]: int(row.split("\t")[0]) for row in listing(tmp_path).splitlines()}
    assert rows == {".": 107, "t-0/": 107, "t-0/00.log": 100, "t-0/deep/": 7, "t-0/deep/f": 7}
    assert listing(tmp_path / "gone") == ""


async def test_stacks_go_along_what_each_task_waits_for_and_hold_no_values() -> None:
    async def inner(secret: str) -> None:
        await asyncio.sleep(3600, secret)

    async def outer() -> None:
        await inner("a-secret-value")

    tasks = [asyncio.create_task(outer(), name=f"waiter {i}") for i in range(120)]
    await asyncio.sleep(0)
    text = await stacks()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert "120 task(s): waiter 0" in text
    assert "outer\n" in text
    of_tasks = text[text.index("120 task(s)") :]
    assert of_tasks.index("<locals>.outer") < of_tasks.index("<locals>.inner") < of_tasks.index("tasks.py")
    assert "thread MainThread" in text
    assert "a-secret-value" not in text
