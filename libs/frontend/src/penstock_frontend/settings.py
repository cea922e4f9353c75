"""Settings of every role that Kafka clients connect to: what one client, or one address, may take."""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from penstock_core.limits import KAFKA_FRAME_BYTES_CEILING, KAFKA_FRAME_BYTES_MAX
from penstock_frontend.listener.admission import ConnectionCaps
from penstock_frontend.listener.connection import ListenerLimits
from penstock_kafka.wire.primitives import REQUEST_ITEMS_MAX
from penstock_runtime.settings import RoleSettings


class KafkaServerSettings(RoleSettings):
    """Bounds of Kafka listeners."""

    connections_max: int = Field(
        ConnectionCaps.connections_max,
        ge=1,
        description="most connections of each Kafka listener; idle ones of whoever has most make room",
    )
    connections_per_address_max: int = Field(
        ConnectionCaps.per_address_max, ge=1, description="most of them from one address"
    )
    new_connections_per_address_per_s: int = Field(
        ConnectionCaps.new_per_address_per_s,
        ge=1,
        description="most new connections to a Kafka listener from one address, each second",
    )
    new_connections_per_address_burst: int = Field(
        ConnectionCaps.new_per_address_burst, ge=1, description="how many of them may come at once"
    )
    socket_request_max_bytes: int = Field(
        KAFKA_FRAME_BYTES_MAX,
        ge=1024,
        le=KAFKA_FRAME_BYTES_CEILING,
        description="largest Kafka request that is taken, in bytes; a larger one closes its connection",
    )
    request_items_max: int = Field(
        REQUEST_ITEMS_MAX,
        ge=100,
        description="most items (topics, partitions, resources...) of one Kafka request but Produce and Fetch",
    )

    def listener_limits(self, limits: ListenerLimits | None = None) -> ListenerLimits:
        """These settings, the rest as in `limits` (the defaults)."""
        return replace(
            limits or ListenerLimits(),
            frame_bytes_max=self.socket_request_max_bytes,
            request_items_max=self.request_items_max,
            caps=ConnectionCaps(
                connections_max=self.connections_max,
                per_address_max=self.connections_per_address_max,
                new_per_address_per_s=self.new_connections_per_address_per_s,
                new_per_address_burst=self.new_connections_per_address_burst,
            ),
        )
