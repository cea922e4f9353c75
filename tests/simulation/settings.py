"""What differs from seed to seed beside the faults: sizes, times, the workload."""

from __future__ import annotations

import random
from dataclasses import dataclass

from simulation.network import NetworkProfile

RUN_US = 60_000_000
"""Faults and load go on for this long; then everything heals."""

HEAL_US = 45_000_000
"""Within this time after healing everything must be well again."""


@dataclass(slots=True)
class Settings:
    """Drawn from the seed."""

    controllers: int
    nodes: int
    gateways: int
    partitions: int
    silence_s: float
    append_period_s: float
    rest_s: float
    tick_s: float
    session_timeout_ms: int
    heartbeat_ms: int
    rebalance_ms: int
    snapshot_every: int
    lag_max_ms: int
    checkpoint_ms: int
    flush_interval_ms: int
    retention_check_ms: int
    group_flush: bool
    is_raft_tcp: bool
    segment_bytes: int
    index_interval_bytes: int
    producers: int
    produce_interval_us: int
    fault_interval_us: int
    network: NetworkProfile
    favoured: tuple[str, ...] = ()
    """Faults that come far more often than by their weight."""

    @classmethod
    def draw(cls, rng: random.Random) -> Settings:
        """Settings of one seed."""
        silence_s = rng.choice((0.5, 1.0))
        session_timeout_ms = rng.choice((1_000, 2_000))
        return cls(
            controllers=5 if rng.random() < 0.1 else 3,
            nodes=4 if rng.random() < 0.15 else 3,
            gateways=2 if rng.random() < 0.2 else 1,
            partitions=rng.choice((1, 2, 3)),
            silence_s=silence_s,
            append_period_s=rng.choice((0.1, 0.15)) if silence_s < 1 else rng.choice((0.2, 0.3)),
            rest_s=0.2,
            tick_s=0.08,
            session_timeout_ms=session_timeout_ms,
            heartbeat_ms=session_timeout_ms * 4 // 10,
            rebalance_ms=rng.choice((0, 2_000, 5_000)),
            snapshot_every=rng.choice((8, 20, 60, 10_000)),
            lag_max_ms=rng.choice((500, 1_500, 4_000)),
            checkpoint_ms=rng.choice((1_000, 3_000, 5_000)),
            flush_interval_ms=rng.choice((2_000, 20_000)),
            retention_check_ms=5_000,
            group_flush=rng.random() < 0.5,
            is_raft_tcp=rng.random() < 0.4,
            segment_bytes=rng.choice((1024, 4096, 1 << 20)),
            index_interval_bytes=rng.choice((128, 512, 4096)),
            producers=rng.choice((1, 2, 3)),
            produce_interval_us=rng.choice((300_000, 500_000, 800_000)),
            fault_interval_us=rng.choice((600_000, 1_300_000, 2_600_000)),
            network=NetworkProfile(
                delay_us_max=rng.choice((1_000, 5_000, 20_000)),
                slow_probability=rng.choice((0.0, 0.01, 0.05)),
                loss_probability=rng.choice((0.0, 0.005, 0.03)),
                duplicate_probability=rng.choice((0.0, 0.01, 0.05)),
                reorder_probability=rng.choice((0.0, 0.01, 0.05)),
            ),
        )
