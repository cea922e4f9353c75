"""Settings of the storage node role."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from pydantic import Field, field_validator, model_validator

from penstock_core.config.catalog import NODE_STATIC
from penstock_frontend.settings import KafkaServerSettings
from penstock_runtime.settings import ListenerSettings

_DAY_MS: Final = 24 * 60 * 60 * 1000
NODE_IN_PATH: Final = "{node}"
"""In paths of `tls`, with `slots_dir`: the id of the node whose slot was claimed."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Named and set as in Kafka (GroupCoordinatorConfig), times in ms; what Kafka has not as in `groups.holdings`."""

    session_min_ms: int = 6_000
    session_max_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    new_member_join_timeout_ms: int = 300_000
    group_size_max: int = 10_000
    member_bytes_max: int = 256 * 1024
    group_bytes_max: int = 8 * 1024 * 1024
    memory_bytes_max: int = 64 * 1024 * 1024
    members_per_principal_max: int = 1_000
    groups_per_principal_max: int = 10_000
    groups_max: int = 100_000
    offsets_retention_ms: int = 7 * _DAY_MS
    offset_metadata_bytes_max: int = 4_096
    consumer_session_ms: int = 45_000
    consumer_heartbeat_ms: int = 5_000


@dataclass(frozen=True)
class TransactionSettings:
    """Named as in Kafka (TransactionStateManagerConfig), times in ms; what Kafka has not as in `transactions.shard`."""

    timeout_max_ms: int = 900_000
    timeout_interval_ms: int = 10_000
    id_expiration_ms: int = 7 * _DAY_MS
    expiry_interval_ms: int = 3_600_000
    ids_max: int = 1_000_000
    held_max: int = 20_000


_GROUPS: Final = GroupSettings()
_TRANSACTIONS: Final = TransactionSettings()


