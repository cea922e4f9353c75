"""What the Raft node adds to PySyncObj: slices, snapshots, terms of votes and acks, who may vote."""

from __future__ import annotations

import errno
import itertools
import socket
import time
from collections import deque
from pathlib import Path
from typing import Any

import pysyncobj.syncobj
import pytest
from pysyncobj.syncobj import _RAFT_STATE

from penstock_controller.quorum import Outcome, Quorum, QuorumConfig, RaftPeer, Reset
from penstock_controller.quorum import snapshot_format as fmt
from penstock_controller.quorum.events import QuorumEvent
from penstock_controller.quorum.messages import decode
from penstock_controller.quorum.peer_connection import REAL_NETWORK, PeerNetwork
from penstock_controller.quorum.quorum import QuorumPorts
from penstock_controller.quorum.snapshot_format import Snapshot
from penstock_core.metadata import MetadataImage
from penstock_proto.v1 import metadata_pb2 as pb
from support.controllers import free_ports
from support.waiting import wait_for


def ids_record(value: int) -> pb.MetadataRecord:
    return pb.MetadataRecord(producer_ids=pb.ProducerIdsRecord(next_producer_id=value))


def may_vote(quorum: Quorum) -> bool:
    return quorum._raft.may_vote


def is_installing(quorum: Quorum) -> bool:
    return quorum._raft.installing


def quorum_of(
    directory: Path,
    count: int = 3,
    controller_id: int = 1,
    network: PeerNetwork = REAL_NETWORK,
    **changes: float,
) -> Quorum:
    """One of `count`, its thread not started."""
    events: list[QuorumEvent] = []
    ports = free_ports(count)
    config = QuorumConfig(
        controller_id=controller_id,
        peers=tuple(RaftPeer(n + 1, "127.0.0.1", port) for n, port in enumerate(ports)),
        bind_host="127.0.0.1",
        bind_port=ports[controller_id - 1],
        directory=directory,
        directory_id=b"d" * 16,
        **changes,  # type: ignore[arg-type]
    )

    def fail(error: BaseException) -> None:
        raise AssertionError(error)

    # Jobs of the snapshot store are done where they are asked for.
    given = QuorumPorts(spawn=lambda job, _name: job(), network=network)
    return Quorum(config, events.extend, fail, lambda _: None, ports=given)


def test_installing_a_snapshot_keeps_the_entries_behind_it(tmp_path: Path) -> None:
    """They were acknowledged: a leader counts on them (Raft, 7, step 6 of InstallSnapshot)."""
    quorum = quorum_of(tmp_path)
    try:
        raft = quorum._raft
        raft.tick()
        for index in range(2, 21):
            raft.journal.add(b"\x01", index, 1)
        raft.journal.sync()
        image = MetadataImage(version=7, cluster_id=b"c" * 16)
        data = b"".join(fmt.encode(Snapshot((b"\x01", 9, 1), (b"\x01", 10, 1), image)))
        raft.receive_snapshot((data, True, False))
        raft.receive_snapshot((b"", False, True))
        assert is_installing(quorum)
        raft._install_received()
        assert not is_installing(quorum)
        assert (raft.raftLastApplied, raft.machine.image) == (10, image)
        assert [entry[1] for entry in raft.journal.entries] == list(range(9, 21))
        assert any(isinstance(event, Reset) for event in raft._outbox)
    finally:
        quorum.stop()


def test_committed_entries_are_applied_in_slices(tmp_path: Path) -> None:
    quorum = quorum_of(tmp_path)
    try:
        raft = quorum._raft
        raft.tick()
        now = 0.0
        raft.clock_s = lambda: now
        count = 50
        for number in range(count):
            command = pb.MetadataCommand(base_version=number, records=[ids_record(number + 1)])
            raft.journal.add(b"\x00" + command.SerializeToString(), number + 2, 1)
        apply, versions = raft.machine.apply, []

        def slow(data: bytes) -> Outcome:
            nonlocal now
            now += 0.0004
            return apply(data)

        raft.machine.apply = slow  # type: ignore[method-assign]
        raft._SyncObj__raftCommitIndex = count + 1
        while raft.raftLastApplied < count + 1:
            raft._SyncObj__applyLogEntries()
            assert raft.raftCommitIndex == count + 1
            assert raft._wait_s() == 0.0 or raft.raftLastApplied == count + 1
            versions.append(raft.machine.image.version)
        assert versions == [*range(3, 50, 3), 50]
    finally:
        quorum.stop()


