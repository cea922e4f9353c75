"""docs/compatibility.md names scenarios and clients that there are."""

from __future__ import annotations

import re

from conformance.clients.registry import CLIENTS
from conformance.frame import SCENARIOS
from conformance.report import BEGIN, DOCUMENT, END
from conformance.scenarios import load


def test_what_the_table_names_exists() -> None:
    load()
    text = DOCUMENT.read_text()
    table = text.partition(BEGIN)[2].partition(END)[0]
    rows = re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)
    assert len(rows) > 50, "the table is there"
    assert not set(rows) - set(SCENARIOS), "scenarios that are gone: run make conformance"
    for head in re.findall(r"^\| scenario \| what \| (.+) \|$", table, re.MULTILINE):
        assert set(head.split(" | ")) <= set(CLIENTS)