class StorageNodeSettings(KafkaServerSettings):
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
        None,
        description="claim the first free slot-N in this directory, in place of data_dir; {node} in paths of tls is"
        " the id of the slot's node then, N+1 in a new one",
    )
    spare: bool = Field(
        False,
        description="with slots_dir: wait, without an identity, until the slot of a node comes free, and take that",
    )
    disk_threads: int = Field(4, ge=1, le=64, description="writes and flushes at the same time")
    group_flush: bool = Field(
        True,
        description="let busy partitions share one flush of the filesystem, where that is safe and cheaper",
    )
    replica_lag_time_max_ms: int = Field(
        10_000, ge=100, description="a follower behind for that long leaves the ISR, in ms"
    )
    catch_up_credit_bytes: int = Field(
        1024 * 1024, ge=64 * 1024, description="bytes under way to a replica of this node that is rebuilt"
    )
    catch_up_bytes_per_s_max: int = Field(
        64 * 1024 * 1024,
        ge=0,
        description="how fast this node feeds another one's rebuild, unless producers write faster; 0 = no limit",
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
    compaction_interval_ms: int = Field(
        15_000, ge=100, description="how often logs to compact are looked for, in ms"
    )
    compaction_map_bytes: int = Field(
        32 * 1024 * 1024,
        ge=1024,
        description="memory of the compaction worker for keys, 24 bytes each; more keys take more runs",
    )
    compaction_bytes_per_second: int = Field(
        50 * 1024 * 1024,
        ge=0,
        description="most bytes per second that compaction reads and writes; 0 = no bound",
    )
    retention_check_interval_ms: int = Field(
        60_000, ge=100, description="how often old segments are looked for, in ms"
    )
    stray_retention_ms: int = Field(
        _DAY_MS,
        ge=-1,
        description="how long logs that were set aside (-stray) are kept once the metadata prove that nothing is lost"
        " with them, in ms; -1 = for ever, as all others are",
    )

    disk_reserve_bytes: int = Field(
        256 * 1024 * 1024,
        ge=0,
        description="free bytes (a 20th of a small disk) below which the disk counts as full and others lead, until"
        " twice that are free; 0 = when a write finds no space",
    )

    auto_create_topics: bool = Field(
        False,
        description="make topics that a client asks for and that are not there, with the cluster's defaults",
    )
    group_initial_rebalance_delay_ms: int = Field(
        3_000, ge=0, description="how long a new consumer group waits for more members, in ms"
    )
    group_min_session_timeout_ms: int = Field(
        6_000, ge=1, description="least session.timeout.ms that a group member may ask for, in ms"
    )
    group_max_session_timeout_ms: int = Field(
        1_800_000, ge=1, description="most session.timeout.ms that a group member may ask for, in ms"
    )
    group_max_size: int = Field(
        _GROUPS.group_size_max, ge=1, le=2**31 - 1, description="most members of one consumer group"
    )
    group_member_max_bytes: int = Field(
        _GROUPS.member_bytes_max,
        ge=1024,
        description="most that a member of a group may say of itself, and be assigned, in bytes",
    )
    group_max_bytes: int = Field(
        _GROUPS.group_bytes_max,
        ge=1024,
        description="most that all members of one group may say of themselves and be assigned, in bytes",
    )
    group_memory_max_bytes: int = Field(
        _GROUPS.memory_bytes_max,
        ge=1024,
        description="the same of all groups that this node coordinates; those of one principal have a quarter",
    )
    group_members_per_principal_max: int = Field(
        _GROUPS.members_per_principal_max,
        ge=1,
        description="most members of groups of this node that one principal has (one address, where nobody signs in)",
    )
    groups_per_principal_max: int = Field(
        _GROUPS.groups_per_principal_max, ge=1, description="most groups of this node that one has made"
    )
    groups_max: int = Field(_GROUPS.groups_max, ge=1, description="most groups that this node coordinates")
    offsets_retention_minutes: int = Field(
        10_080, ge=1, description="how long offsets of a group without members are kept, in minutes"
    )
    offsets_retention_check_interval_ms: int = Field(
        600_000, ge=100, description="how often offsets past their retention are looked for, in ms"
    )
    offset_metadata_max_bytes: int = Field(
        4_096, ge=0, description="most characters of metadata beside a committed offset"
    )
    group_consumer_session_timeout_ms: int = Field(
        45_000, ge=1, description="session timeout of members that use group.protocol=consumer, in ms"
    )
    group_consumer_heartbeat_interval_ms: int = Field(
        5_000, ge=1, description="heartbeat interval of members that use group.protocol=consumer, in ms"
    )

    transaction_max_timeout_ms: int = Field(
        _TRANSACTIONS.timeout_max_ms,
        ge=1,
        le=2**31 - 1,
        description="most transaction.timeout.ms that a producer may ask for, in ms",
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = Field(
        _TRANSACTIONS.timeout_interval_ms,
        ge=1,
        description="a transaction that lasts longer than its timeout is aborted half of that later, in ms",
    )
    transactional_id_expiration_ms: int = Field(
        _TRANSACTIONS.id_expiration_ms,
        ge=1,
        description="how long a transactional id is kept that nobody uses, in ms",
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = Field(
        _TRANSACTIONS.expiry_interval_ms,
        ge=100,
        description="how often transactional ids past that are looked for, in ms",
    )
    transactional_ids_max: int = Field(
        _TRANSACTIONS.ids_max, ge=1, description="most transactional ids that this node coordinates"
    )

    forward_streams_per_gateway_max: int = Field(
        20_000, ge=1, description="most clients of one gateway whose requests this node serves at a time"
    )

    lag_interval_ms: int = Field(
        15_000,
        ge=100,
        description="how often the lag of groups is found out while metrics are scraped, in ms",
    )

    metrics_topics_max: int = Field(
        200, ge=0, description="topics with rows of their own in metrics; all others share one"
    )

    def shown_to_clients(self, data_path: str) -> dict[str, str]:
        """What DescribeConfigs shows of this process, by Kafka's names, where it is not the default."""
        values: dict[str, object] = {
            "auto.create.topics.enable": str(self.auto_create_topics).lower(),
            "group.consumer.heartbeat.interval.ms": self.group_consumer_heartbeat_interval_ms,
            "group.consumer.session.timeout.ms": self.group_consumer_session_timeout_ms,
            "group.initial.rebalance.delay.ms": self.group_initial_rebalance_delay_ms,
            "group.max.session.timeout.ms": self.group_max_session_timeout_ms,
            "group.max.size": self.group_max_size,
            "group.min.session.timeout.ms": self.group_min_session_timeout_ms,
            "log.dirs": data_path,
            "log.retention.check.interval.ms": self.retention_check_interval_ms,
            "offset.metadata.max.bytes": self.offset_metadata_max_bytes,
            "offsets.retention.check.interval.ms": self.offsets_retention_check_interval_ms,
            "offsets.retention.minutes": self.offsets_retention_minutes,
            "replica.lag.time.max.ms": self.replica_lag_time_max_ms,
            "socket.request.max.bytes": self.socket_request_max_bytes,
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": (
                self.transaction_abort_timed_out_transaction_cleanup_interval_ms
            ),
            "transaction.max.timeout.ms": self.transaction_max_timeout_ms,
            "transaction.remove.expired.transaction.cleanup.interval.ms": (
                self.transaction_remove_expired_transaction_cleanup_interval_ms
            ),
            "transactional.id.expiration.ms": self.transactional_id_expiration_ms,
        }
        return {name: str(v) for name, v in values.items() if NODE_STATIC[name].default != str(v)}

    def group_settings(self) -> GroupSettings:
        """Those of the group coordinator."""
        return GroupSettings(
            session_min_ms=self.group_min_session_timeout_ms,
            session_max_ms=self.group_max_session_timeout_ms,
            initial_rebalance_delay_ms=self.group_initial_rebalance_delay_ms,
            group_size_max=self.group_max_size,
            member_bytes_max=self.group_member_max_bytes,
            group_bytes_max=self.group_max_bytes,
            memory_bytes_max=self.group_memory_max_bytes,
            members_per_principal_max=self.group_members_per_principal_max,
            groups_per_principal_max=self.groups_per_principal_max,
            groups_max=self.groups_max,
            offsets_retention_ms=self.offsets_retention_minutes * 60_000,
            offset_metadata_bytes_max=self.offset_metadata_max_bytes,
            consumer_session_ms=self.group_consumer_session_timeout_ms,
            consumer_heartbeat_ms=self.group_consumer_heartbeat_interval_ms,
        )

    def transaction_settings(self) -> TransactionSettings:
        """Those of the transaction coordinator."""
        return TransactionSettings(
            timeout_max_ms=self.transaction_max_timeout_ms,
            timeout_interval_ms=self.transaction_abort_timed_out_transaction_cleanup_interval_ms,
            id_expiration_ms=self.transactional_id_expiration_ms,
            expiry_interval_ms=self.transaction_remove_expired_transaction_cleanup_interval_ms,
            ids_max=self.transactional_ids_max,
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

    @property
    def has_slot_certificates(self) -> bool:
        """Whether the slot decides which certificate is this node's."""
        return self.tls is not None and any(NODE_IN_PATH in str(path) for path in self.tls.paths())

    def in_slot(self, node_id: int) -> StorageNodeSettings:
        """These settings, for the node of that slot and with its certificate."""
        assert self.tls is not None
        told = {
            name: Path(str(path).replace(NODE_IN_PATH, str(node_id)))
            for name, path in self.tls
            if isinstance(path, Path)
        }
        return self.model_copy(update={"node_id": node_id, "tls": self.tls.model_copy(update=told)})

    @model_validator(mode="after")
    def _check_slot_certificates(self) -> StorageNodeSettings:
        if self.has_slot_certificates and (self.slots_dir is None or self.node_id > 0):
            raise ValueError(
                f"{NODE_IN_PATH} in paths of tls is for slots_dir without node_id; write the certificate's own path"
            )
        return self

    @model_validator(mode="after")
    def _check_spare(self) -> StorageNodeSettings:
        if self.spare and self.slots_dir is None:
            raise ValueError("spare is for slots_dir: without slots there is none to take over")
        return self

    @field_validator("node_id")
    @classmethod
    def _check_node_id(cls, value: int) -> int:
        if value == 0:
            raise ValueError("node ids begin at 1")
        return value
