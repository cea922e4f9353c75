"""The frame in which requests generate records.

A generator gets a `Context` and returns the records of its request with the reply; it
changes nothing. Several requests share one command: each sees the image that the ones
before it make, and all get the command's one version.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from penstock_core.config.catalog import topic_config
from penstock_core.config.topic import TopicConfig
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import NodeId
from penstock_core.metadata import MetadataImage, PartitionImage, TopicImage
from penstock_core.metadata.image import SetBy
from penstock_core.metadata.levels import FIELD_LEVELS, level_of
from penstock_proto.v1 import common_pb2 as common
from penstock_proto.v1 import metadata_pb2 as pb

_AUTHORS_LEVEL = FIELD_LEVELS["ConfigRecord.set_by"]

R_co = TypeVar("R_co", covariant=True)


class NextCommand(Exception):
    """The request cannot share the command being made; it starts the next one."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a topic gets when its creator leaves it to the cluster."""

    partition_count: int = 1
    # -1: min(3, live nodes).
    replication_factor: int = -1
    # Of `__consumer_offsets`; can't be changed once groups have used it.
    offsets_partition_count: int = 50
    # Of `__transaction_state`; can't be changed once it is there.
    transactions_partition_count: int = 50


def _nobody(_node_id: NodeId) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Context:
    """Everything that a generator may look at."""

    # The state after the requests before this one; its version is the command's base.
    image: MetadataImage
    rng: random.Random
    defaults: Defaults = Defaults()
    # Whether a node's session is alive (soft state).
    alive: Callable[[NodeId], bool] = _nobody
    # When the command is made, in ms since 1970; 0 where nobody says.
    now_ms: int = 0
    # Whether little of a node's disk is free (soft state): no new replicas there, where others take them.
    low: Callable[[NodeId], bool] = _nobody

    @property
    def version(self) -> int:
        """The version that the command will make."""
        return self.image.version + 1

    def after(self, records: list[pb.MetadataRecord]) -> Context:
        """The context for the next request of the same command."""
        if not records:
            return self
        image = self.image.apply(records, self.version)
        return replace(self, image=replace(image, version=self.image.version))


@dataclass(frozen=True, slots=True)
class Generated(Generic[R_co]):
    """What a request comes to."""

    reply: R_co
    records: list[pb.MetadataRecord] = field(default_factory=list)
    # Further records, made one at a time as they are taken, because there may be as many as
    # partitions. None among them only gives others a chance to run. They must depend on
    # nothing but the context; whoever takes them does so in slices.
    further: Iterator[pb.MetadataRecord | None] | None = None
    # Why, for the history; counts only where there are records.
    causes: tuple[pb.Cause, ...] = ()

    def all_records(self) -> list[pb.MetadataRecord]:
        """Everything at once. Takes `further`."""
        return [*self.records, *(r for r in self.further or () if r is not None)]


def error_pb(error: PenstockError) -> common.Error:
    return common.Error(code=error.code, message=error.message)


def make_error(code: ErrorCode, message: str) -> common.Error:
    return common.Error(code=code, message=message)


def partition_record(partition: PartitionImage) -> pb.MetadataRecord:
    return pb.MetadataRecord(partition=partition.to_pb())


def config_record(
    kind: str, name: str, key: str, value: str | None, author: SetBy | None = None
) -> pb.MetadataRecord:
    """Sets one setting of a resource, or removes it. `author` as `author_of` has it."""
    record = pb.ConfigRecord(resource_type=kind, resource_name=name, key=key)
    if value is not None:
        record.value = value
        if author is not None:
            record.set_by, record.set_ms = author
    return pb.MetadataRecord(config=record)


def author_of(ctx: Context, principal: str) -> SetBy | None:
    """Who sets a setting now; None in a cluster whose level has no room for it."""
    return SetBy(principal, ctx.now_ms) if level_of(ctx.image) >= _AUTHORS_LEVEL else None


def topic_settings(image: MetadataImage, topic: TopicImage) -> TopicConfig:
    """Settings of a topic; min.insync.replicas is effective for its first partition's replication factor."""
    first = topic.partitions.get(0)
    factor = first.factor if first is not None else 1
    return TopicConfig.from_config(topic_config(image, topic.name), factor)


def merged(old: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """Settings after changes, of which None removes."""
    result = dict(old)
    for key, value in changes.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = value
    return result
