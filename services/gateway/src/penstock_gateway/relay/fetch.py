"""Fetch, as it is relayed, and what makes a consumer look for a leader that has moved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from penstock_core.errors import ErrorCode
from penstock_core.ids import NO_NODE, NodeId, TopicPartition
from penstock_core.metadata.image import MetadataImage
from penstock_frontend.authorizer import Operation
from penstock_gateway.relay.items import ItemAnswer, Named, Veto
from penstock_gateway.relay.request import Outcome, Part, Relayed
from penstock_gateway.relay.rights import RequestRights
from penstock_gateway.routing.flight import InFlight
from penstock_kafka.wire.fetch import (
    FetchResult,
    decode_fetch,
    decode_fetch_response,
    encode_fetch_request,
    encode_fetch_response,
)
from penstock_kafka.wire.frames import RequestHeader
from penstock_kafka.wire.primitives import Buffer

FETCH_SLACK_MS: Final = 30_000
"""As SLACK_MS for Fetch, whose answer may first have to come off a disk."""

SPLIT_FETCH_WAIT_MS: Final = 100
"""Longest wait of a split Fetch: an empty part would hold up the data of the others."""

FETCH_SESSION_ID_NOT_FOUND: Final = 70


class Fetch(Relayed[FetchResult]):
    """Fetch: parts share `max_bytes`, and don't wait long for one another."""

    operation = Operation.READ
    leader_change_hint = True
    looks_for_leader = True

    def __init__(self, header: RequestHeader, frame: Buffer, finish: Callable[[Outcome], None]) -> None:
        super().__init__(header, frame, finish)
        self.fetch = decode_fetch(frame, header)
        wait_ms = max(0, self.fetch.max_wait_ms)
        self.hold_ms = min(wait_ms, 1_000)
        self.answer_ms = wait_ms + FETCH_SLACK_MS
        self._names = [Named(p.topic, p.topic_id, p.partition) for p in self.fetch.partitions]

    def names(self) -> Sequence[Named]:
        return self._names

    def start(
        self, image: MetadataImage, veto: Veto | None = None, rights: RequestRights | None = None
    ) -> InFlight[Part] | None:
        if self.fetch.is_incremental:
            self._end(encode_fetch_response(self.header, [], error=FETCH_SESSION_ID_NOT_FOUND))
            return None
        return super().start(image, veto, rights)

    def refusal(self, rights: RequestRights, topic: str) -> ErrorCode:
        if self.fetch.replica_id < 0:
            return super().refusal(rights, topic)
        may = rights.may_cluster(Operation.CLUSTER_ACTION)
        return ErrorCode.NONE if may else ErrorCode.TOPIC_AUTHORIZATION_FAILED

    def failure(self, index: int, code: ErrorCode) -> FetchResult:
        topic, topic_id, partition = self._names[index]
        return FetchResult(topic, topic_id, partition, code)

    def encode(self, indices: Sequence[int], share: int) -> list[Buffer]:
        fetch, header = self.fetch, self.header
        # What is known already (an error, another part's data) must not wait for this part.
        wait_ms = 0 if self._results else min(fetch.max_wait_ms, SPLIT_FETCH_WAIT_MS)
        part = replace(
            fetch,
            max_wait_ms=wait_ms,
            max_bytes=max(1, fetch.max_bytes // share),
            partitions=[fetch.partitions[i] for i in indices],
        )
        return [encode_fetch_request(header.api_version, header.correlation_id, header.client_id, part)]

    def decode(self, data: Buffer) -> list[ItemAnswer[FetchResult]]:
        response = decode_fetch_response(data, self.header.api_version)
        return [ItemAnswer(Named(r.topic, r.topic_id, r.partition), r.error, r) for r in response.results]

    def join(self, results: list[FetchResult]) -> list[Buffer]:
        return encode_fetch_response(self.header, results)


class LeaderChangeHint:
    """Makes consumers look for a new leader.

    Behind a gateway a Fetch that still comes by the old leader's name could be served from
    the new one for ever, split each time. So the first one after a move is answered 6;
    the client asks for metadata and comes by the right name. Should it come the same way
    again, it is served. One per client connection.
    """

    def __init__(self, leader: Callable[[TopicPartition], NodeId]) -> None:
        self._leader = leader
        self._known: dict[TopicPartition, NodeId] = {}

    def __call__(self, key: TopicPartition, image: MetadataImage) -> ErrorCode:
        now = self._leader(key)
        if now == NO_NODE:
            return ErrorCode.NONE  # the table answers that
        before = self._known.setdefault(key, now)
        if before == now:
            return ErrorCode.NONE
        self._known[key] = now
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
