"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources.

What is set is in the metadata, static settings of nodes included, so any process answers for
every topic, node and group; changes are the controllers' to judge. A topic is described as
its settings count on the node that answers; at a gateway, as they count for the cluster.

Sources: ConfigHelper and ConfigAdminManager of Apache Kafka 4.3; KIP-226, KIP-339, KIP-569.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from penstock_core.config import catalog as catalog
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import NodeId
from penstock_core.metadata.image import MetadataImage
from penstock_core.topics import check_topic_name
from penstock_frontend.authorizer import CLUSTER_NAME, Authorizer, Operation, ResourceType, require_cluster
from penstock_frontend.cluster.controller_calls import ControllerCalls
from penstock_frontend.cluster.describe import items
from penstock_frontend.listener.answers import Response
from penstock_frontend.listener.connection import Connection
from penstock_frontend.listener.metrics import KafkaMetrics
from penstock_kafka.wire import codec
from penstock_kafka.wire.frames import RequestHeader
from penstock_proto.v1 import controller_pb2 as pb
from penstock_runtime.turns import LoopTurns, all_at_once

TOPIC: Final = 2
BROKER: Final = 4
BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
GROUP: Final = 32

_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
_OPERATIONS: Final = {
    _APPEND: pb.CONFIG_OPERATION_APPEND,
    _SUBTRACT: pb.CONFIG_OPERATION_SUBTRACT,
}
_RESOURCES: Final = {
    TOPIC: (ResourceType.TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    BROKER: (ResourceType.CLUSTER, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    GROUP: (ResourceType.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED),
}
_WITHOUT_SETTINGS: Final = {BROKER_LOGGER: "loggers of nodes", CLIENT_METRICS: "client metrics"}
"""Resources that Kafka has settings of: who may not see them there hears here too that he may not."""

_RESOURCES_AT_ONCE: Final = 2
"""More than that are described in turns: one of everything takes about a millisecond."""
_ANSWER_BYTES_MAX: Final = 32 * 1024 * 1024
"""A resource that is named in ten bytes is described in thousands; roughly reckoned."""
_PIECES_MAX: Final = 100
"""An answer of fewer pieces goes out as one."""
_ENTRY_BYTES: Final = (60, 200, 400)
"""Of one setting: alone, with synonyms, with its description."""

_Failure = tuple[int, str | None]
_FINE: Final[_Failure] = (ErrorCode.NONE, None)


class Configs:
    """Answers for every resource. `own_node` is the node that this process is, None at a gateway."""

    def __init__(
        self,
        calls: ControllerCalls,
        authorizer: Authorizer,
        metrics: KafkaMetrics,
        own_node: Callable[[], NodeId | None],
        turns: LoopTurns,
    ) -> None:
        self._calls = calls
        self._turns = turns
        self._authorizer = authorizer
        self._metrics = metrics
        self._own_node = own_node

    # DescribeConfigs

    def describe(
        self, connection: Connection, header: RequestHeader, frame: bytearray
    ) -> Response | Coroutine[Any, Any, Response]:
        """The response to DescribeConfigs; of many resources, in turns of the event loop."""
        request = codec.decode_request(header, frame)
        steps = self._describe_steps(connection, header, request)
        if len(items(request.resources)) <= _RESOURCES_AT_ONCE:
            return all_at_once(steps)
        return self._turns.run(steps)

    def _describe_steps(
        self, connection: Connection, header: RequestHeader, request: Any
    ) -> Generator[None, None, Response]:
        version = (header.api_key, header.api_version)
        item_type = codec.entity_type(*version, "DescribeConfigsResult")
        writer = _EntryWriter(
            header, request.include_synonyms, getattr(request, "include_documentation", False)
        )
        image = self._calls.metadata.image
        answer_bytes = 0

        told: dict[tuple[int, str, tuple[str, ...]], tuple[int, bytes]] = {}
        """What is asked for again and again takes memory, and time, once."""

        def describe_one(resource: Any) -> bytes:
            nonlocal answer_bytes
            names = tuple(resource.configuration_keys or ())
            asked = (resource.resource_type, resource.resource_name, names)
            again = told.get(asked)
            if again is not None and answer_bytes <= _ANSWER_BYTES_MAX:
                answer_bytes += again[0]
                return again[1]
            code, message = _FINE
            entries: Sequence[catalog.Entry] = ()
            try:
                if answer_bytes > _ANSWER_BYTES_MAX:
                    raise PenstockError(
                        ErrorCode.POLICY_VIOLATION,
                        f"the answer is above {_ANSWER_BYTES_MAX} bytes; ask for fewer resources at once",
                    )
                self._check(connection, resource, Operation.DESCRIBE_CONFIGS)
                entries = self._entries(image, resource)
            except PenstockError as e:
                code, message = e.code, e.message
                self._metrics.count_error(header.api_key, e.code)
            wanted = set(names)
            shown = [e for e in entries if not wanted or e.name in wanted]
            if writer.with_text:
                shown = [self._with_author(image, resource, e) for e in shown]
            size_bytes = len(shown) * writer.bytes_per_entry
            answer_bytes += size_bytes
            encoded = codec.encode_body(
                codec.build(
                    item_type,
                    error_code=code,
                    error_message=message,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                    configs=tuple(map(writer.entry, shown)),
                )
            )
            told[asked] = size_bytes, encoded
            return encoded

        empty = codec.build(codec.response_type(*version), results=())
        pieces = yield from codec.encode_pieces_steps(
            header, empty, "results", map(describe_one, items(request.resources))
        )
        return pieces if len(pieces) > _PIECES_MAX else b"".join(pieces)

    def _entries(self, image: MetadataImage, resource: Any) -> Sequence[catalog.Entry]:
        kind, name = resource.resource_type, resource.resource_name
        if kind == TOPIC:
            check_topic_name(name)
            if image.topic(name) is None:
                raise PenstockError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic has the name {name!r}")
            return catalog.describe_topic(image, name, self._own_node())
        if kind == GROUP:
            if not name:
                raise PenstockError(ErrorCode.INVALID_REQUEST, "the name of a group must not be empty")
            return catalog.describe_group(image, name)
        if not name:
            return catalog.describe_cluster(image)
        if not name.isdecimal() or len(name) > 10 or NodeId(int(name)) not in image.nodes:
            known = ", ".join(str(n) for n in sorted(image.nodes))
            raise PenstockError(
                ErrorCode.INVALID_REQUEST,
                f"no storage node has the id {name!r}: use one of {known}, or none for all",
            )
        return catalog.describe_node(image, NodeId(int(name)))

    def _with_author(self, image: MetadataImage, resource: Any, entry: catalog.Entry) -> catalog.Entry:
        """Its description with who set it: Kafka's protocol has no other place for that."""
        is_node = resource.resource_type == BROKER and resource.resource_name
        node_id = NodeId(int(resource.resource_name)) if is_node else self._own_node()
        author = catalog.author_of(image, entry, resource.resource_name, node_id)
        if author is None:
            return entry
        at = datetime.fromtimestamp(author.time_ms / 1000, UTC).isoformat(timespec="milliseconds")
        return replace(entry, text=f"{entry.text} [set by {author.principal or 'unknown'} at {at}]")

    def _check(self, connection: Connection, resource: Any, operation: Operation) -> None:
        """Raise unless there are settings of that kind of resource and the client may."""
        wanted = resource.resource_type
        known = _RESOURCES.get(BROKER if wanted in _WITHOUT_SETTINGS else wanted)
        if known is not None:
            kind, code = known
            name = CLUSTER_NAME if kind is ResourceType.CLUSTER else resource.resource_name
            if not self._authorizer.authorize(connection.identity, operation, kind, name):
                raise PenstockError(code, f"no right to {operation.name} of {name}")
        if wanted not in _RESOURCES:
            name = _WITHOUT_SETTINGS.get(wanted, f"resources of type {wanted}")
            raise PenstockError(
                ErrorCode.INVALID_REQUEST, f"{name} have no settings here; topics, nodes and groups have"
            )

    # AlterConfigs, IncrementalAlterConfigs

    async def alter(self, connection: Connection, header: RequestHeader, frame: bytearray) -> bytes:
        """The response to AlterConfigs: what a resource does not name is removed."""
        return await self._alter(connection, header, frame, _replacing)

    async def alter_incrementally(
        self, connection: Connection, header: RequestHeader, frame: bytearray
    ) -> bytes:
        """The response to IncrementalAlterConfigs."""
        return await self._alter(connection, header, frame, _incremental)

    async def _alter(
        self,
        connection: Connection,
        header: RequestHeader,
        frame: bytearray,
        changes_of: Callable[[Any], list[pb.ConfigChange]],
    ) -> bytes:
        request = codec.decode_request(header, frame)
        resources = items(request.resources)
        doubled = Counter((r.resource_type, r.resource_name) for r in resources)
        outcomes: list[_Failure] = [_FINE] * len(resources)
        wanted: dict[int, pb.ConfigResource] = {}
        for index, resource in enumerate(resources):
            try:
                if doubled[resource.resource_type, resource.resource_name] > 1:
                    raise PenstockError(
                        ErrorCode.INVALID_REQUEST, "the resource is in the request twice; name it once"
                    )
                self._check(connection, resource, Operation.ALTER_CONFIGS)
                kind, name = _addressed(resource)
                wanted[index] = pb.ConfigResource(
                    resource_type=kind,
                    resource_name=name,
                    changes=changes_of(resource),
                    replace_all=changes_of is _replacing,
                )
            except PenstockError as e:
                outcomes[index] = (e.code, e.message)
        if wanted:
            call = pb.AlterConfigsRequest(
                resources=wanted.values(),
                validate_only=request.validate_only,
                principal=str(connection.principal),
            )
            response = await self._calls.call("AlterConfigs", call, wait=not request.validate_only)
            for index, error in zip(wanted, response.results, strict=True):
                outcomes[index] = (error.code, error.message or None)
        item_type = codec.entity_type(header.api_key, header.api_version, "AlterConfigsResourceResponse")
        responses = []
        for resource, (code, message) in zip(resources, outcomes, strict=True):
            self._metrics.count_error(header.api_key, code)
            responses.append(
                codec.build(
                    item_type,
                    error_code=code,
                    error_message=message,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
            )
        return codec.respond(header, responses=tuple(responses))

    # ListConfigResources

    def list_resources(self, connection: Connection, header: RequestHeader, frame: bytearray) -> bytes:
        """The response to ListConfigResources: topics, nodes, and groups that something is set of.

        Version 0 asks for client metrics, of which there are none.
        """
        request = codec.decode_request(header, frame)
        image = self._calls.metadata.image
        names = {
            TOPIC: sorted(image.topic_ids),
            BROKER: [str(n) for n in sorted(image.nodes)],
            GROUP: sorted(name for kind, name in image.configs if kind == catalog.GROUP),
        }
        wanted: set[int] = {CLIENT_METRICS}
        if header.api_version >= 1:
            wanted = set(request.resource_types or names)
        found = [(kind, name) for kind in names if kind in wanted for name in names[kind]]
        item_type = codec.entity_type(header.api_key, header.api_version, "ConfigResource")
        require_cluster(self._authorizer, connection.identity, Operation.DESCRIBE_CONFIGS)
        resources = tuple(codec.build(item_type, resource_name=n, resource_type=k) for k, n in found)
        return codec.respond(header, error_code=0, config_resources=resources)


def _addressed(resource: Any) -> tuple[str, str]:
    """Kind and name of a resource as the metadata has them."""
    kind, name = resource.resource_type, resource.resource_name
    if kind == TOPIC:
        if not name:
            raise PenstockError(
                ErrorCode.INVALID_REQUEST,
                "topics have no settings in common; set them for the cluster (an empty broker name)",
            )
        return catalog.TOPIC, name
    if kind == GROUP:
        return catalog.GROUP, name
    return (catalog.NODE, name) if name else (catalog.CLUSTER, "")


def _check_changes(resource: Any, without_value: list[str]) -> None:
    doubled = [name for name, count in Counter(c.name for c in items(resource.configs)).items() if count > 1]
    if doubled:
        raise PenstockError(
            ErrorCode.INVALID_REQUEST, f"{', '.join(doubled)} is in the resource twice; name it once"
        )
    if without_value:
        raise PenstockError(
            ErrorCode.INVALID_REQUEST, f"{', '.join(without_value)} has no value; to remove it use DELETE"
        )


def _replacing(resource: Any) -> list[pb.ConfigChange]:
    _check_changes(resource, [c.name for c in items(resource.configs) if c.value is None])
    return [pb.ConfigChange(key=c.name, value=c.value) for c in resource.configs]


def _incremental(resource: Any) -> list[pb.ConfigChange]:
    configs = items(resource.configs)
    _check_changes(resource, [c.name for c in configs if c.value is None and c.config_operation != _DELETE])
    changes = []
    for config in configs:
        operation = config.config_operation
        if operation == _DELETE:
            changes.append(pb.ConfigChange(key=config.name))
        elif operation in (_SET, _APPEND, _SUBTRACT):
            changes.append(
                pb.ConfigChange(
                    key=config.name,
                    value=config.value,
                    operation=_OPERATIONS.get(operation, pb.CONFIG_OPERATION_SET),
                )
            )
        else:
            raise PenstockError(
                ErrorCode.INVALID_REQUEST, f"{config.name}: operation {operation} is not known"
            )
    return changes


class _EntryWriter:
    """Builds the settings of one response."""

    def __init__(self, header: RequestHeader, with_synonyms: bool, with_text: bool) -> None:
        version = (header.api_key, header.api_version)
        self._type = codec.entity_type(*version, "DescribeConfigsResourceResult")
        self._synonym_type = codec.entity_type(*version, "DescribeConfigsSynonym")
        self.bytes_per_entry = _ENTRY_BYTES[2 if with_text else int(with_synonyms)]
        self._with_synonyms = with_synonyms
        self.with_text = with_text

    def entry(self, entry: catalog.Entry) -> Any:
        """One setting."""
        synonyms: tuple[Any, ...] = ()
        if self._with_synonyms:
            synonyms = tuple(
                codec.build(self._synonym_type, name=s.name, value=s.value, source=int(s.source))
                for s in entry.synonyms
            )
        return codec.build(
            self._type,
            name=entry.name,
            value=entry.value,
            read_only=entry.read_only,
            config_source=int(entry.source),
            is_sensitive=False,
            synonyms=synonyms,
            config_type=int(entry.type),
            documentation=entry.text if self.with_text else None,
        )