def test_without_a_descriptor_it_dials_another_time(tmp_path: Path) -> None:
    """Clients may have them all for a while; a failure of the tick thread would be final."""
    refused = 0

    def one_socket(*kind: Any) -> socket.socket:
        nonlocal refused
        if sockets:
            refused += 1
            raise OSError(errno.EMFILE, "Too many open files")
        sockets.append(socket.socket(*kind))
        return sockets[0]

    sockets: list[socket.socket] = []
    quorum = quorum_of(tmp_path, controller_id=3, network=PeerNetwork(socket=one_socket))
    try:
        raft = quorum._raft
        for number in range(3):
            raft.clock_s = raft.transport._clock_s = lambda number=number: 1000.0 + number  # type: ignore[misc]
            raft.transport.housekeeping()
        assert refused == 3 * 2, "it tries again, and both of them"
    finally:
        quorum.stop()


# --- who votes --------------------------------------------------------------------------------------


def test_a_directory_that_was_not_admitted_does_not_vote(tmp_path: Path) -> None:
    quorum = quorum_of(tmp_path)
    try:
        raft = quorum._raft
        assert may_vote(quorum)
        # A peer remembers another directory of ours.
        hello = {"directory_id": b"p" * 16, "joined": True, "remembered": b"o" * 16}
        raft.on_hello(2, hello)
        assert not may_vote(quorum)
        assert "penstock controller replace 1" in raft.not_voting_reason
        # The log names another one, or ours.
        raft.machine.image = MetadataImage(version=3, controllers={1: b"o" * 16})
        assert not may_vote(quorum)
        raft.machine.image = MetadataImage(version=4, controllers={1: b"d" * 16})
        assert may_vote(quorum)
        # A peer's new directory is taken for good once the log names it, not because it says so.
        raft.machine.image = MetadataImage(version=5, controllers={1: b"d" * 16, 2: b"p" * 16})
        raft.on_hello(2, dict(hello, directory_id=b"q" * 16))
        assert not raft.is_former(2, hello)
        raft.machine.image = MetadataImage(version=6, controllers={1: b"d" * 16, 2: b"q" * 16})
        assert raft.is_former(2, hello)
    finally:
        quorum.stop()


def test_deadlines_are_told_by_one_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PySyncObj's on Linux is CLOCK_MONOTONIC_RAW, which NTP does not set: after a month it is a minute from Python's,
    and more. Elections came so much later or earlier, and a leader's contact with its majority looked so much older."""
    for apart_s in (-3600.0, 3600.0):
        monkeypatch.setattr(pysyncobj.syncobj, "monotonicTime", lambda by_s=apart_s: time.monotonic() + by_s)
        quorum = quorum_of(tmp_path / str(apart_s))
        try:
            raft: Any = quorum._raft
            raft.tick()

            def left_s(until_s: float) -> float:
                return until_s - float(pysyncobj.syncobj.monotonicTime())

            assert left_s(raft._SyncObj__raftElectionDeadline) <= 0.12  # the first one, soon after the start
            raft._SyncObj__raftLeader = raft.transport._nodes[2]
            raft.on_link_lost(raft.transport._nodes[2], 0.05)
            assert -60 < left_s(raft._SyncObj__raftElectionDeadline) <= 0.05
            raft._SyncObj__onBecomeLeader()
            raft._note_majority()
            assert quorum.leader_contact()[0] < 60_000
            assert -60 < left_s(raft.majority_heard_at) <= 0
        finally:
            quorum.stop()


def test_a_leaders_news_are_as_old_as_its_majority(tmp_path: Path) -> None:
    """Paused while another was elected, it must not call its metadata fresh when it wakes."""
    quorum = quorum_of(tmp_path)
    try:
        raft = quorum._raft
        raft.tick()
        now = raft.clock_s()
        raft._SyncObj__onBecomeLeader()
        raft._note_majority()
        assert quorum.leader_contact()[0] < 5_000
        raft.clock_s = lambda: now + 60
        assert quorum.leader_contact()[0] > 50_000
    finally:
        quorum.stop()


def test_a_leader_that_hears_its_successor_speaks_of_the_new_term(tmp_path: Path) -> None:
    """Whoever asks beside the raft thread, also while that waits for the disk, is told of no fresh contact in the
    old term: clients leave a controller by its term."""
    quorum = quorum_of(tmp_path)
    told: list[tuple[int, int]] = []
    try:
        raft: Any = quorum._raft
        raft.tick()
        raft._SyncObj__setCurrentTerm(5, "1")
        raft._SyncObj__onBecomeLeader()
        raft._note_majority()
        now = raft.clock_s()
        raft.clock_s = raft.transport._clock_s = lambda: now + 60
        store = raft.journal.setCurrentTerm

        def slow_disk(*values: Any) -> None:
            told.append(quorum.leader_contact())
            store(*values)
            told.append(quorum.leader_contact())

        raft.journal.setCurrentTerm = slow_disk
        message = {
            "type": "append_entries", "term": 6, "prevLogIdx": 1, "prevLogTerm": 0, "entries": [], "commit_index": 1,
        }  # fmt: skip
        raft.transport._on_message(raft.transport._nodes[2], message)
        told.append(quorum.leader_contact())
        assert told[-1] == (0, 6)
        assert len(told) == 3
        assert all(age_ms > 50_000 or term == 6 for age_ms, term in told), told
    finally:
        quorum.stop()


