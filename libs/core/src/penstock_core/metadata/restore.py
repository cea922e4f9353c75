"""The metadata with which a cluster begins anew, made of a backup or of nothing. Pure.

Storage nodes and gateways may have lived on, and may know more than the backup. So that none of them refuses or
outranks what is restored, every number that only rises is raised by more than what can have happened since:

- the version, because subscribers never go back;
- the Raft term, because nodes obey no lower one;
- leader and partition epochs, because logs refuse older ones;
- producer ids, because one that is given out twice makes new records pass for repeated ones.

And by the time that has passed since the backup was made: the same backup, or one that was made before it, may be
imported once more, and outranks what came of the first import. Clusters change less often than these numbers grow by
it. A backup of before the import of a later one may lack the constants of that import, up to some twenty minutes.

All nodes are fenced until they come. Gateways and controllers' directories are left out: they say again who they are.
Operations are paused: what they saw may be gone. Those that were being cancelled go on being cancelled.

No partition has a leader or an ISR: the backup's may be long out of date, and who leads wrongly costs acknowledged
records. Who may lead is told by the logs of the nodes (`penstock_controller.state.recovery`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from penstock_core.ids import NO_NODE
from penstock_core.limits import FEATURE_LEVEL
from penstock_core.metadata.backup import Backup
from penstock_core.metadata.image import ImageBuilder, MetadataImage
from penstock_core.metadata.levels import METADATA_LEVEL, TRANSACTION_VERSION, TRANSACTION_VERSION_MAX
from penstock_core.metadata.operations import ENDED
from penstock_proto.v1 import metadata_pb2 as pb

VERSIONS_UP: Final = 1_000_000
TERMS_UP: Final = 1_000
EPOCHS_UP: Final = 1_000
PRODUCER_IDS_UP: Final = 1_000_000

AGE_MS_MAX: Final = 10 * 365 * 24 * 3600 * 1000
"""A clock that is far off must not use up leader epochs, which have 31 bits and rise by one for each second."""

MS_PER_TERM: Final = 1_000
"""Without a backup nobody knows how far the cluster was, be it that it began so before. The time is further than
any: a thousand changes and an election a second, since 1970. A start takes two elections, so that an import outranks
one of a few seconds ago."""

_LEFT_OUT = frozenset({"gateway", "gateway_removed", "controller"})


@dataclass(frozen=True, slots=True)
class Restored:
    """With what fresh controllers begin."""

    image: MetadataImage
    term: int


def restore(backup: Backup, now_ms: int) -> Restored:
    """The metadata of a backup, raised above whatever happened since; `now_ms` since 1970."""
    head = backup.head
    age_ms = min(max(now_ms - head.time_ms, 0), AGE_MS_MAX)
    version = head.metadata_version + VERSIONS_UP + age_ms
    term = head.raft_term + TERMS_UP + age_ms // 1000
    return Restored(_image(_raised(backup.image, version, age_ms), version), term)


def empty(cluster_id: bytes, now_ms: int) -> Restored:
    """Metadata that know nothing but the cluster's id (16 bytes), and the level of this build; `now_ms` since 1970."""
    records = [
        pb.MetadataRecord(cluster=pb.ClusterRecord(cluster_id=cluster_id, restored_version=now_ms)),
        pb.MetadataRecord(feature=pb.FeatureRecord(name=METADATA_LEVEL, level=FEATURE_LEVEL, version=now_ms)),
        pb.MetadataRecord(
            feature=pb.FeatureRecord(name=TRANSACTION_VERSION, level=TRANSACTION_VERSION_MAX, version=now_ms)
        ),
        pb.MetadataRecord(producer_ids=pb.ProducerIdsRecord(next_producer_id=now_ms)),
    ]
    return Restored(_image(iter(records), now_ms), now_ms // MS_PER_TERM)


def _image(records: Iterator[pb.MetadataRecord], version: int) -> MetadataImage:
    builder = ImageBuilder(MetadataImage())
    for record in records:
        builder.replay(record)
    return builder.finish(version)


def _raised(image: MetadataImage, version: int, age_ms: int) -> Iterator[pb.MetadataRecord]:
    ids_up, epochs_up = PRODUCER_IDS_UP + age_ms, EPOCHS_UP + age_ms // 1000
    if not image.next_producer_id:
        # Nobody was given any: no record says so.
        yield pb.MetadataRecord(producer_ids=pb.ProducerIdsRecord(next_producer_id=ids_up))
    for record in image.to_records():
        kind = record.WhichOneof("record")
        if kind in _LEFT_OUT:
            continue
        if kind == "cluster":
            # Below level 3 too: a build that does not know the field loses nothing by it.
            record.cluster.restored_version = version
        elif kind == "node":
            record.node.fenced = True
            record.node.in_controlled_shutdown = False
        elif kind == "partition":
            _leaderless(record.partition, epochs_up)
        elif kind == "producer_ids":
            record.producer_ids.next_producer_id += ids_up
        elif kind == "operation" and record.operation.state not in ENDED:
            record.operation.ClearField("executor")
            # One that is being cancelled has given up its cordons: it must not go on, and what it takes back is safe
            # also where nobody leads yet (see `reassign`).
            if record.operation.state != pb.OPERATION_STATE_CANCELLING:
                record.operation.state = pb.OPERATION_STATE_PAUSED
                record.operation.paused_by_hand = True
                record.operation.reason = "the metadata were restored from a backup; resume or cancel it"
        yield record


def _leaderless(partition: pb.PartitionRecord, epochs_up: int) -> None:
    partition.leader_epoch += epochs_up
    partition.partition_epoch += epochs_up
    partition.leader = partition.last_known_leader = NO_NODE
    partition.recovering = False
    del partition.isr[:]
    del partition.elr[:]


__all__ = ["Restored", "empty", "restore"]
