"""What must be true of transactions, and the ledger that it is held against.

The ledger is what is committed in `__transaction_state`: a decision counts when the high watermark of its partition
covers the record. The coordinator's records are noted as it appends them, and taken in when the watermark passes them;
batches of transactions and markers are noted as leaders append them, each with what the ledger said at that moment,
and judged when they are committed. So each check says which record broke it.

* Of `__transaction_state`: states follow one another as they may; the epochs of an id never fall; a producer id
  belongs to one id; a transaction is complete only when each of its partitions has its marker.
* A batch of a transaction is committed only where the ledger had, when it was appended, an open transaction with that
  producer id and epoch and that partition; and never behind the transaction's marker.
* A marker says what was decided of the transaction that it ends, and is not written before that is committed.
* The last stable offset of each replica is what the committed batches and markers give, at every watermark.
* Readers of committed records get those of committed transactions, and no others; once.
* A group's coordinator lets offsets of a transaction count once the watermark covers their marker.
* What a producer was told is so; where a new one begins is where the last committed transaction ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock_core.errors import ErrorCode
from penstock_core.ids import TopicPartition
from penstock_core.topics import OFFSETS_TOPIC
from penstock_kafka.records.batch import BatchInfo, Buffer, read_header
from penstock_kafka.records.markers import Marker, read_marker
from penstock_kafka.records.read import read_records
from penstock_storage_node.coordinator_host import CoordinatorLog
from penstock_storage_node.groups import records as group_records
from penstock_storage_node.groups.host import GroupHost
from penstock_storage_node.log.reader import AbortedJob
from penstock_storage_node.replica.partition import Partition
from penstock_storage_node.transactions.effects import TopicPartitionName
from penstock_storage_node.transactions.host import TransactionHost
from penstock_storage_node.transactions.records import (
    StateRecord,
    Status,
    TransactionValue,
    read_key,
    read_value,
)

if TYPE_CHECKING:
    from simulation.checked import CheckedLog, CheckedReplica
    from simulation.invariants import Entry, Truth
    from simulation.transactions import Transactions
    from simulation.txn_clients import Attempt, TxnProducer
    from simulation.world import World

_checker: TxnChecker | None = None


def install(checker: TxnChecker | None) -> None:
    """Whom the classes below tell, for one run."""
    global _checker
    _checker = checker


_REST = frozenset({Status.EMPTY, Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT})
_BEFORE = {
    Status.EMPTY: _REST,
    Status.ONGOING: _REST | {Status.ONGOING},
    Status.PREPARE_COMMIT: frozenset({Status.ONGOING}),
    Status.PREPARE_ABORT: _REST | {Status.ONGOING},
    Status.COMPLETE_COMMIT: frozenset({Status.PREPARE_COMMIT}),
    Status.COMPLETE_ABORT: frozenset({Status.PREPARE_ABORT}),
}


class Output(NamedTuple):
    """A record of a transform."""

    name: str
    """The transactional id."""
    number: int
    """Of the input."""
    key: TopicPartition


@dataclass(slots=True, eq=False)
class Ledgered:
    """One transaction, as the ledger has it."""

    name: str
    number: int
    producer_id: int
    epoch: int
    """Of its batches."""
    partitions: frozenset[TopicPartitionName]
    commits: bool | None = None
    """None: it is not decided."""
    marker_epoch: int = -1
    is_complete: bool = False
    position: int = -1
    """The input that it commits as its group's next one; -1: none so far."""

    def __str__(self) -> str:
        end = {None: "open", True: "committed", False: "aborted"}[self.commits]
        return f"transaction {self.number} of {self.name} ({self.producer_id}, epoch {self.epoch}, {end})"


@dataclass(slots=True)
class _Id:
    value: TransactionValue | None = None
    """What its last committed record says."""
    current: Ledgered | None = None
    """The last transaction that began."""
    count: int = 0
    position: int = 0
    """The next input, by its committed transactions."""


@dataclass(slots=True)
class _Span:
    """A transaction in one partition."""

    of: Ledgered
    first: int
    marker: int = -1
    """-1: it has none."""


@dataclass(slots=True)
class _Batch:
    """A batch of a transaction as a leader has appended it."""

    producer_id: int
    of: Ledgered | None
    fault: str
    position: int = -1


@dataclass(slots=True)
class _Marker:
    producer_id: int
    epoch: int
    commits: bool


