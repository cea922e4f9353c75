"""Feature levels: what a cluster may write into its metadata, and say to its processes.

The cluster has one number, the feature `metadata.level`. Every process says at registration which level
it understands at most. A record, or a field of one, that came with a level is written only once the
cluster has that level, and the level rises only when no process is below it (UpdateFeatures, `penstock
cluster upgrade`): so during a rolling upgrade no older process meets what it cannot read, and none that
rewrites a record drops a field that it does not know.

A cluster is founded at the lowest level of the controllers that are linked then. A level never falls: what it
brought is in the log.

Level 1: everything up to the record of a controller's directory.
Level 2: users, ACLs, quotas, secrets and refused certificates; `max.message.bytes` above 8 MiB.
Level 3: operations and their moves, what operators say of nodes, retired directories, who set a setting.
Level 4: the feature `transaction.version`: every process answers the requests of transactions, in all their versions.

`transaction.version` is Kafka's (KIP-890): 0 none of what follows, 1 records with tagged fields, 2 leaders
add partitions to transactions, and each transaction has an epoch of its own. Clients read it in ApiVersions and
change over between two transactions. Since it needs level 4, no process is there, or can come, that does not know it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.limits import FEATURE_LEVEL
from penstock_core.metadata.image import MARKED_LEVEL as MARKED_LEVEL
from penstock_core.metadata.image import METADATA_LEVEL as METADATA_LEVEL
from penstock_core.metadata.image import MetadataImage
from penstock_proto.v1 import metadata_pb2 as pb

TRANSACTION_VERSION: Final = "transaction.version"
TRANSACTION_VERSION_MAX: Final = 2
TRANSACTIONS_LEVEL: Final = 4
"""The metadata.level that says that every process knows transactions."""

LEVEL_MIN: Final = 1
"""Of a cluster whose log names none, and of a process that says none."""

KIND_LEVELS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "cluster": 1,
        "node": 1,
        "node_removed": 1,
        "gateway": 1,
        "gateway_removed": 1,
        "topic": 1,
        "topic_removed": 1,
        "partition": 1,
        "config": 1,
        "producer_ids": 1,
        "feature": 1,
        "controller": 1,
        "user_credential": 2,
        "user_credential_removed": 2,
        "acl": 2,
        "acl_removed": 2,
        "quota": 2,
        "cluster_secret": 2,
        "refused_certificate": 2,
        "operation": 3,
        "operation_removed": 3,
        "operation_move": 3,
        "node_policy": 3,
        "retired_directory": 3,
        "level_mark": 3,
    }
)
"""Level of each kind of record, by its name in `MetadataRecord`. A test holds it against the contract."""

FIELD_LEVELS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "FeatureRecord.version": 2,
        "ConfigRecord.set_by": 3,
        "ConfigRecord.set_ms": 3,
        "ClusterRecord.restored_version": 3,
    }
)
"""Fields that came after their record, `Message.field`; all others came with it."""


NAME_LEVELS: Final[Mapping[str, int]] = MappingProxyType(
    {METADATA_LEVEL: 1, TRANSACTION_VERSION: TRANSACTIONS_LEVEL}
)
"""Level of each feature, by its name."""


def _fields_of_kinds() -> dict[str, list[tuple[str, int]]]:
    """By kind of record, its fields that came later, with their levels."""
    found: dict[str, list[tuple[str, int]]] = {}
    for kind in pb.MetadataRecord.DESCRIPTOR.oneofs_by_name["record"].fields:
        for name, level in FIELD_LEVELS.items():
            message, _, field = name.partition(".")
            if kind.message_type is not None and kind.message_type.name == message:
                found.setdefault(kind.name, []).append((field, level))
    return found


_FIELDS_OF_KIND: Final = _fields_of_kinds()


def level_of(image: MetadataImage) -> int:
    """The level that the cluster has."""
    return image.features.get(METADATA_LEVEL, LEVEL_MIN)


def transaction_version(image: MetadataImage) -> int:
    """The `transaction.version` that the cluster has; 0 where nobody has set any."""
    return image.features.get(TRANSACTION_VERSION, 0)


def understood(feature_level: int) -> int:
    """The level that a process said; builds that say none understand the first."""
    return feature_level or LEVEL_MIN


def require_level(image: MetadataImage, level: int, what: str) -> None:
    """Raises UNSUPPORTED_VERSION, with the mend, unless the cluster has `level`."""
    if (now := level_of(image)) < level:
        raise PenstockError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{what} need {METADATA_LEVEL} {level}, the cluster has {now}; once every process is of a build "
            "that knows it, run `penstock cluster upgrade`",
        )


def require_records(image: MetadataImage, records: list[pb.MetadataRecord]) -> None:
    """Raises UNSUPPORTED_VERSION when one of `records` is of a kind above the cluster's level, or has such a field.

    A record that raises the level counts for those behind it. The one place that cannot be forgotten: whoever
    proposes asks it. Costs nothing at this build's level.
    """
    level = level_of(image)
    if level >= FEATURE_LEVEL:
        return
    for record in records:
        kind = record.WhichOneof("record")
        if kind == "feature" and record.feature.name == METADATA_LEVEL:
            level = max(level, record.feature.level)
        elif kind == "feature" and NAME_LEVELS.get(record.feature.name, 1) > level:
            require_level(image, NAME_LEVELS[record.feature.name], f"values of {record.feature.name}")
        elif kind is not None and KIND_LEVELS[kind] > level:
            require_level(image, KIND_LEVELS[kind], f"records of the kind {kind}")
        for field, needed in _FIELDS_OF_KIND.get(kind or "", ()):
            if needed > level and getattr(getattr(record, kind or ""), field):
                require_level(image, needed, f"records of the kind {kind} with {field}")


def too_old(image: MetadataImage, feature_level: int) -> PenstockError | None:
    """What a process is told that does not understand the cluster's level; None for one that does."""
    level, knows = level_of(image), understood(feature_level)
    if knows >= level:
        return None
    return PenstockError(
        ErrorCode.UNSUPPORTED_VERSION,
        f"this build understands {METADATA_LEVEL} {knows}, the cluster has {level}; install a newer build",
    )
