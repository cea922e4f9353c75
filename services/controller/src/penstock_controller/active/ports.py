"""What a controller takes from the world around it; see `penstock_runtime.ports`."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from penstock_controller.active.command_queue import COMMIT_TIMEOUT_MS
from penstock_controller.active.metadata_stream import KEEPALIVE_S
from penstock_controller.quorum.quorum import REAL_QUORUM_PORTS, QuorumPorts
from penstock_core.limits import FEATURE_LEVEL
from penstock_runtime.grpc_tools import Probe, probe
from penstock_runtime.ports import RolePorts

TICK_MS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerPorts(RolePorts):
    """The real ones, each field; and how often what goes by the clock does."""

    new_rng: Callable[[], random.Random] = random.SystemRandom
    """The system's randomness: cluster and topic ids must not repeat."""
    probe: Callable[[str, int, int], Awaitable[Probe]] = probe
    quorum: QuorumPorts = REAL_QUORUM_PORTS
    tick_ms: int = TICK_MS
    keepalive_s: float = KEEPALIVE_S
    commit_timeout_ms: int = COMMIT_TIMEOUT_MS
    founding_level: int = FEATURE_LEVEL
    """The feature level of a cluster that this controller founds."""
