"""PySyncObj's SyncObj, corrected from outside. Why each hook is there:

| hook | stock behaviour that it mends |
|---|---|
| `__getEntries` | a message holds any number of small entries; here ENTRIES_SENT_MAX |
| `__connectedToAnyone` | no pre-vote: a resumed follower unseats a healthy leader |
| `__generateRaftTimeout` | a lost election waits a whole silence timeout; here 150-300 ms |
| `__doApplyCommand` | unpickles, and repeats one that raises; here `Machine.apply`, which never raises |
| `__loadDumpFile` | only logs damage and clears the journal; here all was checked before |
| `__sendAppendEntries` | a snapshot chunk that has to wait is asked for in a busy loop; nobody ever is at rest |
| `__applyLogEntries` | all that is committed is applied in one turn; here about 1 ms of it |
| `_checkCommandsToApply` | a leader that hands over goes on appending |
| `__onBecomeLeader` | the no-op of a new leader counts before it is synced |

Names are private to PySyncObj and pinned (`pysyncobj_pins`). Ticks come from `Quorum`'s thread.

Joining (a controller that lost its disk): the log names the directory that was admitted, and a
peer that remembers another one for this controller id says so in its hello (`identity`). Until both
agree with ours, this controller neither votes nor stands, else two controllers could elect a leader
without acknowledged entries; nor does what it acknowledges count.

Everything that depends on time, chance or the network comes in through the constructor
or through `pysyncobj.syncobj.monotonicTime` and `.random`, so a simulation can own it.
"""

# ruff: noqa: N802, N803 - names are those of the base class
from __future__ import annotations

import queue
import random
from collections.abc import Callable
from typing import Any

from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf
from pysyncobj.syncobj import _COMMAND_TYPE, _RAFT_STATE

from penstock_controller.quorum import pysyncobj_pins
from penstock_controller.quorum.commands import NUMBER_END
from penstock_controller.quorum.events import (
    Outcome,
    PeerSaid,
    Proposal,
    QuorumConfig,
    QuorumEvent,
    QuorumStatus,
    Reset,
)
from penstock_controller.quorum.identity import PeerMemory
from penstock_controller.quorum.journal import DurableJournal
from penstock_controller.quorum.journal_format import Entry
from penstock_controller.quorum.machine import Machine
from penstock_controller.quorum.messages import ENTRIES_SENT_MAX, Message
from penstock_controller.quorum.peer_connection import REAL_NETWORK, PeerNetwork
from penstock_controller.quorum.prevote import PreVote, would_vote
from penstock_controller.quorum.raft_port import PeerNode
from penstock_controller.quorum.snapshot import Chunk, SnapshotStore
from penstock_controller.quorum.snapshot_format import Snapshot
from penstock_controller.quorum.transport import PeerTransport
from penstock_core.failpoints import hit

_BATCH_BYTES = 8 * 1024 * 1024
_FIRST_ELECTION_S = (0.02, 0.12)
_NEXT_ELECTION_S = (0.15, 0.3)
_NEVER_S = 1e9
APPLY_SLICE_S = 0.001
"""Committed entries are applied for this long in a turn; the rest waits for the next one."""
ENTRIES_KEPT = 2
"""Log entries that stay when a snapshot takes the place of all before it."""
JOURNAL_BYTES_MAX = 64 * 1024 * 1024
"""A journal beyond this gets a snapshot however few commands it holds."""


class _SystemRandomness(random.Random):
    """Spreads elections; looks `random` up at each call, where a test may have put its own."""

    def random(self) -> float:
        return random.random()  # noqa: S311

    def uniform(self, a: float, b: float) -> float:
        return random.uniform(a, b)  # noqa: S311


