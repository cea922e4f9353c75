"""`/v1/cluster`, `/v1/topics`, `/v1/topics/{name}`: the metadata image as JSON.

Pure functions make the documents; the routes only serve them. Keys are words, ids are
text as Kafka writes them, and an error is `{"error": ..., "hint": ...}`. Reads only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from penstock_core.errors import PenstockError
from penstock_core.metadata.image import Endpoint, MetadataImage, NodeImage, PartitionImage, TopicImage
from penstock_core.topics import check_topic_name
from penstock_frontend.authorizer import CLUSTER_NAME, Authorizer, Operation, ResourceType
from penstock_frontend.sign_in.http import denied, error_response, identity_of
from penstock_kafka.wire.metadata import cluster_id_text
from penstock_runtime.http import web

Json = dict[str, Any]


def cluster_document(image: MetadataImage, contact_age_ms: int) -> Json:
    """Cluster, nodes and gateways."""
    return {
        "cluster_id": cluster_id_text(image.cluster_id) if image.cluster_id else None,
        "metadata_version": image.version,
        "metadata_age_ms": contact_age_ms,
        "topic_count": len(image.topics),
        "partition_count": sum(len(t.partitions) for t in image.topics.values()),
        "nodes": [
            {
                "node_id": n.node_id,
                "state": _node_state(n),
                "rack": n.rack,
                "version": n.version,
                "grpc": n.grpc.address,
                "http": _address(n.http),
                "listeners": {name: e.address for name, e in n.listeners.items()},
            }
            for n in sorted(image.nodes.values(), key=lambda n: n.node_id)
        ],
        "gateways": [
            {
                "gateway_id": g.gateway_id,
                "version": g.record.process.version,
                "grpc": Endpoint.from_pb(g.record.grpc).address,
                "http": _address(Endpoint.from_pb(g.record.http)),
                "listeners": [
                    {
                        "name": listener.name,
                        "mode": listener.mode,
                        "advertised": [
                            {
                                "network": a.network,
                                "address": _address(Endpoint("", a.host, a.port)) or "auto",
                            }
                            for a in listener.advertised
                        ],
                    }
                    for listener in g.record.listeners
                ],
            }
            for g in sorted(image.gateways.values(), key=lambda g: g.gateway_id)
        ],
    }


def topics_document(image: MetadataImage, names: Iterable[str]) -> Json:
    """Topics of those names, in short."""
    return {
        "metadata_version": image.version,
        "topics": [_topic_head(image.topics[image.topic_ids[name]]) for name in sorted(names)],
    }


def topic_document(image: MetadataImage, topic: TopicImage, *, with_config: bool = True) -> Json:
    """One topic with partitions and settings; these are null to those who may not see them."""
    return {
        **_topic_head(topic),
        "metadata_version": image.version,
        "config": dict(image.config("topic", topic.name)) if with_config else None,
        "partitions": [_partition(p) for _, p in sorted(topic.partitions.items())],
    }


def _topic_head(topic: TopicImage) -> Json:
    partitions = topic.partitions.values()
    return {
        "name": topic.name,
        "topic_id": cluster_id_text(topic.topic_id),
        "partition_count": len(topic.partitions),
        "replication_factor": max((len(p.replicas) for p in partitions), default=0),
        "under_replicated_partition_count": sum(p.under_replicated for p in partitions),
        "leaderless_partition_count": sum(1 for p in partitions if p.leader < 0),
    }


def _partition(p: PartitionImage) -> Json:
    return {
        "partition": p.partition,
        "leader": p.leader if p.leader >= 0 else None,
        "leader_epoch": p.leader_epoch,
        "replicas": list(p.replicas),
        "isr": list(p.isr),
        "eligible_leader_replicas": list(p.elr),
        "recovering": p.recovering,
    }


def _node_state(node: NodeImage) -> str:
    if node.disk_failed:
        return "disk failed"
    if node.fenced:
        return "fenced"
    if node.in_controlled_shutdown:
        return "draining"
    return "disk full" if node.disk_full else "live"


def _address(endpoint: Endpoint) -> str | None:
    return endpoint.address if endpoint.host and endpoint.port else None


def routes(
    image: Callable[[], MetadataImage], contact_age_ms: Callable[[], int], authorizer: Authorizer
) -> list[web.AbstractRouteDef]:
    """Routes for the process's HTTP server, which knows who asks."""

    def not_yet() -> web.Response | None:
        if image().version:
            return None
        return error_response(
            503, "this gateway has no metadata yet", "see that a controller is up, then ask again"
        )

    async def cluster(request: web.Request) -> web.Response:
        if not authorizer.authorize(
            identity_of(request), Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME
        ):
            return denied(request, "DESCRIBE the cluster")
        return not_yet() or web.json_response(cluster_document(image(), contact_age_ms()))

    async def topics(request: web.Request) -> web.Response:
        now = image()
        names = authorizer.permitted(
            identity_of(request), Operation.DESCRIBE, ResourceType.TOPIC, now.topic_ids
        )
        return not_yet() or web.json_response(topics_document(now, names))

    async def topic(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        try:
            check_topic_name(name)
        except PenstockError as e:
            return error_response(
                400, e.message, "give a name of a-z A-Z 0-9 . _ - of at most 249 characters"
            )
        if not authorizer.authorize(identity_of(request), Operation.DESCRIBE, ResourceType.TOPIC, name):
            return denied(request, f"DESCRIBE topic {name}")  # whether it exists or not
        found = image().topic(name)
        if found is None:
            return not_yet() or error_response(
                404, f"there is no topic {name}", "GET /v1/topics lists all; penstock topic create makes one"
            )
        may_see = authorizer.allows(
            identity_of(request), Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, name
        )
        return web.json_response(topic_document(image(), found, with_config=may_see))

    async def unknown(request: web.Request) -> web.Response:
        return error_response(
            404,
            f"there is no {request.path}",
            "see /v1/cluster, /v1/topics, /v1/topics/NAME, /v1/operations, /v1/operations/ID, /v1/nodes, /v1/check",
        )

    return [
        web.get("/v1/cluster", cluster),
        web.get("/v1/topics", topics),
        web.get("/v1/topics/{name}", topic),
        web.get("/v1/{rest:.*}", unknown),
    ]
