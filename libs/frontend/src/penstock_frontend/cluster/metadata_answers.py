"""Metadata: answers made from the image, and kept for those who are to have the same.

Two clients get the same bytes when they ask the same question, find nodes at the same addresses, are named the
same dead ones and may describe the same topics: answers are kept by that, never by who asked. What was asked for
longest ago makes room, and the question counts too, for it comes from a client and may be as long as a request.

Of all topics those are left out that may not be described; asked for by name they are answered
TOPIC_AUTHORIZATION_FAILED without an id whether they exist or not, by id without a name (Kafka:
KafkaApis.handleTopicMetadataRequest).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Final

from penstock_core.ids import TopicId
from penstock_core.metadata.image import MetadataImage
from penstock_frontend.authorizer import (
    CLUSTER_NAME,
    Authorizer,
    Identity,
    Operation,
    ResourceType,
)
from penstock_frontend.cluster.address_view import AddressView
from penstock_frontend.cluster.lost_nodes import LostNodes
from penstock_frontend.listener.connection import Connection
from penstock_kafka.wire.frames import RequestHeader
from penstock_kafka.wire.metadata import (
    NO_AUTHORIZED_OPERATIONS,
    MetadataRequest,
    TopicsSeen,
    decode_metadata,
    encode_metadata_response,
)

ENTRIES_MAX: Final = 64
ENTRY_BYTES_MAX: Final = 8 * 1024 * 1024
"""Question and answer together: one of them does not take the whole cache."""
BYTES_MAX: Final = 16 * 1024 * 1024
ONE_BY_ONE_MAX: Final = 16
"""Up to so many names are asked for one by one, by answers that are kept; more of them together."""
VISIBLE_NAMES_MAX: Final = 500_000
"""Names in the sets of visible topics that are kept, those of all clients together: some 4 MB."""


class MetadataAnswers:
    """Answers Metadata from one image after the other."""

    def __init__(
        self,
        image: Callable[[], MetadataImage],
        addresses: AddressView,
        authorizer: Authorizer,
        controller_id: Callable[[MetadataImage], int],
        lost_nodes: LostNodes,
    ) -> None:
        self._image = image
        self._lost_nodes = lost_nodes
        self._addresses = addresses
        self._authorizer = authorizer
        self._controller_id = controller_id
        self._visible = VisibleTopics(authorizer)
        self._kept: OrderedDict[Hashable, bytes] = OrderedDict()
        self._sizes: dict[Hashable, int] = {}
        self._version = -1
        self._bytes = 0

    def answer(
        self,
        connection: Connection,
        header: RequestHeader,
        frame: bytearray,
        request: MetadataRequest | None = None,
        uncreatable: frozenset[str] = frozenset(),
    ) -> bytes:
        """The response. `request` where it was read already; `uncreatable`: names in it that the client may
        not make and would have had made. Raises Malformed."""
        image = self._image()
        if self._version != image.version:
            self._kept.clear()
            self._sizes.clear()
            self._bytes = 0
            self._version = image.version
        scope: Hashable = None
        seen: TopicsSeen | None = None
        if self._authorizer.is_enabled:
            request = request or decode_metadata(frame, header)
            scope, seen = self._scope(connection.identity, request, image, uncreatable)
        named_fenced = self._lost_nodes.named(connection)
        body = bytes(frame[header.body_offset :])
        key = (self._addresses.view_key(connection), named_fenced, scope, bytes(frame[:4]), body)
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            return header.correlation_id.to_bytes(4, "big", signed=True) + kept
        request = request or decode_metadata(frame, header)
        response = encode_metadata_response(
            header,
            request,
            image,
            lambda node: self._addresses.node_address(connection, node),
            self._controller_id(image),
            seen or self._with_operations(connection.identity, request),
            named_fenced,
        )
        self._keep(key, response[4:], len(body))
        return response

    def _keep(self, key: Hashable, response: bytes, question_bytes: int) -> None:
        size = len(response) + question_bytes
        if size > ENTRY_BYTES_MAX:
            return
        self._kept[key] = response
        self._bytes += size
        self._sizes[key] = size
        while len(self._kept) > ENTRIES_MAX or self._bytes > BYTES_MAX:
            oldest, _ = self._kept.popitem(last=False)
            self._bytes -= self._sizes.pop(oldest)

    def _scope(
        self, who: Identity, request: MetadataRequest, image: MetadataImage, uncreatable: frozenset[str]
    ) -> tuple[Hashable, TopicsSeen]:
        """What of this client's rights the answer depends on, and what it may see."""
        asks_operations = (
            request.include_cluster_authorized_operations or request.include_topic_authorized_operations
        )
        asker = who if asks_operations else None
        if request.topics is None:
            names, token = self._visible.of(who, image.topic_ids)
            return (token, asker), self._with_operations(who, request, visible=names)
        hidden = self._hidden(who, dict.fromkeys(_names(request, image)))
        return (hidden, uncreatable, asker), self._with_operations(
            who, request, hidden=hidden, uncreatable=uncreatable
        )

    def _hidden(self, who: Identity, names: dict[str, None]) -> frozenset[str]:
        may = self._authorizer
        if len(names) <= ONE_BY_ONE_MAX:
            return frozenset(
                [n for n in names if not may.authorize(who, Operation.DESCRIBE, ResourceType.TOPIC, n)]
            )
        hidden = names.keys() - may.permitted(who, Operation.DESCRIBE, ResourceType.TOPIC, names)
        for name in hidden:
            may.denied(who, Operation.DESCRIBE, ResourceType.TOPIC, name)
        return frozenset(hidden)

    def _with_operations(
        self,
        who: Identity,
        request: MetadataRequest,
        visible: tuple[str, ...] | None = None,
        hidden: frozenset[str] = frozenset(),
        uncreatable: frozenset[str] = frozenset(),
    ) -> TopicsSeen:
        authorizer = self._authorizer
        cluster = NO_AUTHORIZED_OPERATIONS
        if request.include_cluster_authorized_operations:
            cluster = cluster_operations(authorizer, who)
        of_topic: Callable[[str], int] | None = None
        if request.include_topic_authorized_operations:

            def of_topic(name: str) -> int:
                return authorizer.authorized_operations(who, ResourceType.TOPIC, name)

        return TopicsSeen(visible, hidden, uncreatable, cluster, of_topic)


