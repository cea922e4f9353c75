"""Pure parts of the quorum: append filter, pre-vote, messages, state machine, library pins."""

from __future__ import annotations

import contextlib
import pickle
import random
import re
from pathlib import Path
from typing import Any

import pysyncobj.journal
import pysyncobj.pickle
import pysyncobj.serializer
import pysyncobj.syncobj
import pysyncobj.transport
import pytest

from penstock_controller.quorum import messages, pysyncobj_pins
from penstock_controller.quorum.append_filter import cuts_committed, filter_append
from penstock_controller.quorum.events import Applied, Outcome
from penstock_controller.quorum.journal import DurableJournal
from penstock_controller.quorum.machine import Machine
from penstock_controller.quorum.prevote import PreVote, would_vote
from penstock_controller.quorum.snapshot import SnapshotStore
from penstock_controller.quorum.transport import PeerTransport
from penstock_core.limits import FEATURE_LEVEL
from penstock_core.metadata import MetadataImage
from penstock_proto.v1 import metadata_pb2 as pb

Entry = tuple[bytes, int, int]


def entry(index: int, term: int) -> Entry:
    return (b"%d/%d" % (index, term), index, term)


def append(previous: Entry, entries: list[Entry], term: int, commit: int = 0) -> dict[str, Any]:
    return {
        "type": "append_entries",
        "term": term,
        "commit_index": commit,
        "prevLogIdx": previous[1],
        "prevLogTerm": previous[2],
        "entries": entries,
    }


def stock_follower(message: dict[str, Any], log: list[Entry]) -> int | None:
    """What PySyncObj does with an append: the index it acknowledges, None for a refusal."""
    if "prevLogIdx" not in message:
        return None
    at = message["prevLogIdx"] - log[0][1]
    if at < 0 or at >= len(log) or log[at][2] != message["prevLogTerm"]:
        return None
    del log[at + 1 :]
    log.extend(message["entries"])
    return int(message["prevLogIdx"]) + len(message["entries"])


def test_filter_matches_raft_whatever_arrives() -> None:
    """Against the receiver of the Raft paper, over random logs and random, repeated, late messages."""
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(4000):
        term, leader = 1, [entry(1, 0)]
        for index in range(2, rng.randrange(3, 12)):
            term += rng.random() < 0.3
            leader.append(entry(index, term))
        shared = rng.randrange(1, len(leader) + 1)
        log = leader[:shared]
        for index in range(shared + 1, shared + 1 + rng.randrange(4)):
            # A tail of another leader: at most as new as ours, never the same entries.
            log.append((b"other", index, max(log[-1][2], rng.randrange(term + 1))))
            if len(leader) >= index and leader[index - 1][2] == log[-1][2]:
                log.pop()
                break
        cut = rng.randrange(len(log)) if rng.random() < 0.3 else 0
        cut = min(cut, shared - 1)
        log = log[cut:]
        start = rng.randrange(len(leader))
        sent = leader[start + 1 : start + 1 + rng.randrange(5)]
        message = append(leader[start], sent, term, commit=rng.randrange(len(leader) + 1))
        want, want_ack = paper_receiver(message, log)
        got = list(log)
        filtered = filter_append(message, got[0][1], got)
        ack = stock_follower(filtered.message, got)
        if filtered.acknowledge is not None:
            assert ack is None
            ack = filtered.acknowledge
            assert filtered.message["commit_index"] <= filtered.acknowledge
        assert got == want
        if want_ack is None:
            assert ack is None
        else:
            # What is acknowledged is in the log and equals the leader's.
            assert ack is not None
            assert ack >= min(want_ack, log[0][1])
            assert all(e in leader for e in got if e[1] <= ack)


def paper_receiver(message: dict[str, Any], log: list[Entry]) -> tuple[list[Entry], int | None]:
    """Raft, figure 2: delete only on conflict; the index that now matches."""
    result = list(log)
    first = log[0][1]
    previous = message["prevLogIdx"]
    if previous >= first:
        at = previous - first
        if at >= len(log) or log[at][2] != message["prevLogTerm"]:
            return result, None
    for new in message["entries"]:
        if new[1] <= first:
            continue
        at = new[1] - first
        if at > len(result):
            return result, None
        if at < len(result) and result[at][2] != new[2]:
            del result[at:]
        if at == len(result):
            result.append(new)
    return result, max(first, previous + len(message["entries"]))


