"""`penstock spark run audit` of what a scenario has left, by a Spark of its own: one more judge, which reads stored
batches and knows nothing of the history."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any, Final

from chaos.cluster import Cluster
from support.spark_jobs import command_at

TIMEOUT_S: Final = 1800.0
_FINDINGS: Final = 4


def audit(cluster: Cluster, topic: str) -> dict[str, Any]:
    """The audit's document. Raises AssertionError where it did not come to its end."""
    gateways = ",".join(cluster.address(name, "grpc") for name in cluster.gateways)
    done = subprocess.run(
        command_at(gateways, "audit", "--topic", topic),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env=os.environ.copy(),
    )
    assert done.returncode in (0, _FINDINGS), (
        f"the audit of {topic} ended with {done.returncode}: {done.stderr[-300:]}"
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def words(topic: str, found: dict[str, Any]) -> str:
    """For a result's notes."""
    sums = {
        name: sum(row[name] for row in found["partitions"])
        for name in ("records", "control", "aborted", "compacted", "lost", "unreadable", "crc_errors")
    }
    told = ", ".join(f"{count} {name}" for name, count in sums.items() if count)
    kinds = sorted(
        {f"{one['kind']} {one['partition']}:{one['from']}-{one['to']}" for one in found["findings"]}
    )
    return f"audit of {topic}: {told or 'no offsets'}; {', '.join(kinds[:5]) or 'nothing found'}"
