"""Compose's profile `spark`: a master, three workers, and jobs submitted by name that read through the gateways."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from support.kafka import create_topic, produce

pytestmark = [pytest.mark.compose, pytest.mark.alone, pytest.mark.timeout(2400)]

RECORDS = 20_000
PARTITIONS = 6


@pytest.mark.skipif(
    os.environ.get("PENSTOCK_COMPOSE_SPARK") != "1", reason="builds an image of Spark: make compose-test"
)
def test_an_audit_is_submitted_to_three_workers_and_reads_by_name(stack: Any) -> None:
    create_topic(stack.bootstrap, "flights", PARTITIONS, 3)
    produce(stack.bootstrap, "flights", RECORDS)
    stack.compose("build", "--quiet", "spark")
    stack.compose("up", "-d", "--scale", "spark-worker=3", "spark-secret", "spark-master", "spark-worker")
    try:
        said = stack.compose("run", "--rm", "-T", "spark", "run", "audit", "--topic", "flights", "--json")
        found = json.loads(said)
        assert (found["ok"], found["rows"], found["findings"]) == (True, RECORDS, [])
        assert set(found["to"]["flights"]) == {str(number) for number in range(PARTITIONS)}
        workers = stack.containers("spark-worker")
        assert len(workers) == 3
        ran = [worker for worker in workers if "Asked to launch executor" in worker.logs().decode()]
        assert ran, "executors are the workers' own"
        nobody_outside = [*workers, *stack.containers("spark-master")]
        assert not any(any(container.ports.values()) for container in nobody_outside)
    finally:
        stack.compose("rm", "--stop", "--force", "spark-worker", "spark-master")