def test_prevote_needs_a_majority_of_one_round() -> None:
    vote = PreVote(peer_count=2, random=lambda: 0.0)
    assert vote.poll(0.0) == (False, True)
    asked = vote.round_id
    assert vote.poll(0.05) == (False, False)
    assert vote.poll(0.11) == (False, True)
    vote.granted(2, asked)
    assert vote.poll(0.12) == (False, False)
    vote.granted(2, vote.round_id)
    assert vote.poll(0.13) == (True, False)
    assert vote.poll(0.14) == (False, True)
    vote.granted(2, vote.round_id)
    vote.cancel()
    assert vote.poll(0.15) == (False, True)


def test_prevote_of_five_counts_each_peer_once() -> None:
    vote = PreVote(peer_count=4, random=lambda: 0.0)
    vote.poll(0.0)
    vote.granted(2, vote.round_id)
    vote.granted(2, vote.round_id)
    assert vote.poll(0.01) == (False, False)
    vote.granted(3, vote.round_id)
    assert vote.poll(0.01) == (True, False)


def test_alone_needs_nobody() -> None:
    assert PreVote(peer_count=0, random=random.random).poll(0.0) == (True, False)


@pytest.mark.parametrize(
    ("hears", "asked_term", "asked_last", "wanted"),
    [
        (True, 6, (5, 10), False),
        (False, 5, (5, 10), False),
        (False, 6, (5, 9), False),
        (False, 6, (4, 99), False),
        (False, 6, (5, 10), True),
        (False, 6, (6, 1), True),
    ],
)
def test_would_vote(hears: bool, asked_term: int, asked_last: tuple[int, int], wanted: bool) -> None:
    answer = would_vote(
        hears_leader=hears, own_term=5, own_last=(5, 10), asked_term=asked_term, asked_last=asked_last
    )
    assert answer is wanted


COMMAND = (
    b"\x00"
    + pb.MetadataCommand(
        base_version=7, records=[pb.MetadataRecord(gateway=pb.GatewayRecord(gateway_id="g" * 70_000))]
    ).SerializeToString()
)

MESSAGES: list[dict[str, Any]] = [
    {
        "type": "hello",
        "from": 1,
        "to": 3,
        "joined": True,
        "directory_id": b"d" * 16,
        "remembered": b"r" * 16,
        "cluster_id": b"c" * 16,
    },
    {"type": "keepalive"},
    {"type": "request_vote", "term": 4, "last_log_index": 9, "last_log_term": 3},
    {"type": "response_vote", "term": 4},
    append(entry(3, 2), [(b"\x01", 4, 2), (COMMAND, 5, 2), (COMMAND, 6, 3)], 3, 4),
    append(entry(3, 2), [], 3, 4),
    {"type": "append_entries", "term": 4, "commit_index": 2, "serialized": (b"part", True, False)},
    {"type": "next_node_idx", "term": 4, "next_node_idx": 9, "reset": True, "success": False},
    {"type": "timeout_now", "term": 4},
    {"type": "prevote", "round": 7, "term": 4, "last_log_index": 9, "last_log_term": 3},
    {"type": "prevote_reply", "round": 7, "term": 4, "granted": True},
    {"type": "term_notice", "term": 9},
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: str(m["type"]))
def test_messages_round_trip(message: dict[str, Any]) -> None:
    assert messages.decode(memoryview(encoded(message))) == message


def encoded(message: dict[str, Any]) -> bytes:
    payload = messages.encode(message)
    assert payload is not None
    return payload


def test_garbage_is_refused() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    seeds = [encoded(m) for m in MESSAGES]
    for _ in range(5000):
        data = bytearray(rng.choice(seeds)[:200])
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        data = data[: rng.randrange(len(data) + 1)]
        with contextlib.suppress(messages.BadMessage):
            messages.decode(memoryview(bytes(data)))
    with pytest.raises(messages.BadMessage):
        messages.decode(memoryview(b""))
    with pytest.raises(messages.BadMessage):
        messages.decode(memoryview(pickle.dumps({"type": "append_entries"}, 2)))


def test_commands_of_followers_are_never_sent() -> None:
    assert messages.encode({"type": "apply_command", "command": b"x"}) is None


