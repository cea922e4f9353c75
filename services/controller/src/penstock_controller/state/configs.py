"""Dynamic settings of topics, nodes, the cluster and groups.

Each resource of a request is all or nothing. What a setting means for elections (min ISR,
unclean election) is carried out in the same command: a lower min ISR may clear an ELR, and
unclean election give a leader.

Source: ConfigurationControlManager and ControllerConfigurationValidator of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain

from penstock_controller.state.causes import of_configs
from penstock_controller.state.features import require_batch_level
from penstock_controller.state.generation import (
    Context,
    Generated,
    author_of,
    config_record,
    error_pb,
    partition_record,
)
from penstock_controller.state.nodes import SCAN_COUNT, Records, rules_for
from penstock_controller.state.partitions import change_partition
from penstock_core.config import catalog as catalog
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import NodeId
from penstock_core.metadata import MetadataImage, TopicImage
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb

GROUP_ID_LENGTH_MAX = 32_767
_ELECTIONS = frozenset({"min.insync.replicas", "unclean.leader.election.enable"})


def alter_configs(ctx: Context, request: api.AlterConfigsRequest) -> Generated[api.AlterConfigsResponse]:
    """Set and remove dynamic settings, each resource all or nothing."""
    reply = api.AlterConfigsResponse()
    records: list[pb.MetadataRecord] = []
    image = ctx.image
    cluster_changed = False
    topics: dict[str, TopicImage] = {}
    author = author_of(ctx, request.principal)
    for resource in request.resources:
        result = reply.results.add()
        try:
            settings = _wanted(image, resource)
        except PenstockError as error:
            result.CopyFrom(error_pb(error))
            continue
        kind, name = resource.resource_type, resource.resource_name
        old = image.config(kind, name)
        made = [config_record(kind, name, k, settings.get(k), author) for k in _differences(old, settings)]
        if request.validate_only or not made:
            continue
        records += made
        image = _with_settings(image, kind, name, settings)
        if _ELECTIONS & set(_differences(old, settings)):
            topic = image.topic(name) if kind == catalog.TOPIC else None
            cluster_changed = cluster_changed or topic is None
            if topic is not None:
                topics[name] = topic
    affected = image.topics.values() if cluster_changed else topics.values()
    further = _after_settings(ctx.image, image, iter(affected)) if affected else None
    return Generated(reply, records, further, of_configs(request))


def _wanted(image: MetadataImage, resource: api.ConfigResource) -> dict[str, str]:
    """All that shall be set of a resource after the change. Raises PenstockError."""
    kind, name = resource.resource_type, resource.resource_name
    _check_resource(image, kind, name)
    old = image.config(kind, name)
    settings = {} if resource.replace_all else dict(old)
    changed = set()
    for change in resource.changes:
        key = change.key
        if change.operation != api.CONFIG_OPERATION_SET:
            settings[key] = _list_after(kind, change, settings.get(key))
        elif change.HasField("value"):
            settings[key] = change.value
        else:
            settings.pop(key, None)
        changed.add(key)
    for key in changed & settings.keys():
        catalog.validate(kind, key, settings[key])
    catalog.validate_together(kind, settings)
    if kind == catalog.TOPIC:
        catalog.check_fixed(name, {key: settings[key] for key in changed & settings.keys()})
    if "max.message.bytes" in changed:
        require_batch_level(image, settings)
    return settings


def _check_resource(image: MetadataImage, kind: str, name: str) -> None:
    if kind == catalog.TOPIC:
        if image.topic(name) is None:
            raise PenstockError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic has the name {name!r}")
    elif kind == catalog.NODE:
        if not name.isdecimal() or len(name) > 10 or NodeId(int(name)) not in image.nodes:
            raise PenstockError(ErrorCode.INVALID_REQUEST, f"no storage node has the id {name!r}")
    elif kind == catalog.GROUP:
        if not 0 < len(name) <= GROUP_ID_LENGTH_MAX:
            raise PenstockError(ErrorCode.INVALID_REQUEST, "settings of a group need its name")
    elif kind != catalog.CLUSTER or name:
        raise PenstockError(
            ErrorCode.INVALID_REQUEST,
            f"resource type {kind!r} has no dynamic settings; topics, nodes, the cluster and groups have",
        )


def _list_after(kind: str, change: api.ConfigChange, old: str | None) -> str:
    """A list setting after APPEND or SUBTRACT; what is not set begins with its default."""
    key = change.key
    appends = change.operation == api.CONFIG_OPERATION_APPEND
    if not catalog.is_list(kind, key):
        what = "APPEND to" if appends else "SUBTRACT from"
        raise PenstockError(ErrorCode.INVALID_CONFIG, f"can't {what} {key}: it is no list; set it")
    parts = [p.strip() for p in (catalog.default_of(kind, key) if old is None else old).split(",") if p]
    given = [p.strip() for p in change.value.split(",") if p.strip()]
    if appends:
        parts += [p for p in given if p not in parts]
    else:
        parts = [p for p in parts if p not in given]
    return ",".join(parts)


def _differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return [k for k in dict.fromkeys(chain(old, new)) if old.get(k) != new.get(k)]


def _with_settings(image: MetadataImage, kind: str, name: str, settings: dict[str, str]) -> MetadataImage:
    return replace(image, configs={**image.configs, (kind, name): settings})


def _after_settings(before: MetadataImage, after: MetadataImage, topics: Iterator[TopicImage]) -> Records:
    """A new min ISR or unclean election may clear an ELR or give a leader."""
    seen = 0
    for topic in topics:
        old, new = rules_for(before, topic), rules_for(after, topic)
        if (old.min_isr, old.unclean) == (new.min_isr, new.unclean):
            seen += 1
            if seen % SCAN_COUNT == 0:
                yield None
            continue
        for partition in topic.partitions.values():
            # Of what was restored nodes have yet to tell who is ahead: see `recovery`.
            changed = change_partition(
                partition, replace(new, unclean=False) if partition.unconfirmed else new
            )
            if changed is None and new.effective_min_isr(partition) > old.effective_min_isr(partition):
                # A leader that has not heard of the higher min ISR yet must not shrink its ISR below
                # it and go on alone: its proposals are those of an older epoch now.
                changed = replace(partition, partition_epoch=partition.partition_epoch + 1)
            if changed is not None:
                yield partition_record(changed)
            seen += 1
            if seen % SCAN_COUNT == 0:
                yield None
