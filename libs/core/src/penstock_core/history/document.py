"""What is explained, as a JSON document. Pure."""

from __future__ import annotations

from typing import Any

from penstock_proto.v1 import operations_pb2 as api


def explain_document(answer: api.ExplainResponse) -> dict[str, Any]:
    """Times are ms since 1970; what is not there or not known is None."""
    return {
        "subject": answer.subject,
        "summary": answer.summary,
        "now": list(answer.now),
        "story": [
            {
                "time_ms": line.time_ms,
                "version": line.version,
                "event": line.event,
                "cause": line.cause or None,
                "detail": line.detail,
                "by": line.by or None,
            }
            for line in answer.story
        ],
        "incomplete_before_ms": answer.incomplete_before_ms or None,
    }
