"""The report's page and its charts: whole documents, nothing fetched, nothing of a record obeyed. No Spark."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from pyspark_penstock.jobs.charts import bars, columns, size_text, table
from pyspark_penstock.jobs.report import SLICES, slice_ms
from pyspark_penstock.jobs.report_page import Facts, page
from pyspark_penstock.jobs.stored import COUNTS

EVIL = '"><script>alert(1)</script>&\x00'


def facts(**more: Any) -> Facts:
    row = dict.fromkeys(COUNTS, 0) | {"partition": 0, "first": 0, "last": 99, "records": 98, "control": 2}
    whole: dict[str, Any] = {
        "topic": EVIL,
        "partitions": [row, row | {"partition": 1, "records": 50}],
        "stored_bytes": {0: 4096, 1: 100},
        "findings": [
            {"kind": "lost", "topic": EVIL, "partition": 0, "from": 3, "to": 9, "count": 6, "sample": []}
        ],
        "step_ms": 60_000,
        "rates": [(1_700_000_000_000, 60), (1_700_000_060_000, 0), (1_700_000_120_000, 88)],
        "codecs": [(EVIL, 3, 148, 4196)],
        "sizes": [(0, 1), (6, 147)],
        "keys": [(EVIL, 90), (None, 58)],
        "distinct_keys": 1,
        "groups": [{"group": EVIL, "partition": 0, "committed": 40, "end": 100, "lag": 60}],
    }
    return Facts(**(whole | more))


class Page(HTMLParser):
    """Which tags there are, and that each is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.addresses: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.addresses += [
            value or "" for name, value in attrs if name in ("href", "src", "style") or name[:2] == "on"
        ]
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"groups": None},
        {"groups": [], "findings": []},
        {"partitions": [], "rates": [], "codecs": [], "sizes": [], "keys": [], "stored_bytes": {}},
        {"partitions": [dict.fromkeys((*COUNTS, "partition", "first"), 0) | {"last": -1}], "rates": [(0, 0)]},
    ],
)
def test_a_page_is_whole_and_fetches_nothing(more: dict[str, Any]) -> None:
    text = page(facts(**more))
    found = Page(text)
    assert found.addresses == []
    assert not found.seen & {"script", "link", "img", "iframe"}
    assert "http" not in text
    assert "@import" not in text


def test_the_numbers_are_there() -> None:
    text = re.sub(r"<[^>]+>", " ", page(facts()))
    for number in (
        "148",
        "98",
        "4.0 KiB",
        "58 · 39.2%",
        "1.32 times the mean",
        "1.5/s",
        "2023-11-14 22:13:20",
    ):
        assert number in text, number


def test_charts_of_nothing() -> None:
    assert "nothing to show" in bars([])
    assert "nothing to show" in columns([], [], ("", ""), "")
    assert "<tbody></tbody>" in table(["a"], [])


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1,023 B"), (1024, "1.0 KiB"), (5 << 40, "5.0 TiB"), (3 << 20, "3.0 MiB")],
)
def test_sizes(count: int, text: str) -> None:
    assert size_text(count) == text


@pytest.mark.parametrize("span_ms", [0, 1, 999, 60_000, 3_600_000, 10**9, 10**12, 1 << 50])
def test_slices_are_few(span_ms: int) -> None:
    assert span_ms // slice_ms(span_ms) <= SLICES
    assert slice_ms(span_ms) % 1000 == 0
