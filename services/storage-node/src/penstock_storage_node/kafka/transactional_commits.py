"""TxnOffsetCommit: offsets of a group that count once a transaction is committed.

The partition of `__consumer_offsets` has to be one of the transaction's, like any other that it writes to: the
transaction's coordinator is asked, or told to add it (version 5 on), before the first commit of a transaction. Only
then, in the step of the append, is the group asked whether that member may commit: generation and member id are what
fences a consumer that has lost its partitions (KIP-447), and they may change while one waits.

Commits of one producer to one partition stand in a line, so that none overtakes the other while it waits. What waits
for a client that has gone is not begun any more. Rights are asked for in Kafka's order, before anything else is said.

Source: KafkaApis.handleTxnOffsetCommitRequest, GroupCoordinatorService.commitTransactionalOffsets,
CoordinatorPartitionWriter of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import TopicPartition
from penstock_core.topics import OFFSETS_TOPIC
from penstock_frontend.authorizer import Operation, ResourceType
from penstock_kafka.error_responses.transaction import code_by_version
from penstock_kafka.records.batch import BatchInfo
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.frames import RequestHeader
from penstock_kafka.wire.primitives import Buffer
from penstock_storage_node.coordinator_host import Hosted
from penstock_storage_node.groups.host import GroupHost
from penstock_storage_node.groups.offsets import CommitRequest, NewOffset
from penstock_storage_node.groups.shard import Shard
from penstock_storage_node.groups.store import GROUP_ID_BYTES_MAX, InTransaction
from penstock_storage_node.kafka.client_stream import LateRequests
from penstock_storage_node.kafka.groups import COMMIT_TIMEOUT_MS, Answer, DeferredReply, GroupHandler
from penstock_storage_node.kafka.groups_codec.hot import (
    TxnOffsetCommitRequest,
    put_txn_commit,
    read_txn_commit,
)
from penstock_storage_node.kafka.request_context import RequestContext
from penstock_storage_node.kafka.rights import Rights
from penstock_storage_node.replica.partition import Partition
from penstock_storage_node.transactions.admission import Admission
from penstock_storage_node.transactions.effects import TopicPartitionName
from penstock_storage_node.transactions.link import TransactionLink
from penstock_storage_node.transactions.verifier import Guard, Producer

ADDS_SINCE: Final = 5
"""Version from which on the group's coordinator adds the partition itself (KIP-890)."""

_Line = tuple[TopicPartition, int]
"""A partition and a producer id."""
_PASSING: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Of the transaction's coordinator. The client's is the group's, which is the right one: it is to ask it again."""
_SENTENCES: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)
"""After these no batch may be appended by that verification."""


def verification_error(code: ErrorCode, version: int) -> ErrorCode:
    """What a TxnOffsetCommit of that version is told for a code of the transaction's coordinator."""
    if code in _PASSING or (code is ErrorCode.CONCURRENT_TRANSACTIONS and version < ADDS_SINCE):
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode.INVALID_PRODUCER_EPOCH if code is ErrorCode.PRODUCER_FENCED else code


class _Admitted:
    """See `store.Admitted`: the transaction is open in the log, or was verified with a guard."""

    def __init__(self, admission: Admission, guard: Guard | None, coordinator_epoch: int) -> None:
        self._admission = admission
        self._guard = guard
        self._coordinator_epoch = coordinator_epoch

    def check(self, info: BatchInfo) -> None:
        if self._guard is not None:
            self._admission.check(info, self._guard, by_version=0)

    def appended(self, info: BatchInfo) -> None:
        self._admission.appended(info, self._guard, self._coordinator_epoch)


