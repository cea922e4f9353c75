"""What a partition's leader knows and decides: progress of followers, ISR, waiting acks.

Rules (Kafka 4.3, `kafka.cluster.Partition` and `Replica`; KIP-497, 841, 903, 966):

* An *effective end* is the flushed offset when the topic's durability is fsync, else the
  written offset (in the page cache, as Kafka's log end is); the leader's own included.
* The high watermark is the lowest effective end over the *maximal* ISR: committed members
  plus pending additions, pending removals still counted, plus caught-up replicas about to
  join. It stands still below min ISR and never goes back.
* One ISR proposal is in flight per partition, checked by epoch at the controller. When its
  outcome is unknown it stays pending and is sent again; the controller's compare-and-set
  makes that harmless.

Ours: where min.insync.replicas holds without it, a replica on a full disk is not waited for (decision
0023). A member that lacks something leaves after FULL_LAG_MS, and joins again when it has taken what comes
for STEADY_MS, or has room.

Batches are pushed, not fetched, so Kafka's "caught up at the previous fetch" becomes a mark:
(time, log end then). A follower that reaches the mark was caught up at that time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from penstock_core.errors import CHECK_PARTITION, ErrorCode, InvariantBroken
from penstock_core.ids import NodeId
from penstock_core.metadata.image import PartitionImage
from penstock_storage_node.replication.acks import AckQueue
from penstock_storage_node.replication.effects import AckWaiter, Effects
from penstock_storage_node.replication.state import ReplicaState

PROPOSAL_HOLD_MS = 500
"""After a refusal, how long until the same thought may become a proposal again."""

FULL_LAG_MS = 500
"""How long a member on a full disk may lack something, where min.insync.replicas holds without it."""

STEADY_MS = 5_000
"""How long the session of a replica on a full disk must last before it joins: one that finds no space breaks it."""

UNKNOWN_OFFSET = -1
"""End of a follower that has not spoken to this leader yet."""


@dataclass(slots=True)
class FollowerProgress:
    """What the leader knows of one follower."""

    node_id: NodeId
    node_epoch: int = -1
    end_offset: int = UNKNOWN_OFFSET
    flushed_offset: int = UNKNOWN_OFFSET
    caught_up_ms: int = 0
    mark_ms: int = 0
    mark_offset: int = 0
    log_start_offset: int = UNKNOWN_OFFSET
    """As it is on its disk."""
    compared_from: int = 0
    """Our log start when its log was last found to be a prefix of ours: what lies before may be anything."""
    clean_from: int = 0
    """It began with an empty log when ours held nothing that tombstones below here were for."""
    steady_from_ms: int = 0
    """When its session began or, if that was later, when it left the ISR."""
    heard: bool = False
    """It has a session, and has spoken since it last left the ISR. One that has not may be
    dead or hung: it neither joins nor holds the high watermark back."""


@dataclass(slots=True)
class IsrProposal:
    """A change of the ISR that the controller must agree to."""

    isr: tuple[NodeId, ...]
    node_epochs: tuple[int, ...]
    """Epoch of each member as the leader knows it; -1 leaves that check out (KIP-903)."""
    partition_epoch: int
    recovered: bool = False
    in_flight: bool = False
    reason: str = ""
    """Why, for the history of the cluster."""
    lag_ms: int = 0
    """How long the worst of those that leave has lacked something."""
    behind_offset: int = -1
    """Effective end of the one that is furthest behind among those that leave; -1 where nobody leaves."""
    lag_bytes: int = 0
    """From there to the end of the log; known when it is sent."""


class Leadership:
    """One term of leading one partition. Ends when the leader epoch changes."""

    def __init__(
        self,
        state: ReplicaState,
        term: PartitionImage,
        *,
        epoch_start_offset: int,
        now_ms: int,
        lag_max_ms: int,
        eligible: Callable[[NodeId, int], bool],
        is_full: Callable[[NodeId], bool],
        effects: Effects,
    ) -> None:
        """`term`: what the metadata say of it. By the newest metadata, `eligible(node, node_epoch)`: may that
        node join an ISR; `is_full(node)`: has its disk no space left."""
        self._state = state
        self._effects = effects
        self._eligible = eligible
        self._is_full = is_full
        self._lag_max_ms = lag_max_ms
        self.epoch = term.leader_epoch
        self.epoch_start_offset = epoch_start_offset
        self.partition_epoch = term.partition_epoch
        self.isr = frozenset(term.isr)
        self.elr = frozenset(term.elr)
        self.recovering = term.recovering
        self.pending: IsrProposal | None = None
        self._hold_until_ms = 0
        self.followers: dict[NodeId, FollowerProgress] = {}
        self._acks_all = AckQueue()
        self._acks_one = AckQueue()
        self._acked_one_offset = -1
        """What acks=1 has promised: everything below."""
        self._set_replicas(term.replicas, now_ms)
        self._propose_recovered()
        self.advance(now_ms)

    # -- metadata -----------------------------------------------------------------

    def update(self, state: PartitionImage, now_ms: int) -> None:
        """Adopt a newer state of the same leader epoch; an older one changes nothing."""
        if state.partition_epoch <= self.partition_epoch:
            return
        self.partition_epoch = state.partition_epoch
        left, self.isr = self.isr.difference(state.isr), frozenset(state.isr)
        self.elr = frozenset(state.elr)
        for node in left:
            follower = self.followers.get(node)
            if follower is not None and follower.heard:
                follower.heard = False
                follower.steady_from_ms = now_ms
                # Whether it still lives shows by its next ack or, when there is nothing to
                # acknowledge, by a new session.
                if self._end_of(follower) >= self._state.log.log_end_offset:
                    self._effects.reopen.append((self._state, node))
        self.recovering = state.recovering
        # The controller moved on: whatever was proposed against the old epoch is decided.
        self.pending = None
        self._set_replicas(state.replicas, now_ms)
        self._propose_recovered()
        self.advance(now_ms)

    def _set_replicas(self, replicas: Iterable[NodeId], now_ms: int) -> None:
        log_end = self._state.log.log_end_offset
        wanted = [node for node in replicas if node != self._state.node_id]
        for node in wanted:
            if node not in self.followers:
                # Members of the ISR get the benefit of the doubt for one lag period.
                since_ms = now_ms if node in self.isr else now_ms - self._lag_max_ms - 1
                self.followers[node] = FollowerProgress(
                    node, caught_up_ms=since_ms, mark_ms=now_ms, mark_offset=log_end
                )
        for node in [node for node in self.followers if node not in wanted]:
            del self.followers[node]

    # -- produce ------------------------------------------------------------------

    @property
    def under_min_isr(self) -> bool:
        """Too few committed members for acks=all."""
        return len(self.isr) < self._state.settings.min_insync_replicas

    def on_append(self, old_end_offset: int, now_ms: int) -> None:
        """The leader has appended: followers that held everything until now were caught up."""
        log_end = self._state.log.log_end_offset
        for follower in self.followers.values():
            if self._end_of(follower) >= old_end_offset:
                follower.caught_up_ms = follower.mark_ms = now_ms
                follower.mark_offset = log_end

    def wait_all(self, required_offset: int, deadline_ms: int, waiter: AckWaiter) -> None:
        """acks=all: answered when the high watermark reaches `required_offset`."""
        if self._state.high_watermark >= required_offset:
            self._effects.answers.append((waiter, self._isr_verdict()))
        else:
            self._effects.waiting[self] = None
            self._acks_all.add(required_offset, deadline_ms, waiter)

    def wait_one(self, required_offset: int, deadline_ms: int, waiter: AckWaiter) -> None:
        """acks=1: answered when this node's own effective end reaches `required_offset`."""
        if self._state.effective_end_offset >= required_offset:
            self._acked_one_offset = max(self._acked_one_offset, required_offset)
            self._effects.answers.append((waiter, ErrorCode.NONE))
        else:
            self._effects.waiting[self] = None
            self._acks_one.add(required_offset, deadline_ms, waiter)

    @property
    def waiting_count(self) -> int:
        """Produce requests that wait."""
        return len(self._acks_all) + len(self._acks_one)

    def resign(self) -> None:
        """Leadership is over. What was appended may yet be kept by the next leader, so
        waiters hear "timed out" (maybe written), never "not leader" (not written)."""
        self._acks_all.fail_all(ErrorCode.REQUEST_TIMED_OUT, self._effects)
        self._acks_one.fail_all(ErrorCode.REQUEST_TIMED_OUT, self._effects)

    def _isr_verdict(self) -> ErrorCode:
        return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND if self.under_min_isr else ErrorCode.NONE

    # -- progress -----------------------------------------------------------------

    def on_local_progress(self, now_ms: int) -> None:
        """This node's own log was written or flushed further."""
        passed = self._acks_one.pass_offset(self._state.effective_end_offset, ErrorCode.NONE, self._effects)
        self._acked_one_offset = max(self._acked_one_offset, passed)
        self.advance(now_ms)

    def on_follower_open(
        self,
        node: NodeId,
        node_epoch: int,
        end_offset: int,
        flushed_offset: int,
        now_ms: int,
        *,
        is_empty: bool = False,
    ) -> None:
        """A follower's log was found to be a prefix of ours up to `end_offset`."""
        follower = self.followers[node]
        if is_empty:
            follower.clean_from = self._state.log.clean_until
        elif node_epoch != follower.node_epoch:
            follower.clean_from = 0
        follower.node_epoch = node_epoch
        follower.heard = True
        follower.steady_from_ms = now_ms
        # A new session may start lower than the last one ended (truncation).
        follower.end_offset = end_offset
        follower.flushed_offset = min(flushed_offset, end_offset)
        # What it has of that on its disk its acks will say.
        follower.log_start_offset = 0
        follower.compared_from = self._state.log.log_start_offset
        follower.mark_ms = now_ms
        follower.mark_offset = self._state.log.log_end_offset
        self._on_progress(follower, now_ms)

    def misses_tombstones(self, node: NodeId, node_epoch: int, offset: int) -> bool:
        """Whether a follower with a log up to `offset` may hold records of keys whose tombstones are gone from ours.

        Never one of the ISR or ELR: they have all that is committed, and compaction takes nothing else.
        """
        follower = self.followers.get(node)
        if follower is None or node in self.isr or node in self.elr:
            return False
        clean_from = follower.clean_from if node_epoch == follower.node_epoch else 0
        return self._state.log.tombstones_gone_below > max(offset, clean_from)

    def on_follower_closed(self, node: NodeId, now_ms: int) -> None:
        """A follower's session ended and no other took its place."""
        follower = self.followers.get(node)
        if follower is not None:
            follower.heard = False
            self.advance(now_ms)

    def on_follower_ack(self, node: NodeId, end_offset: int, flushed_offset: int, now_ms: int) -> None:
        """A follower has written up to `end_offset` and flushed up to `flushed_offset`."""
        follower = self.followers.get(node)
        if follower is None:
            return
        follower.heard = True
        follower.end_offset = end_offset
        follower.flushed_offset = min(flushed_offset, end_offset)
        self._on_progress(follower, now_ms)

    def on_follower_log_start(self, node: NodeId, offset: int) -> bool:
        """A follower has it on its disk that its log begins at `offset`. True when that is news."""
        follower = self.followers.get(node)
        if follower is None or follower.log_start_offset == offset:
            return False
        follower.log_start_offset = offset
        return True

    def low_watermark(self) -> int:
        """Least log start of this replica, the live followers (KIP-107), and those who may lead without
        having been fed once more, live or not; -1 while one is not known."""
        next_leaders = self.isr | self.elr
        starts = [
            f.log_start_offset
            for f in self.followers.values()
            if f.node_id in next_leaders or self._eligible(f.node_id, -1)
        ]
        return min([self._state.log.log_start_offset, *starts])

    def _on_progress(self, follower: FollowerProgress, now_ms: int) -> None:
        log_end = self._state.log.log_end_offset
        end = self._end_of(follower)
        if end >= follower.mark_offset:
            follower.caught_up_ms = max(follower.caught_up_ms, follower.mark_ms)
            follower.mark_ms, follower.mark_offset = now_ms, log_end
        if end >= log_end:
            follower.caught_up_ms = now_ms
        self.advance(now_ms)
        if follower.node_id not in self.isr:
            self._consider_expansion(follower, now_ms)

    def _end_of(self, follower: FollowerProgress) -> int:
        return follower.flushed_offset if self._state.fsync else follower.end_offset

    def _caught_up(self, follower: FollowerProgress, now_ms: int) -> bool:
        return self._lag_ms(follower, now_ms) <= self._lag_max_ms

    def _lag_ms(self, follower: FollowerProgress, now_ms: int) -> int:
        """For how long it has lacked something; 0 when it has everything."""
        if self._end_of(follower) >= self._state.log.log_end_offset:
            return 0
        return now_ms - follower.caught_up_ms

    def lags(self, now_ms: int) -> Iterator[tuple[NodeId, int, int]]:
        """Of each follower: its effective end and for how long it has lacked something, in ms."""
        for follower in self.followers.values():
            yield follower.node_id, self._end_of(follower), self._lag_ms(follower, now_ms)

    def _waits_for_room(self, follower: FollowerProgress, now_ms: int) -> bool:
        """Whether a replica outside the ISR must show first that it has room: a full disk has space for a little
        now and then, and each time that it joined with that, producers would wait for it anew."""
        is_steady = now_ms - follower.steady_from_ms >= STEADY_MS
        return not is_steady and not self.under_min_isr and self._is_full(follower.node_id)

    def advance(self, now_ms: int) -> None:
        """Raise the high watermark as far as the rules allow, and answer who waits for it."""
        if self._state.wants_fsync and not self._state.fsync and self._isr_has_flushed():
            self._state.fsync = True
        if self.under_min_isr:
            return
        lowest = self._state.effective_end_offset
        for follower in self.followers.values():
            end = self._end_of(follower)
            if end < lowest and self._is_waited_for(follower, now_ms):
                lowest = end
        if lowest > self._state.high_watermark:
            self._state.high_watermark = lowest
            self._effects.advanced[self._state] = None
            self._acks_all.pass_offset(lowest, ErrorCode.NONE, self._effects)

    def waits_for(self, node: NodeId, now_ms: int) -> bool:
        """Whether the high watermark, and with it every acks=all, waits for that follower."""
        follower = self.followers.get(node)
        return follower is not None and self._is_waited_for(follower, now_ms)

    def _is_waited_for(self, follower: FollowerProgress, now_ms: int) -> bool:
        return (
            follower.node_id in self.isr
            or (self.pending is not None and follower.node_id in self.pending.isr)
            or self._about_to_join(follower, now_ms)
        )

    def _isr_has_flushed(self) -> bool:
        """Whether every member, pending ones too, has flushed what was acknowledged without a flush."""
        high_watermark = self._state.high_watermark
        members = self.isr if self.pending is None else self.isr.union(self.pending.isr)
        return self._state.log.flushed_offset >= high_watermark and all(
            follower.flushed_offset >= high_watermark
            for follower in self.followers.values()
            if follower.node_id in members
        )

    def holders(self, required_offset: int) -> tuple[list[NodeId], list[NodeId]]:
        """Replicas known to hold everything below an offset, and those of them that have flushed it."""
        log, me = self._state.log, self._state.node_id
        ends = [(me, log.written_offset, log.flushed_offset)]
        ends += [(f.node_id, f.end_offset, f.flushed_offset) for f in self.followers.values()]
        return (
            sorted(node for node, end, _ in ends if end >= required_offset),
            sorted(node for node, _, flushed in ends if flushed >= required_offset),
        )

    def acked_unflushed(self) -> tuple[int, int]:
        """(from, to): offsets that were acknowledged in this term and are not flushed on as many
        disks as the ack speaks of: min ISR for acks=all, the leader's for acks=1. Empty: from = to."""
        log, start = self._state.log, self.epoch_start_offset
        flushed = sorted([log.flushed_offset, *(f.flushed_offset for f in self.followers.values())])
        needed = min(max(self._state.settings.min_insync_replicas, 1), len(flushed))
        spans = [
            (max(low, start), high)
            for low, high in (
                (flushed[-needed], self._state.high_watermark),
                (log.flushed_offset, self._acked_one_offset),
            )
            if max(low, start) < high
        ]
        return (min(low for low, _ in spans), max(high for _, high in spans)) if spans else (start, start)

    def _about_to_join(self, follower: FollowerProgress, now_ms: int) -> bool:
        if (
            not follower.heard
            or not self._caught_up(follower, now_ms)
            or self._waits_for_room(follower, now_ms)
        ):
            return False
        return self._eligible(follower.node_id, follower.node_epoch)

    def validate(self) -> None:
        """Raises InvariantBroken when this leader's books do not agree; for tests and the simulator."""
        state, pending = self._state, self.pending
        if state.node_id in self.followers:
            raise InvariantBroken(f"{state.name}: node {state.node_id} counts as its own follower")
        if pending is not None and pending.partition_epoch != self.partition_epoch:
            raise InvariantBroken(
                f"{state.name}: a proposal of partition epoch {pending.partition_epoch} is pending"
                f" in epoch {self.partition_epoch}"
            )
        for follower in self.followers.values():
            if follower.flushed_offset > follower.end_offset:
                raise InvariantBroken(
                    f"{state.name}: node {follower.node_id} has flushed {follower.flushed_offset},"
                    f" its log ends at {follower.end_offset}"
                )
        first = self._acks_all.first_required_offset
        if first is not None and first <= state.high_watermark:
            raise InvariantBroken(
                f"{state.name}: a producer waits for offset {first}, the high watermark is {state.high_watermark}"
            )

    # -- ISR ----------------------------------------------------------------------

    def expire(self, now_ms: int) -> None:
        """Often: answer waits whose time is up."""
        timed_out = (
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND if self.under_min_isr else ErrorCode.REQUEST_TIMED_OUT
        )
        self._acks_all.expire(now_ms, timed_out, self._effects)
        self._acks_one.expire(now_ms, ErrorCode.REQUEST_TIMED_OUT, self._effects)

    def tick(self, now_ms: int) -> None:
        """Once in a while: members that lag, joiners that were held up, waits."""
        self.expire(now_ms)
        if self.pending is None:
            self._consider_shrink(now_ms)
        if self.pending is None:
            for follower in self.followers.values():
                if follower.heard and follower.node_id not in self.isr:
                    self._consider_expansion(follower, now_ms)
        # A replica that was about to join and went quiet no longer holds the mark back.
        self.advance(now_ms)

    def _consider_shrink(self, now_ms: int) -> None:
        if now_ms < self._hold_until_ms:
            return
        end = self._state.log.log_end_offset
        for follower in self.followers.values():
            if self._end_of(follower) < end and follower.node_id in self.isr:
                break
        else:
            return
        members = [f for f in self.followers.values() if f.node_id in self.isr]
        lagging = [f.node_id for f in members if not self._caught_up(f, now_ms)]
        spare_count = len(self.isr) - len(lagging) - max(self._state.settings.min_insync_replicas, 1)
        if spare_count > 0:
            full = [
                f
                for f in members
                if f.node_id not in lagging
                and self._lag_ms(f, now_ms) > FULL_LAG_MS
                and self._is_full(f.node_id)
            ]
            full.sort(key=self._end_of)
            lagging += [f.node_id for f in full[:spare_count]]
        if lagging:
            self._effects.isr_shrink_count += 1
            self._propose(tuple(sorted(self.isr.difference(lagging))), reason=self._why_left(lagging))
            self._measure_lag([f for f in members if f.node_id in lagging], now_ms)

    def _why_left(self, lagging: list[NodeId]) -> str:
        names = "node" + ("s " if len(lagging) > 1 else " ") + ", ".join(str(n) for n in sorted(lagging))
        return f"{names} {'full' if all(self._is_full(n) for n in lagging) else 'lagging'}"

    def _measure_lag(self, leaving: list[FollowerProgress], now_ms: int) -> None:
        if self.pending is not None:
            self.pending.lag_ms = max(self._lag_ms(f, now_ms) for f in leaving)
            self.pending.behind_offset = min(self._end_of(f) for f in leaving)

    def _consider_expansion(self, follower: FollowerProgress, now_ms: int) -> None:
        if self.pending is not None or now_ms < self._hold_until_ms:
            return
        end = self._end_of(follower)
        if end < self._state.high_watermark or end < self.epoch_start_offset:
            return
        if follower.log_start_offset < follower.compared_from:
            return  # it may yet forget where its log begins, and lead with what lies before
        if self._waits_for_room(follower, now_ms):
            return
        if self._eligible(follower.node_id, follower.node_epoch):
            self._effects.isr_expand_count += 1
            self._propose(
                tuple(sorted({*self.isr, follower.node_id})), reason=f"node {follower.node_id} caught up"
            )

    def _propose(self, isr: tuple[NodeId, ...], *, reason: str, recovered: bool = False) -> None:
        epochs = tuple(self.followers[n].node_epoch if n in self.followers else -1 for n in isr)
        self.pending = IsrProposal(isr, epochs, self.partition_epoch, recovered, reason=reason)
        self._effects.proposals[self._state] = None

    def _propose_recovered(self) -> None:
        # Unclean election: the log of this node is now the partition's log, as it is.
        if self.recovering and self.pending is None:
            self._propose(tuple(sorted(self.isr)), reason="leader recovered", recovered=True)

    def take_proposal(self) -> IsrProposal | None:
        """The proposal to send now; None when there is none or it is on its way."""
        proposal = self.pending
        if proposal is None or proposal.in_flight:
            return None
        proposal.in_flight = True
        return proposal

    def on_proposal_refused(self, proposal: IsrProposal, error: ErrorCode, now_ms: int) -> None:
        """The controller said no. Where our state is stale, newer metadata is on its way and
        the proposal stays pending until it comes; else it is dropped and thought over again."""
        if self.pending is not proposal:
            return
        if error in _STALE:
            return
        self.pending = None
        self._hold_until_ms = now_ms + PROPOSAL_HOLD_MS

    def on_proposal_unknown(self, proposal: IsrProposal) -> None:
        """No answer: it may have taken effect, so it stays pending and goes out again."""
        if self.pending is proposal:
            proposal.in_flight = False
            self._effects.proposals[self._state] = None


_STALE = CHECK_PARTITION | {
    ErrorCode.INVALID_UPDATE_VERSION,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.NEW_LEADER_ELECTED,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.STALE_BROKER_EPOCH,
}
"""Refusals of a proposal after which newer metadata are on their way here."""
