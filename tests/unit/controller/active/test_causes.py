"""Causes travel with the command that they are for: once, and no matter how many parts it comes in."""

from __future__ import annotations

from penstock_controller.active.command_queue import PART_RECORDS
from penstock_controller.state.causes import cause
from penstock_controller.state.generation import Context, Generated
from penstock_core.metadata import MetadataImage
from unit.controller.active.test_large_commands import Log, counting, ids_record, submit


def told(kind: str, *, records: int) -> Generated[str]:
    made = [ids_record(n + 1) for n in range(records)]
    return Generated(kind, made, causes=cause(kind, "cluster"))


async def test_requests_that_share_a_command_each_tell_why() -> None:
    log = Log(MetadataImage())
    await submit(
        log, lambda _: told("a", records=1), lambda _: told("b", records=0), lambda _: told("c", records=1)
    )
    (applied,) = log.applied
    assert [c.kind for c in applied.causes] == ["a", "c"], "what changes nothing has no cause"


async def test_the_parts_of_a_large_command_carry_them_once() -> None:
    log = Log(MetadataImage())

    def large(ctx: Context) -> Generated[int]:
        made = counting(5 * PART_RECORDS)(ctx)
        return Generated(
            made.reply,
            made.records,
            made.further,
            tuple(c for n in range(150) for c in cause(f"k{n}", "x" * 200)),
        )

    await submit(log, large)
    (applied,) = log.applied
    assert len(applied.causes) == 150
    first, *others = log.sizes
    assert len(others) >= 2
    assert first > 150 * 200 > 4 * max(others)


async def test_a_command_tells_when_it_was_made() -> None:
    log = Log(MetadataImage())
    await submit(log, lambda _: told("a", records=1))
    assert log.applied[0].time_ms == 0, "the clock of whoever generated it"
