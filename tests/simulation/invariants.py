"""What must be true after every event, and the truth that it is held against.

Everything is checked where it changes, in the very step that changes it: an append, a cut, a
watermark, an election, an applied command. So each check costs a few comparisons, and the
step that breaks an invariant is the one that the seed's replay stops at.

The truth of a partition is what leaders have declared committed (their high watermark), in
order. It only ever grows. A leader must hold all of it when it begins; a follower's watermark
must lie within it; what a consumer reads must be it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from penstock_core.config.topic import TopicConfig
from penstock_core.ids import NO_NODE, NodeId, TopicId, TopicPartition
from penstock_core.metadata import MetadataImage, PartitionImage
from penstock_proto.v1 import metadata_pb2 as pb
from simulation.log_checks import LogChecks
from simulation.operation_checks import OperationChecks

if TYPE_CHECKING:
    from simulation.checked import CheckedLog, CheckedReplica
    from simulation.txn_checks import TxnChecker
    from simulation.world import World


QUIET_US = 5_000_000
"""Whoever was left alone for that long is in contact with whoever else was."""


class Violation(AssertionError):
    """An invariant does not hold. `name` is the invariant."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class Entry(NamedTuple):
    """One batch as it stands in a log."""

    base: int
    last: int
    epoch: int
    crc: int
    producer: tuple[int, int, int]
    """Producer id, epoch, base sequence."""


@dataclass(slots=True)
class Truth:
    """What is committed in one partition."""

    key: TopicPartition
    is_fsync: bool
    entries: list[Entry] = field(default_factory=list)
    bases: list[int] = field(default_factory=list)
    end: int = 0
    committed_by: list[int] = field(default_factory=list)
    """Epoch of the leader that declared each entry committed."""
    leaders: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Leader epoch -> (node, boot)."""
    starts: dict[int, int] = field(default_factory=dict)
    """Leader epoch -> where that leader's log ended when it began."""
    values: set[int] = field(default_factory=set)
    sequences: set[tuple[int, int, int]] = field(default_factory=set)
    acked: dict[int, int] = field(default_factory=dict)
    """Base offset -> CRC of batches whose ack a client has read."""
    was_cut: bool = False
    """A replica of it lost power: what it had not flushed may be gone there."""
    on_entry: Callable[[Entry], None] | None = None
    """Told of each entry that is committed."""
    excused: bool = False
    """Its promise ended: durability `replicated`, and power cuts took every copy."""