def test_what_cannot_be_encoded_ends_nothing() -> None:
    """A peer that moved its marks made PySyncObj ask for numbers that no message has room for."""
    assert messages.encode(append(entry(3, 2), [], 3, 2**64)) is None
    assert messages.encode({**append(entry(3, 2), [], 3, 4), "prevLogIdx": None}) is None
    assert messages.encode({"type": "request_vote", "term": -1}) is None
    assert messages.encode({"type": "append_entries"}) is None


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "a term": ({"type": "term_notice", "term": 2**62}, "beyond what a quorum reaches"),
    "an index": (
        {"type": "next_node_idx", "term": 4, "next_node_idx": 2**63, "reset": True, "success": False},
        "beyond what a quorum reaches",
    ),
    "an empty command": (append(entry(3, 2), [(b"", 4, 2)], 3, 4), "entry 4 of term 2 is empty"),
    "no command": (append(entry(3, 2), [(b"\x00\xff", 4, 2)], 3, 4), "is no metadata command"),
    "an unknown record": (
        append(entry(3, 2), [(b"\x00\x12\x00", 4, 2)], 3, 4),
        "holds a record of a newer version: upgrade this controller",
    ),
    "an unknown kind": (append(entry(3, 2), [(b"\x02", 4, 2)], 3, 4), "is of the unknown kind 2"),
    "a fat no-op": (append(entry(3, 2), [(b"\x01x", 4, 2)], 3, 4), "is a no-op of 2 bytes"),
    "a gap": (append(entry(3, 2), [(b"\x01", 5, 2)], 3, 4), "entry 5 of term 2 cannot follow 3 of 2"),
    "a term that falls": (append(entry(3, 2), [(b"\x01", 4, 1)], 3, 4), "cannot follow"),
    "a term to come": (append(entry(3, 2), [(b"\x01", 4, 5)], 3, 4), "cannot follow"),
    "many entries": (
        append(entry(3, 2), [(b"\x01", 4 + n, 2) for n in range(20_001)], 3, 4),
        "20001 entries in a message",
    ),
}


@pytest.mark.parametrize(("message", "reason"), FAULTS.values(), ids=FAULTS.keys())
def test_messages_out_of_bounds_are_refused(message: dict[str, Any], reason: str) -> None:
    with pytest.raises(messages.BadMessage, match=reason):
        messages.decode(memoryview(encoded(message)))


def test_an_append_may_not_cut_what_is_committed() -> None:
    log = [entry(n, 2) for n in range(10, 20)]

    def cuts(message: dict[str, Any]) -> bool:
        return cuts_committed(message, 10, log, 15)

    assert not cuts(append(entry(13, 2), [entry(14, 2), entry(15, 2), entry(16, 3)], 15, 4))
    assert not cuts(append(entry(15, 2), [entry(16, 4)], 15, 4))
    assert not cuts(append(entry(30, 2), [entry(31, 4)], 15, 4))
    assert not cuts(append(entry(3, 2), [], 15, 4))
    assert cuts(append(entry(14, 2), [entry(15, 3)], 15, 4))
    assert cuts(append(entry(9, 2), [entry(10, 3), entry(11, 3)], 15, 4))


# --- the state machine --------------------------------------------------------------


def machine() -> tuple[Machine, list[Applied], list[BaseException]]:
    applied: list[Applied] = []
    fatal: list[BaseException] = []
    return Machine(MetadataImage(), applied.append, fatal.append), applied, fatal


def command(base: int, next_producer_id: int = 5) -> bytes:
    record = pb.MetadataRecord(producer_ids=pb.ProducerIdsRecord(next_producer_id=next_producer_id))
    return pb.MetadataCommand(base_version=base, records=[record], command_id=9).SerializeToString()


def test_machine_applies_compare_and_set() -> None:
    target, applied, fatal = machine()
    assert target.apply(command(0)) is Outcome.APPLIED
    assert target.apply(command(0)) is Outcome.STALE
    assert target.apply(pb.MetadataCommand(base_version=1).SerializeToString()) is Outcome.STALE
    assert target.apply(command(1, 6)) is Outcome.APPLIED
    assert [(a.image.version, a.command_id) for a in applied] == [(1, 9), (2, 9)]
    assert not fatal


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff",
        pb.MetadataCommand(records=[pb.MetadataRecord()]).SerializeToString(),
        command(0, -4),
    ],
)
def test_machine_stops_rather_than_diverge(data: bytes) -> None:
    target, applied, fatal = machine()
    assert target.apply(data) is Outcome.UNKNOWN
    assert len(fatal) == 1
    assert target.apply(command(0)) is Outcome.UNKNOWN
    assert not applied
    assert target.image.version == 0