class _Call:
    """One request, and its answer."""

    def __init__(
        self, caller: RequestContext, header: RequestHeader, request: TxnOffsetCommitRequest
    ) -> None:
        self.caller = caller
        self.header = header
        self.request = request
        self.items: list[NewOffset] = []
        self.refused: dict[int, ErrorCode] = {}
        """By place in the request: what is not committed, and why."""
        self.is_over = False
        """It is begun, or it is answered: nothing more is to be begun for it."""
        self.line: _Line | None = None
        """Where it waits."""
        self._count = sum(len(topic.items) for topic in request.topics)
        self._later = DeferredReply()

    @property
    def is_gone(self) -> bool:
        """Whether the client is."""
        return self.caller.stream is not None and self.caller.stream.ended

    @property
    def adds(self) -> bool:
        """Whether the partition is added to the transaction for it."""
        return self.header.api_version >= ADDS_SINCE

    def answer(self, codes: Sequence[ErrorCode]) -> None:
        """A code for each of `items`."""
        left = iter(codes)
        told = [self.refused[i] if i in self.refused else next(left) for i in range(self._count)]
        self._later.give(self._response(told))

    def fail(self, code: ErrorCode) -> None:
        """One code for all."""
        self.is_over = True
        self._later.give(self._response([code] * self._count))

    def _response(self, codes: Sequence[ErrorCode]) -> bytes:
        version = self.header.api_version
        told = [ErrorCode(code_by_version(ApiKey.TXN_OFFSET_COMMIT, version, code)) for code in codes]
        self.caller.errors += tuple(int(code) for code in dict.fromkeys(told) if code)
        return put_txn_commit(self.header, self.request.topics, told)

    def result(self, drop: Callable[[], None]) -> Answer:
        """What to hand on: called once. `drop`: what to do when the client is gone, or waits no longer."""

        def give_up() -> bytes:
            drop()
            return self._response([ErrorCode.COORDINATOR_NOT_AVAILABLE] * self._count)

        result = self._later.within(COMMIT_TIMEOUT_MS, give_up)
        stream = self.caller.stream
        if stream is not None and not isinstance(result, list):
            stream.hold(self, drop)
            result.add_done_callback(lambda _: stream.let_go(self))  # type: ignore[union-attr]
        return result


