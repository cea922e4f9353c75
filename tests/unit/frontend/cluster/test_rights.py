"""What any process with metadata answers, for every right that its requests ask for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.metadata.image import MetadataImage
from penstock_core.security.acl import AclOperation as Op
from penstock_core.security.acl import ResourceType as Kind
from penstock_frontend.cluster.apis import ApiOptions, ClusterApis
from penstock_frontend.listener.metrics import KafkaMetrics
from penstock_kafka.wire.apis import LOCAL_ROUTES, ROUTES, SUPPORTED, ApiKey
from penstock_kafka.wire.frames import parse_request_header
from penstock_proto.v1 import metadata_pb2 as pb
from support.rights_table import ALICE, CLUSTER_ROWS, TOPIC, Row, authorizer_of, codes_of, frame_of, rules

WITHOUT_RIGHTS = {
    ApiKey.API_VERSIONS,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
}
"""Anybody may ask these; what DescribeCluster says of rights is tested with the others' operations."""


class NoController:
    """No controller answers: whoever may do a thing hears of that, and not of rights."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def clock_ms(self) -> int:
        return 0

    async def call(self, method: str, *_: Any, **__: Any) -> Any:
        self.asked.append(method)
        raise PenstockError(ErrorCode.REQUEST_TIMED_OUT, "no controller answers")

    async def ask_each(self, method: str, *_: Any) -> list[Any]:
        self.asked.append(method)
        return []

    async def allocate(self) -> int:
        self.asked.append("AllocateProducerIds")
        return 7


class Nowhere:
    def node_address(self, connection: Any, node: Any) -> tuple[str, int] | None:
        return None

    def view_key(self, connection: Any) -> str:
        return "here"

    def apis(self, image: MetadataImage) -> Any:
        return SUPPORTED


def image_with(*topics: str) -> MetadataImage:
    records = [
        pb.MetadataRecord(topic=pb.TopicRecord(topic_id=name.encode().rjust(16, b"\0"), name=name))
        for name in topics
    ]
    return MetadataImage().apply(records, 1)


CONNECTION = SimpleNamespace(identity=ALICE, principal=ALICE.principal, listener="PROXY", state={})


def answer(
    row: Row, version: int, image: MetadataImage, authorizer: Any, **more: Any
) -> tuple[bytes, list[str]]:
    """The response, and what the controllers were asked."""
    controllers = NoController()
    metadata: Any = SimpleNamespace(image=image, on_change=lambda _: None)
    apis = ClusterApis(
        metadata,
        controllers,  # type: ignore[arg-type]
        controllers,  # type: ignore[arg-type]
        Nowhere(),
        authorizer,
        KafkaMetrics(),
        ApiOptions(**more),
    )
    frame = frame_of(row, version)

    async def main() -> bytes:
        answer = await apis.handle(CONNECTION, parse_request_header(frame), frame)  # type: ignore[arg-type]
        assert isinstance(answer, bytes)
        return answer

    return asyncio.run(main()), controllers.asked


@pytest.mark.parametrize("row", CLUSTER_ROWS, ids=str)
def test_what_is_denied_is_told_and_not_done(row: Row) -> None:
    for version in row.versions():
        for image in (image_with(TOPIC), image_with()):
            for name, entries, allowed in rules(row):
                authorizer, told = authorizer_of(row, entries)
                response, asked = answer(row, version, image, authorizer)
                what = f"{row} version {version}: {name}"
                codes = codes_of(row, version, response)
                is_gone = row.api == ApiKey.DELETE_TOPICS and image.topic(TOPIC) is None
                if is_gone and not allowed and authorizer.allows(ALICE, Op.DESCRIBE, Kind.TOPIC, TOPIC):
                    # Who may describe it, though not delete it, hears that it is not there.
                    assert codes == set() and asked == [], what
                    continue
                assert codes == (set() if allowed else {row.code}), what
                if not allowed:
                    assert asked == [], what
                    assert told == [row.needs], what
                else:
                    assert told == [], what


def test_every_api_that_is_answered_from_metadata_is_in_the_table() -> None:
    answered = {key for key in SUPPORTED if ROUTES[key] in LOCAL_ROUTES}
    # What a process says of its own log directories is tested with the nodes.
    missing = answered - {row.api for row in CLUSTER_ROWS} - WITHOUT_RIGHTS - {ApiKey.DESCRIBE_LOG_DIRS}
    assert not {ApiKey(key).name for key in missing}
