"""Bugs, one at a time, in the running code: each must be found.

A bug is a handful of replaced methods or names, put in for a run and taken out again; no
switch in shipped code. Some leave a few settings no choice (five controllers, a network that
doubles frames), where most seeds could not show the bug at all.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import penstock_controller.quorum.transport as transport_module
import penstock_controller.state.elections as elections_module
import penstock_controller.state.nodes as nodes_module
import penstock_controller.state.partitions as partitions_module
from penstock_controller.quorum import journal_format
from penstock_controller.quorum.append_filter import Filtered
from penstock_controller.quorum.events import Outcome, Proposal
from penstock_controller.quorum.journal import DurableJournal
from penstock_controller.quorum.quorum import Quorum
from penstock_controller.quorum.raft import RaftNode
from penstock_controller.quorum.transport import PeerTransport
from penstock_core.ids import NO_NODE
from penstock_gateway.routing.retry_gate import RetryGate
from penstock_storage_node.cluster.registration import Registration
from penstock_storage_node.log.epochs import LeaderEpochs
from penstock_storage_node.log.jobs import WriteJob, WritePlan
from penstock_storage_node.log.log import PartitionLog
from penstock_storage_node.log.producer_replay import ProducerReplay
from penstock_storage_node.replication.following import Following, Truncation
from penstock_storage_node.replication.leadership import Leadership
from penstock_storage_node.replication.replica import PartitionReplica
from penstock_storage_node.replication.state import ReplicaState
from simulation import group_planted, planted_log, planted_operations, planted_rights, txn_planted
from simulation import planted_guards as guards
from simulation.settings import Settings

Patch = tuple[Any, str, Any]


@dataclass(frozen=True, slots=True)
class Bug:
    """`patches` are (owner, name, value); `prepare` narrows the settings."""

    name: str
    what: str
    patches: Callable[[], list[Patch]]
    prepare: Callable[[Settings], None] = lambda _: None


# --- the quorum -------------------------------------------------------------------------


def _no_prevote() -> list[Patch]:
    def stand(raft: Any) -> bool:
        return bool(raft.may_vote) and not raft.resigning

    return [(RaftNode, "_SyncObj__connectedToAnyone", stand)]


def _unsynced_journal() -> list[Patch]:
    def sync(journal: Any) -> None:
        if journal._pending:
            data = journal_format.block(journal._sequence, journal._pending)
            journal._files.write_all(journal._fd, data, journal._end)
            journal._end += len(data)
            journal._sequence += 1
            journal._pending = bytearray()

    return [(DurableJournal, "sync", sync)]


def _unsynced_vote() -> list[Patch]:
    store = DurableJournal._store_meta

    def store_once(journal: Any) -> None:
        if not journal._meta_path.exists():
            store(journal)

    return [(DurableJournal, "_store_meta", store_once)]


def _no_append_filter() -> list[Patch]:
    return [(transport_module, "filter_append", lambda message, _first, _log: Filtered(message, None))]


def _votes_counted_twice() -> list[Patch]:
    def take(transport: Any, node: Any, message: Any, term: int) -> None:
        if message["term"] == term:
            transport._onMessageReceived(node, message)

    return [(PeerTransport, "_on_vote", take)]


def _doubling(settings: Settings) -> None:
    # Of three, one vote is a majority with one's own.
    settings.controllers = 5
    settings.is_raft_tcp = False
    settings.network.duplicate_probability = 0.2
    settings.focus("quorum")


def _overtaking(settings: Settings) -> None:
    settings.is_raft_tcp = False
    settings.network.reorder_probability = 0.1
    settings.network.duplicate_probability = 0.1


def _journal_not_aligned() -> list[Patch]:
    return [(DurableJournal, "align", lambda *_: None)]


def _small_snapshots(settings: Settings) -> None:
    settings.snapshot_every = 8


def _wiped_votes() -> list[Patch]:
    return [(RaftNode, "not_voting_reason", property(lambda _: ""))]


def _questions(settings: Settings) -> None:
    settings.focus("quorum")


def _reads_without_barrier() -> list[Patch]:
    def barrier(quorum: Any, token: object) -> None:
        quorum._raft._deliver([Proposal(token, Outcome.APPLIED)])

    return [(Quorum, "barrier", barrier)]


# --- what controllers decide ------------------------------------------------------------------


def _leader_from_anywhere() -> list[Patch]:
    def elect(old: Any, rules: Any, target: Any, elr: Any, prefer_first: bool) -> tuple[Any, bool]:
        del target, elr, prefer_first
        if rules.active(old.leader):
            return old.leader, False
        return next((n for n in old.replicas if rules.active(n)), NO_NODE), False

    return [(partitions_module, "_elect", elect)]


def _fence_only_leaders() -> list[Patch]:
    change_partition = partitions_module.change_partition

    def change(old: Any, rules: Any, **kwargs: Any) -> Any:
        isr = kwargs.get("isr")
        if isr is not None and old.leader in isr and len(isr) < len(old.isr) and not kwargs.get("lost"):
            return None
        return change_partition(old, rules, **kwargs)

    return [(module, "change_partition", change) for module in (nodes_module, elections_module)]


def _everything_counts_as_lost() -> list[Patch]:
    def lost_by(_image: Any, _old: Any, request: Any) -> Any:
        return lambda _topic, _partition: not request.clean_shutdown

    return [(nodes_module, "_lost_by", lost_by)]


def _nothing_counts_as_lost() -> list[Patch]:
    return [(nodes_module, "_lost_by", lambda *_: lambda _topic, _partition: False)]


def _one_by_one(settings: Settings) -> None:
    # One loses what it had not flushed and comes back; soon the controllers hear of no other.
    settings.favoured = ("node power cut", "node power cut", "host cut off", "network in two halves")
    settings.fault_interval_us = 600_000


def _epoch_stays() -> list[Patch]:
    change_partition = partitions_module.change_partition

    def change(old: Any, rules: Any, **kwargs: Any) -> Any:
        new = change_partition(old, rules, **kwargs)
        if new is not None and new.leader != old.leader and new.leader != NO_NODE:
            new = replace(new, leader_epoch=old.leader_epoch)
        return new

    return [(module, "change_partition", change) for module in (nodes_module, elections_module)]


# --- replication ----------------------------------------------------------------------------------


def _watermark_one_too_far() -> list[Patch]:
    advance = Leadership.advance

    def too_far(leadership: Any, now_ms: int) -> None:
        advance(leadership, now_ms)
        state = leadership._state
        if state.high_watermark < state.log.log_end_offset and not leadership.under_min_isr:
            state.high_watermark += 1
            leadership._acks_all.pass_offset(state.high_watermark, 0, leadership._effects)

    return [(Leadership, "advance", too_far)]


def _watermark_without_isr() -> list[Patch]:
    def advance(leadership: Any, now_ms: int) -> None:
        del now_ms
        state = leadership._state
        ends = sorted(
            [state.effective_end_offset, *(leadership._end_of(f) for f in leadership.followers.values())]
        )
        # A majority of the replicas, whoever is in the ISR.
        lowest = ends[len(ends) // 2]
        if lowest > state.high_watermark:
            state.high_watermark = lowest
            leadership._effects.advanced[state] = None
            leadership._acks_all.pass_offset(lowest, 0, leadership._effects)

    return [(Leadership, "advance", advance)]


def _isr_counts_unflushed() -> list[Patch]:
    init = WriteJob.__init__

    def unflushed(job: Any, fs: Any, plan: WritePlan, checkpoints: Any) -> None:
        # A job of a durable log is written and flushed in one, and both offsets move together: the
        # rules above would have nothing to be wrong about. So it is flushed later, with the checkpoints.
        init(job, fs, replace(plan, fsync=False, is_marked=True), checkpoints)

    return [
        (WriteJob, "__init__", unflushed),
        (Leadership, "_end_of", lambda _, follower: follower.end_offset),
        (ReplicaState, "effective_end_offset", property(lambda s: s.log.written_offset)),
    ]


def _acked_at_append() -> list[Patch]:
    def wait_all(leadership: Any, required_offset: int, deadline_ms: int, waiter: Any) -> None:
        del required_offset, deadline_ms
        leadership._effects.answers.append((waiter, 0))

    return [(Leadership, "wait_all", wait_all)]


def _leader_shrinks_alone() -> list[Patch]:
    propose = Leadership._propose

    def at_once(leadership: Any, isr: Any, **kwargs: Any) -> None:
        propose(leadership, isr, **kwargs)
        leadership.isr = frozenset(isr)

    return [(Leadership, "_propose", at_once)]


def _zombie_not_fenced() -> list[Patch]:
    require = PartitionReplica.require_leader
    plan = PartitionReplica.plan

    def any_epoch(replica: Any, current_leader_epoch: int = -1) -> Any:
        del current_leader_epoch
        return require(replica)

    def deaf(replica: Any, state: Any, now_ms: int) -> Any:
        # A leader goes on leading whatever it hears.
        if replica.leadership is not None and state.leader != replica.node_id:
            state = replace(state, leader=replica.leader, leader_epoch=replica.leader_epoch)
        return plan(replica, state, now_ms)

    return [(PartitionReplica, "require_leader", any_epoch), (PartitionReplica, "plan", deaf)]


def _truncates_one_short() -> list[Patch]:
    on_diverging = Following.on_diverging

    def short(following: Any, epoch: int, leader_end_offset: int, gone_below: int = 0) -> Truncation:
        cut = on_diverging(following, epoch, leader_end_offset, gone_below)
        return Truncation(cut.offset - 1) if cut.offset > 0 and not cut.start_over else cut

    return [(Following, "on_diverging", short)]


def _truncates_too_little() -> list[Patch]:
    def own_end(following: Any, epoch: int, leader_end_offset: int, gone_below: int = 0) -> Truncation:
        del epoch, leader_end_offset, gone_below
        return Truncation(following._state.log.log_end_offset)

    def accept(replica: Any, node: Any, node_epoch: int, request: Any, now_ms: int) -> Any:
        # A leader that looks at the end alone, as before KIP-101.
        if request.fetch_offset <= replica.log.log_end_offset:
            request = replace(request, last_fetched_epoch=-1)
        return on_open(replica, node, node_epoch, request, now_ms)

    on_open = PartitionReplica.on_open
    return [(Following, "on_diverging", own_end), (PartitionReplica, "on_open", accept)]


def _epoch_end_off_by_one() -> list[Patch]:
    end_offset_for = LeaderEpochs.end_offset_for

    def one_more(epochs: Any, epoch: int, log_end_offset: int) -> tuple[int, int]:
        found, end = end_offset_for(epochs, epoch, log_end_offset)
        return found, end + 3 if found >= 0 else end

    return [(LeaderEpochs, "end_offset_for", one_more)]


# --- the log -------------------------------------------------------------------------------------------


def _producers_forgotten() -> list[Patch]:
    return [(ProducerReplay, "run", lambda *_, **__: None)]


def _flush_skipped() -> list[Patch]:
    return [(WriteJob, "sync", lambda job: job.release())]


def _alone(settings: Settings) -> None:
    settings.group_flush = False


def _checkpoint_too_high() -> list[Patch]:
    return [(PartitionLog, "checkpoint", lambda log: log.log_end_offset + 1)]


# --- the gateway -----------------------------------------------------------------------------------------


def _late_batch_overtakes() -> list[Patch]:
    return [
        (RetryGate, "turns_away", lambda *_: False),
        (RetryGate, "holds_back", lambda *_: False),
    ]


def _gap_of_a_new_leader() -> list[Patch]:
    return [(PartitionLog, "is_producer_new_since", lambda *_: False)]


def _gap_of_a_deposed_leader() -> list[Patch]:
    return [(Registration, "in_touch", lambda _: True)]


def _hopping(settings: Settings) -> None:
    # From a gateway that knows the new leader to one that knows the old one, and back.
    settings.gateways = 2
    settings.hop_probability = 0.2
    settings.favoured = ("network in two halves", "host cut off")
    settings.fault_interval_us = 600_000
    settings.producers, settings.produce_interval_us = 3, 300_000


def _straight_to_leaders(settings: Settings) -> None:
    # Leaders that are silent with a request of theirs, and few records in each.
    settings.direct_probability = 1.0
    settings.favoured = ("process stopped (SIGSTOP)", "host cut off", "host cut off, one way")
    settings.fault_interval_us = 600_000
    settings.producers, settings.produce_interval_us = 3, 300_000


BUGS = [
    Bug("no-prevote", "a controller stands without asking first", _no_prevote),
    Bug("journal-not-synced", "Raft entries are acknowledged before they are on disk", _unsynced_journal),
    Bug("vote-not-stored", "term and vote are not on disk when a vote leaves", _unsynced_vote),
    Bug(
        "no-append-filter",
        "an overtaken append deletes what it does not contradict",
        _no_append_filter,
        _overtaking,
    ),
    Bug("votes-counted-twice", "one voter's doubled vote counts twice", _votes_counted_twice, _doubling),
    Bug(
        "journal-not-aligned",
        "snapshot and journal part after a crash",
        _journal_not_aligned,
        _small_snapshots,
    ),
    Bug("wiped-controller-votes", "a controller with a new disk votes at once", _wiped_votes),
    Bug(
        "reads-without-barrier",
        "a controller answers without a committed no-op",
        _reads_without_barrier,
        _questions,
    ),
    Bug(
        "stale-controller-obeyed",
        "nodes and gateways obey a deposed controller",
        guards.stale_controllers_obeyed,
        guards.long_reigns,
    ),
    Bug(
        "stale-command-applies",
        "metadata commands are not compare-and-set",
        guards.base_version_ignored,
        guards.impatient,
    ),
    Bug(
        "damaged-journal-loaded",
        "checksums of journal, term and vote are not compared",
        guards.damaged_journal_loaded,
        guards.rotting,
    ),
    Bug(
        "damaged-snapshot-loaded",
        "checksums of a controller's snapshot are not compared",
        guards.damaged_snapshot_loaded,
        guards.rotting,
    ),
    Bug("leader-from-anywhere", "a leader is elected outside ISR and ELR", _leader_from_anywhere),
    Bug("fence-only-leaders", "fencing leaves the node in the ISRs of others", _fence_only_leaders),
    Bug("coming-back-too-strict", "every unclean stop counts as lost data", _everything_counts_as_lost),
    Bug(
        "coming-back-too-lax",
        "no replica ever counts as having lost data",
        _nothing_counts_as_lost,
        _one_by_one,
    ),
    Bug("elr-forgotten", "who leaves a too small ISR may never lead", guards.elr_forgotten),
    Bug("elr-takes-anybody", "every replica is in the ELR", guards.elr_takes_anybody, guards.one_left),
    Bug(
        "acked-below-min-isr",
        "min.insync.replicas holds nothing up",
        guards.acked_below_min_isr,
        guards.one_left,
    ),
    Bug("leader-epoch-stays", "a new leader gets the old leader's epoch", _epoch_stays),
    Bug("watermark-off-by-one", "the high watermark is one too high", _watermark_one_too_far),
    Bug(
        "watermark-by-majority", "the high watermark moves without members of the ISR", _watermark_without_isr
    ),
    Bug(
        "isr-counts-unflushed",
        "ISR and watermark look at written, not flushed offsets",
        _isr_counts_unflushed,
    ),
    Bug("acked-at-append", "acks=all is answered when the leader has appended", _acked_at_append),
    Bug("leader-shrinks-alone", "a leader takes members out of its ISR unasked", _leader_shrinks_alone),
    Bug("zombie-not-fenced", "a deposed leader goes on, and epochs are not checked", _zombie_not_fenced),
    Bug("truncates-one-more", "a follower cuts one offset too deep", _truncates_one_short),
    Bug("no-truncation", "a follower's log is not compared by epoch", _truncates_too_little),
    Bug("epoch-end-off-by-some", "the end of a leader epoch is given too high", _epoch_end_off_by_one),
    Bug("producers-forgotten", "producer state is not rebuilt from the log", _producers_forgotten),
    Bug("flush-skipped", "a commit returns without its flush", _flush_skipped, _alone),
    Bug(
        "failed-flush-retried",
        "a flush that failed is tried again as if its data were still there",
        guards.failed_flush_retried,
        guards.failing_flushes,
    ),
    Bug(
        "bits-not-compared",
        "batches that come from the disk are not compared with their CRC",
        guards.bits_not_compared,
        guards.forgetting_disks,
    ),
    Bug(
        "damage-not-marked",
        "the start after damage was seen does not look for it",
        guards.damage_not_marked,
        guards.forgetting_disks,
    ),
    Bug(
        "damage-not-reported",
        "a log that was cut below its recovery point counts as whole",
        guards.damage_not_reported,
        guards.forgetting_disks,
    ),
    Bug(
        "staged-bytes-leak",
        "what a deleted log had staged is counted for ever",
        guards.staged_bytes_leak,
    ),
    Bug(
        "pieces-not-compared",
        "pieces of a large batch that come in the wrong order are appended all the same",
        guards.pieces_not_compared,
        guards.many_pieces,
    ),
    Bug("checkpoint-too-high", "the recovery point passes what is flushed", _checkpoint_too_high),
    Bug("late-batch-overtakes", "the gateway sends a later batch past one answered 7", _late_batch_overtakes),
    Bug(
        "deposed-leader-judges",
        "a node that may be deposed calls batches out of order",
        _gap_of_a_deposed_leader,
        _hopping,
    ),
    Bug(
        "new-leader-judges",
        "a new leader calls batches out of order, or takes them, while earlier ones are out to the one before it",
        _gap_of_a_new_leader,
        _straight_to_leaders,
    ),
]
BUGS += [Bug(*row) for row in planted_log.ROWS]
BUGS += [Bug(*row) for row in group_planted.ROWS]
BUGS += [Bug(*row) for row in txn_planted.ROWS]
BUGS += [Bug(*row) for row in planted_rights.ROWS]
BUGS += [Bug(*row) for row in planted_operations.ROWS]
BY_NAME = {bug.name: bug for bug in BUGS}


@contextmanager
def planted(name: str | None, *, control: bool = False) -> Iterator[None]:
    """Run with that bug in the code; `control`: with its settings alone."""
    if not name:
        yield
        return
    bug = BY_NAME[name]
    draw = Settings.draw

    def drawn(rng: Any) -> Settings:
        settings = draw(rng)
        bug.prepare(settings)
        return settings

    saved: list[Patch] = []
    try:
        patches = [] if control else bug.patches()
        for owner, attribute, value in [*patches, (Settings, "draw", staticmethod(drawn))]:
            if not hasattr(owner, attribute):
                raise LookupError(f"planted bug {name}: {owner} has no {attribute}; it would break nothing")
            saved.append((owner, attribute, vars(owner).get(attribute)))
            setattr(owner, attribute, value)
        yield
    finally:
        for owner, attribute, value in reversed(saved):
            if value is None:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, value)


@dataclass(slots=True)
class Found:
    """What became of one planted bug."""

    name: str
    what: str
    seeds: int
    invariant: str
    seed: int
    seconds: float


_ROTTEN = re.compile(r"\b(AttributeError|NameError|TypeError): .*")
"""In what a failed seed says: what was planted is not what it says, but a call that is made otherwise by now."""


def hunt(bug: Bug, most: int, jobs: int, first: int = 1) -> Found:
    """Seeds until the first that fails."""
    from simulation.report import quiet, run_one

    started = time.monotonic()
    with planted(bug.name):
        context = multiprocessing.get_context("fork")
        with context.Pool(jobs, initializer=quiet) as pool:
            seeds = range(first, first + most)
            for number, result in enumerate(pool.imap(run_one, seeds, chunksize=1), 1):
                if fault := _ROTTEN.search(result.violation):
                    raise LookupError(f"planted bug {bug.name} does not fit the code any more: {fault[0]}")
                if not result.ok and _is_of_the_bug(bug, result.seed):
                    pool.terminate()
                    seconds = time.monotonic() - started
                    return Found(bug.name, bug.what, number, result.invariant, result.seed, seconds)
    return Found(bug.name, bug.what, most, "", 0, time.monotonic() - started)


def _is_of_the_bug(bug: Bug, seed: int) -> bool:
    """Whether the seed holds with the bug's settings and without the bug."""
    command = [sys.executable, "-m", "simulation", "--seed", str(seed), "--control", bug.name]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def run_planted(arguments: argparse.Namespace) -> int:
    """The table of `make simulate-planted`."""
    from simulation.report import cores, write_json

    wanted = BUGS if arguments.planted == "all" else [BY_NAME[name] for name in arguments.planted.split()]
    rows = []
    print("| planted bug | what is broken | seeds to first hit | caught by | seed |")
    print("|---|---|---|---|---|", flush=True)
    for bug in wanted:
        try:
            found = hunt(bug, arguments.most, arguments.jobs or cores(), arguments.first)
        except LookupError as error:
            print(error, file=sys.stderr, flush=True)
            found = Found(bug.name, bug.what, 0, "", 0, 0.0)
        rows.append(found)
        hit = str(found.seeds) if found.invariant else f"not in {found.seeds}"
        print(f"| {bug.name} | {bug.what} | {hit} | {found.invariant} | {found.seed or ''} |", flush=True)
    if arguments.json:
        data = [[r.name, r.what, r.seeds, r.invariant, r.seed, round(r.seconds, 1)] for r in rows]
        write_json(arguments.json, {"planted": data})
    missed = [r.name for r in rows if not r.invariant]
    if missed:
        print(f"not found: {', '.join(missed)}")
    return 1 if missed else 0
