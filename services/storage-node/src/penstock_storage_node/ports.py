"""What the storage node takes from the world around it; see `penstock_runtime.ports`."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from penstock_frontend.listener.listener import KafkaListener
from penstock_runtime.ports import MemberPorts
from penstock_storage_node import coordinator_host
from penstock_storage_node.cluster.registration import Registration
from penstock_storage_node.disk.group_flush import GroupFlush, open_group_flush
from penstock_storage_node.disk.pool import DiskPool
from penstock_storage_node.groups.host import GroupHost
from penstock_storage_node.log import FileSystem, PartitionLog
from penstock_storage_node.replica import background
from penstock_storage_node.replica.compactor import Worker
from penstock_storage_node.replication.replica import PartitionReplica
from penstock_storage_node.replication.sender import PIECE_SIZES, PieceSizes
from penstock_storage_node.rpc.catch_up_throttle import MESSAGE_BYTES_MIN
from penstock_storage_node.rpc.paced_inlet import PacedInlet
from penstock_storage_node.rpc.replication_lanes import NEAR_BYTES
from penstock_storage_node.transactions.host import TICK_MS as TRANSACTION_TICK_MS
from penstock_storage_node.transactions.host import TransactionHost


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeParts:
    """Classes of which a simulation has some that also tell a checker what they do."""

    log: type[PartitionLog] = PartitionLog
    replica: type[PartitionReplica] = PartitionReplica
    registration: type[Registration] = Registration
    groups: type[GroupHost] = GroupHost
    transactions: type[TransactionHost] = TransactionHost
    inlet: type[PacedInlet] = PacedInlet


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePorts(MemberPorts):
    """The real ones, each field; and how often what goes by the clock does."""

    new_uuid: Callable[[], uuid.UUID] = uuid.uuid4
    fs: Callable[[], FileSystem] = FileSystem
    pool: Callable[[int], DiskPool] = DiskPool
    """Takes the number of threads."""
    group_flush: Callable[[FileSystem, str], tuple[GroupFlush | None, str]] = open_group_flush
    worker: Callable[[], Worker] = Worker
    """Starts the process that compacts."""
    listener: Callable[..., KafkaListener] = KafkaListener
    parts: NodeParts = NodeParts()
    tick_ms: int = background.TICK_MS
    group_tick_ms: int = coordinator_host.TICK_MS
    transaction_tick_ms: int = TRANSACTION_TICK_MS
    pieces: PieceSizes = PIECE_SIZES
    """How large batches go to followers."""
    near_bytes: int = NEAR_BYTES
    """A replica with no more than that to fetch is fed by the live lane."""
    throttled_message_bytes_min: int = MESSAGE_BYTES_MIN
    """No message is made smaller for the sake of a rate."""
