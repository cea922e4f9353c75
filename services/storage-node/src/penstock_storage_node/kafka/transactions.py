"""Requests to the transaction coordinator, for every way in: decoded, handed to a shard, encoded.

Rules: a request that a shard cannot take (not the coordinator, still loading) fails as a whole with that code. An
answer waits for the high watermark ANSWER_MS at most, then the client is told COORDINATOR_NOT_AVAILABLE and asks
again: every call may be repeated. What is held for a client that has gone is not begun any more, nor what comes late by
the stream of one (see `client_stream`). Rights are asked for in Kafka's order (KafkaApis), and before anything else is
said.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.topics import OFFSETS_TOPIC
from penstock_frontend.authorizer import CLUSTER_NAME, Operation, ResourceType
from penstock_frontend.listener.listener import Response
from penstock_kafka.error_responses.transaction import (
    TRANSACTION_TABLE,
    add_offsets,
    added,
    describe_failure,
    end_txn,
    init_producer_id,
)
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.frames import RequestHeader
from penstock_kafka.wire.groups import group_partition
from penstock_kafka.wire.metadata import INTERNAL_TOPICS
from penstock_kafka.wire.primitives import Buffer
from penstock_kafka.wire.transactions import (
    BATCHED_SINCE,
    KNOWS_LEADERS_SINCE,
    RAISING_SINCE,
    AddedTransaction,
    AddOffsets,
    CodeOf,
    EndTransaction,
    Topics,
    put_all_added,
    read_add_offsets,
    read_add_partitions,
    read_end,
)
from penstock_runtime.turns import LoopTurns
from penstock_storage_node.groups.consumer.regex import BadRegex, TopicRegex
from penstock_storage_node.kafka.client_stream import LateRequests
from penstock_storage_node.kafka.groups import Answer, DeferredReply
from penstock_storage_node.kafka.groups_codec.classic import to_ms
from penstock_storage_node.kafka.request_context import RequestContext
from penstock_storage_node.kafka.rights import Rights
from penstock_storage_node.transactions import state
from penstock_storage_node.transactions.effects import TopicPartitionName
from penstock_storage_node.transactions.host import TransactionHost
from penstock_storage_node.transactions.questions import Question
from penstock_storage_node.transactions.records import Partitions, Status, TransactionValue
from penstock_storage_node.transactions.shard import ID_BYTES_MAX, Shard

ANSWER_MS: Final = 5_000
"""As Kafka's request.timeout.ms of the coordinator's writes."""
_RAISES: Final = state.EPOCH_RISES_SINCE
_READ_BY_HAND: Final[dict[int, Callable[[RequestHeader, Buffer], Any]]] = {
    ApiKey.ADD_PARTITIONS_TO_TXN: read_add_partitions,
    ApiKey.ADD_OFFSETS_TO_TXN: read_add_offsets,
    ApiKey.END_TXN: read_end,
}
_STATES: Final = {status.label: status for status in Status} | {"PrepareEpochFence": None}


class _Call:
    """A request and its answer, which may come later."""

    def __init__(self, caller: RequestContext, header: RequestHeader, frame: Buffer) -> None:
        self.caller = caller
        self.header = header
        self._frame = frame
        self._later = DeferredReply()
        self.is_over = False
        """Nobody waits for it any more."""
        self._asked: list[tuple[Shard, Question]] = []

    def note(self, code: ErrorCode) -> ErrorCode:
        """Count an error that is answered."""
        if code:
            self.caller.errors += (int(code),)
        return code

    def give(self, response: bytes) -> None:
        """The answer; a second one is dropped."""
        self._later.give(response)

    def fail(self, code: ErrorCode) -> None:
        """It says one error."""
        self.give(self.failure(code))

    def failure(self, code: ErrorCode) -> bytes:
        """The answer that says one error."""
        self.note(code)
        response = TRANSACTION_TABLE[self.header.api_key](self.header, self._frame, code, None)
        assert response is not None
        return response

    def wait_for(self, shard: Shard, question: Question) -> None:
        """A shard has been asked for it."""
        if question.reply is not None:
            self._asked.append((shard, question))

    def result(self) -> Answer:
        """What to hand on: called once, after everything was asked."""
        result = self._later.within(ANSWER_MS, self._give_up)
        stream = self.caller.stream
        if stream is not None and not isinstance(result, list):
            stream.hold(self, self._drop)
            result.add_done_callback(lambda _: stream.let_go(self))  # type: ignore[union-attr]
        return result

    def _give_up(self) -> bytes:
        self._drop()
        return self.failure(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _drop(self) -> None:
        self.is_over = True
        for shard, question in self._asked:
            shard.drop(question)


class TransactionHandler:
    """Answers the transaction APIs but for those of partition leaders and groups."""

    def __init__(self, host: TransactionHost, rights: Rights, turns: LoopTurns) -> None:
        self._host = host
        self._rights = rights
        self._turns = turns
        self._late = LateRequests()
        self._handlers: dict[int, Callable[[_Call, Any], None]] = {
            ApiKey.INIT_PRODUCER_ID: self._init,
            ApiKey.ADD_PARTITIONS_TO_TXN: self._add_partitions,
            ApiKey.ADD_OFFSETS_TO_TXN: self._add_offsets,
            ApiKey.END_TXN: self._end,
            ApiKey.DESCRIBE_TRANSACTIONS: self._describe,
        }

    @property
    def api_keys(self) -> list[int]:
        """What `handle` knows."""
        return [int(key) for key in (*self._handlers, ApiKey.LIST_TRANSACTIONS)]

    def handle(self, caller: RequestContext, header: RequestHeader, frame: Buffer) -> Answer:
        """Answer one request. Raises Malformed when it cannot be read."""
        call = _Call(caller, header, frame)
        read = _READ_BY_HAND.get(header.api_key, codec.decode_request)
        request: Any = read(header, frame)
        if header.api_key == ApiKey.LIST_TRANSACTIONS:
            return self._list(call, request)
        asker = _asker(header, request)
        if asker is None:
            self._run(call, request)
        else:
            self._late.begin(asker, caller.stream, lambda: self._run(call, request))
        return call.result()

    def _run(self, call: _Call, request: Any) -> None:
        if call.is_over:
            return
        try:
            self._handlers[call.header.api_key](call, request)
        except PenstockError as e:
            call.fail(e.code)

    # -- helpers -----------------------------------------------------------------------------

    def _shard(self, caller: RequestContext, operation: Operation, transactional_id: str) -> Shard:
        self._rights.require(caller, operation, ResourceType.TRANSACTIONAL_ID, transactional_id)
        return self._find(transactional_id)

    def _find(self, transactional_id: str) -> Shard:
        if not transactional_id or len(transactional_id.encode()) > ID_BYTES_MAX:
            raise PenstockError(
                ErrorCode.INVALID_REQUEST, f"a transactional id of {len(transactional_id)} characters"
            )
        return self._host.find(transactional_id)

    # -- a producer ----------------------------------------------------------------------------

    def _init(self, call: _Call, request: Any) -> None:
        name = request.transactional_id
        if name is None:
            raise PenstockError(ErrorCode.INVALID_REQUEST, "an InitProducerId without a transactional id")
        shard = self._shard(call.caller, Operation.WRITE, name)
        question = shard.init_producer(
            name,
            to_ms(request.transaction_timeout),
            lambda answer: call.give(
                init_producer_id(
                    call.header, call.note(answer.error), answer.producer_id, answer.producer_epoch
                )
            ),
            producer_id=getattr(request, "producer_id", state.NO_ID),
            producer_epoch=getattr(request, "producer_epoch", state.NO_EPOCH),
            client_version=_RAISES if call.header.api_version >= KNOWS_LEADERS_SINCE else 0,
        )
        call.wait_for(shard, question)

    def _end(self, call: _Call, request: EndTransaction) -> None:
        name = request.transactional_id
        shard = self._shard(call.caller, Operation.WRITE, name)
        version = _RAISES if call.header.api_version >= RAISING_SINCE else 0
        question = shard.end(
            name,
            state.End(request.producer_id, request.producer_epoch, request.committed, version),
            lambda answer: call.give(
                end_txn(call.header, call.note(answer.error), answer.producer_id, answer.producer_epoch)
            ),
        )
        call.wait_for(shard, question)

    # -- adding --------------------------------------------------------------------------------

    def _add_offsets(self, call: _Call, request: AddOffsets) -> None:
        name, group = request.transactional_id, request.group_id
        self._rights.require(call.caller, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name)
        self._rights.require(call.caller, Operation.READ, ResourceType.GROUP, group)
        shard = self._find(name)
        count = self._host.partition_count(OFFSETS_TOPIC)
        if not count:
            # Nobody else may ask for it before this is answered: clients look for the group's coordinator afterwards.
            self._host.make_topic(OFFSETS_TOPIC)
            raise PenstockError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"topic {OFFSETS_TOPIC} is being made")
        place = frozenset({TopicPartitionName(OFFSETS_TOPIC, group_partition(group, count))})
        question = shard.add(
            name,
            state.Add(request.producer_id, request.producer_epoch, place),
            lambda answer: call.give(add_offsets(call.header, call.note(answer.error))),
        )
        call.wait_for(shard, question)

    def _add_partitions(self, call: _Call, request: list[AddedTransaction]) -> None:
        if call.header.api_version < BATCHED_SINCE:
            self._add_for_client(call, request[0])
            return
        self._rights.require(call.caller, Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
        codes: dict[int, CodeOf] = {}

        def done(index: int, code_of: CodeOf) -> None:
            codes[index] = code_of
            if len(codes) == len(request):
                results = ((each.transactional_id, each.topics, codes[i]) for i, each in enumerate(request))
                call.give(put_all_added(call.header, ErrorCode.NONE, results))

        for index, each in enumerate(request):
            wanted: state.Add | state.Verify
            if each.verify_only:
                wanted = state.Verify(each.producer_id, each.producer_epoch, _named(each.topics))
            else:
                wanted = state.Add(each.producer_id, each.producer_epoch, _named(each.topics), _RAISES)
            try:
                shard = self._find(each.transactional_id)
            except PenstockError as e:
                call.note(e.code)
                done(index, lambda *_, code=e.code: code)
                continue
            self._ask_to_add(call, shard, each.transactional_id, wanted, partial(done, index))
        if not request:
            call.give(put_all_added(call.header, ErrorCode.NONE, ()))

    def _add_for_client(self, call: _Call, request: AddedTransaction) -> None:
        name, topics = request.transactional_id, request.topics
        self._rights.require(call.caller, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name)
        refused = {
            topic
            for topic, _ in topics
            # Offsets are added by AddOffsetsToTxn alone.
            if topic in INTERNAL_TOPICS or not self._rights.may_topic(call.caller, Operation.WRITE, topic)
        }

        def done(code_of: CodeOf) -> None:
            call.give(added(call.header, topics, code_of))

        if refused:
            call.note(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            done(partial(self._refused_with, refused))
            return
        wanted = state.Add(request.producer_id, request.producer_epoch, _named(topics))
        self._ask_to_add(call, self._find(name), name, wanted, done)

    def _refused_with(self, refused: set[str], topic: str, number: int) -> ErrorCode:
        """One partition's code where some topics of the transaction may not be written to."""
        if topic in refused:
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if not self._host.exists(TopicPartitionName(topic, number)):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.OPERATION_NOT_ATTEMPTED

    @staticmethod
    def _ask_to_add(
        call: _Call,
        shard: Shard,
        name: str,
        wanted: state.Add | state.Verify,
        done: Callable[[CodeOf], None],
    ) -> None:
        def reply(answer: state.Answer) -> None:
            call.note(answer.error)
            done(partial(_code_of, answer))

        call.wait_for(shard, shard.add(name, wanted, reply))

    # -- for operators ------------------------------------------------------------------------------

    def _describe(self, call: _Call, request: Any) -> None:
        asked = request.transactional_ids
        results: list[Any] = [None] * len(asked)
        left = len(asked)

        def done(index: int, code: ErrorCode, value: TransactionValue | None) -> None:
            nonlocal left
            call.note(code)
            name = asked[index]
            if value is None:
                results[index] = describe_failure(call.header, name, code)
            else:
                results[index] = self._described(call, name, value)
            left -= 1
            if not left:
                call.give(codec.respond(call.header, transaction_states=tuple(results)))

        for index, name in enumerate(asked):
            try:
                shard = self._shard(call.caller, Operation.DESCRIBE, name)
            except PenstockError as e:
                done(index, e.code, None)
                continue
            shard.describe(name, partial(done, index))
        if not asked:
            call.give(codec.respond(call.header, transaction_states=()))

    def _described(self, call: _Call, name: str, value: TransactionValue) -> Any:
        topics: dict[str, list[int]] = {}
        for topic, number in sorted(value.partitions):
            topics.setdefault(topic, []).append(number)
        return codec.item(
            call.header,
            "TransactionState",
            error_code=ErrorCode.NONE,
            transactional_id=name,
            transaction_state=value.status.label,
            transaction_timeout=value.timeout_ms,
            transaction_start_time=value.start_ms,
            producer_id=value.producer_id,
            producer_epoch=value.producer_epoch,
            topics=tuple(
                codec.item(call.header, "TopicData", topic=topic, partitions=tuple(numbers))
                for topic, numbers in topics.items()
                if self._rights.may_see(call.caller, Operation.DESCRIBE, ResourceType.TOPIC, topic)
            ),
        )

    async def _list(self, call: _Call, request: Any) -> Response:
        try:
            return [await self._turns.run(self._list_steps(call, request))]
        except PenstockError as e:
            return [call.failure(e.code)]

    def _list_steps(self, call: _Call, request: Any) -> Generator[None, None, bytes]:
        """A node may have a million ids: a step for each."""
        if not self._host.is_whole:
            raise PenstockError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "ids are being read")
        matches = _filter(request, self._host.now_ms)
        caller, may_see = call.caller, self._rights.may_see
        found: list[tuple[str, TransactionValue]] = []
        for shard in list(self._host.shards()):
            for name in shard.names():
                value = shard.value(name)
                if (
                    value is not None
                    and matches(name, value)
                    and may_see(caller, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, name)
                ):
                    found.append((name, value))
                yield
        shell = codec.build(
            codec.response_type(call.header.api_key, call.header.api_version),
            error_code=0,
            unknown_state_filters=tuple(each for each in request.state_filters if each not in _STATES),
            transaction_states=(),
        )
        items = (
            codec.item(
                call.header,
                "TransactionState",
                transactional_id=name,
                producer_id=value.producer_id,
                transaction_state=value.status.label,
            )
            for name, value in found
        )
        return (yield from codec.encode_response_steps(call.header, shell, "transaction_states", items))


