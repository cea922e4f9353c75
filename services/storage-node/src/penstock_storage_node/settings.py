"""Settings of the storage node role."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field, field_validator

from penstock_runtime.settings import ListenerSettings, RoleSettings


class StorageNodeSettings(RoleSettings):
    """Penstock's storage node: keeps partition logs on its own disk, leads some, follows others."""

    example: ClassVar[str] = (
        "penstock-storage-node --node-id 1 --data-dir data/node-1 --controllers 127.0.0.1:5001 "
        """--listeners '[{"name":"DIRECT","bind":"127.0.0.1:9192","mode":"direct"}]'"""
    )

    node_id: int = Field(
        -1, ge=-1, le=2**31 - 1, description="id of this node, 1 or more; -1 = its directory's, or a free one"
    )
    listeners: list[ListenerSettings] = Field(
        default_factory=list, description="Kafka listeners of mode direct, as JSON"
    )
    slots_dir: Path | None = Field(
        None, description="claim the first free slot-N in this directory, in place of data_dir"
    )
    disk_threads: int = Field(4, ge=1, le=64, description="writes and flushes at the same time")
    replica_lag_time_max_ms: int = Field(
        10_000, ge=100, description="a follower behind for that long leaves the ISR, in ms"
    )
    controlled_shutdown_max_ms: int = Field(
        6_000, ge=0, description="most time after TERM for leadership to move away, in ms"
    )
    checkpoint_interval_ms: int = Field(
        5_000, ge=100, description="how often high watermarks and recovery points are written, in ms"
    )
    flush_interval_ms: int = Field(
        60_000, ge=1_000, description="how often topics of durability replicated are flushed, in ms"
    )
    retention_check_interval_ms: int = Field(
        60_000, ge=100, description="how often old segments are looked for, in ms"
    )

    @field_validator("listeners")
    @classmethod
    def _check_listeners(cls, value: list[ListenerSettings]) -> list[ListenerSettings]:
        for listener in value:
            if listener.mode != "direct":
                raise ValueError(
                    f"listener {listener.name} has mode {listener.mode}: a storage node answers for itself alone;"
                    ' write "mode": "direct"'
                )
        return value

    @field_validator("node_id")
    @classmethod
    def _check_node_id(cls, value: int) -> int:
        if value == 0:
            raise ValueError("node ids begin at 1")
        return value
