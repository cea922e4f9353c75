"""What the Raft node adds to PySyncObj: slices, snapshots, terms of votes and acks, who may vote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pysyncobj.syncobj import _RAFT_STATE

from penstock_controller.quorum import Outcome, Quorum, QuorumConfig, RaftPeer, Reset
from penstock_controller.quorum import snapshot_format as fmt
from penstock_controller.quorum.events import QuorumEvent
from penstock_controller.quorum.quorum import QuorumPorts
from penstock_controller.quorum.snapshot_format import Snapshot
from penstock_core.metadata import MetadataImage
from penstock_proto.v1 import metadata_pb2 as pb
from support.controllers import free_ports


def ids_record(value: int) -> pb.MetadataRecord:
    return pb.MetadataRecord(producer_ids=pb.ProducerIdsRecord(next_producer_id=value))


def may_vote(quorum: Quorum) -> bool:
    return quorum._raft.may_vote


def is_installing(quorum: Quorum) -> bool:
    return quorum._raft.installing


def quorum_of(directory: Path, count: int = 3) -> Quorum:
    """One of `count`, its thread never started."""
    events: list[QuorumEvent] = []
    ports = free_ports(count)
    config = QuorumConfig(
        controller_id=1,
        peers=tuple(RaftPeer(n + 1, "127.0.0.1", port) for n, port in enumerate(ports)),
        bind_host="127.0.0.1",
        bind_port=ports[0],
        directory=directory,
        directory_id=b"d" * 16,
    )

    def fail(error: BaseException) -> None:
        raise AssertionError(error)

    # Jobs of the snapshot store are done where they are asked for.
    given = QuorumPorts(spawn=lambda job, _name: job())
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
