"""Requests for coordinators: routed by the id in the body, to the leader of its partition.

A request with one id is passed on as the bytes that it came in. Those with several are taken apart only
when their coordinators differ; listings go to every node that coordinates anything.

Rule "Maybe written, never 6": whatever is under way when the coordinator moves or is lost is answered
NOT_COORDINATOR, and the client asks again: all these calls may be repeated. Never REQUEST_TIMED_OUT, at which
librdkafka has the application abort a transaction that may be committed already.
What a client may not do with an id is said here; what it may do with topics, by the coordinator,
which asks for all of it anew.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from penstock_core.errors import FIND_LEADER, ErrorCode
from penstock_core.ids import TopicPartition
from penstock_core.metadata.image import MetadataImage
from penstock_core.topics import OFFSETS_TOPIC
from penstock_gateway.relay.items import ItemAnswer, Named, Veto
from penstock_gateway.relay.request import Outcome, Part, Relayed
from penstock_gateway.relay.rights import RequestRights
from penstock_gateway.routing.flight import InFlight
from penstock_kafka.error_responses.data import error_response
from penstock_kafka.wire import codec
from penstock_kafka.wire.frames import RequestHeader, request_header
from penstock_kafka.wire.groups import group_partition
from penstock_kafka.wire.primitives import Buffer, Malformed, Reader
from penstock_kafka.wire.throttle import leading_error

_MOVED: Final = FIND_LEADER | {ErrorCode.REQUEST_TIMED_OUT}
_GONE: Final = "the coordinator moved or was lost: look for it again"
_DENIED: Final = {
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "no right to the cluster",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "no right to that group",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "no right to that transactional id",
}


class CoordinatorCall(Relayed[Any]):
    """A request that goes to the coordinators of `ids`. Results are what the codec makes of them, or a code."""

    state_topic: ClassVar[str] = OFFSETS_TOPIC
    """Whose partitions the coordinators lead."""

    def __init__(
        self, header: RequestHeader, frame: Buffer, finish: Callable[[Outcome], None], ids: Sequence[str]
    ) -> None:
        super().__init__(header, frame, finish)
        self.ids = ids

    def names(self) -> Sequence[Named]:
        return [Named(self.state_topic, None, key.partition) for key in self.keys]

    @abstractmethod
    def refusal_of(self, rights: RequestRights, index: int) -> ErrorCode:
        """Why the client may not do this with the id of that index; NONE: it may."""

    def refusal_of_all(self, rights: RequestRights) -> ErrorCode:
        """Why it may not do this at all, whatever ids it names; NONE: it may."""
        del rights
        return ErrorCode.NONE

    def start(
        self, image: MetadataImage, veto: Veto | None = None, rights: RequestRights | None = None
    ) -> InFlight[Part] | None:
        topic = image.topic(self.state_topic)
        self._left = len(self.ids)
        routable: Sequence[int] = range(len(self.ids))
        if rights is not None:
            if code := self.refusal_of_all(rights):
                self.error_codes.append(code)
                self._end(self._failed_whole(code))
                return None
            codes = [self.refusal_of(rights, index) for index in routable]
            routable = [index for index, code in enumerate(codes) if not code]
            for index, code in enumerate(codes):
                if code:
                    self._fail_item(index, code)
        is_whole = len(routable) == len(self.ids)
        if topic is None:
            for index in routable:
                self._fail_item(index, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if topic is None or not routable:
            if not self.finished:
                self._complete()
            return None
        count = len(topic.partitions)
        self.keys = [TopicPartition(topic.topic_id, group_partition(each, count)) for each in self.ids]
        return self._flight(routable, 1, whole=is_whole)

    def failed(self, part: Part, code: ErrorCode) -> None:
        try:
            super().failed(part, ErrorCode.NOT_COORDINATOR if code in _MOVED else code)
        except Malformed:
            # Only the id was read till now: of what follows it no answer can be made, and in
            # a timer there is nobody to raise to.
            self.close()

    def failure(self, index: int, code: ErrorCode) -> Any:
        return code

    def reason(self, code: ErrorCode) -> str:
        """For people."""
        if code is ErrorCode.NOT_COORDINATOR:
            return _GONE
        return _DENIED.get(code) or f"topic {self.state_topic} is not there yet: ask FindCoordinator"

    def _failed_whole(self, code: ErrorCode) -> list[Buffer]:
        response = error_response(self.header, self.frame, code, self.reason(code))
        if response is None:
            raise Malformed(f"api key {self.header.api_key} has no error response")
        return [response]


class OneCall(CoordinatorCall):
    """A request about one id, which is the first field of its body."""

    def __init__(self, header: RequestHeader, frame: Buffer, finish: Callable[[Outcome], None]) -> None:
        self.reader = Reader(frame, header.body_offset, header.flexible, header.items_max)
        super().__init__(header, frame, finish, (self.read_id(),))

    def read_id(self) -> str:
        """The id by which it is routed."""
        return self.reader.string()

    def encode(self, indices: Sequence[int], share: int) -> list[Buffer]:
        return [self.frame]

    def decode(self, data: Buffer) -> list[ItemAnswer[Any]]:
        raise Malformed("a request for one id is never split")

    def join(self, results: list[Any]) -> list[Buffer]:
        return self._failed_whole(results[0])


class BatchCall(CoordinatorCall):
    """A request about several ids: an array in the request, one in the response."""

    request_field: ClassVar[str]
    response_field: ClassVar[str]

    def __init__(self, header: RequestHeader, frame: Buffer, finish: Callable[[Outcome], None]) -> None:
        self._request = codec.decode_request(header, frame)
        self.asked: Sequence[Any] = getattr(self._request, self.request_field) or ()
        super().__init__(header, frame, finish, [self.id_of(item) for item in self.asked])

    @staticmethod
    def id_of(item: Any) -> str:
        """The id of an item of the request."""
        return str(item)

    @abstractmethod
    def failed_item(self, index: int, code: ErrorCode) -> Any:
        """The item of the response for an id that failed."""

    def failure(self, index: int, code: ErrorCode) -> Any:
        return self.failed_item(index, code)

    def encode(self, indices: Sequence[int], share: int) -> list[Buffer]:
        header = self.header
        part = replace(self._request, **{self.request_field: tuple(self.asked[i] for i in indices)})
        head = request_header(header.api_key, header.api_version, header.correlation_id, header.client_id)
        return [head + codec.encode_body(part)]

    def decode(self, data: Buffer) -> list[ItemAnswer[Any]]:
        # Nothing is routed again by these names and codes: clients look for the coordinator themselves.
        _, response = codec.decode_response(self.header.api_key, self.header.api_version, data)
        items = getattr(response, self.response_field) or ()
        return [ItemAnswer(Named("", None, 0), ErrorCode.NONE, item) for item in items]

    def join(self, results: list[Any]) -> list[Buffer]:
        schema = codec.response_type(self.header.api_key, self.header.api_version)
        response = codec.build(schema, **{self.response_field: tuple(results)})
        return [codec.encode_response(self.header, response)]


class ListCall(CoordinatorCall):
    """A listing: asked of the leaders of all partitions, the answers joined. These leave out what is hidden.

    Clients ask every node, and each by its own address; behind a gateway each is answered with
    the whole list. One that is still reading a log of its own (14) is asked again: several clients
    take what it has read by then for all that there is.
    """

    response_field: ClassVar[str]
    id_field: ClassVar[str]
    """What tells the listed from one another: a node that took over a log meanwhile lists what another did."""

    def __init__(self, header: RequestHeader, frame: Buffer, finish: Callable[[Outcome], None]) -> None:
        super().__init__(header, frame, finish, ())

    def refusal_of(self, rights: RequestRights, index: int) -> ErrorCode:
        return ErrorCode.NONE

    def start(
        self, image: MetadataImage, veto: Veto | None = None, rights: RequestRights | None = None
    ) -> InFlight[Part] | None:
        topic = image.topic(self.state_topic)
        if topic is None:
            self._complete()
            return None
        self.keys = [TopicPartition(topic.topic_id, index) for index in sorted(topic.partitions)]
        self._left = len(self.keys)
        return self._flight(range(len(self.keys)), 1, whole=True)

    def not_ready(self, chunks: Sequence[Buffer]) -> bool:
        api_key, version = self.header.api_key, self.header.api_version
        return leading_error(api_key, version, chunks) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def answered(self, part: Part, chunks: list[Buffer]) -> None:
        if part.whole:
            super().answered(part, chunks)
            return
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        _, response = codec.decode_response(self.header.api_key, self.header.api_version, data)
        self.settle((response,), len(part.indices))

    def encode(self, indices: Sequence[int], share: int) -> list[Buffer]:
        return [self.frame]

    def decode(self, data: Buffer) -> list[ItemAnswer[Any]]:
        raise Malformed("nodes answer with what they coordinate, not with partitions")

    def join(self, results: list[Any]) -> list[Buffer]:
        error = 0
        found: dict[str, Any] = {}
        answers = [result for result in results if not isinstance(result, ErrorCode)]
        if len(answers) < len(results):
            error = int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        for answer in answers:
            error = error or int(answer.error_code)
            found |= {
                getattr(each, self.id_field): each for each in getattr(answer, self.response_field) or ()
            }
        schema = codec.response_type(self.header.api_key, self.header.api_version)
        fields = {self.response_field: tuple(found.values()), **self.beside(answers)}
        return [codec.encode_response(self.header, codec.build(schema, error_code=error, **fields))]

    def beside(self, answers: Sequence[Any]) -> dict[str, Any]:
        """What else the response has, by the nodes' answers."""
        del answers
        return {}
