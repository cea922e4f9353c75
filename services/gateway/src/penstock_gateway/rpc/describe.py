"""Answers of `Describe`, from a metadata image. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from penstock_core.addresses import Address, is_loopback
from penstock_core.errors import ErrorCode
from penstock_core.metadata.image import Endpoint, MetadataImage, NodeImage, TopicImage
from penstock_gateway.routing.addresses import PLAINTEXT
from penstock_proto.v1 import gateway_pb2 as pb


def describe(
    image: MetadataImage,
    request: pb.DescribeRequest,
    gateways: Iterable[Endpoint],
    permitted: Callable[[Iterable[str]], Iterable[str]],
    listeners: Callable[[NodeImage], Iterable[Endpoint]] = lambda node: (),
) -> pb.DescribeResponse:
    """Cluster, nodes and the topics asked for; `gateways` in the order to name them. `permitted`: those
    of some topics that the client may describe. Others are left out of all, and denied by name whether
    they exist or not. `listeners`: those of a node's Kafka listeners that the client may dial."""
    asked = sorted(image.topic_ids) if request.all_topics else list(request.topics)
    visible = set(permitted(asked))
    if request.all_topics:
        topics = [_topic(image.topics[image.topic_ids[name]]) for name in asked if name in visible]
    else:
        topics = [_named(image, name) if name in visible else _hidden(name) for name in asked]
    return pb.DescribeResponse(
        cluster_id=image.cluster_id,
        metadata_version=image.version,
        nodes=[
            pb.DescribedNode(
                node_id=n.node_id,
                rack=n.rack,
                fenced=n.fenced,
                grpc=n.grpc.to_pb(),
                version=n.version,
                kafka=[e.to_pb() for e in listeners(n)],
            )
            for n in sorted(image.nodes.values(), key=lambda n: n.node_id)
        ],
        topics=topics,
        gateways=[e.to_pb() for e in gateways],
    )


def _hidden(name: str) -> pb.DescribedTopic:
    described = pb.DescribedTopic(name=name)
    described.error.code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    described.error.message = f"not allowed to describe topic {name}"
    return described


def _named(image: MetadataImage, name: str) -> pb.DescribedTopic:
    topic = image.topic(name)
    if topic is not None:
        return _topic(topic)
    described = pb.DescribedTopic(name=name)
    described.error.code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    described.error.message = f"there is no topic {name!r}; create it, or see that the name is right"
    return described


def _topic(topic: TopicImage) -> pb.DescribedTopic:
    return pb.DescribedTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            pb.DescribedPartition(
                partition=p.partition,
                leader=p.leader,
                leader_epoch=p.leader_epoch,
                replicas=p.replicas,
                isr=p.isr,
            )
            for _, p in sorted(topic.partitions.items())
        ],
    )


def gateway_endpoints(
    image: MetadataImage, own: Endpoint, own_id: str, dialled: Address | None, client_host: str
) -> list[Endpoint]:
    """gRPC addresses of live gateways for one client, this one first.

    `dialled` is the authority that the client used, when it told; it alone is known to
    work from there. Loopback addresses are not named to clients from outside.
    """
    first = own if dialled is None else Endpoint("", dialled.host, dialled.port)
    others = [
        Endpoint.from_pb(g.record.grpc)
        for g in sorted(image.gateways.values(), key=lambda g: g.gateway_id)
        if g.gateway_id != own_id and g.record.grpc.port
    ]
    outside = not is_loopback(client_host)
    named = [e for e in others if not (outside and is_loopback(e.host))]
    return [first, *(e for e in named if e.address != first.address)]


def node_listeners(node: NodeImage, direct: Mapping[str, str], client_host: str) -> list[Endpoint]:
    """A node's Kafka listeners that a client of this gateway may dial, by name.

    `direct` is the security of this gateway's own direct listeners by name: as on these, a node is named only by a
    listener of the same name and security (rule "Where a client is sent"), so a gateway without any names none.
    Loopback addresses are not named to clients from outside.
    """
    outside = not is_loopback(client_host)
    return [
        endpoint
        for name, endpoint in sorted(node.listeners.items())
        if direct.get(name) == (endpoint.security or PLAINTEXT)
        and not (outside and is_loopback(endpoint.host))
    ]


def peer_host(peer: str) -> str:
    """The client's IP address in gRPC's `peer()` text, "" when it has none."""
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return ""
    host = rest.rpartition(":")[0].replace("%5B", "[").replace("%5D", "]")
    return host.removeprefix("[").removesuffix("]")
