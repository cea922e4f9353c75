"""Settings of the controller role."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from pydantic import Field, field_validator, model_validator

from penstock_runtime.grpc_bounds import GrpcBounds
from penstock_runtime.settings import RoleSettings, parse_address, parse_member


class ControllerSettings(RoleSettings):
    """Penstock's controller: keeps the cluster's metadata in a Raft quorum of 1, 3 or 5."""

    example: ClassVar[str] = (
        "penstock-controller --controller-id 1 --data-dir data/controller-1 "
        "--grpc-bind 127.0.0.1:5001 --controllers 1@127.0.0.1:5001 "
        "--raft-bind 127.0.0.1:4001 --raft-peers 1@127.0.0.1:4001"
    )

    controller_id: int = Field(ge=1, le=2**31 - 1, description="id of this controller within raft_peers")
    grpc_calls_max: int = Field(
        GrpcBounds.calls_max,
        ge=1,
        description="most calls that are open at a time, not counting roles with a certificate",
    )
    grpc_calls_per_address_max: int = Field(
        2_000,
        ge=1,
        description="most of them from one address; a node or gateway there has three or four",
    )
    raft_bind: str = Field("127.0.0.1:0", description="address of the Raft port")
    raft_peers: list[str] = Field(
        description="Raft addresses of all controllers, this one included: ID@host:port"
    )
    node_session_timeout_ms: int = Field(
        2000, ge=200, le=600_000, description="silence after which a node or gateway counts as gone, in ms"
    )
    node_heartbeat_interval_ms: int = Field(
        250, ge=20, le=60_000, description="how often nodes and gateways send heartbeats, in ms"
    )
    default_partition_count: int = Field(
        1, ge=1, le=10_000, description="partitions of a topic that names none"
    )
    default_replication_factor: int = Field(
        -1, ge=-1, le=32, description="replicas of a topic that names none; -1 = min(3, live nodes)"
    )
    offsets_topic_num_partitions: int = Field(
        50, ge=1, le=1_000, description="partitions of __consumer_offsets when it is created"
    )
    transaction_state_log_num_partitions: int = Field(
        50, ge=1, le=1_000, description="partitions of __transaction_state when it is created"
    )
    leader_rebalance_interval_ms: int = Field(
        5000, ge=0, description="how often leadership goes back to preferred replicas, in ms; 0 = never"
    )
    raft_snapshot_every: int = Field(
        10_000, ge=2, description="metadata commands between two snapshots of the Raft log"
    )
    raft_silence_ms: int = Field(
        1000,
        ge=200,
        le=60_000,
        description="least silence of the active controller before an election, in ms",
    )

    bootstrap_users: Path | None = Field(
        None,
        description="file of `penstock user bootstrap` with the users that a new cluster begins with",
    )

    @property
    def grpc_bounds(self) -> GrpcBounds:
        """What others may take of the gRPC port."""
        return replace(
            super().grpc_bounds,
            calls_max=self.grpc_calls_max,
            calls_per_address_max=self.grpc_calls_per_address_max,
        )

    @field_validator("raft_bind")
    @classmethod
    def _check_raft_bind(cls, value: str) -> str:
        parse_address(value)
        return value

    @field_validator("raft_peers")
    @classmethod
    def _check_raft_peers(cls, value: list[str]) -> list[str]:
        ids = []
        for member in value:
            member_id, address = parse_member(member)
            if member_id is None or address.port == 0:
                raise ValueError(f"{member!r}: write ID@host:port with the port that the controller binds")
            ids.append(member_id)
        if len(set(ids)) != len(ids):
            raise ValueError("two members have the same id; ids are unique")
        if len(ids) not in (1, 3, 5):
            raise ValueError(f"{len(ids)} members; a quorum has 1, 3 or 5")
        return value

    @model_validator(mode="after")
    def _check_membership(self) -> ControllerSettings:
        ids = [parse_member(member)[0] for member in self.raft_peers]
        if self.controller_id not in ids:
            raise ValueError(f"controller_id {self.controller_id} is not in raft_peers; add it there")
        if self.controllers and len(self.controllers) != len(ids):
            raise ValueError(
                f"controllers names {len(self.controllers)} addresses, raft_peers {len(ids)}; name each controller once"
            )
        if self.node_heartbeat_interval_ms * 2 > self.node_session_timeout_ms:
            raise ValueError("node_heartbeat_interval_ms must be at most half of node_session_timeout_ms")
        return self

    def grpc_addresses(self) -> dict[int, str]:
        """gRPC addresses by controller id; by the order of raft_peers where ids are left out."""
        ids = [parse_member(member)[0] or 0 for member in self.raft_peers]
        addresses = {}
        for position, member in enumerate(self.controllers):
            member_id, address = parse_member(member)
            addresses[ids[position] if member_id is None else member_id] = str(address)
        return addresses
