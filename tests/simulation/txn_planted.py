"""Planted bugs of transactions, for `planted`: name, what is broken, patches, settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import penstock_storage_node.transactions.admission as admission_module
import penstock_storage_node.transactions.state as state_module
from penstock_core.errors import ErrorCode
from penstock_frontend.producer_ids import ProducerIdAllocator
from penstock_storage_node.groups.transactional_offsets import TransactionalOffsets
from penstock_storage_node.kafka.client_stream import LateRequests
from penstock_storage_node.kafka.fetch import _Look
from penstock_storage_node.kafka.retry_gate import RetryGate
from penstock_storage_node.kafka.transactional_appends import HeldBatch, TransactionalAppends
from penstock_storage_node.log import truncation as truncation_module
from penstock_storage_node.log.aborted_index import AbortedIndex
from penstock_storage_node.log.state import LogData
from penstock_storage_node.log.transactions import TransactionOffsets
from penstock_storage_node.replica.registry import PartitionRegistry
from penstock_storage_node.rpc.transaction_service import TransactionService
from penstock_storage_node.transactions import leading as leading_module
from penstock_storage_node.transactions.admission import Admission
from penstock_storage_node.transactions.effects import MarkersDue
from penstock_storage_node.transactions.host import TransactionHost
from penstock_storage_node.transactions.records import Status
from penstock_storage_node.transactions.shard import Shard
from penstock_storage_node.transactions.state import Answer, Begin
from penstock_storage_node.transactions.verifier import Guards
from simulation.settings import Settings, TransactionSettings
from simulation.txn_wire import NEW, OLD

Patch = tuple[Any, str, Any]


def with_transactions(settings: Settings) -> None:
    """Every seed has transactions."""
    settings.with_transactions = True


def _busy(settings: Settings, protocol: int) -> TransactionSettings:
    """One transaction after the other by one protocol, open for a while each, and little else."""
    with_transactions(settings)
    wanted = settings.transactions
    wanted.protocol, wanted.ids, wanted.partitions = protocol, 8, 1
    wanted.is_direct = False
    wanted.pause_us, wanted.linger_chance, wanted.timeout_ms = 50_000, 0.5, 30_000
    wanted.act_us = 8_000_000
    settings.producers, settings.produce_interval_us = 1, 800_000
    return wanted


def _late_markers(settings: Settings, protocol: int = OLD) -> None:
    """What nodes have sent one another comes long after they have made a new connection."""
    _busy(settings, protocol)
    settings.network.late_share = 1.0
    settings.favoured = ("two nodes apart for long",) * 20
    settings.fault_interval_us = 4_000_000
    settings.lag_max_ms = 500


def _late_coordinators(settings: Settings) -> None:
    """So do those of a coordinator that was deposed meanwhile."""
    _late_markers(settings)
    settings.favoured = ("two nodes apart for long",) * 20 + ("node killed",) * 20
    settings.fault_interval_us = 2_600_000


def _late_new_markers(settings: Settings) -> None:
    _late_markers(settings, NEW)


def _stopped_gateways(settings: Settings) -> None:
    """Requests wait in stopped gateways, and are given up and sent again by other ones meanwhile."""
    wanted = _busy(settings, OLD)
    settings.gateways = 3
    settings.fault_interval_us = 5_000_000
    wanted.act_us, wanted.stop_share, wanted.stop_kinds = 1_500_000, 0.95, "g"


def _late_batches(settings: Settings) -> None:
    """Batches take their time to arrive, and transactions are given up meanwhile."""
    wanted = _busy(settings, OLD)
    wanted.late = (0.1, 2_500_000)
    wanted.given_up = {"PRODUCE": (1.0, 500_000)}
    wanted.delivery_timeout_us, wanted.pause_us = 400_000, 1_000_000
    settings.fault_interval_us = 5_000_000


def _new_producers(settings: Settings) -> None:
    """Leaders and coordinators of transactions come and go, and the leader knows nothing of a producer yet."""
    wanted = _busy(settings, OLD)
    wanted.is_direct, wanted.passing = True, True
    wanted.late = (0.2, 300_000)
    settings.favoured = ("node killed", "two nodes apart for long") * 10
    settings.fault_interval_us = 2_000_000


def _cut_markers(settings: Settings) -> None:
    """Transactions are aborted, one follower of a leader hears nothing of it, and leads when the leader dies."""
    wanted = _busy(settings, OLD)
    wanted.is_direct = True
    wanted.given_up = {"PRODUCE": (1.0, 500_000)}
    wanted.delivery_timeout_us = 400_000
    settings.nodes, settings.lag_max_ms = 3, 10_000
    settings.favoured = ("node killed", "two nodes apart for long") * 20
    settings.fault_interval_us = 2_000_000


def _repeated_ends(settings: Settings) -> None:
    """Most answers to EndTxn come too late."""
    wanted = _busy(settings, NEW)
    wanted.given_up = {"END_TXN": (0.7, 100_000)}


def _late_answers(settings: Settings) -> None:
    """So do the answers of coordinators that leaders ask about them."""
    _late_batches(settings)
    settings.transactions.late = (0.0, 0)
    settings.network.late_lanes = {"transactions": (0.1, 2_000_000)}


# --- the coordinator ------------------------------------------------------------------------


def _marker_at_append() -> list[Patch]:
    append, decided = Shard._append, Shard._decided

    def eager(shard: Any, transitions: Any, doubts: Any) -> None:
        append(shard, transitions, doubts)
        for entry, pending in transitions:
            value = pending.value
            if value is None or not pending.is_written or not value.status.is_decided or not value.partitions:
                continue
            commit = value.status is Status.PREPARE_COMMIT
            shard._send(
                MarkersDue(
                    shard._state_partition,
                    shard._coordinator_epoch,
                    value.producer_id,
                    value.producer_epoch,
                    commit,
                    tuple(sorted(value.partitions)),
                    value.client_version,
                )
            )
            key = value.producer_id, value.producer_epoch
            shard._due._left[key] = (entry, {"not covered", *value.partitions})

    def late(shard: Any, entry: Any, value: Any) -> None:
        if (value.producer_id, value.producer_epoch) in shard._due:
            shard.markers_written(value.producer_id, value.producer_epoch, ("not covered",))
        else:
            decided(shard, entry, value)

    return [(Shard, "_append", eager), (Shard, "_decided", late)]


def _loaded_tail() -> list[Patch]:
    async def at_once(_host: Any, _hosted: Any, _end: int) -> None:
        return None

    return [
        (TransactionHost, "_committed", at_once),
        (Shard, "loaded", lambda shard: shard._resume(ErrorCode.NONE)),
    ]


def _complete_early() -> list[Patch]:
    written = Shard.markers_written

    def all_at_once(shard: Any, producer_id: int, epoch: int, partitions: Any) -> None:
        written(shard, producer_id, epoch, shard._due.left.get((producer_id, epoch), partitions))

    return [(Shard, "markers_written", all_at_once)]


def _repetition_refused() -> list[Patch]:
    """Who asks for a commit again, after it is complete, is told that it was aborted."""
    repeated = state_module._repeated

    def refused(current: Any, request: Any) -> Any:
        if current.status is Status.COMPLETE_COMMIT:
            return Answer(ErrorCode.INVALID_TXN_STATE)
        return repeated(current, request)

    return [(state_module, "_repeated", refused)]


def _repetition_raises() -> list[Patch]:
    repeated = state_module._repeated

    def raised(current: Any, request: Any) -> Any:
        outcome = repeated(current, request)
        if not isinstance(outcome, Answer) or outcome.error or request.client_version < 2:
            return outcome
        epoch = current.producer_epoch + 1
        value = current._replace(status=Status.EMPTY, producer_epoch=epoch, last_epoch=current.producer_epoch)
        return Begin(value, Answer(ErrorCode.NONE, value.producer_id, epoch))

    return [(state_module, "_repeated", raised)]


def _timeout_keeps_epoch() -> list[Patch]:
    def abort(shard: Any, entry: Any, current: Any) -> None:
        shard._begin(entry, current._replace(status=Status.PREPARE_ABORT, client_version=0))

    return [(Shard, "_abort_late", abort)]


def _init_leaves_open() -> list[Patch]:
    init = state_module._init

    def lax(current: Any, pending: bool, request: Any, server: Any) -> Any:
        if current is not None and not pending and current.status is Status.ONGOING:
            return Answer(ErrorCode.NONE, current.producer_id, current.producer_epoch)
        return init(current, pending, request, server)

    return [(state_module, "_init", lax)]


def _no_barrier() -> list[Patch]:
    return [(Shard, "_tell", lambda _shard, question, answer: question.answer(answer))]


def _ids_twice() -> list[Patch]:
    """Each process begins with the same block."""

    def take(allocator: Any, timeout_ms: int = 15_000) -> int:
        del timeout_ms
        allocator._next += 1
        return 5_000_000 + int(allocator._next)

    return [(ProducerIdAllocator, "take", take)]


def _late_requests() -> list[Patch]:
    return [(LateRequests, "begin", lambda _late, _asker, _stream, run: run())]


# --- leaders ----------------------------------------------------------------------------------


def _no_fences() -> list[Patch]:
    """Of log, metadata and answers together: of these three any one does."""

    def lax(admission: Any, order: Any, _state_epoch: int | None) -> ErrorCode:
        entry = admission._producers.producer(order.producer_id)
        if entry is not None and admission_module._is_of_older_epoch(order, entry):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        return ErrorCode.NONE

    return [(Admission, "check_marker", lax)]


def _stream_numbers() -> list[Patch]:
    return [(TransactionService, "begin", lambda *_: "")]


def _older_epoch_allowed() -> list[Patch]:
    """That streams have numbers does it as well, so these are off too."""

    return [
        (admission_module, "_is_of_older_epoch", lambda order, entry: order.producer_epoch < entry.epoch),
        *_stream_numbers(),
    ]


def _not_verified() -> list[Patch]:
    return [(PartitionRegistry, "verifies_partitions", lambda _: False)]


def _any_guard() -> list[Patch]:
    return [(Guards, "_stands", lambda _guards, _guard, _producer_id: True)]


def _overtaking() -> list[Patch]:
    """That the one before it was refused a moment ago turns it away as well, so this is off too."""
    admit, go_on = TransactionalAppends.admit, TransactionalAppends._go_on

    def alone(appends: Any, request: Any, partition: Any, leadership: Any, checked: Any, held: Any) -> None:
        lines, appends._lines = appends._lines, {}
        try:
            admit(appends, request, partition, leadership, checked, held)
        finally:
            appends._lines = lines

    def hold(appends: Any, request: Any, index: int, item: Any, wait: Any) -> None:
        appends._ask(HeldBatch(request, index, item, wait))

    def nothing(appends: Any, key: Any) -> None:
        if key in appends._lines:
            go_on(appends, key)

    check = RetryGate.check

    def let_by(gate: Any, item: Any, info: Any, is_next: bool, now_ms: int) -> None:
        if not info.is_transactional:
            check(gate, item, info, is_next, now_ms)

    return [
        (TransactionalAppends, "admit", alone),
        (TransactionalAppends, "hold", hold),
        (TransactionalAppends, "_go_on", nothing),
        (RetryGate, "check", let_by),
    ]


# --- logs and readers ------------------------------------------------------------------------


def _ended_forgotten() -> list[Patch]:
    return [(TransactionOffsets, "_add_ended", lambda *_: None)]


def _followers_tell_all() -> list[Patch]:
    describe = _Look._describe

    def lax(look: Any, result: Any, partition: Any) -> int:
        found = describe(look, result, partition)
        if partition.replica.leadership is None:
            result.last_stable_offset = found = partition.replica.high_watermark
        return found

    return [(_Look, "_describe", lax)]


def _snapshots_without() -> list[Patch]:
    return [(TransactionOffsets, "replace_open", lambda offsets, _transactions: offsets.clear())]


def _index_not_cut() -> list[Patch]:
    return [(truncation_module, "save_aborted", lambda *_: False)]


def _no_entry() -> list[Patch]:
    append = AbortedIndex.append

    def some(index: Any, row: Any) -> None:
        if row.last_offset % 3:
            append(index, row)

    return [(AbortedIndex, "append", some)]


def _entry_with_the_first_record() -> list[Patch]:
    def replay(data: Any, segment: Any, info: Any, now_ms: int, marker: Any) -> None:
        aborted = data.producers.replay(info, now_ms, marker)
        if aborted is not None:
            older = [s for s in data.segments if s.base_offset <= aborted.first_offset]
            (older[-1] if older else segment).aborted.append(aborted)

    return [(LogData, "_replay_marker", replay)]


# --- groups ---------------------------------------------------------------------------------------


def _pending_not_counted() -> list[Patch]:
    return [(TransactionalOffsets, "keys", lambda _offsets, _group_id: frozenset())]


def _offset_marker_at_append() -> list[Patch]:
    make = leading_module._Covered.__init__

    def eager(covered: Any, leaders: Any, partition: Any, written: Any, reply: Any) -> None:
        for hook in leaders.on_marker:
            hook(partition, written)
        make(covered, leaders, partition, written, reply)

    return [(leading_module._Covered, "__init__", eager)]


ROWS: list[tuple[str, str, Callable[[], list[Patch]], Callable[[Settings], None]]] = [
    (name, what, patches, prepare[0] if prepare else with_transactions)
    for name, what, patches, *prepare in (
        ("marker-at-append", "a marker is sent when its decision is appended", _marker_at_append),
        ("loaded-tail-decides", "a transaction coordinator serves a tail that may be lost", _loaded_tail),
        ("complete-early", "a transaction is complete before its last marker", _complete_early),
        ("commit-repeated-refused", "a commit that is asked for again was none", _repetition_refused),
        (
            "commit-repeated-raises",
            "a commit that is asked for again raises the epoch",
            _repetition_raises,
            _repeated_ends,
        ),
        ("timeout-keeps-epoch", "a transaction that takes too long keeps its epoch", _timeout_keeps_epoch),
        ("init-leaves-open", "a new producer goes on with the open transaction", _init_leaves_open),
        ("sentence-without-barrier", "a deposed coordinator ends producers", _no_barrier),
        ("producer-ids-twice", "every process gives out the same producer ids", _ids_twice),
        ("late-requests-done", "requests of closed connections are done", _late_requests, _stopped_gateways),
        ("marker-streams-unnumbered", "frames of an older stream count", _stream_numbers, _late_markers),
        ("marker-fences-off", "a deposed coordinator's markers are written", _no_fences, _late_coordinators),
        (
            "marker-of-next-epoch",
            "a late marker ends the transaction whose epoch it has",
            _older_epoch_allowed,
            _late_new_markers,
        ),
        ("partitions-not-verified", "leaders do not ask for old producers", _not_verified, _late_batches),
        (
            "guard-not-unique",
            "an answer about the last transaction admits the next",
            _any_guard,
            _late_answers,
        ),
        ("batches-overtake", "a batch passes one that is being verified", _overtaking, _new_producers),
        ("stable-before-watermark", "an ended transaction bounds nobody at once", _ended_forgotten),
        ("follower-tells-all", "followers tell readers of committed records all", _followers_tell_all),
        ("snapshot-without-open", "snapshots forget open transactions", _snapshots_without),
        ("aborted-index-not-cut", "the aborted index is not cut with its log", _index_not_cut, _cut_markers),
        ("aborted-index-gaps", "some aborted transactions are not in the index", _no_entry),
        (
            "aborted-index-misplaced",
            "an entry lies where its transaction began",
            _entry_with_the_first_record,
        ),
        ("pending-offsets-unseen", "stable offsets are told beside pending ones", _pending_not_counted),
        ("offset-marker-at-append", "offsets count when their marker is appended", _offset_marker_at_append),
    )
]
