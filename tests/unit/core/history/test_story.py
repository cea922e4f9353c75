"""Sentences that somebody understands who was not there; and one history from several memories."""

from __future__ import annotations

import pytest

from penstock_core.history.document import explain_document
from penstock_core.history.merge import merged
from penstock_core.history.narrate import sentence, story
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_proto.v1 import operations_pb2 as api


def event(
    event: str, subject: str, change: str, *cause: str, by: str = "", operation: int = 0, version: int = 1
) -> api.ClusterEvent:
    kind, about, detail = (*cause, "", "", "")[:3]
    return api.ClusterEvent(
        version=version,
        time_ms=version * 1_000,
        event=event,
        subject=subject,
        change=change,
        cause=pb.Cause(kind=kind, subject=about, detail=detail, principal=by, operation_id=operation),
    )


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (
            event(
                "leader",
                "partition flights-3",
                "leader 2 -> 3, epoch 5, from ISR, ISR 2,3 -> 3",
                *("fence", "node 2", "silent for 2100 ms"),
            ),
            "node 2 fell silent (2.1 s) and was fenced; node 3, first live member of the ISR, leads since epoch 5, "
            "before it node 2, node 2 left the ISR (in sync: 3).",
        ),
        (
            event("isr", "partition t-0", "ISR 1,2,3 -> 1,2", "fence", "node 3", "connection refused"),
            "node 3 refused connections (its process was gone) and was fenced; node 3 left the ISR (in sync: 1, 2).",
        ),
        (
            event(
                "leader",
                "partition t-0",
                "leader 1 -> none, epoch 2, ISR 1 -> none, ELR none -> 1",
                "fence",
                "node 1",
            ),
            "node 1 was fenced; no node can lead it after node 1, node 1 left the ISR (in sync: none), "
            "node 1 may lead again though outside the ISR (ELR).",
        ),
        (
            event(
                "leader",
                "partition t-0",
                "leader none -> 2, epoch 3, from outside",
                "election",
                "cluster",
                "unclean, by hand",
                by="User:ann",
            ),
            "an unclean election was asked for by User:ann; "
            "node 2, which was not in sync (unclean: records may be lost), leads since epoch 3.",
        ),
        (
            event(
                "isr",
                "partition t-0",
                "ISR 1,2 -> 1",
                "isr",
                "partition t-0",
                "leader 1: node 2 lagging, 31000 ms, 5242880 bytes",
            ),
            "leader 1 found node 2 lagging (31.0 s and 5.2 MB behind); node 2 left the ISR (in sync: 1).",
        ),
        (
            event(
                "leader",
                "partition t-0",
                "leader 2 -> 1, epoch 4, from ISR, preferred",
                "election",
                "cluster",
                "preferred",
            ),
            "leadership went back to preferred leaders; "
            "node 1, the preferred leader, leads since epoch 4, before it node 2.",
        ),
        (
            event(
                "replicas",
                "partition t-0",
                "replicas 1,2 -> 3,1,2, adding none -> 3, removing none -> 1",
                "operation",
                "operation 9",
                "node-drain",
                by="User:ann",
                operation=9,
            ),
            "operation 9 (node-drain by User:ann); its move began: node 3 gets a replica, "
            "node 1 gives its own up once all are in sync.",
        ),
        (
            event(
                "node", "node 2", "stopping; it led 2 partitions; it left 5 ISRs", "drain", "node 2", "TERM"
            ),
            "node 2 was told to stop; it led 2 partitions; it left 5 ISRs.",
        ),
        (
            event(
                "node",
                "node 2",
                "registered with epoch 9, build 1.0",
                "register",
                "node 2",
                "after an unclean stop",
            ),
            "node 2 came back after an unclean stop; registered with epoch 9, build 1.0.",
        ),
        (
            event("config", "topic t", "retention.ms = 5 (was 6)", "config", "topic t", by="User:ann"),
            "settings of topic t were changed by User:ann: retention.ms = 5 (was 6).",
        ),
        (event("isr", "partition t-0", "moon full"), "moon full."),
        (event("node", "node 2", "fenced"), "node 2: fenced."),
        (event("moon", "moon", "full", "tide", "sea", "high"), "tide of sea (high); moon: full."),
    ],
)
def test_a_sentence_has_the_cause_first(told: api.ClusterEvent, said: str) -> None:
    assert sentence(told) == said


def test_what_an_operation_did_to_many_partitions_is_one_line() -> None:
    cause = ("operation", "operation 9", "node-drain")
    begun = [
        event("replicas", f"partition t-{n}", "replicas 1 -> 2,1, adding none -> 2", *cause, version=n)
        for n in range(1, 7)
    ]
    ended = event("replicas", "partition t-1", "replicas 2,1 -> 2, adding 2 -> none", *cause, version=8)
    paused = event(
        "operation", "operation 9", "paused; because: health", "operation", "operation 9", "paused", version=9
    )
    told = list(story([*begun, ended, paused], of_operation=True))
    assert [line.detail for line in told] == [
        "6 partitions begin to move: t-1, t-2, t-3 and 3 more.",
        "t-1: its move ended: replicas 2, before 2, 1.",
        "operation 9 was paused: paused; because: health.",
    ]
    assert [line.version for line in told] == [6, 8, 9]


def test_memories_become_one_history() -> None:
    all_of = [event("isr", f"partition t-{n}", "ISR 1 -> 2", version=n // 2) for n in range(2, 20)]
    early = api.ReadEventsResponse(events=all_of[:9], incomplete_before_ms=0)
    late = api.ReadEventsResponse(events=all_of[6:], incomplete_before_ms=5_000)
    assert merged([late, early], 99) == (all_of, 0)
    assert merged([late], 99) == (all_of[6:], 5_000)
    assert merged([], 99) == ([], 99)
    twice = [event("isr", "partition t-0", "ISR 1 -> 2"), event("isr", "partition t-0", "ISR 2 -> 1")]
    both = api.ReadEventsResponse(events=twice)
    assert merged([both, both], 0) == (twice, 0)


def test_the_document_has_null_for_what_is_not_known() -> None:
    answer = api.ExplainResponse(
        subject="node 2",
        summary="node 2 is well",
        now=["a"],
        story=story([event("node", "node 2", "fenced")]),
    )
    assert explain_document(answer) == {
        "subject": "node 2",
        "summary": "node 2 is well",
        "now": ["a"],
        "story": [
            {
                "time_ms": 1_000,
                "version": 1,
                "event": "node",
                "cause": None,
                "detail": "node 2: fenced.",
                "by": None,
            }
        ],
        "incomplete_before_ms": None,
    }
