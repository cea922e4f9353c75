"""What `check` and `capacity` found, as JSON documents: the command line and REST say the same. Pure.

Ids and bytes are integers, durations seconds under names that end in `_s`; what is not there or not known is None.
"""

from __future__ import annotations

from typing import Any, Final

from penstock_proto.v1 import operations_pb2

Json = dict[str, Any]

TROUBLES: Final = frozenset({"error", "warning"})
"""Severities with which a cluster is not as it should be."""


def check_document(response: operations_pb2.CheckClusterResponse) -> Json:
    """All that is amiss, gravest first."""
    return {
        "ok": not any(each.severity in TROUBLES for each in response.findings),
        "findings": [
            {
                "severity": each.severity,
                "code": each.code,
                "subject": each.subject,
                "detail": each.detail,
                "hint": each.hint,
            }
            for each in response.findings
        ],
    }


def capacity_document(response: operations_pb2.DescribeCapacityResponse) -> Json:
    """Room, growth and load of storage nodes."""
    return {
        "nodes": [_node(each) for each in response.nodes],
        "survives": {level: _told(response, f"survives_{level}") for level in ("node", "host", "rack")},
    }


def _node(node: operations_pb2.NodeCapacity) -> Json:
    return {
        "node_id": node.node_id,
        "disk_total_bytes": _told(node, "disk_total_bytes"),
        "disk_free_bytes": _told(node, "disk_free_bytes"),
        "log_bytes": _told(node, "log_bytes"),
        "growth_bytes_per_s": _whole(node, "growth_bytes_per_s"),
        "full_in_s": _whole(node, "full_in_s"),
        "in_bytes_per_s": _whole(node, "in_bytes_per_s"),
        "out_bytes_per_s": _whole(node, "out_bytes_per_s"),
        "loop_busy_ratio": _told(node, "loop_busy_ratio"),
    }


def _whole(message: Any, field: str) -> int | None:
    """Bytes and seconds that were reckoned; less than one of them tells nobody anything."""
    value = _told(message, field)
    return None if value is None else round(value)


def _told(message: Any, field: str) -> Any:
    return getattr(message, field) if message.HasField(field) else None


__all__ = ["TROUBLES", "capacity_document", "check_document"]
