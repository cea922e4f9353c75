"""The immutable image of the cluster, and `apply`, the only way to a newer one.

Controllers, nodes and gateways all hold a `MetadataImage` and advance it with the
same records, so "what does this role believe" has one answer: its image's version.
Applying copies only the maps that the records touch; images share the rest, and an
old image stays valid for whoever still reads it (another thread included).

A snapshot is `to_records()`; `MetadataImage.from_records` gives the image back. Both can be
done in slices: the records come from an iterator, and an `ImageBuilder` takes them one at a
time. At 100,000 partitions either takes about a second in one piece.

Records are the protobuf messages of the contract (docs/decisions/0002). The dataclasses
here are what code reads: slotted, typed, hashable where it matters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, NamedTuple

from penstock_core.errors import InvariantBroken
from penstock_core.ids import NO_NODE, LeaderEpoch, NodeId, TopicId, TopicPartition
from penstock_core.limits import FEATURE_LEVEL
from penstock_core.metadata.operations import OperationsBuilder, OperationsImage
from penstock_core.metadata.security import SecurityBuilder, SecurityImage
from penstock_proto.v1 import common_pb2 as common
from penstock_proto.v1 import metadata_pb2 as pb

METADATA_LEVEL: Final = "metadata.level"
"""The name of the feature; Kafka's `metadata.version` is another thing and has another name."""

MARKED_LEVEL: Final = 3
"""From this level on a mark stands behind it; controllers of builds below look at the kinds of records alone."""


