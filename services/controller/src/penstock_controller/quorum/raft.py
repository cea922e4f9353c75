"""PySyncObj's SyncObj, corrected from outside. Why each hook is there:

| hook | stock behaviour that it mends |
|---|---|
| `__connectedToAnyone` | no pre-vote: a resumed follower unseats a healthy leader |
| `__generateRaftTimeout` | a lost election waits a whole silence timeout; here 150-300 ms |
| `__doApplyCommand` | unpickles, and repeats one that raises; here `Machine.apply`, which never raises |
| `__loadDumpFile` | only logs damage and clears the journal; here all was checked before |
| `__applyLogEntries` | results reach the event loop a turn late |
| `_checkCommandsToApply` | a leader that hands over goes on appending |
| `__onBecomeLeader` | the no-op of a new leader counts before it is synced |

Names are private to PySyncObj and pinned (`pins`). Ticks come from `Quorum`'s thread.

Joining (a controller that lost its disk): a peer that remembers another directory for
this controller id says so in its hello. Until the log then reaches the commit index
that the leader told, this controller neither votes nor stands, else two controllers
could elect a leader without acknowledged entries.
"""

# ruff: noqa: N802, N803 - names are those of the base class
from __future__ import annotations

import queue
import random
from collections.abc import Callable
from typing import Any

from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf
from pysyncobj.monotonic import monotonic
from pysyncobj.syncobj import _COMMAND_TYPE, _RAFT_STATE

from penstock_controller.quorum import pins
from penstock_controller.quorum.events import (
    Outcome,
    Proposal,
    QuorumConfig,
    QuorumEvent,
    QuorumStatus,
    Reset,
)
from penstock_controller.quorum.identity import PeerMemory
from penstock_controller.quorum.journal import DurableJournal
from penstock_controller.quorum.machine import Machine
from penstock_controller.quorum.messages import Message
from penstock_controller.quorum.prevote import PreVote, would_vote
from penstock_controller.quorum.snapshot import Chunk, SnapshotStore
from penstock_controller.quorum.snapshot_format import Snapshot
from penstock_controller.quorum.transport import PeerNode, PeerTransport

