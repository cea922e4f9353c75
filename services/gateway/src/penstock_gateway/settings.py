"""Settings of the gateway, beside those that every role has."""

from __future__ import annotations

import re
import socket
from dataclasses import replace
from typing import ClassVar

from pydantic import Field, field_validator

from penstock_frontend.settings import KafkaServerSettings
from penstock_runtime.door_settings import GrpcDoorSettings
from penstock_runtime.grpc_bounds import GrpcBounds
from penstock_runtime.settings import ListenerSettings


def _host_name() -> str:
    """In containers the host's name is the container's own: scaled replicas need no setting."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:128] or "gateway"


def _default_listeners() -> list[ListenerSettings]:
    return [
        ListenerSettings(name="PROXY", bind="127.0.0.1:9092", mode="proxy"),
        ListenerSettings(name="DIRECT", bind="127.0.0.1:9192", mode="direct"),
    ]


_WINDOW_BYTES = 1024 * 1024
"""Of a client's call: anybody may open hundreds."""


class GatewaySettings(KafkaServerSettings):
    """Penstock's gateway: the address that Kafka clients, Spark and the command line dial."""

    example: ClassVar[str] = "penstock-gateway --gateway-id gateway-1 --controllers 127.0.0.1:5001"

    gateway_id: str = Field(
        default_factory=_host_name,
        pattern=r"^[A-Za-z0-9._-]{1,128}$",
        description="name of this gateway, unique in the cluster; registering takes it over",
    )
    listeners: list[ListenerSettings] = Field(
        default_factory=_default_listeners, description="Kafka listeners, a JSON list"
    )
    grpc_bind: str = Field("127.0.0.1:9094", description="address of the native API; port 0 takes a free one")
    grpc_door: GrpcDoorSettings | None = Field(
        None,
        description="who may come by grpc_bind: security, tls, mechanisms, principal_mapping_rules,"
        " token_lifetime_ms",
    )
    grpc_calls_max: int = Field(
        GrpcBounds.calls_max, ge=1, description="most calls that are open at the native API at a time"
    )
    grpc_calls_per_address_max: int = Field(
        GrpcBounds.calls_per_address_max, ge=1, description="most of them from one address"
    )
    http_bind: str = Field(
        "127.0.0.1:8080", description="address of health, metrics and the REST API; empty for none"
    )
    auto_create_topics: bool = Field(
        False,
        description="make topics that a client asks for and that are not there, with the cluster's defaults",
    )
    drain_delay_ms: int = Field(
        0,
        ge=0,
        le=60_000,
        description="after TERM: how long clients are still served while balancers see that it is not ready, in ms;"
        " part of shutdown_timeout_ms",
    )
    stale_after_ms: int = Field(
        10_000,
        ge=500,
        description="not ready when the active controller was not heard of for so long, in ms",
    )

    @property
    def grpc_bounds(self) -> GrpcBounds:
        """What clients may take of the native API's port."""
        return replace(
            super().grpc_bounds,
            calls_max=self.grpc_calls_max,
            calls_per_address_max=self.grpc_calls_per_address_max,
            window_bytes=_WINDOW_BYTES,
        )

    @field_validator("listeners")
    @classmethod
    def _check_listeners(cls, value: list[ListenerSettings]) -> list[ListenerSettings]:
        if not value:
            raise ValueError('a gateway needs a listener; give [{"name": "PROXY", "bind": "127.0.0.1:9092"}]')
        return value