def _asker(header: RequestHeader, request: Any) -> str | None:
    """Whose requests must not be done late: of an id whose epoch does not tell one transaction from the next."""
    key, version = header.api_key, header.api_version
    if key == ApiKey.ADD_PARTITIONS_TO_TXN:
        return None if version >= BATCHED_SINCE else str(request[0].transactional_id)
    if key == ApiKey.DESCRIBE_TRANSACTIONS or (key == ApiKey.END_TXN and version >= RAISING_SINCE):
        return None
    return None if request.transactional_id is None else str(request.transactional_id)


def _named(topics: Topics) -> Partitions:
    return frozenset(TopicPartitionName(topic, number) for topic, numbers in topics for number in numbers)


def _code_of(answer: state.Answer, topic: str, number: int) -> ErrorCode:
    """One partition's code."""
    if not answer.missing or TopicPartitionName(topic, number) in answer.missing:
        return answer.error
    unknown = answer.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.OPERATION_NOT_ATTEMPTED if unknown else ErrorCode.NONE


def _filter(request: Any, now_ms: int) -> Callable[[str, TransactionValue], bool]:
    """What a ListTransactions asks for. Raises INVALID_REGULAR_EXPRESSION."""
    wanted = {_STATES[each] for each in request.state_filters if each in _STATES}
    producers = frozenset(request.producer_id_filters)
    duration_ms = getattr(request, "duration_filter", -1)
    pattern = _pattern(getattr(request, "transactional_id_pattern", None))

    def matches(name: str, value: TransactionValue) -> bool:
        return (
            (not producers or value.producer_id in producers)
            and (not request.state_filters or value.status in wanted)
            and (duration_ms < 0 or now_ms - value.start_ms > duration_ms)
            and (pattern is None or pattern.matches(name))
        )

    return matches


def _pattern(text: str | None) -> TopicRegex | None:
    if text is None:
        return None
    try:
        return TopicRegex(text)
    except BadRegex as e:
        raise PenstockError(ErrorCode.INVALID_REGULAR_EXPRESSION, f"pattern {text[:100]!r}: {e}") from None
