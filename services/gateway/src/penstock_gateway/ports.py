"""What the gateway takes from the world around it; see `penstock_runtime.ports`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock_frontend.listener.listener import KafkaListener
from penstock_gateway.relay.relay import TICK_MS
from penstock_runtime.ports import MemberPorts


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayPorts(MemberPorts):
    """The real ones, each field; and how often what waits is looked at."""

    listener: Callable[..., KafkaListener] = KafkaListener
    tick_ms: int = TICK_MS