class NewerLevel(InvariantBroken):
    """The cluster has a level that this build does not understand. The message says which, and the mend."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address: listener name ("" for gRPC and HTTP), host, port."""

    listener: str
    host: str
    port: int
    security: str = "PLAINTEXT"

    @property
    def address(self) -> str:
        """`host:port`, with an IPv6 host in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def from_pb(cls, message: common.Endpoint) -> Endpoint:
        return cls(message.listener, message.host, message.port, message.security or "PLAINTEXT")

    def to_pb(self) -> common.Endpoint:
        return common.Endpoint(listener=self.listener, host=self.host, port=self.port, security=self.security)


@dataclass(frozen=True, slots=True)
class NodeImage:
    """A registered storage node."""

    node_id: NodeId
    directory_id: bytes
    node_epoch: int
    version: str
    feature_level: int
    boot_id: bytes
    rack: str
    grpc: Endpoint
    http: Endpoint
    listeners: Mapping[str, Endpoint]
    apis: Mapping[int, tuple[int, int]]
    fenced: bool
    in_controlled_shutdown: bool
    disk_failed: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    disk_full: bool = False

    @property
    def active(self) -> bool:
        """May lead partitions and join an ISR."""
        return not self.fenced and not self.in_controlled_shutdown

    @classmethod
    def from_pb(cls, r: pb.NodeRecord) -> NodeImage:
        return cls(
            node_id=NodeId(r.node_id),
            directory_id=r.directory_id,
            node_epoch=r.node_epoch,
            version=r.process.version,
            feature_level=r.process.feature_level,
            boot_id=r.process.boot_id,
            rack=r.rack,
            grpc=Endpoint.from_pb(r.grpc),
            http=Endpoint.from_pb(r.http),
            listeners=MappingProxyType({e.listener: Endpoint.from_pb(e) for e in r.listeners}),
            apis=MappingProxyType({a.api_key: (a.min_version, a.max_version) for a in r.apis}),
            fenced=r.fenced,
            in_controlled_shutdown=r.in_controlled_shutdown,
            disk_failed=r.disk_failed,
            settings=MappingProxyType(dict(r.settings)),
            disk_full=r.disk_full,
        )

    def to_pb(self) -> pb.NodeRecord:
        return pb.NodeRecord(
            node_id=self.node_id,
            directory_id=self.directory_id,
            node_epoch=self.node_epoch,
            process=common.ProcessInfo(
                version=self.version, feature_level=self.feature_level, boot_id=self.boot_id
            ),
            rack=self.rack,
            grpc=self.grpc.to_pb(),
            http=self.http.to_pb(),
            listeners=[e.to_pb() for e in self.listeners.values()],
            apis=[
                common.ApiRange(api_key=k, min_version=low, max_version=high)
                for k, (low, high) in self.apis.items()
            ],
            fenced=self.fenced,
            in_controlled_shutdown=self.in_controlled_shutdown,
            disk_failed=self.disk_failed,
            settings=self.settings,
            disk_full=self.disk_full,
        )


@dataclass(frozen=True, slots=True)
class GatewayImage:
    """A live gateway; `record` is the contract's message, not to be changed."""

    gateway_id: str
    gateway_epoch: int
    record: pb.GatewayRecord


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """State of one partition; see PartitionRecord for each field."""

    topic_id: TopicId
    partition: int
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    leader: NodeId
    leader_epoch: LeaderEpoch
    partition_epoch: int
    elr: tuple[NodeId, ...] = ()
    adding_replicas: tuple[NodeId, ...] = ()
    removing_replicas: tuple[NodeId, ...] = ()
    recovering: bool = False
    last_known_leader: NodeId = NO_NODE

    @property
    def key(self) -> TopicPartition:
        return TopicPartition(self.topic_id, self.partition)

    @property
    def factor(self) -> int:
        """Replication factor; replicas that a reassignment adds count when it is done."""
        return len(self.replicas) - len(self.adding_replicas)

    @property
    def under_replicated(self) -> bool:
        """Fewer replicas are in sync than it has; those that are being added do not count yet (KIP-352)."""
        return len(self.isr) < self.factor

    @property
    def unconfirmed(self) -> bool:
        """Nobody has led it since it was restored from a backup, or its last leader came back with another disk: who
        may is told by the nodes' logs alone."""
        return self.leader == self.last_known_leader == NO_NODE and not self.isr and not self.elr

    @property
    def reassigning(self) -> bool:
        """A reassignment is under way."""
        return bool(self.adding_replicas or self.removing_replicas)

    @classmethod
    def from_pb(cls, r: pb.PartitionRecord) -> PartitionImage:
        return cls(
            topic_id=TopicId(r.topic_id),
            partition=r.partition,
            replicas=tuple(NodeId(n) for n in r.replicas),
            isr=tuple(NodeId(n) for n in r.isr),
            leader=NodeId(r.leader),
            leader_epoch=LeaderEpoch(r.leader_epoch),
            partition_epoch=r.partition_epoch,
            elr=tuple(NodeId(n) for n in r.elr),
            adding_replicas=tuple(NodeId(n) for n in r.adding_replicas),
            removing_replicas=tuple(NodeId(n) for n in r.removing_replicas),
            recovering=r.recovering,
            last_known_leader=NodeId(r.last_known_leader) if r.last_known_leader else NO_NODE,
        )

    def to_pb(self) -> pb.PartitionRecord:
        return pb.PartitionRecord(
            topic_id=self.topic_id,
            partition=self.partition,
            replicas=self.replicas,
            isr=self.isr,
            leader=self.leader,
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            elr=self.elr,
            adding_replicas=self.adding_replicas,
            removing_replicas=self.removing_replicas,
            recovering=self.recovering,
            last_known_leader=self.last_known_leader,
        )


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A topic with its partitions, by index."""

    topic_id: TopicId
    name: str
    partitions: Mapping[int, PartitionImage] = field(default_factory=dict)


_EMPTY: Mapping[str, str] = MappingProxyType({})


class SetBy(NamedTuple):
    """Who set a setting, and when."""

    principal: str
    time_ms: int
    """Since 1970."""


_NOBODY: Mapping[str, SetBy] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """Everything that the cluster has agreed on, as of `version`.

    `version` counts applied commands; only `apply` advances it. Treat every map as
    read-only.
    """

    version: int = 0
    cluster_id: bytes = b""
    nodes: Mapping[NodeId, NodeImage] = field(default_factory=dict)
    gateways: Mapping[str, GatewayImage] = field(default_factory=dict)
    topics: Mapping[TopicId, TopicImage] = field(default_factory=dict)
    topic_ids: Mapping[str, TopicId] = field(default_factory=dict)
    configs: Mapping[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)
    next_producer_id: int = 0
    # Data directory with which each controller is a voter; see ControllerRecord.
    controllers: Mapping[int, bytes] = field(default_factory=dict)
    # Metadata version that set each feature, where it is known (since metadata.level 2).
    feature_versions: Mapping[str, int] = field(default_factory=dict)
    security: SecurityImage = field(default_factory=SecurityImage)
    operations: OperationsImage = field(default_factory=OperationsImage)
    # Version at which the history was made anew from a backup, or from nothing; 0 when it never was.
    restored_version: int = 0
    # Who set which setting of `configs`, where it is known (since metadata.level 3).
    config_authors: Mapping[tuple[str, str], Mapping[str, SetBy]] = field(default_factory=dict)

    def topic(self, name: str) -> TopicImage | None:
        """The topic of that name, or None."""
        topic_id = self.topic_ids.get(name)
        return None if topic_id is None else self.topics[topic_id]

    def partition(self, topic_id: TopicId, partition: int) -> PartitionImage | None:
        """One partition by topic id, or None."""
        topic = self.topics.get(topic_id)
        return None if topic is None else topic.partitions.get(partition)

    def config(self, resource_type: str, resource_name: str) -> Mapping[str, str]:
        """Dynamic settings of one resource ("topic", "node", "cluster"); empty when none."""
        return self.configs.get((resource_type, resource_name), _EMPTY)

    def config_author(self, resource_type: str, resource_name: str, key: str) -> SetBy | None:
        """Who set a dynamic setting; None where nobody is known."""
        return self.config_authors.get((resource_type, resource_name), _NOBODY).get(key)

    def apply(self, records: Iterable[pb.MetadataRecord], version: int) -> MetadataImage:
        """The image after `records`, which become version `version`.

        Raises InvariantBroken when the version is not the next one or a record
        speaks of something that isn't there: histories have then parted.
        """
        if version != self.version + 1:
            raise InvariantBroken(f"delta {version} does not follow image version {self.version}")
        builder = ImageBuilder(self)
        for record in records:
            builder.replay(record)
        return builder.finish(version)

    def to_records(self) -> Iterator[pb.MetadataRecord]:
        """Records that, applied to an empty image, give this one back."""
        if self.cluster_id:
            yield pb.MetadataRecord(
                cluster=pb.ClusterRecord(cluster_id=self.cluster_id, restored_version=self.restored_version)
            )
        for controller_id, directory_id in self.controllers.items():
            yield pb.MetadataRecord(
                controller=pb.ControllerRecord(controller_id=controller_id, directory_id=directory_id)
            )
        for node in self.nodes.values():
            yield pb.MetadataRecord(node=node.to_pb())
        for gateway in self.gateways.values():
            yield pb.MetadataRecord(gateway=gateway.record)
        for topic in self.topics.values():
            yield pb.MetadataRecord(topic=pb.TopicRecord(topic_id=topic.topic_id, name=topic.name))
            for partition in topic.partitions.values():
                yield pb.MetadataRecord(partition=partition.to_pb())
        for (kind, name), settings in self.configs.items():
            authors = self.config_authors.get((kind, name), _NOBODY)
            for key, value in settings.items():
                record = pb.ConfigRecord(resource_type=kind, resource_name=name, key=key, value=value)
                if key in authors:
                    record.set_by, record.set_ms = authors[key]
                yield pb.MetadataRecord(config=record)
        for name, level in self.features.items():
            yield pb.MetadataRecord(
                feature=pb.FeatureRecord(name=name, level=level, version=self.feature_versions.get(name, 0))
            )
            if name == METADATA_LEVEL and level >= MARKED_LEVEL:
                yield pb.MetadataRecord(level_mark=pb.LevelMarkRecord())
        if self.next_producer_id:
            yield pb.MetadataRecord(producer_ids=pb.ProducerIdsRecord(next_producer_id=self.next_producer_id))
        yield from self.security.to_records()
        yield from self.operations.to_records()

    @classmethod
    def from_records(cls, records: Iterable[pb.MetadataRecord], version: int) -> MetadataImage:
        """The image that a snapshot of `version` holds."""
        builder = ImageBuilder(cls())
        for record in records:
            builder.replay(record)
        return builder.finish(version)


def is_whole_image(records: Sequence[pb.MetadataRecord]) -> bool:
    """Whether these are an image's own records (`to_records`), not a change's: what they do not name is not there.

    The cluster's comes first among them. A change has it only where all begins: in a cluster that is founded.
    """
    return bool(records) and records[0].WhichOneof("record") == "cluster"


class ImageBuilder:
    """Replays records onto private copies of the maps that they touch; `base` stays as it is.

    May be fed over many turns of a loop. What it holds counts once `finish` is called.
    """

    def __init__(self, base: MetadataImage) -> None:
        self._base = base
        self._cluster_id = base.cluster_id
        self._restored_version = base.restored_version
        self._nodes: dict[NodeId, NodeImage] | None = None
        self._gateways: dict[str, GatewayImage] | None = None
        self._topics: dict[TopicId, TopicImage] | None = None
        self._topic_ids: dict[str, TopicId] | None = None
        self._configs: dict[tuple[str, str], Mapping[str, str]] | None = None
        self._authors: dict[tuple[str, str], Mapping[str, SetBy]] | None = None
        self._features: dict[str, int] | None = None
        self._feature_versions: dict[str, int] | None = None
        self._controllers: dict[int, bytes] | None = None
        self._security: SecurityBuilder | None = None
        self._operations: OperationsBuilder | None = None
        self._next_producer_id = base.next_producer_id
        self.leader_changes = 0
        """How many partitions of the base image got another leader, for metrics."""
        # Topics whose partition map is already a private copy.
        self._private: set[TopicId] = set()

    def replay(self, record: pb.MetadataRecord) -> None:
        kind = record.WhichOneof("record")
        if kind is None:
            raise InvariantBroken("metadata record of a kind that this version does not know")
        getattr(self, f"_replay_{kind}")(getattr(record, kind))

    def finish(self, version: int) -> MetadataImage:
        base = self._base
        return MetadataImage(
            version=version,
            cluster_id=self._cluster_id,
            nodes=base.nodes if self._nodes is None else self._nodes,
            gateways=base.gateways if self._gateways is None else self._gateways,
            topics=base.topics if self._topics is None else self._topics,
            topic_ids=base.topic_ids if self._topic_ids is None else self._topic_ids,
            configs=base.configs if self._configs is None else self._configs,
            features=base.features if self._features is None else self._features,
            next_producer_id=self._next_producer_id,
            controllers=base.controllers if self._controllers is None else self._controllers,
            feature_versions=(
                base.feature_versions if self._feature_versions is None else self._feature_versions
            ),
            security=base.security if self._security is None else self._security.finish(),
            operations=base.operations if self._operations is None else self._operations.finish(),
            restored_version=self._restored_version,
            config_authors=base.config_authors if self._authors is None else self._authors,
        )

    def _own_topics(self) -> dict[TopicId, TopicImage]:
        if self._topics is None:
            self._topics = dict(self._base.topics)
        return self._topics

    def _own_topic_ids(self) -> dict[str, TopicId]:
        if self._topic_ids is None:
            self._topic_ids = dict(self._base.topic_ids)
        return self._topic_ids

    def _own_nodes(self) -> dict[NodeId, NodeImage]:
        if self._nodes is None:
            self._nodes = dict(self._base.nodes)
        return self._nodes

    def _own_gateways(self) -> dict[str, GatewayImage]:
        if self._gateways is None:
            self._gateways = dict(self._base.gateways)
        return self._gateways

    def _own_configs(self) -> dict[tuple[str, str], Mapping[str, str]]:
        if self._configs is None:
            self._configs = dict(self._base.configs)
        return self._configs

    def _replay_cluster(self, r: pb.ClusterRecord) -> None:
        if self._cluster_id and self._cluster_id != r.cluster_id:
            raise InvariantBroken("a cluster id is written once")
        self._cluster_id = r.cluster_id
        self._restored_version = r.restored_version

    def _replay_node(self, r: pb.NodeRecord) -> None:
        self._own_nodes()[NodeId(r.node_id)] = NodeImage.from_pb(r)

    def _replay_node_removed(self, r: pb.NodeRemovedRecord) -> None:
        self._own_nodes().pop(NodeId(r.node_id), None)
        self._forget_configs(("node", str(r.node_id)))
        self._own_operations().node_removed(NodeId(r.node_id))

    def _replay_gateway(self, r: pb.GatewayRecord) -> None:
        self._own_gateways()[r.gateway_id] = GatewayImage(r.gateway_id, r.gateway_epoch, r)

    def _replay_gateway_removed(self, r: pb.GatewayRemovedRecord) -> None:
        self._own_gateways().pop(r.gateway_id, None)

    def _replay_topic(self, r: pb.TopicRecord) -> None:
        topic_id = TopicId(r.topic_id)
        if self._own_topic_ids().setdefault(r.name, topic_id) != topic_id:
            raise InvariantBroken(f"topic {r.topic_id.hex()} has the name of another one, {r.name}")
        self._own_topics()[topic_id] = TopicImage(topic_id, r.name, {})
        self._private.add(topic_id)

    def _replay_topic_removed(self, r: pb.TopicRemovedRecord) -> None:
        topic = self._own_topics().pop(TopicId(r.topic_id), None)
        if topic is None:
            raise InvariantBroken(f"removed topic {r.topic_id.hex()} is not there")
        del self._own_topic_ids()[topic.name]
        self._forget_configs(("topic", topic.name))

    def _replay_partition(self, r: pb.PartitionRecord) -> None:
        topic_id = TopicId(r.topic_id)
        topics = self._own_topics()
        topic = topics.get(topic_id)
        if topic is None:
            raise InvariantBroken(f"partition {r.partition} of topic {r.topic_id.hex()}, which is not there")
        if topic_id not in self._private:
            topic = topics[topic_id] = replace(topic, partitions=dict(topic.partitions))
            self._private.add(topic_id)
        # Private by construction: this builder made the dict.
        partitions: dict[int, PartitionImage] = topic.partitions  # type: ignore[assignment]
        old = partitions.get(r.partition)
        if old is not None and r.leader >= 0 and r.leader_epoch != old.leader_epoch:
            self.leader_changes += 1
        partitions[r.partition] = PartitionImage.from_pb(r)

    def _replay_controller(self, r: pb.ControllerRecord) -> None:
        if self._controllers is None:
            self._controllers = dict(self._base.controllers)
        self._controllers[r.controller_id] = r.directory_id

    def _replay_config(self, r: pb.ConfigRecord) -> None:
        configs = self._own_configs()
        key = (r.resource_type, r.resource_name)
        settings = dict(configs.get(key, {}))
        if r.HasField("value"):
            settings[r.key] = r.value
        else:
            settings.pop(r.key, None)
        self._note_author(key, r)
        if settings:
            configs[key] = settings
        else:
            configs.pop(key, None)

    def _note_author(self, resource: tuple[str, str], r: pb.ConfigRecord) -> None:
        base = self._base.config_authors if self._authors is None else self._authors
        known = r.HasField("value") and bool(r.set_by or r.set_ms)
        if not known and r.key not in base.get(resource, _NOBODY):
            return
        if self._authors is None:
            self._authors = dict(base)
        authors = dict(self._authors.get(resource, _NOBODY))
        if known:
            authors[r.key] = SetBy(r.set_by, r.set_ms)
        else:
            del authors[r.key]
        if authors:
            self._authors[resource] = authors
        else:
            del self._authors[resource]

    def _forget_configs(self, resource: tuple[str, str]) -> None:
        self._own_configs().pop(resource, None)
        base = self._base.config_authors if self._authors is None else self._authors
        if resource in base:
            self._authors = {key: authors for key, authors in base.items() if key != resource}

    def _replay_producer_ids(self, r: pb.ProducerIdsRecord) -> None:
        if r.next_producer_id < self._next_producer_id:
            raise InvariantBroken("producer ids never go back")
        self._next_producer_id = r.next_producer_id

    def _replay_feature(self, r: pb.FeatureRecord) -> None:
        if r.name == METADATA_LEVEL and r.level > FEATURE_LEVEL:
            # Its records may look known and mean more: nothing is to be read any further.
            raise NewerLevel(
                f"this build understands {METADATA_LEVEL} {FEATURE_LEVEL}, the cluster has {r.level}; "
                "install a newer build"
            )
        if self._features is None:
            self._features = dict(self._base.features)
        self._features[r.name] = r.level
        if self._feature_versions is None:
            self._feature_versions = dict(self._base.feature_versions)
        self._feature_versions.pop(r.name, None)
        if r.version:
            self._feature_versions[r.name] = r.version

    def _replay_level_mark(self, r: pb.LevelMarkRecord) -> None:
        """It is there for builds that cannot read it."""

    def _own_security(self) -> SecurityBuilder:
        if self._security is None:
            self._security = SecurityBuilder(self._base.security)
        return self._security

    def _replay_user_credential(self, r: pb.UserCredentialRecord) -> None:
        self._own_security().credential(r)

    def _replay_user_credential_removed(self, r: pb.UserCredentialRemovedRecord) -> None:
        self._own_security().credential_removed(r)

    def _replay_acl(self, r: pb.AclRecord) -> None:
        self._own_security().acl(r)

    def _replay_acl_removed(self, r: pb.AclRemovedRecord) -> None:
        self._own_security().acl_removed(r)

    def _replay_quota(self, r: pb.QuotaRecord) -> None:
        self._own_security().quota(r)

    def _replay_cluster_secret(self, r: pb.ClusterSecretRecord) -> None:
        self._own_security().secret(r)

    def _replay_refused_certificate(self, r: pb.RefusedCertificateRecord) -> None:
        self._own_security().refused_certificate(r)

    def _own_operations(self) -> OperationsBuilder:
        if self._operations is None:
            self._operations = OperationsBuilder(self._base.operations)
        return self._operations

    def _replay_operation(self, r: pb.OperationRecord) -> None:
        self._own_operations().operation(r)

    def _replay_operation_removed(self, r: pb.OperationRemovedRecord) -> None:
        self._own_operations().operation_removed(r)

    def _replay_operation_move(self, r: pb.OperationMoveRecord) -> None:
        self._own_operations().move(r)

    def _replay_node_policy(self, r: pb.NodePolicyRecord) -> None:
        self._own_operations().policy(r)

    def _replay_retired_directory(self, r: pb.RetiredDirectoryRecord) -> None:
        self._own_operations().retired_directory(r)