class Checker:
    """All invariants of one run."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.truths: dict[TopicPartition, Truth] = {}
        self.batch_values: dict[tuple[int, tuple[int, int, int]], range] = {}
        """(CRC, producer) of a batch -> the numbers of its records."""
        self.images: dict[int, MetadataImage] = {0: MetadataImage()}
        self.commands: dict[int, int] = {}
        self.raft_log: dict[int, tuple[int, int, int]] = {}
        """Committed Raft entries: index -> (term, CRC, term of the leader that committed it)."""
        self.raft_commit = 1
        self.raft_leaders: dict[int, int] = {}
        self.rafts: dict[int, Any] = {}
        """By controller: the RaftNode that ran last."""
        self.last_raft_leader = ""
        self.answered_version = 0
        self.elections = self.truncations = self.isr_changes = self.leader_changes = 0
        self.unclean_elections = 0
        self.acked_count = 0
        self.on_commit: Callable[[], None] | None = None
        """Called once, when a leader commits records of a durable topic."""
        self.logs = LogChecks(self)
        self.operations = OperationChecks(self)
        self.transactions: TxnChecker | None = None

    def fail(self, name: str, message: str) -> None:
        raise_violation(self.world, name, message)

    # --- logs ----------------------------------------------------------------------------

    def truth(self, key: TopicPartition) -> Truth:
        found = self.truths.get(key)
        if found is None:
            found = self.truths[key] = Truth(key, self._is_fsync(key))
        return found

    def _is_fsync(self, key: TopicPartition) -> bool:
        image = self.images[max(self.images)]
        topic = image.topics.get(key.topic_id)
        if topic is None:
            return True
        return TopicConfig.from_config(image.config("topic", topic.name), 3).is_fsync

    def on_log(self, log: CheckedLog) -> None:
        """Offsets of a log changed."""
        start, end = log.log_start_offset, log.log_end_offset
        # A log start may pass what is written: a follower is told it while it catches up.
        if not (log.flushed_offset <= log.written_offset <= end and start <= end):
            self.fail(
                "offsets in order",
                f"{log}: start {start} flushed {log.flushed_offset} written {log.written_offset} end {end}",
            )
        if log.is_tracked:
            self.logs.on_start(log)

    def on_append(self, log: CheckedLog, entry: Entry) -> None:
        """A log took a batch. Where its leader epochs begin is what followers are told to cut by."""
        found = log.epoch_at(entry.base)
        if found != entry.epoch:
            self.fail("batches under their leader epoch", f"{log}: {entry} stands under epoch {found}")

    def _matches(self, log: CheckedLog, upto: int, who: str) -> None:
        """The log agrees with the truth below `upto`, which lies within the truth."""
        truth = self.truth(TopicPartition(log.topic_id, log.partition))
        shadow, bases = log.shadow, truth.bases
        at = log.verified
        while at < len(shadow) and shadow[at].base < upto:
            entry = shadow[at]
            if entry.last < log.log_start_offset:
                at += 1  # nobody can read it: a leader compares followers from its own log start on
                continue
            index = bisect_left(bases, entry.base)
            expected = truth.entries[index] if index < len(bases) else None
            if expected != entry and (expected is None or not self.logs.is_left_of(truth, expected, entry)):
                if truth.excused:
                    return
                self.fail(
                    "same bytes at the same offset", f"{log} on {who}: {entry}, committed is {expected}"
                )
            at += 1
        log.verified = at

    def on_lead(self, replica: CheckedReplica, boot: int) -> None:
        """A replica begins to lead."""
        log, key = replica.checked_log, replica.key
        truth = self.truth(key)
        me = (int(replica.node_id), boot)
        known = truth.leaders.setdefault(int(replica.leader_epoch), me)
        if known != me:
            self.fail(
                "one leader per epoch",
                f"{replica.name} epoch {replica.leader_epoch}: node {known[0]} (boot {known[1]}) leads,"
                f" and node {me[0]} (boot {me[1]})",
            )
        self.leader_changes += 1
        epoch = int(replica.leader_epoch)
        truth.starts.setdefault(epoch, log.log_end_offset)
        # A leader that begins late may be deposed already: what its successors committed is theirs.
        needed = truth.end
        if truth.leaders and max(truth.leaders) > epoch:
            at = len(truth.entries)
            while at and truth.committed_by[at - 1] >= epoch:
                at -= 1
            needed = truth.entries[at - 1].last + 1 if at else 0
        if truth.excused:
            if needed == truth.end:
                self._retract(truth, log)
            return
        if log.log_end_offset < needed:
            self.fail(
                "no acked record lost",
                f"{replica.name}: node {replica.node_id} leads epoch {epoch} with a log up to "
                f"{log.log_end_offset}, committed up to {needed}",
            )
        self._matches(log, needed, f"leader {replica.node_id}")
        self._check_epochs(log, truth, needed, f"leader {replica.node_id}")
        self.logs.on_lead(replica, truth, needed)

    def _check_epochs(self, log: CheckedLog, truth: Truth, upto: int, who: str) -> None:
        """A leader knows where every epoch of committed records began, those that compaction took included:
        followers are cut by it."""
        entries = dict(log.epoch_entries())
        first = min(entries, default=0)
        for entry in truth.entries:
            if entry.epoch <= first or entry.base >= upto or entry.last < log.log_start_offset:
                continue
            start, found = truth.starts[entry.epoch], entries.get(entry.epoch)
            # A leader whose log begins inside the epoch knows no more than that, nor do its followers.
            if found is None or max(found, log.log_start_offset) != max(start, log.log_start_offset):
                self.fail(
                    "epochs begin where their leader began",
                    f"{log} on {who}: epoch {entry.epoch} at {found}, it began at {start}",
                )

    def _retract(self, truth: Truth, log: CheckedLog) -> None:
        """Start again from what an excused leader has."""
        same = 0
        for mine, entry in zip(truth.entries, log.shadow, strict=False):
            if mine != entry:
                break
            same += 1
        del truth.entries[same:], truth.bases[same:], truth.committed_by[same:]
        truth.end = truth.entries[-1].last + 1 if truth.entries else 0
        truth.values = set()
        truth.sequences = set()
        for entry in truth.entries:
            truth.values.update(self.batch_values.get((entry.crc, entry.producer), ()))
        log.verified = same

    def on_watermark(self, replica: CheckedReplica, old: int, new: int) -> None:
        """A replica moved its high watermark."""
        log = replica.checked_log
        truth = self.truth(replica.key)
        who = f"{replica.name} on node {replica.node_id}"
        if new > log.log_end_offset:
            self.fail("watermark within the log", f"{who}: {new}, the log ends at {log.log_end_offset}")
        if new < old and replica.watermark_epoch == replica.leader_epoch and not replica.is_cut:
            self.fail("watermark monotonic", f"{who}: from {old} to {new} in epoch {replica.leader_epoch}")
        replica.watermark_epoch = replica.leader_epoch
        if replica.leader == replica.node_id:
            if new > truth.end:
                self._commit(truth, replica, new)
            else:
                self._matches(log, new, who)
        elif new > truth.end and not truth.excused:
            self.fail("watermark within what is committed", f"{who}: {new}, committed up to {truth.end}")
        else:
            self._matches(log, new, who)
        if self.transactions is not None:
            self.transactions.on_watermark(replica, new)

    def _commit(self, truth: Truth, replica: CheckedReplica, upto: int) -> None:
        log = replica.checked_log
        self._matches(log, truth.end, f"leader {replica.node_id}")
        epoch = int(replica.leader_epoch)
        for later, start in truth.starts.items():
            # Acks may reach a deposed leader late; what they commit, its successors must have.
            if later > epoch and start < upto and not truth.excused:
                self.fail(
                    "no acked record lost",
                    f"{replica.name}: node {replica.node_id} of epoch {epoch} commits up to {upto},"
                    f" the leader of epoch {later} began with a log up to {start}",
                )
        for entry in log.shadow[log.verified :]:
            if entry.last >= upto:
                break
            if entry.base != truth.end:
                self.fail("no gap", f"{replica.name}: {entry} follows {truth.end}")
            self._check_once(truth, entry, replica.name)
            truth.entries.append(entry)
            truth.bases.append(entry.base)
            truth.committed_by.append(epoch)
            truth.end = entry.last + 1
            log.verified += 1
            self.logs.on_commit(truth, entry)
            if truth.on_entry is not None:
                truth.on_entry(entry)
            if self.transactions is not None:
                self.transactions.on_commit(truth, entry)
        self.world.scheduler.note(truth.end, int(replica.node_id), int(replica.leader_epoch))
        if self.on_commit is not None and truth.is_fsync:
            call, self.on_commit = self.on_commit, None
            call()

    def _check_once(self, truth: Truth, entry: Entry, name: str) -> None:
        if entry.producer[0] < 0 or entry.producer[2] < 0 or truth.excused:
            return  # of nobody, a marker, or offsets of a transaction
        values = self.batch_values.get((entry.crc, entry.producer))
        if values is None:
            self.fail("only what was sent", f"{name}: {entry} was never sent")
            return
        is_known = entry.producer in truth.sequences or not truth.values.isdisjoint(values)
        if is_known and not self.logs.may_forget(truth.key):
            self.fail("idempotence", f"{name}: records {values} of {entry} are committed twice")
        truth.sequences.add(entry.producer)
        truth.values.update(values)

    def on_cut(self, replica: CheckedReplica) -> None:
        """A follower was told to cut its log."""
        self.truncations += 1
        truth = self.truth(replica.key)
        log = replica.checked_log
        # A log that held nothing yet may begin lower: where the leader's start lies inside a batch. And one of
        # a compacted topic ends behind a gap after a cut: what was there may have been committed, and is gone.
        # What lies before its start now was deleted everywhere else while it was away.
        lost_from = max(log.first_cut, log.log_start_offset)
        if lost_from < replica.high_watermark and not truth.excused:
            state = self.images[max(self.images)].partition(*replica.key)
            is_counted_on = state is None or replica.node_id in {*state.isr, *state.elr}
            if not is_counted_on and self.logs.may_be_cut(log):
                return
            self.fail(
                "committed data never retracts",
                f"{replica.name} on node {replica.node_id}: cut to {log.log_end_offset},"
                f" high watermark {replica.high_watermark}",
            )

    # --- clients -------------------------------------------------------------------------------

    def on_ack(self, key: TopicPartition, base_offset: int, crc: int, producer: tuple[int, int, int]) -> None:
        """A client has read that its batch is acknowledged by all."""
        truth = self.truth(key)
        self.acked_count += 1
        if truth.excused or not self._exists(key):
            return
        index = bisect_left(truth.bases, base_offset)
        found = truth.entries[index] if index < len(truth.bases) else None
        if found is None or found.base != base_offset or found.crc != crc or found.producer != producer:
            self.fail(
                "no acked record lost",
                f"{key.partition}: acked at {base_offset} (producer {producer}), committed there is {found}",
            )
        truth.acked[base_offset] = crc

    def on_implied_ack(self, key: TopicPartition, producer: tuple[int, int, int], values: range) -> None:
        """A client takes a batch for written, since a later one of its sequence is acknowledged."""
        truth = self.truth(key)
        self.acked_count += 1
        if not truth.excused and self._exists(key) and not truth.values.issuperset(values):
            self.fail(
                "no acked record lost",
                f"{key.partition}: records {values} (producer {producer}) are not committed,"
                " those after them are acknowledged",
            )

    def on_epoch_raised(self, key: TopicPartition, why: str) -> None:
        """An idempotent producer was answered what makes it send all again, as if nothing had been written.

        It sends in order, so a gap in its sequence means that something is lost here, or that a later
        batch got past one that was answered with a failure: neither may happen.
        """
        if self._exists(key) and not self.truth(key).excused and not self.logs.may_forget(key):
            self.fail("idempotence", f"{key.partition}: {why}")

    def _exists(self, key: TopicPartition) -> bool:
        return key.topic_id in self.images[max(self.images)].topics

    def on_read(self, key: TopicPartition, entry: Entry) -> None:
        """A consumer has read a batch."""
        truth = self.truth(key)
        if truth.excused:
            return
        index = bisect_left(truth.bases, entry.base)
        found = truth.entries[index] if index < len(truth.bases) else None
        if found != entry and (found is None or not self.logs.is_left_of(truth, found, entry)):
            self.fail("readers see what is committed", f"{key}: read {entry}, committed is {found}")

    def excuse(self, key: TopicPartition) -> None:
        """The promise for this partition is over."""
        self.truth(key).excused = True

    # --- metadata --------------------------------------------------------------------------------

    def on_applied(self, who: str, image: MetadataImage, records: list[pb.MetadataRecord], crc: int) -> None:
        """A controller applied the command that made `image`."""
        version = image.version
        known = self.commands.get(version)
        if known is not None:
            if known != crc:
                self.fail("one metadata history", f"{who} applies another command as version {version}")
            return
        before = self.images.get(version - 1)
        if before is None:
            self.fail("one metadata history", f"{who} applies version {version} before {version - 1}")
            return
        self.commands[version] = crc
        self.images[version] = image
        self.world.scheduler.note(version, crc)
        # A command may change a partition more than once.
        changed: dict[TopicPartition, PartitionImage] = {}
        changes: list[tuple[PartitionImage, PartitionImage]] = []
        for record in records:
            kind = record.WhichOneof("record")
            if kind == "partition":
                new = PartitionImage.from_pb(record.partition)
                old = changed.get(new.key) or before.partition(*new.key)
                changed[new.key] = new
                if old is not None and old != new:
                    changes.append((old, new))
                    self._check_change(f"{new.topic_id.hex()[:6]}-{new.partition}", old, new)
            elif kind == "node" and record.node.fenced:
                self._check_fenced(image, NodeId(record.node.node_id))
            elif kind == "topic_removed":
                topic_id = TopicId(record.topic_removed.topic_id)
                for key in [k for k in self.truths if k.topic_id == topic_id]:
                    self.truths[key].excused = True
        self.operations.on_applied(before, image, records, changes)
        for key, state in changed.items():
            self._check_state(image, key)
            self.world.excuse_without_copy(key, state)

    def _check_state(self, image: MetadataImage, key: TopicPartition) -> None:
        state = image.partition(*key)
        if state is None:
            return
        if not set(state.isr) <= set(state.replicas) or len(set(state.isr)) != len(state.isr):
            self.fail("ISR within the assignment", f"{state}")
        if state.leader != NO_NODE:
            node = image.nodes.get(state.leader)
            if state.leader not in state.isr or node is None or node.fenced:
                self.fail("leader in the ISR and up", f"{state}")
        for member in state.isr:
            node = image.nodes.get(member)
            if node is None or node.fenced:
                self.fail("no fenced node in an ISR", f"{member} in {state}")

    def _check_change(self, name: str, old: PartitionImage, new: PartitionImage) -> None:
        if new.partition_epoch <= old.partition_epoch:
            self.fail("partition epoch rises", f"{name}: {old.partition_epoch} -> {new.partition_epoch}")
        if set(new.isr) != set(old.isr):
            self.isr_changes += 1
        if new.leader == old.leader:
            return
        if new.leader_epoch <= old.leader_epoch:
            self.fail("leader epoch rises", f"{name}: {old} -> {new}")
        if new.leader != NO_NODE:
            self._check_election(name, old, new)

    def _check_election(self, name: str, old: PartitionImage, new: PartitionImage) -> None:
        self.elections += 1
        if new.recovering and not old.recovering:
            self.unclean_elections += 1
            if self.truth(new.key).is_fsync:
                self.fail("no unclean election of a durable partition", f"{name}: {old} -> {new}")
        elif new.recovering or new.leader in old.isr or new.leader in old.elr:
            return
        elif not (old.isr and {*old.isr} & {*new.replicas} < {*new.isr}):
            # But for a member that its leader, about to stop or to be replaced, has just let in.
            self.fail("leader from ISR or ELR", f"{name}: {old} -> {new}")

    def _check_fenced(self, image: MetadataImage, node_id: NodeId) -> None:
        for topic in image.topics.values():
            for partition in topic.partitions.values():
                if node_id in partition.isr or partition.leader == node_id:
                    self.fail("no fenced node in an ISR", f"{topic.name}: {partition}")

    def on_reset(self, who: str, image: MetadataImage) -> None:
        """A controller took a snapshot."""
        known = self.images.get(image.version)
        if known is None or known != image:
            self.fail(
                "one metadata history", f"{who} takes a snapshot of version {image.version} that never was"
            )

    def on_node_image(self, who: str, image: MetadataImage) -> None:
        """A node or gateway has a new image."""
        known = self.images.get(image.version)
        if known is None or (known is not image and known != image):
            self.fail("one metadata history", f"{who} follows version {image.version} that never was")
        self.operations.goals.on_image(who, image)

    def on_answer(self, used_version: int, floor: int, version: int) -> None:
        """The active controller answers a request that it took when `floor` had been answered."""
        if used_version < floor:
            self.fail(
                "metadata linearizable",
                f"an answer from version {used_version}, {floor} was answered before it was asked",
            )
        self.answered_version = max(self.answered_version, version)

    def on_order(self, who: str, term: int, heard_term: int) -> None:
        """A node obeys a controller of `term`, and has heard of one of `heard_term`."""
        if 0 < term < heard_term:
            self.fail(
                "deposed controllers are not obeyed", f"{who} obeys term {term}, it knows of {heard_term}"
            )

    # --- Raft --------------------------------------------------------------------------------------

    def on_tick(self, process: Any) -> None:
        """A controller's tick ended."""
        raft = process.raft
        commit = raft.raftCommitIndex
        if commit > process.seen_commit:
            self._on_commit(process, raft, commit)
        if raft._isLeader():
            term = raft.raftCurrentTerm
            if process.seen_term != term:
                process.seen_term = term
                self._on_raft_leader(process, raft, term)
        elif process.seen_term:
            process.seen_term = 0

    def _on_raft_leader(self, process: Any, raft: Any, term: int) -> None:
        self.world.counts["raft elections"] += 1
        known = self.raft_leaders.setdefault(term, process.controller_id)
        if known != process.controller_id:
            self.fail(
                "one Raft leader per term", f"term {term}: controllers {known} and {process.controller_id}"
            )
        self._check_unseated(process, term)
        me = str(process.controller_id)
        votes = sum(j is None or j._term > term or (j._term, j._vote) == (term, me) for j in self._journals())
        if 2 * votes <= len(self.world.controller_ids):
            self.fail(
                "a Raft leader has a majority's votes",
                f"controller {me} leads term {term} with {votes} of {len(self.world.controller_ids)} votes",
            )
        entries = raft.journal.entries
        first, last = entries[0][1], entries[-1][1]
        for index in range(max(first, 2), self.raft_commit + 1):
            known_entry = self.raft_log.get(index)
            if known_entry is None or known_entry[2] > term:
                # Raft promises it to leaders of later terms. One of an earlier term may learn of its
                # votes only now, when a later leader has committed already: it can commit nothing.
                continue
            if index > last or entries[index - first][2] != known_entry[0]:
                self.fail(
                    "no committed command lost",
                    f"controller {process.controller_id} leads term {term} without committed entry {index}",
                )

    def _journals(self) -> list[Any]:
        """The log of each controller, as it was when it last ran; None where it may have had any other:
        its disk was lost."""
        hosts = self.world.host_of
        return [
            None if hosts[f"c{i}"].is_wiped or (raft := self.rafts.get(i)) is None else raft.journal
            for i in self.world.controller_ids
        ]

    def _check_majority(self, who: int, index: int, term: int) -> None:
        holders = 0
        for journal in self._journals():
            if journal is None:
                holders += 1
                continue
            entries = journal.entries
            at = index - entries[0][1]
            # Before its first entry there is a snapshot.
            holders += at < 0 or (at < len(entries) and entries[at][2] == term)
        if 2 * holders <= len(self.world.controller_ids):
            self.fail(
                "what is committed is on a majority",
                f"controller {who} commits entry {index} of term {term}, which {holders} of"
                f" {len(self.world.controller_ids)} have",
            )

    def on_controller_end(self, name: str) -> None:
        """A controller's process is gone; when it comes back it leads no more."""
        if self.last_raft_leader == name:
            self.last_raft_leader = ""

    def _check_unseated(self, process: Any, term: int) -> None:
        """A leader that a majority hears stays, whatever happens to the rest."""
        world = self.world
        old, self.last_raft_leader = self.last_raft_leader, process.name
        if not old or old == process.name or not world.is_raft_tcp:
            return
        quiet_since_us = world.scheduler.now_us - QUIET_US
        quiet = {
            f"c{i}"
            for i in world.controller_ids
            if world.network.disturbed_us.get(f"c{i}", 0) < quiet_since_us
            and f"c{i}" != process.name
            # One that has been down or stopped for long is left alone too, and hears nobody (seed 2623).
            and world.host_of[f"c{i}"].is_running
        }
        # A block that began long ago is none of what has just happened, but they do not hear each other.
        if any(source in quiet and target in quiet for source, target in world.network.blocked):
            return
        if old in quiet and len(quiet) > len(world.controller_ids) // 2:
            self.fail(
                "a healthy leader stays",
                f"{process.name} leads term {term}, though nothing had happened to {sorted(quiet)}, led by {old}",
            )

    def _on_commit(self, process: Any, raft: Any, commit: int) -> None:
        entries = raft.journal.entries
        first = entries[0][1]
        for index in range(max(process.seen_commit + 1, first), min(commit, entries[-1][1]) + 1):
            command, _, term = entries[index - first]
            mine = (term, crc32(command))
            known = self.raft_log.get(index)
            if known is None:
                self.raft_log[index] = (*mine, raft.raftCurrentTerm)
                self._check_majority(process.controller_id, index, term)
            elif known[:2] != mine:
                self.fail(
                    "one Raft log",
                    f"controller {process.controller_id} commits {mine} at {index}, committed is {known[:2]}",
                )
            self.raft_commit = max(self.raft_commit, index)
        process.seen_commit = commit


def raise_violation(world: World, name: str, message: str) -> None:
    """Report once; the run stops after this event."""
    if world.violation is None:
        world.violation = Violation(name, message)
        world.scheduler.is_stopped = True
    raise world.violation