class TransactionalCommits:
    """Answers TxnOffsetCommit for every way in."""

    def __init__(
        self,
        groups: GroupHandler,
        host: GroupHost,
        rights: Rights,
        link: TransactionLink,
        clock_ms: Callable[[], int],
        verifies: Callable[[], bool] = lambda: True,
    ) -> None:
        """`verifies`: whether transactions of producers that add partitions themselves are asked about
        (`transaction.partition.verification.enable`)."""
        self._groups = groups
        self._host = host
        self._rights = rights
        self._link = link
        self._clock_ms = clock_ms
        self._verifies = verifies
        self._late = LateRequests()
        self._lines: dict[_Line, deque[tuple[_Call, Hosted[Shard]]]] = {}
        link.leading.on_end.append(self._on_end)

    @property
    def waiting_count(self) -> int:
        """Commits that wait for the coordinator of their transaction."""
        return sum(map(len, self._lines.values()))

    def handle(self, caller: RequestContext, header: RequestHeader, frame: Buffer) -> Answer:
        """Answer one request. Raises Malformed when it cannot be read."""
        call = _Call(caller, header, read_txn_commit(header, frame))
        if call.adds or call.is_gone:
            self._run(call)  # its epoch is that of one transaction alone, or it is refused
        else:
            self._late.begin(call.request.producer_id, caller.stream, partial(self._run, call))
        return call.result(partial(self._drop, call))

    def _run(self, call: _Call) -> None:
        if call.is_over:
            return
        try:
            call.line = self._begin(call)
        except PenstockError as e:
            call.fail(e.code)

    def _begin(self, call: _Call) -> _Line | None:
        caller, request, rights = call.caller, call.request, self._rights
        rights.require(caller, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
        rights.require(caller, Operation.READ, ResourceType.GROUP, request.group_id)
        if not request.group_id or len(request.group_id.encode()) > GROUP_ID_BYTES_MAX:
            raise PenstockError(
                ErrorCode.INVALID_GROUP_ID, f"a group id of {len(request.group_id)} characters"
            )
        hosted = self._host.hosted(request.group_id)
        if call.is_gone:
            raise PenstockError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the client is gone")
        call.items, call.refused = self._groups.items_to_commit(caller, request.topics)
        if not call.items:
            call.is_over = True
            call.answer(())
            return None
        key = hosted.partition.key, request.producer_id
        line = self._lines.get(key)
        if line is not None:
            line.append((call, hosted))
        else:
            self._lines[key] = deque([(call, hosted)])
            self._go_on(key)
        return key

    # -- the lines ---------------------------------------------------------------------------------

    def _go_on(self, key: _Line) -> None:
        """Begin what stands in a line, until one has to wait."""
        line = self._lines[key]
        while line:
            call, hosted = line[0]
            if not (call.is_over or call.is_gone) and self._has_to_wait(call, hosted):
                return
            line.popleft()
        del self._lines[key]

    def _has_to_wait(self, call: _Call, hosted: Hosted[Shard]) -> bool:
        """Commit at once where nobody has to be asked, or ask."""
        request, partition = call.request, hosted.partition
        try:
            if self._host.hosted(request.group_id) is not hosted:
                raise PenstockError(ErrorCode.NOT_COORDINATOR, "its group has another coordinator by now")
            admission = self._link.leading.admission(partition)
            guard = admission.guard_without_sequence(
                request.producer_id, request.producer_epoch, self._clock_ms()
            )
        except PenstockError as e:
            call.fail(e.code)
            return False
        if guard is None or not (call.adds or self._verifies()):
            self._commit(call, hosted, _Admitted(admission, None, -1))
            return False
        self._link.additions.ask_vouched(
            Producer(request.transactional_id, request.producer_id, request.producer_epoch),
            TopicPartitionName(OFFSETS_TOPIC, partition.key.partition),
            adds=call.adds,
            done=partial(self._answered, call, hosted, admission, guard),
        )
        return True

    def _answered(
        self,
        call: _Call,
        hosted: Hosted[Shard],
        admission: Admission,
        guard: Guard,
        code: ErrorCode,
        coordinator_epoch: int,
    ) -> None:
        """The transaction's coordinator has answered."""
        if call.is_over:
            return  # and out of its line
        if code:
            told = verification_error(code, call.header.api_version)
            if told in _SENTENCES:
                admission.guards.refused(guard, call.request.producer_id)
            call.fail(told)
        else:
            self._commit(call, hosted, _Admitted(admission, guard, coordinator_epoch))
        key = hosted.partition.key, call.request.producer_id
        self._lines[key].popleft()
        self._go_on(key)

    def _commit(self, call: _Call, hosted: Hosted[Shard], admitted: _Admitted) -> None:
        request = call.request
        call.is_over = True
        commit = CommitRequest(
            request.group_id,
            request.member_id,
            request.instance_id,
            request.generation,
            call.items,
            version=call.header.api_version,
            owner=call.caller.owner,
            transaction=InTransaction(request.producer_id, request.producer_epoch, admitted),
        )
        hosted.shard.commit(commit, call.answer)

    def _drop(self, call: _Call) -> None:
        """Nobody waits for it any longer: what has not begun does not begin."""
        if call.is_over:
            return
        call.is_over = True
        line = None if call.line is None else self._lines.get(call.line)
        if line is not None and call.line is not None and line[0][0] is call:
            line.popleft()
            self._go_on(call.line)

    def _on_end(self, partition: Partition) -> None:
        """A leadership is over: its coordinator is another node's."""
        for key in [key for key in self._lines if key[0] == partition.key]:
            for call, _ in self._lines.pop(key):
                if not call.is_over:
                    call.fail(ErrorCode.NOT_COORDINATOR)


__all__ = ["ADDS_SINCE", "TransactionalCommits", "verification_error"]
