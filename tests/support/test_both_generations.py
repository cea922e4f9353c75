"""What is wrong with a loop's output is seen."""

from __future__ import annotations

import pytest

from support.both_generations import wrong_copies

SOURCE = {0: ["a", "b", "c"], 1: []}


def test_a_copy_of_each_in_its_order_is_right() -> None:
    assert wrong_copies(SOURCE, {0: ["<a>", "<b>", "<c>"], 1: []}) == []


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (["<a>", "<c>"], "1 lost, ['<b>']"),
        (["<a>", "<b>", "<a>", "<b>", "<c>"], "2 doubled, ['<a>', '<b>']"),
        (["<a>", "<b>", "<c>", "<d>"], "1 strange, ['<d>']"),
        (["<b>", "<a>", "<c>"], "in another order"),
    ],
)
def test_what_is_lost_doubled_strange_or_out_of_order_is_told(found: list[str], told: str) -> None:
    assert wrong_copies(SOURCE, {0: found, 1: []}) == [f"partition 0: {told}"]
