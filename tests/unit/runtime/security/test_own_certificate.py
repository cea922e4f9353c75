"""A role's certificate while the role runs: when it runs out is said in time."""

from __future__ import annotations

import datetime
import time
from pathlib import Path

import structlog

from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.security.own_certificate import expiry_warning, watch_certificate
from support.certificates import ClusterCa
from support.waiting import eventually

DAY_S = 86_400


async def test_a_certificate_that_runs_out_soon_is_told_and_measured(tmp_path: Path) -> None:
    days = datetime.timedelta(days=13)
    files = ClusterCa().files(tmp_path, "gateway", "*", good_for=days)
    life = Lifecycle("gateway")
    with structlog.testing.capture_logs() as lines:
        watch_certificate(files, life)
        await eventually(lambda: lines, "a warning")
        await life.end_tasks()
    assert f"tls.cert = {tmp_path / 'cert.pem'} runs out at 2" in lines[0]["event"]
    left_s = (
        life.registry.get_sample_value("penstock_certificate_expires_timestamp_seconds") or 0.0
    ) - time.time()
    assert 12 * DAY_S < left_s < 14 * DAY_S
    assert expiry_warning(files, time.time() - 2 * DAY_S) == ""
    assert "ran out at" in expiry_warning(files, time.time() + 14 * DAY_S)
