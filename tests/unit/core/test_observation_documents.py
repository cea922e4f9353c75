"""The documents of `cluster check` and `cluster capacity`: keys, and None for what is not known."""

from __future__ import annotations

import pytest

from penstock_core.observation_documents import capacity_document, check_document
from penstock_proto.v1 import operations_pb2 as pb


@pytest.mark.parametrize(
    ("severities", "ok"), [([], True), (["info"], True), (["info", "warning"], False), (["error"], False)]
)
def test_ok_is_no_error_and_no_warning(severities: list[str], ok: bool) -> None:
    response = pb.CheckClusterResponse(
        findings=[
            pb.Finding(severity=s, code="strays", subject="a", detail="b", hint="c") for s in severities
        ]
    )
    assert check_document(response) == {
        "ok": ok,
        "findings": [
            {"severity": s, "code": "strays", "subject": "a", "detail": "b", "hint": "c"} for s in severities
        ],
    }


def test_capacity() -> None:
    nodes = [
        pb.NodeCapacity(
            node_id=1,
            disk_total_bytes=9,
            disk_free_bytes=8,
            log_bytes=0,
            growth_bytes_per_s=-1.6,
            full_in_s=2.4,
            in_bytes_per_s=0,
            out_bytes_per_s=3.5,
            loop_busy_ratio=0.25,
        ),
        pb.NodeCapacity(node_id=2),
    ]
    found = capacity_document(
        pb.DescribeCapacityResponse(nodes=nodes, survives_node=True, survives_rack=False)
    )
    assert found["survives"] == {"node": True, "host": None, "rack": False}
    assert found["nodes"][0] == {
        "node_id": 1,
        "disk_total_bytes": 9,
        "disk_free_bytes": 8,
        "log_bytes": 0,
        "growth_bytes_per_s": -2,
        "full_in_s": 2,
        "in_bytes_per_s": 0,
        "out_bytes_per_s": 4,
        "loop_busy_ratio": 0.25,
    }
    assert found["nodes"][1] == {**dict.fromkeys(found["nodes"][0]), "node_id": 2}