def level(base: int, wanted: int) -> bytes:
    record = pb.MetadataRecord(feature=pb.FeatureRecord(name="metadata.level", level=wanted))
    return pb.MetadataCommand(base_version=base, records=[record]).SerializeToString()


def test_machine_stops_at_a_level_that_it_does_not_understand() -> None:
    target, applied, fatal = machine()
    target.entry_index = 7
    assert target.apply(level(0, FEATURE_LEVEL + 1)) is Outcome.UNKNOWN
    assert not applied
    (error,) = fatal
    said = "entry 7 of the Raft log is of a newer build: this build understands metadata.level"
    assert str(error).startswith(said), error
    assert "install a newer build" in str(error)


def test_machine_notes_where_the_level_fell() -> None:
    target, *_ = machine()
    for version, wanted in enumerate((2, FEATURE_LEVEL, FEATURE_LEVEL)):
        target.apply(level(version, wanted))
        assert target.fell_at == 0
    target.entry_index = 9
    target.apply(level(3, FEATURE_LEVEL - 1))
    assert target.fell_at == 9


# --- the library ----------------------------------------------------------------------


def test_installed_library_is_the_pinned_one() -> None:
    pysyncobj_pins.check_library()


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pysyncobj_pins, "VERSION", "0.3.18")
    with pytest.raises(
        pysyncobj_pins.WrongLibrary, match=r"0\.3\.18 is installed, this controller needs 0\.3\.17"
    ):
        pysyncobj_pins.check_library()


def test_a_missing_private_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(pysyncobj.syncobj.SyncObj, "_SyncObj__connectedToAnyone")
    with pytest.raises(pysyncobj_pins.WrongLibrary, match="__connectedToAnyone"):
        pysyncobj_pins.check_library()


@pytest.mark.parametrize(
    ("owner", "name", "said"),
    [
        (pysyncobj.syncobj.SyncObj, "_isLeader", "lacks _isLeader"),
        (pysyncobj.transport.Transport, "_onMessageReceived", r"Transport\._onMessageReceived"),
        (pysyncobj.transport.Transport, "_onNodeConnected", r"Transport\._onNodeConnected"),
        (pysyncobj.transport.Transport, "_onNodeDisconnected", r"Transport\._onNodeDisconnected"),
        (pysyncobj.journal.Journal, "deleteEntriesTo", r"Journal\.deleteEntriesTo"),
        (pysyncobj.serializer.Serializer, "cancelTransmisstion", r"Serializer\.cancelTransmisstion"),
        (pysyncobj.pickle, "loads", r"pysyncobj\.pickle\.loads"),
        (pysyncobj.pickle, "load", r"pysyncobj\.pickle\.load;"),
        (pysyncobj.journal, "loads", r"pysyncobj\.journal\.loads"),
    ],
)
def test_each_missing_name_is_named(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, said: str
) -> None:
    monkeypatch.delattr(owner, name)
    with pytest.raises(pysyncobj_pins.WrongLibrary, match=said):
        pysyncobj_pins.check_library()


class Plain:
    """What every class has."""


def test_what_our_journal_and_snapshots_override_is_pinned() -> None:
    pinned = {where: (owner, set(names)) for where, owner, names in pysyncobj_pins._OTHER_NAMES}
    for where, ours in (
        ("Journal", DurableJournal),
        ("Serializer", SnapshotStore),
        ("Transport", PeerTransport),
    ):
        owner, names = pinned[where]
        overridden = {n for n in vars(ours) if n in vars(owner) and n not in dir(Plain)}
        assert overridden and overridden <= names, overridden - names


def test_private_names_of_syncobj_in_our_code_are_pinned() -> None:
    folder = Path(pysyncobj_pins.__file__).parent
    used = {
        name
        for file in folder.glob("*.py")
        if file.name != "pysyncobj_pins.py"
        for name in re.findall(r"_SyncObj__\w+", file.read_text())
    }
    assert used and used <= {*pysyncobj_pins._CLASS_NAMES, *pysyncobj_pins._INSTANCE_NAMES}


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("run",))


def test_nothing_unpickles(capsys: pytest.CaptureFixture[str]) -> None:
    pysyncobj_pins.install_hooks()
    for module in (pysyncobj.pickle, pysyncobj.journal, pysyncobj.syncobj.pickle):
        with pytest.raises(pickle.UnpicklingError):
            module.loads(pickle.dumps(Bomb()))
    assert "run" not in capsys.readouterr().out