class RaftNode(SyncObj):  # type: ignore[misc]
    """One quorum member. Every method but `propose` and `barrier` belongs to the tick thread."""

    def __init__(
        self,
        config: QuorumConfig,
        journal: DurableJournal,
        store: SnapshotStore,
        snapshot: Snapshot | None,
        machine: Machine,
        memory: PeerMemory,
        deliver: Callable[[list[QuorumEvent]], None],
        on_bad_frame: Callable[[str], None] | None = None,
        *,
        clock_s: Callable[[], float] | None = None,
        rng: random.Random | None = None,
        network: PeerNetwork = REAL_NETWORK,
    ) -> None:
        self.clock_s = clock_s = clock_s or pysyncobj_pins.clock_s
        self.rng = rng or _SystemRandomness()
        self.majority_heard_at = clock_s()
        """On the leader: when a majority, itself included, was last in contact."""
        self.config = config
        self.journal = journal
        self.machine = machine
        self.transport: PeerTransport
        self._store = store
        self._snapshot = snapshot
        self._memory = memory
        self._deliver = deliver
        self._outbox: list[QuorumEvent] = []
        self._said: dict[int, PeerSaid] = {}
        self._greeted_early: set[int] = set()
        """Peers whose last hello was of before we had joined."""
        self._status = QuorumStatus()
        self._standing = False
        self.elections = 0
        """In which this controller stood."""
        self._waiting_for_chunk: set[PeerNode] = set()
        self.resigning = False
        """This controller is stopping: it still votes, but stands no more."""
        nodes = {
            p.controller_id: PeerNode(p) for p in config.peers if p.controller_id != config.controller_id
        }
        me = next(p for p in config.peers if p.controller_id == config.controller_id)
        self._alone = not nodes
        self._prevote = PreVote(len(nodes), self.rng.random)

        def make_transport(raft: RaftNode, _me: PeerNode, _others: set[PeerNode]) -> PeerTransport:
            self.transport = PeerTransport(raft, config, nodes, on_bad_frame, network)
            return self.transport

        super().__init__(
            PeerNode(me),
            list(nodes.values()),
            _syncobj_conf(config, journal, store, self._on_state),
            transportClass=make_transport,
        )
        pysyncobj_pins.check_instance(self)
        store.connect(
            may_begin=lambda: not machine.is_between_parts,
            may_send=self.transport.is_idle,
        )
        self._SyncObj__raftElectionDeadline = clock_s() + (
            self.rng.uniform(*_FIRST_ELECTION_S) if nodes else 0.0
        )
        self.addOnTickCallback(self._on_before_poll)

    # --- from any thread -----------------------------------------------------------------

    def propose(self, command: bytes, token: object) -> None:
        """Append `command` if this controller leads; a Proposal event tells what became of it."""
        self._applyCommand(command, self._finisher(token), _COMMAND_TYPE.REGULAR)

    def barrier(self, token: object) -> None:
        """Commit a no-op: once it is applied, this controller was still the leader."""
        self._applyCommand(b"", self._finisher(token), _COMMAND_TYPE.NO_OP)

    def wake(self) -> None:
        """End the turn that waits for the network."""
        self._SyncObj__pipeNotifier.notify()

    # --- the tick --------------------------------------------------------------------------

    def tick(self) -> None:
        """One turn: count commits, apply, send, sync, wait for the network."""
        self.journal.sync()
        self._store.begin_turn()
        self.doTick(self._wait_s())

    def _wait_s(self) -> float:
        leads = self._isLeader()
        if self.raftCommitIndex > self.raftLastApplied:
            # Applying goes on in the next slice; the network gets its turn in between.
            return 0.0
        due_at = self._SyncObj__newAppendEntriesTime if leads else self._SyncObj__raftElectionDeadline
        return poll_wait_s(
            self.config,
            is_settled=self.leader_id >= 0 and not self.resigning,
            is_linked=self.transport.is_complete,
            leads=leads,
            left_s=due_at - self.clock_s(),
        )

    def _on_before_poll(self) -> None:
        self.journal.sync()
        if self._alone and self.journal.entries[-1][1] > self.raftCommitIndex:
            # Nobody will answer: what was just synced can be counted at once.
            self._SyncObj__pipeNotifier.notify()
        self.transport.housekeeping()
        self._install_received()
        if self.journal.bytes_on_disk > JOURNAL_BYTES_MAX and not self.journal.is_cutting:
            self.forceLogCompaction()
        self._forget_what_a_lower_level_cannot_read()
        self._note_majority()
        self._post_status()
        self._flush()

    def _forget_what_a_lower_level_cannot_read(self) -> None:
        """A snapshot takes the place of entries of before the level fell. It keeps the last two entries it holds: those
        have to come after."""
        fell_at = self.machine.fell_at
        if not fell_at or self.raftLastApplied < fell_at + ENTRIES_KEPT or self.journal.is_cutting:
            return
        if self._store.last_index >= fell_at + ENTRIES_KEPT:
            self.machine.fell_at = 0
        else:
            self.forceLogCompaction()

    def _post_status(self) -> None:
        leads = self._isLeader()
        status = (
            self.leader_id,
            self.raftCurrentTerm,
            leads and self.raftLastApplied >= (self._SyncObj__noopIDx or 0),
            self.raftCommitIndex,
            self.raftLastApplied,
            self.transport.reachable,
            self._peers_said(),
        )
        old = self._status
        if status != (
            old.leader_id, old.term, old.active, old.commit_index, old.applied_index, old.reachable, old.peers
        ) or old.not_voting_reason != self.not_voting_reason:  # fmt: skip
            self._remember_joined()
            self._tell_joined()
            self._status = QuorumStatus(*status, self.journal.entries[-1][1], self.not_voting_reason)
            self._outbox.append(self._status)

    def _peers_said(self) -> tuple[PeerSaid, ...]:
        me = PeerSaid(self.config.controller_id, self.config.directory_id, self._memory.joined)
        said = self.transport.reachable
        return (me, *(self._said[i] for i in sorted(said) if i in self._said))

    def _note_majority(self) -> None:
        """How fresh a leader's news are: a majority has answered since then."""
        if self._alone:
            self.majority_heard_at = self.clock_s()
        elif self._isLeader():
            answered = sorted(self._SyncObj__lastResponseTime.values(), reverse=True)
            self.majority_heard_at = answered[(len(answered) + 1) // 2 - 1]

    def _flush(self) -> None:
        if self._outbox and not self.machine.broken:
            events, self._outbox = self._outbox, []
            self._deliver(events)

    def emit(self, event: QuorumEvent) -> None:
        """Hand an event to the loop at the end of this turn."""
        self._outbox.append(event)

    def _finisher(self, token: object) -> Callable[[Any, int], None]:
        def finish(result: Any, error: int) -> None:
            known = result if isinstance(result, Outcome) else Outcome.APPLIED
            self._outbox.append(Proposal(token, Outcome.UNKNOWN if error else known))

        return finish

    def _checkCommandsToApply(self) -> None:
        """A stopping leader appends nothing more, so that its successor has the whole log."""
        if not self.resigning:
            super()._checkCommandsToApply()
            return
        try:
            while True:
                _command, finish = self._SyncObj__commandsQueue.get_nowait()
                finish(None, FAIL_REASON.NOT_LEADER)
        except queue.Empty:
            return

    # --- hooks into PySyncObj ----------------------------------------------------------------

    def _SyncObj__generateRaftTimeout(self) -> float:
        if self._standing:
            self._standing = False
            return self.rng.uniform(*_NEXT_ELECTION_S)
        return self.rng.uniform(self.config.silence_min_s, self.config.silence_max_s)

    def _on_state(self, old: int, new: int) -> None:
        """A deposed leader's deadline lies in the past: give the new one time to be elected."""
        if old == _RAFT_STATE.LEADER and new == _RAFT_STATE.FOLLOWER:
            self._SyncObj__raftElectionDeadline = self.clock_s() + self.rng.uniform(*_NEXT_ELECTION_S)

    def _SyncObj__connectedToAnyone(self) -> bool:
        """Asked once the election deadline has passed: may this controller stand now?"""
        if not self.may_vote or self.resigning or self.raftCurrentTerm + 1 >= NUMBER_END:
            return False
        if self._SyncObj__transferInProgress:
            self._standing = True
            self.elections += 1
            return True
        won, ask = self._prevote.poll(self.clock_s())
        if ask:
            question = {
                "type": "prevote",
                "round": self._prevote.round_id,
                "term": self.raftCurrentTerm + 1,
                "last_log_index": self.journal.entries[-1][1],
                "last_log_term": self.journal.entries[-1][2],
            }
            self.transport.broadcast(question)
        self._standing = won
        self.elections += won
        return won

    def _SyncObj__onBecomeLeader(self) -> None:
        hit("controller.leader.elected")
        super()._SyncObj__onBecomeLeader()
        self.journal.sync()

    def _SyncObj__sendAppendEntries(self) -> None:
        """Once a peer's next snapshot chunk has to wait, so does its turn.

        PySyncObj would ask for the chunk again, and send the peer empty messages, for a whole
        append period. It leaves its loop only for a peer that is not connected.
        """
        super()._SyncObj__sendAppendEntries()
        self._SyncObj__connectedNodes |= self._waiting_for_chunk
        self._waiting_for_chunk.clear()
        if self._is_at_rest():
            self._SyncObj__newAppendEntriesTime = self.clock_s() + self.config.rest_append_s

    def _is_at_rest(self) -> bool:
        """Whether every follower is linked and holds all there is. A proposal does not wait for the next append."""
        last = self.journal.entries[-1][1]
        matched = self._SyncObj__raftMatchIndex
        return (
            self.transport.is_complete
            and self.raftLastApplied == last
            and all(matched[node] == last for node in self._SyncObj__otherNodes)
        )

    def end_turn_of(self, node: PeerNode) -> None:
        """The transport has sent this peer all that it may have in this turn."""
        self._SyncObj__connectedNodes.discard(node)
        self._waiting_for_chunk.add(node)

    def _SyncObj__applyLogEntries(self) -> bool:
        """For about APPLY_SLICE_S: PySyncObj is shown the commit index entry by entry."""
        committed = self.raftCommitIndex
        until = self.clock_s() + APPLY_SLICE_S
        need_send = False
        while self.raftLastApplied < committed:
            self._SyncObj__raftCommitIndex = self.raftLastApplied + 1
            need_send = bool(super()._SyncObj__applyLogEntries()) or need_send
            if self.clock_s() >= until or self.machine.broken:
                break
        self._SyncObj__raftCommitIndex = committed
        self._flush()
        return need_send

    def _SyncObj__doApplyCommand(self, command: bytes) -> Outcome:
        if command[0] != _COMMAND_TYPE.REGULAR:
            self.machine.interrupt()
            return Outcome.APPLIED
        self.machine.entry_index = self.raftLastApplied + 1
        return self.machine.apply(command[1:])

    def _SyncObj__getEntries(
        self, fromIDx: int | None, count: int | None = None, maxSizeBytes: int | None = None
    ) -> list[Entry]:
        if maxSizeBytes is not None:
            # For a message: no peer takes any number of entries in one.
            count = ENTRIES_SENT_MAX if count is None else min(count, ENTRIES_SENT_MAX)
        entries: list[Entry] = super()._SyncObj__getEntries(fromIDx, count, maxSizeBytes)
        return entries

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:
        """First tick: the snapshot was checked, and the journal aligned to it, before we began."""
        if self._snapshot is not None:
            self._take_place(self._snapshot)
            self._snapshot = None

    # --- what the transport asks (`RaftPort`) --------------------------------------------------

    @property
    def poller(self) -> Any:
        return self._poller

    @property
    def is_leader(self) -> bool:
        """Whether this controller leads."""
        return bool(self._isLeader())

    @property
    def leader_id(self) -> int:
        """Controller id of the leader, -1 when none is known."""
        leader = self._SyncObj__raftLeader
        return -1 if leader is None else int(leader.controller_id)

    @property
    def not_voting_reason(self) -> str:
        """Why this controller neither votes nor stands, with the mend; "" when it does."""
        me = self.config.controller_id
        memory = self._current_memory()
        admitted = memory.own
        if admitted == self.config.directory_id or not (any(admitted) or memory.joining):
            return ""
        return (
            f"controller {me} has a data directory that is new to the quorum and does not vote; "
            f"`penstock controller replace {me}` admits it (if its old directory still exists, start it with that)"
        )

    @property
    def may_vote(self) -> bool:
        return not self.not_voting_reason

    def _is_member(self, peer_id: int) -> bool:
        """Whether what a peer acknowledges counts: not with a directory that was not admitted."""
        said = self._said.get(peer_id)
        return said is None or self.is_member_directory(peer_id, said.directory_id)

    def _current_memory(self) -> PeerMemory:
        """What is known of directories, with what the log says by now."""
        self._memory.on_records(self.machine.image.controllers)
        return self._memory

    def would_vote(self, message: Message) -> bool:
        last = self.journal.entries[-1]
        hears_leader = self.transport.hears_leader()
        own_last, asked_last = (last[2], last[1]), (message["last_log_term"], message["last_log_index"])
        if not hears_leader and own_last > asked_last:
            self.hasten()
        return would_vote(
            hears_leader=hears_leader,
            own_term=self.raftCurrentTerm,
            own_last=own_last,
            asked_term=message["term"],
            asked_last=asked_last,
        )

    def hasten(self) -> None:
        """There is no leader, and whoever wants to be it lacks entries of ours: stand soon."""
        soon = self.clock_s() + self.rng.uniform(*_FIRST_ELECTION_S)
        self._SyncObj__raftElectionDeadline = min(self._SyncObj__raftElectionDeadline, soon)

    def after_vote_request(self) -> None:
        """PySyncObj has taken a vote request: one that was refused leaves the cluster without a leader."""
        if self._SyncObj__raftLeader is None and self._SyncObj__votedForNodeId is None:
            self.hasten()

    def after_ack(self, node: PeerNode, message: Message) -> None:
        """A follower told where its log parts from ours: go on from there without a pause."""
        if not self._is_member(node.controller_id):
            # With its old disk it may have voted for a leader of a later term, whom it no longer knows.
            self._SyncObj__raftMatchIndex[node] = 0
        if message["reset"] or self._store.sending:
            self._SyncObj__newAppendEntriesTime = 0.0

    def on_prevote_reply(self, peer_id: int, message: Message) -> None:
        if message["term"] > self.raftCurrentTerm:
            self.step_down(message["term"])
        elif message["granted"]:
            self._prevote.granted(peer_id, message["round"])

    def on_leader_sign(self, message: Message) -> None:
        """An append of a current leader arrived."""
        self._prevote.cancel()

    def on_link_made(self) -> None:
        """A peer is there that may lack a leader: it is not kept waiting for the next append."""
        if self._isLeader():
            self._SyncObj__newAppendEntriesTime = 0.0

    def on_link_lost(self, node: PeerNode, within_s: float) -> None:
        """A lost link to the leader brings the election forward; pre-vote guards it."""
        if node.controller_id == self.leader_id and not self._isLeader():
            self._SyncObj__raftElectionDeadline = self.clock_s() + self.rng.uniform(0, within_s)
            self._store.abort_receiving()
        self._store.cancelTransmisstion(node)

    def step_down(self, term: int) -> None:
        """Somebody is at a higher term: follow from there."""
        self._SyncObj__setCurrentTerm(term, None)
        self._SyncObj__setState(_RAFT_STATE.FOLLOWER)
        self._SyncObj__raftLeader = None

    @property
    def installing(self) -> bool:
        """A snapshot of the leader is being checked; until then its appends are signs of life only."""
        return self._store.checking

    def receive_snapshot(self, chunk: Chunk) -> None:
        """Take a part of the leader's snapshot; with the last one a thread begins to check it."""
        self._store.receive(chunk)

    def _install_received(self) -> None:
        """Put a snapshot in place that was checked and has its name."""
        snapshot = self._store.take_received()
        if snapshot is None:
            return
        if snapshot.last_index > self.raftLastApplied:
            # Keeps what follows it in our own log: that was acknowledged (Raft, 7, step 6).
            self.journal.align(snapshot.previous, snapshot.last)
            self.machine.reset(snapshot.image)
            self._take_place(snapshot)
            self._outbox.append(Reset(snapshot.image))
        if not self._isLeader():
            self.transport.acknowledge_leader(snapshot.last_index)

    def _take_place(self, snapshot: Snapshot) -> None:
        self._SyncObj__raftLastApplied = snapshot.last_index
        self._SyncObj__raftCommitIndex = max(self.raftCommitIndex, snapshot.last_index)

    # --- hello and membership ----------------------------------------------------------------

    def hello(self, peer_id: int) -> Message:
        """What to tell a peer on a new connection, and again once we have joined."""
        if self._memory.joined:
            self._greeted_early.discard(peer_id)
        else:
            self._greeted_early.add(peer_id)
        return {
            "type": "hello",
            "from": self.config.controller_id,
            "to": peer_id,
            "joined": self._memory.joined,
            "directory_id": self.config.directory_id,
            "remembered": self._current_memory().directory_of(peer_id),
            "cluster_id": self._cluster_id,
        }

    @property
    def _cluster_id(self) -> bytes:
        return self.machine.image.cluster_id or self.config.cluster_id or bytes(16)

    def is_stranger(self, message: Message) -> bool:
        """Whether a hello comes from a controller of another cluster."""
        own, other = self._cluster_id, message["cluster_id"]
        return any(own) and any(other) and own != other

    def is_former(self, peer_id: int, message: Message) -> bool:
        """Whether the peer comes with a directory that was replaced."""
        return self._current_memory().is_former(peer_id, message["directory_id"])

    def is_member_directory(self, peer_id: int, directory_id: bytes) -> bool:
        """Whether the peer counts with this directory, as far as is known here."""
        expected = self._current_memory().directory_of(peer_id)
        return not any(expected) or expected == directory_id

    def on_hello(self, peer_id: int, message: Message) -> None:
        self._said[peer_id] = PeerSaid(peer_id, message["directory_id"], message["joined"])
        self._current_memory().on_hello(peer_id, message["directory_id"], message["remembered"])

    def _remember_joined(self) -> None:
        """Once the log holds our admission (in a new cluster: anything), we are a full member."""
        if self._memory.joined or self.raftLastApplied < 2 or self.not_voting_reason:
            return
        self._memory.mark_joined()

    def _tell_joined(self) -> None:
        """Peers that were told, or are being dialled with the word, that we are no full member hear it once they are
        reachable: the log may have admitted us in between (a snapshot of an import does before anybody is)."""
        if self._memory.joined:
            for controller_id in self.transport.reachable & self._greeted_early:
                self.transport.say_hello(controller_id)


def poll_wait_s(
    config: QuorumConfig, *, is_settled: bool, is_linked: bool, leads: bool, left_s: float
) -> float:
    """How long a tick may wait for the network (`propose` wakes the poller too), in seconds.

    PySyncObj looks at its deadlines every `tick_s`, which costs a quorum at rest a hundredth of a
    core. Where a leader is known (`is_settled`) the next deadline is too, in `left_s`: that of an
    append, else of an election.
    """
    if not is_settled:
        return config.tick_s
    # Lost peers are dialled from the tick.
    most_s = config.rest_s if is_linked else 2 * config.tick_s
    if left_s <= 0:
        # An append that is due goes out in this very tick; an election asks for votes first.
        left_s = config.append_period_s if leads else config.tick_s
    return min(left_s, most_s)


def _syncobj_conf(
    config: QuorumConfig,
    journal: DurableJournal,
    store: SnapshotStore,
    on_state: Callable[[int, int], None],
) -> SyncObjConf:
    return SyncObjConf(
        onStateChanged=on_state,
        autoTick=False,
        autoTickPeriod=config.tick_s,
        appendEntriesUseBatch=False,
        appendEntriesPeriod=config.append_period_s,
        appendEntriesBatchSizeBytes=_BATCH_BYTES,
        raftMinTimeout=config.silence_min_s,
        raftMaxTimeout=config.silence_max_s,
        connectionTimeout=config.silence_max_s * 2,
        connectionRetryTime=config.retry_s,
        leaderFallbackTimeout=config.leader_fallback_s,
        commandsWaitLeader=False,
        commandsQueueSize=1024,
        dynamicMembershipChange=False,
        useFork=False,
        fullDumpFile=str(store.path),
        journalFile=journal,
        serializer=store,
        deserializer=store,
        logCompactionMinEntries=max(2, config.snapshot_every_count),
        logCompactionMinTime=_NEVER_S,
        maxBindRetries=1,
    )
