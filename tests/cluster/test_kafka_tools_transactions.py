"""kafka-transactions and `penstock transaction` say of Penstock what they say of Kafka: the transcript is Kafka's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance.java import transaction_tools
from conformance.java.tools import Line
from penstock.local.cluster import LocalCluster
from support.java import needs_java, shared_driver

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900), needs_java]
NODES = 3
"""Of the shared cluster."""


def _once(line: Line) -> Line:
    """The tool asks every node for its ids and joins the lists; behind one address each answer has all of them."""
    head, *rows = line.said
    assert all(rows.count(row) == NODES for row in rows), line.said
    return replace(line, said=[head, *sorted(set(rows))])


@pytest.mark.parametrize("mode", ["proxy", "direct"])
def test_both_tools_say_what_they_say_of_kafka(shared_cluster: LocalCluster, mode: str) -> None:
    bootstrap = shared_cluster.bootstrap if mode == "proxy" else shared_cluster.direct_bootstrap
    oracle = transaction_tools.oracle()
    found = list(transaction_tools.session(shared_driver(), bootstrap))
    if mode == "proxy":
        found = [_once(line) if line.step == "kafka-transactions: list" else line for line in found]
    assert [line.step for line in found] == [line.step for line in oracle], "record the transcript again"
    wrong = [
        f"{line.step}: Kafka {wanted.exit} {wanted.said}\n Penstock {line.exit} {line.said}"
        for line, wanted in zip(found, oracle, strict=True)
        if line != wanted
    ]
    assert not wrong, "\n".join(wrong)