# --- a quorum at rest --------------------------------------------------------------------------------


class FollowerLink:
    """A peer that acknowledges all that it is sent, in the leader's next turn."""

    closed, tls, unsent_bytes, is_idle = False, None, 0, True

    def __init__(self, turns: Turns) -> None:
        self.appends_s: list[float] = []
        self.acks: deque[int] = deque()
        self._turns = turns

    @property
    def last_read_at(self) -> float:
        return self._turns.now_s

    last_sent_at = last_read_at

    def crawls(self) -> bool:
        return False

    def close(self, reason: str) -> None:
        pass

    def send(self, payload: bytes) -> bool:
        message = decode(memoryview(payload))
        if message["type"] == "append_entries":
            self.appends_s.append(self._turns.now_s)
            self.acks.append(message["prevLogIdx"] + len(message["entries"]) + 1)
        return True


class Turns:
    """A leader's turns on a clock that stands still but while it waits."""

    def __init__(self, quorum: Quorum, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(pysyncobj.syncobj, "monotonicTime", lambda: self.now_s)
        self._raft: Any = quorum._raft
        self.links = {2: FollowerLink(self), 3: FollowerLink(self)}
        self.wait_out_s: list[float] = []
        """When nothing came for as long as it waited."""
        self._raft.transport._links = self.links  # type: ignore[assignment]
        self._raft._poller.poll = self._poll

    def lead(self) -> None:
        raft = self._raft
        raft.tick()
        for node in raft.transport._nodes.values():
            raft.transport._onNodeConnected(node)
        raft._SyncObj__setCurrentTerm(5, "1")
        raft._SyncObj__onBecomeLeader()

    def run(self, for_s: float) -> None:
        until_s = self.now_s + for_s
        while self.now_s < until_s:
            self._raft.tick()

    def take_acks(self) -> None:
        self._raft.tick()
        while any(link.acks for link in self.links.values()):
            self._raft.tick()

    def _poll(self, wait_s: float) -> None:
        for controller_id, link in self.links.items():
            if link.acks:
                node = self._raft.transport._nodes[controller_id]
                ack = {"type": "next_node_idx", "term": 5, "reset": False, "success": True}
                ack["next_node_idx"] = link.acks.popleft()
                self._raft.transport._on_message(node, ack)
                return
        self.now_s += wait_s + 0.0001
        self.wait_out_s.append(self.now_s)


def test_a_leader_at_rest_wakes_to_append_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quorum = quorum_of(tmp_path)
    try:
        turns = Turns(quorum, monkeypatch)
        turns.lead()
        turns.run(1.0)
        for link in turns.links.values():
            link.appends_s.clear()
        turns.wait_out_s.clear()
        turns.run(25.0)
        for link in turns.links.values():
            assert 90 <= len(link.appends_s) <= 101
            pauses_s = [b - a for a, b in itertools.pairwise(link.appends_s)]
            # Silence is told from rest by several of them.
            assert max(pauses_s) * 3 < quorum._config.silence_min_s
        assert len(turns.wait_out_s) <= 101
    finally:
        quorum.stop()


def test_nothing_new_waits_for_the_next_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a proposal, nor its commit, nor a follower that comes; and one that lacks something is not at rest."""
    quorum = quorum_of(tmp_path)
    try:
        turns = Turns(quorum, monkeypatch)
        raft: Any = quorum._raft
        turns.lead()
        turns.run(1.0)
        turns.take_acks()
        appends_s = turns.links[2].appends_s
        assert raft._is_at_rest()
        proposed_s = turns.now_s
        appends_s.clear()
        quorum.barrier("token")
        turns.take_acks()
        assert raft.raftCommitIndex == raft.journal.entries[-1][1]
        assert appends_s == [proposed_s] * 2  # the entry, and that it is committed
        turns.now_s += 0.01
        raft.on_link_made()
        came_s = turns.now_s
        raft.tick()
        assert appends_s[-1] == came_s
        turns.links[3].acks = Unheard()
        quorum.barrier("token")
        turns.run(1.0)
        appends_s.clear()
        turns.run(1.0)
        assert not raft._is_at_rest()
        assert len(appends_s) >= 9
    finally:
        quorum.stop()


def test_a_quorum_that_waits_for_the_network_ends_when_it_is_told_to(tmp_path: Path) -> None:
    quorum = quorum_of(tmp_path, 1, rest_append_s=600.0, rest_s=600.0)
    quorum.start()
    try:
        raft = quorum._raft
        wait_for(
            lambda: leads(quorum) and raft.raftLastApplied == raft.journal.entries[-1][1], "a leader at rest"
        )
    finally:
        quorum.stop()
    assert not quorum._thread.is_alive()


class Unheard(deque[int]):
    """Acknowledgements that do not come."""

    def append(self, ack: int) -> None:
        pass


# --- terms ------------------------------------------------------------------------------------------


def leads(quorum: Quorum) -> bool:
    return bool(quorum._raft._isLeader())


def test_a_vote_counts_once_and_in_its_own_term(tmp_path: Path) -> None:
    quorum = quorum_of(tmp_path, 5)
    try:
        raft: Any = quorum._raft
        raft.tick()
        raft._SyncObj__setCurrentTerm(5, "1")
        raft._SyncObj__setState(_RAFT_STATE.CANDIDATE)
        raft._SyncObj__votesCount = 1
        nodes = raft.transport._nodes
        for controller_id, term in [(2, 4), (3, 4), (4, 6), (2, 5), (2, 5), (2, 5)]:
            raft.transport._on_message(nodes[controller_id], {"type": "response_vote", "term": term})
            assert not leads(quorum)
        raft.transport._on_message(nodes[3], {"type": "response_vote", "term": 5})
        assert leads(quorum)
    finally:
        quorum.stop()


def test_who_joins_while_it_dials_says_so_once_it_is_connected(tmp_path: Path) -> None:
    """An imported directory is joined by its snapshot, before any peer is there: they took it for new, for good."""
    quorum = quorum_of(tmp_path)
    try:
        raft: Any = quorum._raft
        said: list[tuple[int, bool]] = []
        raft.transport.say_hello = lambda peer_id: said.append((peer_id, raft.hello(peer_id)["joined"]))
        assert not raft.hello(2)["joined"], "the word that it is dialled with"
        raft._SyncObj__raftLastApplied = 2
        raft._post_status()
        assert raft._memory.joined
        assert said == [], "nobody is connected"
        raft.transport._links[2] = object()
        raft._post_status()
        assert said == [(2, True)]
        raft._tell_joined()
        assert said == [(2, True)], "once"
    finally:
        raft.transport._links.clear()
        quorum.stop()


def acknowledged(raft: Any, peer: Any, term: int) -> int:
    """The peer acknowledges the log through index 2; what of its log counts for commits then."""
    message = {"type": "next_node_idx", "term": term, "next_node_idx": 3, "reset": False, "success": True}
    raft.transport._on_message(peer, message)
    return int(raft._SyncObj__raftMatchIndex[peer])


def test_a_directory_that_was_not_admitted_commits_nothing(tmp_path: Path) -> None:
    """With its old directory it may have voted for a leader of a later term, and has forgotten that."""
    quorum = quorum_of(tmp_path)
    try:
        raft: Any = quorum._raft
        raft.tick()
        raft._SyncObj__setCurrentTerm(5, "1")
        raft._SyncObj__onBecomeLeader()
        peer = raft.transport._nodes[2]
        hello = {"directory_id": b"p" * 16, "joined": True, "remembered": bytes(16)}
        raft.on_hello(2, hello)
        assert acknowledged(raft, peer, 5) == 2
        raft.on_hello(2, dict(hello, directory_id=b"q" * 16, joined=False))
        assert acknowledged(raft, peer, 5) == 0, "we remember another directory"
        raft.machine.image = MetadataImage(version=3, controllers={2: b"p" * 16})
        assert acknowledged(raft, peer, 5) == 0, "and so does the log"
        assert raft._SyncObj__raftNextIndex[peer] == 3, "it is sent the log all the same"
        raft.machine.image = MetadataImage(version=4, controllers={2: b"q" * 16})
        assert acknowledged(raft, peer, 5) == 2
    finally:
        quorum.stop()


def test_an_acknowledgement_counts_in_its_own_term_only(tmp_path: Path) -> None:
    quorum = quorum_of(tmp_path)
    try:
        raft: Any = quorum._raft
        raft.tick()
        raft._SyncObj__setCurrentTerm(5, "1")
        raft._SyncObj__onBecomeLeader()
        peer = raft.transport._nodes[2]

        assert acknowledged(raft, peer, 4) == 0
        assert acknowledged(raft, peer, 5) == 2
        # One of a later term: somebody else leads there.
        acknowledged(raft, peer, 6)
        assert not leads(quorum)
        assert raft.raftCurrentTerm == 6
    finally:
        quorum.stop()