@dataclass(slots=True)
class _Part:
    """What is committed of transactions in one partition."""

    spans: list[_Span] = field(default_factory=list)
    open: dict[int, _Span] = field(default_factory=dict)
    marked: set[Ledgered] = field(default_factory=set)

    def stable(self, high_watermark: int) -> int:
        """The last stable offset at that watermark."""
        firsts = [
            s.first for s in self.spans if s.first < high_watermark and not 0 <= s.marker < high_watermark
        ]
        return min(firsts, default=high_watermark)


class TxnChecker:
    """All transactions of one run."""

    def __init__(self, world: World, transactions: Transactions) -> None:
        self.world = world
        self._transactions = transactions
        self.ids: dict[str, _Id] = {}
        self.owners: dict[int, str] = {}
        """Transactional id of each producer id."""
        self.parts: dict[TopicPartition, _Part] = {}
        self.outputs: dict[int, Output] = {}
        """Each record that was ever sent."""
        self.seen: dict[TopicPartition, list[int]] = {}
        """Numbers of the records that a reader of committed ones got, in their order."""
        self._states: dict[tuple[TopicPartition, int, int], tuple[StateRecord, ...]] = {}
        self._appended: dict[tuple[TopicPartition, int, int, int], _Batch | _Marker] = {}

    def fail(self, name: str, message: str) -> None:
        self.world.checker.fail(name, message)

    # --- the ledger

    def on_state(self, key: TopicPartition, epoch: int, base: int, records: Sequence[StateRecord]) -> None:
        """A coordinator appended records."""
        self._states[key, epoch, base] = tuple(records)

    def _take(self, record: StateRecord) -> None:
        name = read_key(record.key)
        assert name is not None
        known = self.ids.setdefault(name, _Id())
        value = None if record.value is None else read_value(record.value)
        before = known.value
        if value is None or value == before:
            # An id that nobody uses goes; and a sentence is preceded by a record that says what is said.
            if value is None and before is not None and before.status not in _REST:
                self.fail("states follow one another", f"{name} goes while it is {before.status.name}")
            known.value = value
            return
        self._check_value(name, before, value)
        known.value = value
        current = known.current
        if value.status is Status.ONGOING:
            if before is not None and before.status is Status.ONGOING and current is not None:
                if not current.partitions <= value.partitions:
                    self.fail("states follow one another", f"{current} loses partitions")
                current.partitions = value.partitions
            else:
                self._begin(name, known, value, value.producer_epoch)
        elif value.status.is_decided:
            if before is None or before.status is not Status.ONGOING or current is None:
                current = self._begin(name, known, value, value.producer_epoch)
            elif value.partitions != current.partitions:
                self.fail("states follow one another", f"{current} is ended with other partitions")
            current.commits = value.status is Status.PREPARE_COMMIT
            current.marker_epoch = value.producer_epoch
            if current.commits and current.position >= 0:
                known.position = current.position
        elif value.status is not Status.EMPTY and current is not None:
            self._complete(current)

    def _begin(self, name: str, known: _Id, value: TransactionValue, epoch: int) -> Ledgered:
        known.count += 1
        known.current = Ledgered(name, known.count, value.producer_id, epoch, value.partitions)
        self.world.counts["transactions in the ledger"] += 1
        return known.current

    def _check_value(self, name: str, before: TransactionValue | None, value: TransactionValue) -> None:
        if before is not None and before.status not in _BEFORE[value.status]:
            self.fail("states follow one another", f"{name}: {value.status.name} after {before.status.name}")
        owner = self.owners.setdefault(value.producer_id, name)
        if owner != name:
            self.fail("a producer id has one owner", f"{value.producer_id} is of {owner} and of {name}")
        if before is None:
            return
        if value.producer_id == before.producer_id:
            if value.producer_epoch < before.producer_epoch:
                self.fail(
                    "epochs never fall", f"{name}: {value.producer_epoch} after {before.producer_epoch}"
                )
            rest = value.status is Status.EMPTY and before.status in _REST
            same = before.producer_epoch == value.producer_epoch
            if not same and value.producer_epoch != before.producer_epoch + 1 and not rest:
                self.fail(
                    "the epoch rises by one", f"{name}: {value.producer_epoch} after {before.producer_epoch}"
                )

    def _complete(self, current: Ledgered) -> None:
        current.is_complete = True
        for partition in current.partitions:
            key = self.key_of(partition)
            part = None if key is None or self.world.checker.truth(key).excused else self.parts.get(key)
            span = None if part is None else part.open.get(current.producer_id)
            if span is not None and span.of is current:
                self.fail(
                    "complete once all markers are written",
                    f"{current} is complete, {partition.topic}-{partition.partition} lacks its marker",
                )

    def key_of(self, partition: TopicPartitionName) -> TopicPartition | None:
        """The partition that has that name now."""
        image = self.world.checker.images[max(self.world.checker.images)]
        topic = image.topic(partition.topic)
        return None if topic is None else TopicPartition(topic.topic_id, partition.partition)

    # --- batches and markers

    def before_marker(self, log: CheckedLog, producer_id: int, epoch: int, marker: Marker) -> None:
        """A leader is about to append a marker."""
        current = self._current(producer_id)
        if current is None or current.commits is not None:
            return
        name = TopicPartitionName(log.topic, log.partition)
        entry = log.producer(producer_id)
        is_open = entry is not None and entry.transaction_first_offset >= 0
        if name in current.partitions and (epoch > current.epoch or (is_open and epoch == current.epoch)):
            if not self._leads_newest(log):
                self.world.counts["markers at deposed leaders"] += 1
                return
            self.fail(
                "no marker before its decision",
                f"{log}: a marker of epoch {epoch}, commits={marker.commits}; {current}",
            )

    def _leads_newest(self, log: CheckedLog) -> bool:
        leaders = self.world.checker.truth(log.key).leaders
        epoch = -1 if log.replica is None else int(log.replica.leader_epoch)
        return not leaders or max(leaders) <= epoch

    def _current(self, producer_id: int) -> Ledgered | None:
        name = self.owners.get(producer_id)
        return None if name is None else self.ids[name].current

    def on_append(self, log: CheckedLog, entry: Entry, batch: Buffer, info: BatchInfo) -> None:
        """A leader appended a batch of a transaction, or a marker."""
        place = (log.key, entry.epoch, entry.base, entry.crc)
        if info.is_control:
            marker = read_marker(batch, info)
            assert marker is not None
            self._appended[place] = _Marker(info.producer_id, info.producer_epoch, marker.commits)
            return
        current = self._current(info.producer_id)
        name = TopicPartitionName(log.topic, log.partition)
        fault = ""
        if current is None or (current.producer_id, current.epoch) != (info.producer_id, info.producer_epoch):
            fault = f"the ledger has {current}"
        elif name not in current.partitions:
            fault = f"{current} does not have that partition"
        elif current.is_complete:
            fault = f"{current} is complete"
        self._appended[place] = _Batch(info.producer_id, current, fault, self._position_in(log, batch))

    def _position_in(self, log: CheckedLog, batch: Buffer) -> int:
        """The input that a batch of offsets commits."""
        if log.topic != OFFSETS_TOPIC:
            return -1
        for record in read_records(bytes(batch), read_header(batch)):
            if record.value is not None:
                return int(group_records.read_offset(record.value).offset)
        return -1

    def on_commit(self, truth: Truth, entry: Entry) -> None:
        """The high watermark passed a batch, at its leader."""
        states = self._states.get((truth.key, entry.epoch, entry.base))
        if states is not None:
            for record in states:
                self._take(record)
            return
        found = self._appended.get((truth.key, entry.epoch, entry.base, entry.crc))
        if found is None:
            return
        part = self.parts.setdefault(truth.key, _Part())
        if isinstance(found, _Marker):
            self._commit_marker(part, truth, entry, found)
        else:
            self._commit_batch(part, truth, entry, found)

    def _commit_batch(self, part: _Part, truth: Truth, entry: Entry, batch: _Batch) -> None:
        where = f"partition {truth.key.partition} of {self._topic(truth.key)}, offset {entry.base}"
        if batch.fault or batch.of is None:
            self.fail(
                "batches of open transactions alone",
                f"{where}: producer {batch.producer_id}, epoch {entry.producer[1]}: {batch.fault}",
            )
            return
        if batch.of in part.marked:
            self.fail("nothing of a transaction after its marker", f"{where}: {batch.of}")
        span = part.open.get(batch.producer_id)
        if span is None:
            span = part.open[batch.producer_id] = _Span(batch.of, entry.base)
            part.spans.append(span)
        elif span.of is not batch.of:
            self.fail("one transaction after the other", f"{where}: {batch.of} begins inside {span.of}")
        if batch.position >= 0:
            batch.of.position = batch.position
            if batch.of.commits:
                self.ids[batch.of.name].position = batch.position

    def _commit_marker(self, part: _Part, truth: Truth, entry: Entry, marker: _Marker) -> None:
        span = part.open.pop(marker.producer_id, None)
        if span is None:
            self.world.counts["markers that end nothing"] += 1
            return
        of = span.of
        span.marker = entry.base
        part.marked.add(of)
        if of.commits is not marker.commits or of.marker_epoch != marker.epoch:
            self.fail(
                "markers say what was decided",
                f"partition {truth.key.partition} of {self._topic(truth.key)}, offset {entry.base}: epoch "
                f"{marker.epoch}, commits={marker.commits}; {of} has markers of epoch {of.marker_epoch}",
            )

    def _topic(self, key: TopicPartition) -> str:
        return self.world.workload.names.get(key.topic_id, key.topic_id.hex()[:6])

    # --- the last stable offset

    def on_watermark(self, replica: CheckedReplica, high_watermark: int) -> None:
        """A replica has a new watermark."""
        part = self.parts.get(replica.key)
        if part is None or replica.is_cut or self.world.checker.truth(replica.key).excused:
            return
        log = replica.checked_log
        if log.damage is not None:  # it lacks a marker and has said so; `rot` sees that it gets mended
            return
        wanted = max(part.stable(high_watermark), log.log_start_offset)
        found = log.last_stable_offset(high_watermark)
        if found != wanted:
            self.fail(
                "the last stable offset is the first undecided one",
                f"{replica.name} on node {replica.node_id}: {found} at watermark {high_watermark}, not {wanted}",
            )

    # --- readers

    def on_read(self, key: TopicPartition, entry: Entry, *, is_visible: bool) -> None:
        """A reader of committed records got a batch of a transaction, or passed over one by what it was told."""
        found = self._appended.get((key, entry.epoch, entry.base, entry.crc))
        if not isinstance(found, _Batch) or found.of is None:
            return
        if is_visible and found.of.commits is not True:
            self.fail(
                "readers see what was committed",
                f"partition {key.partition} of {self._topic(key)}, offset {entry.base}: read, of {found.of}",
            )
        if not is_visible and found.of.commits is not False:
            self.fail(
                "readers see all that was committed",
                f"partition {key.partition} of {self._topic(key)}, offset {entry.base}: passed over, of {found.of}",
            )

    def on_stable(self, key: TopicPartition, told: int) -> None:
        """A reader was told a last stable offset."""
        truth, part = self.world.checker.truth(key), self.parts.get(key)
        highest = truth.end if part is None else part.stable(truth.end)
        if told > highest and not truth.excused:
            self.fail(
                "readers stay below what is undecided",
                f"partition {key.partition} of {self._topic(key)}: told {told}, stable is {highest}",
            )

    def on_value(self, key: TopicPartition, value: int) -> None:
        """A reader of committed records sees a record."""
        self.seen.setdefault(key, []).append(value)

    # --- producers

    def committed_position(self, name: str) -> int:
        """The next input of an id, as far as it is committed."""
        known = self.ids.get(name)
        return 0 if known is None else known.position

    def on_position(self, producer: TxnProducer, known: int, found: int) -> None:
        """A producer was told where its group is; `known`: where it was, for sure, when it asked."""
        newest = self.committed_position(producer.slot.transactional_id)
        if not known <= found <= newest:
            self.fail(
                "offsets count with their transaction",
                f"{producer.name} begins at {found}; committed when it asked {known}, now {newest}",
            )

    def on_offsets_end(self, partition: Partition, producer_id: int, offset: int) -> None:
        """A group's coordinator lets offsets of a transaction count, or go: nobody hears what a lost marker says."""
        high_watermark = partition.replica.high_watermark
        if offset >= high_watermark:
            self.fail(
                "offsets count once their marker is committed",
                f"{partition.name}: a marker of producer {producer_id} at {offset}, watermark {high_watermark}",
            )

    def on_told(self, producer: TxnProducer, attempt: Attempt) -> None:
        """A producer knows that its transaction is committed, or aborted."""
        position = self.committed_position(producer.slot.transactional_id)
        if attempt.outcome == "committed" and position < attempt.last_input:
            self.fail(
                "nobody hears a decision before it is committed",
                f"{producer.name} has committed up to {attempt.last_input}, the ledger says {position}",
            )

    # --- the end

    def at_rest(self, log: CheckedLog) -> None:
        """A replica's aborted index has the transactions that were aborted."""
        part = self.parts.get(log.key)
        if part is None or self.world.checker.truth(log.key).excused:
            return
        rows = log.aborted_between(log.log_start_offset, log.log_end_offset)
        if isinstance(rows, AbortedJob):
            rows = rows.run()
        found = sorted((row.producer_id, row.first_offset, row.last_offset) for row in rows)
        wanted = sorted(
            (s.of.producer_id, s.first, s.marker)
            for s in part.spans
            if s.of.commits is False and s.marker >= log.log_start_offset
        )
        if found != wanted:
            differs = sorted(set(found) ^ set(wanted))[:3]
            self.fail("the aborted index is right", f"{log} on {log.host}: {differs}: {found}, {wanted}")

    def why_open(self) -> str:
        """What is not ended, "" for nothing."""
        for name, known in self.ids.items():
            if known.value is not None and known.value.status not in _REST:
                return f"transactional id {name} is {known.value.status.name}"
        for key, part in self.parts.items():
            if self.world.checker.truth(key).excused:
                continue
            for span in part.open.values():
                return f"{span.of} hangs in partition {key.partition} of {self._topic(key)}"
        return ""

    def compare_outputs(self) -> None:
        """What producers know of their transactions is so, and each input is in the output once."""
        image = self.world.checker.images[max(self.world.checker.images)]
        gone = {value for value, output in self.outputs.items() if output.key.topic_id not in image.topics}
        visible = {
            value for key, values in self.seen.items() if key.topic_id in image.topics for value in values
        }
        for slot in self._transactions.slots:
            for attempt in slot.attempts:
                self._compare_attempt(attempt, attempt.sent - gone, visible)
            self._compare_inputs(slot.transactional_id, gone, visible)

    def _compare_attempt(self, attempt: Attempt, sent: set[int], visible: set[int]) -> None:
        here = sent & visible
        if attempt.outcome == "committed" and here != sent:
            self.fail("committed is whole", f"{attempt.producer}: {sorted(sent - here)} are not there")
        if here and (attempt.outcome == "aborted" or attempt.tried_to != "commit"):
            self.fail("aborted is gone", f"{attempt.producer}: {sorted(here)} are there")
        if here and here != sent:
            self.fail("no torn transaction", f"{attempt.producer}: {len(here)} of {len(sent)} are there")

    def _compare_inputs(self, name: str, gone: set[int], visible: set[int]) -> None:
        found = Counter(o.number for v, o in self.outputs.items() if o.name == name and v in visible)
        lost = {o.number for v, o in self.outputs.items() if o.name == name and v in gone}
        wanted = set(range(self.committed_position(name)))
        doubled = sorted(number for number, count in found.items() if count > 1)
        missing = sorted(wanted - found.keys() - lost)
        beyond = sorted(found.keys() - wanted)
        if doubled or missing or beyond:
            self.fail(
                "each input once",
                f"{name}: doubled {doubled[:5]}, missing {missing[:5]}, not committed {beyond[:5]}",
            )


# --- the shipped classes with an observer ---------------------------------------------------------


class CheckedStateLog(CoordinatorLog):
    """A coordinator's log; each batch is noted."""

    def append(self, records: Sequence[Any], done: Callable[[ErrorCode], None]) -> int:
        base_offset = super().append(records, done)
        assert _checker is not None
        _checker.on_state(self._partition.key, int(self._leadership.epoch), base_offset, records)
        return base_offset


class CheckedTransactionHost(TransactionHost):
    """The transaction coordinators of a node."""

    log_class = CheckedStateLog


class CheckedOffsetsHost(GroupHost):
    """The group coordinators of a node: offsets of transactions count when their marker does."""

    def on_marker(self, partition: Partition, producer_id: int, offset: int, *, commits: bool) -> None:
        if _checker is not None and partition.replica.topic == OFFSETS_TOPIC:
            _checker.on_offsets_end(partition, producer_id, offset)
        super().on_marker(partition, producer_id, offset, commits=commits)