def cluster_operations(authorizer: Authorizer, who: Identity) -> int:
    """What is told of the cluster: nothing to those who may not describe it (Kafka: AuthHelper)."""
    if not authorizer.authorize(who, Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return 0
    return authorizer.authorized_operations(who, ResourceType.CLUSTER, CLUSTER_NAME)


def _names(request: MetadataRequest, image: MetadataImage) -> Iterator[str]:
    """Names of the topics that are asked for, as far as their ids are known."""
    for name, topic_id in request.topics or ():
        if topic_id is None:
            yield name or ""
        elif (topic := image.topics.get(topic_id)) is not None:
            yield topic.name


class VisibleTopics:
    """Of all topics, those that a client may describe; clients that see the same share one set."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer
        self._of: object = None
        self._topic_ids: Mapping[str, TopicId] | None = None
        self._known: dict[Identity, tuple[tuple[str, ...] | None, int]] = {}
        self._tokens: dict[tuple[str, ...], tuple[tuple[str, ...], int]] = {}
        self._last_token = 0
        """Given to no other set ever after: answers may be kept for longer than the sets."""
        self._names_count = 0

    def of(self, who: Identity, topic_ids: Mapping[str, TopicId]) -> tuple[tuple[str, ...] | None, int]:
        """The names, None for all of them; and a number that belongs to that set of names."""
        version = self._authorizer.version
        if version is not self._of or topic_ids is not self._topic_ids or self._is_full():
            self._of, self._topic_ids = version, topic_ids
            self._known.clear()
            self._tokens.clear()
            self._names_count = 0
        known = self._known.get(who)
        if known is None:
            known = self._known[who] = self._find(who, topic_ids)
        return known

    def _is_full(self) -> bool:
        return self._names_count + len(self._known) > VISIBLE_NAMES_MAX

    def _find(self, who: Identity, topic_ids: Mapping[str, TopicId]) -> tuple[tuple[str, ...] | None, int]:
        names = tuple(self._authorizer.permitted(who, Operation.DESCRIBE, ResourceType.TOPIC, topic_ids))
        if len(names) == len(topic_ids):
            return None, 0
        shared = self._tokens.get(names)
        if shared is None:
            self._last_token += 1
            shared = self._tokens[names] = names, self._last_token
            self._names_count += len(names)
        return shared