COMMAND_BYTES_MAX = 4 * 1024 * 1024
"""Largest command. Below PySyncObj's batch size, above which it splits entries wrongly."""
_BATCH_BYTES = 8 * 1024 * 1024
_FIRST_ELECTION_S = (0.02, 0.12)
_NEXT_ELECTION_S = (0.15, 0.3)
_NEVER_S = 1e9


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
        on_bad_frame: Callable[[], None] | None = None,
    ) -> None:
        self.config = config
        self.journal = journal
        self.machine = machine
        self.transport: PeerTransport
        self._store = store
        self._snapshot = snapshot
        self._memory = memory
        self._deliver = deliver
        self._outbox: list[QuorumEvent] = []
        self._status = QuorumStatus()
        self._standing = False
        self.resigning = False
        """This controller is stopping: it still votes, but stands no more."""
        self._join_index: int | None = None
        nodes = {
            p.controller_id: PeerNode(p) for p in config.peers if p.controller_id != config.controller_id
        }
        me = next(p for p in config.peers if p.controller_id == config.controller_id)
        self._alone = not nodes
        self._prevote = PreVote(len(nodes), random.random)

        def make_transport(raft: RaftNode, _me: PeerNode, _others: set[PeerNode]) -> PeerTransport:
            self.transport = PeerTransport(raft, config, nodes, on_bad_frame)
            return self.transport

        super().__init__(
            PeerNode(me),
            list(nodes.values()),
            _syncobj_conf(config, journal, store, self._on_state),
            transportClass=make_transport,
        )
        pins.check_instance(self)
        self._SyncObj__raftElectionDeadline = monotonic() + (
            random.uniform(*_FIRST_ELECTION_S) if nodes else 0.0  # noqa: S311
        )
        self.addOnTickCallback(self._on_before_poll)

    # --- from any thread -----------------------------------------------------------------

    def propose(self, command: bytes, token: object) -> None:
        """Append `command` if this controller leads; a Proposal event tells what became of it."""
        self._applyCommand(command, self._finisher(token), _COMMAND_TYPE.REGULAR)

    def barrier(self, token: object) -> None:
        """Commit a no-op: once it is applied, this controller was still the leader."""
        self._applyCommand(b"", self._finisher(token), _COMMAND_TYPE.NO_OP)

    # --- the tick --------------------------------------------------------------------------

    def tick(self) -> None:
        """One turn: count commits, apply, send, sync, wait for the network."""
        self.journal.sync()
        self.doTick(self._wait_s())

    def _wait_s(self) -> float:
        leads = self._isLeader()
        due_at = self._SyncObj__newAppendEntriesTime if leads else self._SyncObj__raftElectionDeadline
        return poll_wait_s(
            self.config,
            is_settled=self.leader_id >= 0 and not self.resigning,
            is_linked=self.transport.is_complete,
            leads=leads,
            left_s=due_at - monotonic(),
        )

    def _on_before_poll(self) -> None:
        self.journal.sync()
        if self._alone and self.journal.entries[-1][1] > self.raftCommitIndex:
            # Nobody will answer: what was just synced can be counted at once.
            self._SyncObj__pipeNotifier.notify()
        self.transport.housekeeping()
        self._post_status()
        self._flush()

    def _post_status(self) -> None:
        leads = self._isLeader()
        status = (
            self.leader_id,
            self.raftCurrentTerm,
            leads and self.raftLastApplied >= (self._SyncObj__noopIDx or 0),
            self.raftCommitIndex,
            self.raftLastApplied,
            self.transport.reachable,
        )
        old = self._status
        if status != (
            old.leader_id, old.term, old.active, old.commit_index, old.applied_index, old.reachable
        ):  # fmt: skip
            self._status = QuorumStatus(*status)
            self._outbox.append(self._status)
            self._remember_joined()

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
            return random.uniform(*_NEXT_ELECTION_S)  # noqa: S311
        return random.uniform(self.config.silence_min_s, self.config.silence_max_s)  # noqa: S311

    def _on_state(self, old: int, new: int) -> None:
        """A deposed leader's deadline lies in the past: give the new one time to be elected."""
        if old == _RAFT_STATE.LEADER and new == _RAFT_STATE.FOLLOWER:
            self._SyncObj__raftElectionDeadline = monotonic() + random.uniform(*_NEXT_ELECTION_S)  # noqa: S311

    def _SyncObj__connectedToAnyone(self) -> bool:
        """Asked once the election deadline has passed: may this controller stand now?"""
        if not self.may_vote or self.resigning:
            return False
        if self._SyncObj__transferInProgress:
            self._standing = True
            return True
        won, ask = self._prevote.poll(monotonic())
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
        return won

    def _SyncObj__onBecomeLeader(self) -> None:
        super()._SyncObj__onBecomeLeader()
        self.journal.sync()

    def _SyncObj__applyLogEntries(self) -> bool:
        need_send = bool(super()._SyncObj__applyLogEntries())
        self._flush()
        return need_send

    def _SyncObj__doApplyCommand(self, command: bytes) -> Outcome:
        if command[0] != _COMMAND_TYPE.REGULAR:
            return Outcome.APPLIED
        return self.machine.apply(command[1:])

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:
        """First tick: the snapshot was checked, and the journal aligned to it, before we began."""
        if self._snapshot is not None:
            self._take_place(self._snapshot)
            self._snapshot = None

    # --- what the transport asks -------------------------------------------------------------

    @property
    def leader_id(self) -> int:
        """Controller id of the leader, -1 when none is known."""
        leader = self._SyncObj__raftLeader
        return -1 if leader is None else int(leader.controller_id)

    @property
    def may_vote(self) -> bool:
        return not self._memory.joining

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
        soon = monotonic() + random.uniform(*_FIRST_ELECTION_S)  # noqa: S311
        self._SyncObj__raftElectionDeadline = min(self._SyncObj__raftElectionDeadline, soon)

    def after_vote_request(self) -> None:
        """PySyncObj has taken a vote request: one that was refused leaves the cluster without a leader."""
        if self._SyncObj__raftLeader is None and self._SyncObj__votedForNodeId is None:
            self.hasten()

    def after_ack(self, message: Message) -> None:
        """A follower told where its log parts from ours: go on from there without a pause."""
        if message["reset"]:
            self._SyncObj__newAppendEntriesTime = 0.0

    def on_prevote_reply(self, peer_id: int, message: Message) -> None:
        if message["term"] > self.raftCurrentTerm:
            self.step_down(message["term"])
        elif message["granted"]:
            self._prevote.granted(peer_id, message["round"])

    def on_leader_sign(self, message: Message) -> None:
        """An append of a current leader arrived."""
        self._prevote.cancel()
        if self._memory.joining and self._join_index is None:
            self._join_index = message["commit_index"]

    def on_link_lost(self, node: PeerNode, within_s: float) -> None:
        """A lost link to the leader brings the election forward; pre-vote guards it."""
        if node.controller_id == self.leader_id and not self._isLeader():
            self._SyncObj__raftElectionDeadline = monotonic() + random.uniform(0, within_s)  # noqa: S311
            self._store.abort_receiving()
        self._store.cancelTransmisstion(node)

    def step_down(self, term: int) -> None:
        """Somebody is at a higher term: follow from there."""
        self._SyncObj__setCurrentTerm(term, None)
        self._SyncObj__setState(_RAFT_STATE.FOLLOWER)
        self._SyncObj__raftLeader = None

    def receive_snapshot(self, chunk: Chunk) -> int | None:
        """The last index of the leader's snapshot once it is whole and in place, else None."""
        snapshot = self._store.receive(chunk)
        if snapshot is None:
            return None
        if snapshot.last_index > self.raftLastApplied:
            self.journal.replace([snapshot.previous, snapshot.last])
            self.machine.image = snapshot.image
            self._take_place(snapshot)
            self._outbox.append(Reset(snapshot.image))
        return snapshot.last_index

    def _take_place(self, snapshot: Snapshot) -> None:
        self._SyncObj__raftLastApplied = snapshot.last_index
        self._SyncObj__raftCommitIndex = max(self.raftCommitIndex, snapshot.last_index)

    # --- hello and membership ----------------------------------------------------------------

    def hello(self, peer_id: int) -> Message:
        return {
            "type": "hello",
            "from": self.config.controller_id,
            "to": peer_id,
            "joined": self._memory.joined,
            "directory_id": self.config.directory_id,
            "remembered": self._memory.directory_of(peer_id),
            "cluster_id": self._cluster_id,
        }

    @property
    def _cluster_id(self) -> bytes:
        return self.machine.image.cluster_id or self.config.cluster_id or bytes(16)

    def is_stranger(self, message: Message) -> bool:
        """Whether a hello comes from a controller of another cluster."""
        own, other = self._cluster_id, message["cluster_id"]
        return any(own) and any(other) and own != other

    def on_hello(self, peer_id: int, message: Message) -> None:
        self._memory.on_hello(peer_id, message["directory_id"], message["joined"], message["remembered"])

    def _remember_joined(self) -> None:
        """Once the log holds what the leader had committed when we came, we are a full member."""
        if self._memory.joined or self.raftLastApplied < max(2, self._join_index or 0):
            return
        if self._memory.joining and self._join_index is None:
            return
        self._memory.mark_joined()
        for controller_id in self.transport.reachable:
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
