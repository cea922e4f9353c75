"""One transactional id: the tables of each request, by state and by TV, and what Kafka once got wrong."""

from __future__ import annotations

from itertools import product

import pytest

from penstock_core.errors import ErrorCode
from penstock_storage_node.transactions import state as st
from penstock_storage_node.transactions.records import Partitions, State, TransactionValue
from penstock_storage_node.transactions.state import Answer, Change, End, Init, Refusal, Verdict

NOW_MS = 1_000_000
PID, LAST_PID, FRESH_PID = 500, 499, 900
HERE = frozenset({("t", 0)})
MORE = frozenset({("t", 1)})
OPEN_STATES = (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT)
ALL = tuple(State)


def value(state: State, epoch: int = 5, last: int = -1, previous: int = -1) -> TransactionValue:
    return TransactionValue(
        PID,
        epoch,
        60_000,
        state,
        HERE if state in OPEN_STATES else frozenset(),
        update_ms=900_000,
        start_ms=-1 if state is State.EMPTY else 800_000,
        previous_producer_id=previous,
        last_epoch=last,
    )


def told(verdict: Verdict) -> object:
    """In short: a code, a pair, "needs id", or (new state, new epoch, reply)."""
    if isinstance(verdict, Refusal):
        return verdict.code.name
    if isinstance(verdict, Answer):
        return verdict.producer_id, verdict.epoch
    if isinstance(verdict, Change):
        return verdict.value.state.name, verdict.value.producer_epoch, told(verdict.reply)
    return "needs id"


# -- InitProducerId --------------------------------------------------------------------------


def init(old: TransactionValue | None, request: Init, fresh: int | None = None, server: int = 2) -> Verdict:
    return st.init_producer_id(old, request, NOW_MS, server, fresh)


def test_a_new_id() -> None:
    assert told(init(None, Init(1))) == "needs id"
    assert told(init(None, Init(1), FRESH_PID)) == ("EMPTY", 0, (FRESH_PID, 0))
    # One that was forgotten here: whatever the producer says of itself, it gets a new producer id.
    assert told(init(None, Init(1, PID, 7), FRESH_PID)) == ("EMPTY", 0, (FRESH_PID, 0))


@pytest.mark.parametrize("state", st.AT_REST)
def test_at_rest_the_epoch_rises(state: State) -> None:
    found = init(value(state), Init(1234))
    assert told(found) == ("EMPTY", 6, (PID, 6))
    assert isinstance(found, Change)
    assert (found.value.timeout_ms, found.value.last_epoch, found.value.start_ms) == (1234, -1, -1)
    said = init(value(state), Init(1, PID, 5))
    assert told(said) == ("EMPTY", 6, (PID, 6))
    assert isinstance(said, Change)
    # Its answer was lost, it asks again: the same pair (KIP-360). A third one was there meanwhile: fenced.
    assert told(init(said.value, Init(1, PID, 5))) == ("EMPTY", 6, (PID, 6))
    other = init(said.value, Init(1))
    assert isinstance(other, Change)
    assert told(init(other.value, Init(1, PID, 5))) == "PRODUCER_FENCED"


@pytest.mark.parametrize("state", ALL)
def test_another_producer_is_fenced_in_every_state(state: State) -> None:
    assert told(init(value(state), Init(1, PID + 1, 5))) == "PRODUCER_FENCED"
    if state in st.AT_REST:
        assert told(init(value(state), Init(1, PID, 4))) == "PRODUCER_FENCED"


@pytest.mark.parametrize("state", st.PREPARED)
def test_a_decided_transaction_comes_first(state: State) -> None:
    assert told(init(value(state), Init(1))) == "CONCURRENT_TRANSACTIONS"


@pytest.mark.parametrize(("server", "version"), [(0, 0), (2, 2)])
def test_an_open_transaction_is_aborted_and_the_epoch_rises_once(server: int, version: int) -> None:
    # KAFKA-19367: it rose twice.
    found = init(value(State.ONGOING), Init(1), server=server)
    assert told(found) == ("PREPARE_ABORT", 6, "CONCURRENT_TRANSACTIONS")
    assert isinstance(found, Change)
    assert (found.value.client_version, found.value.partitions) == (version, HERE)
    done = st.completed(found.value, NOW_MS)
    assert (done.state, done.producer_epoch) == (State.COMPLETE_ABORT, 6)
    assert told(init(done, Init(1))) == ("EMPTY", 7, (PID, 7))


@pytest.mark.parametrize("epoch", [st.EPOCH_USED_UP, st.EPOCH_MAX])
def test_used_up_epochs_bring_a_new_producer_id(epoch: int) -> None:
    # KAFKA-20090: 32767 was never left.
    old = value(State.COMPLETE_ABORT, epoch)
    assert told(init(old, Init(1))) == "needs id"
    assert told(init(old, Init(1), FRESH_PID)) == ("EMPTY", 0, (FRESH_PID, 0))
    found = init(old, Init(1, PID, epoch), FRESH_PID)
    assert isinstance(found, Change)
    assert (found.value.previous_producer_id, found.value.last_epoch) == (PID, epoch)
    # KAFKA-20310: by the previous id it may repeat that, also after the coordinator moved.
    assert told(init(found.value, Init(1, PID, epoch))) == ("EMPTY", 0, (FRESH_PID, 0))
    assert told(init(old, Init(1, PID, epoch - 1), FRESH_PID)) == "PRODUCER_FENCED"


def test_a_repetition_near_the_end_draws_no_id() -> None:
    old = value(State.EMPTY, st.EPOCH_USED_UP, last=st.EPOCH_USED_UP - 1)
    assert told(init(old, Init(1, PID, st.EPOCH_USED_UP - 1))) == ("EMPTY", 32_766, (PID, 32_766))


# -- adding ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 2])
def test_adding(version: int) -> None:
    def add(old: TransactionValue | None, pid: int = PID, epoch: int = 5, what: Partitions = MORE) -> Verdict:
        return st.add_partitions(old, pid, epoch, what, version, NOW_MS)

    assert told(add(None)) == "INVALID_PRODUCER_ID_MAPPING"
    for state in ALL:
        assert told(add(value(state), pid=PID + 1)) == "INVALID_PRODUCER_ID_MAPPING"
        for epoch in (4, 6):
            assert told(add(value(state), epoch=epoch)) == "PRODUCER_FENCED"
    for state in st.PREPARED:
        assert told(add(value(state))) == "CONCURRENT_TRANSACTIONS"
    for state in st.AT_REST:
        begun = add(value(state))
        assert isinstance(begun, Change)
        assert (begun.value.state, begun.value.partitions) == (State.ONGOING, MORE)
        assert (begun.value.start_ms, begun.value.client_version) == (NOW_MS, version)
    more = add(value(State.ONGOING))
    assert isinstance(more, Change)
    assert (more.value.partitions, more.value.start_ms) == (HERE | MORE, 800_000)
    assert told(add(value(State.ONGOING), what=HERE)) == (PID, 5)


def test_verifying_looks_and_changes_nothing() -> None:
    def ask(old: TransactionValue | None, pid: int = PID, epoch: int = 5) -> dict[tuple[str, int], str]:
        return {p: c.name for p, c in st.verify(old, pid, epoch, HERE | MORE).items()}

    here, more = ("t", 0), ("t", 1)
    assert ask(value(State.ONGOING)) == {here: "NONE", more: "TRANSACTION_ABORTABLE"}
    assert set(ask(None).values()) == {"INVALID_PRODUCER_ID_MAPPING"}
    assert set(ask(value(State.ONGOING), pid=1).values()) == {"INVALID_PRODUCER_ID_MAPPING"}
    assert set(ask(value(State.ONGOING), epoch=4).values()) == {"PRODUCER_FENCED"}
    for state in st.PREPARED:
        assert set(ask(value(state)).values()) == {"CONCURRENT_TRANSACTIONS"}
    for state in st.AT_REST:
        assert set(ask(value(state)).values()) == {"TRANSACTION_ABORTABLE"}


# -- ending ----------------------------------------------------------------------------------

SAME, LOWER = "same", "lower"
FENCED, BUSY, WRONG = "PRODUCER_FENCED", "CONCURRENT_TRANSACTIONS", "INVALID_TXN_STATE"
C, A = True, False
TV1 = {
    (State.EMPTY, C): WRONG,
    (State.EMPTY, A): WRONG,
    (State.ONGOING, C): ("PREPARE_COMMIT", 5, (PID, 5)),
    (State.ONGOING, A): ("PREPARE_ABORT", 5, (PID, 5)),
    (State.PREPARE_COMMIT, C): BUSY,
    (State.PREPARE_COMMIT, A): WRONG,
    (State.PREPARE_ABORT, C): WRONG,
    (State.PREPARE_ABORT, A): BUSY,
    (State.COMPLETE_COMMIT, C): (PID, 5),
    (State.COMPLETE_COMMIT, A): WRONG,
    (State.COMPLETE_ABORT, C): WRONG,
    (State.COMPLETE_ABORT, A): (PID, 5),
}
EMPTY_ABORT = ("PREPARE_ABORT", 6, (PID, 6))
TV2 = {
    (State.EMPTY, C, SAME): WRONG,
    (State.EMPTY, A, SAME): EMPTY_ABORT,
    (State.EMPTY, C, LOWER): FENCED,
    (State.EMPTY, A, LOWER): FENCED,
    (State.ONGOING, C, SAME): ("PREPARE_COMMIT", 6, (PID, 6)),
    (State.ONGOING, A, SAME): EMPTY_ABORT,
    (State.ONGOING, C, LOWER): FENCED,
    (State.ONGOING, A, LOWER): FENCED,
    (State.PREPARE_COMMIT, C, SAME): FENCED,
    (State.PREPARE_COMMIT, A, SAME): FENCED,
    (State.PREPARE_COMMIT, C, LOWER): BUSY,
    (State.PREPARE_COMMIT, A, LOWER): WRONG,
    (State.PREPARE_ABORT, C, SAME): FENCED,
    (State.PREPARE_ABORT, A, SAME): FENCED,
    (State.PREPARE_ABORT, C, LOWER): WRONG,
    (State.PREPARE_ABORT, A, LOWER): BUSY,
    (State.COMPLETE_COMMIT, C, SAME): WRONG,
    (State.COMPLETE_COMMIT, A, SAME): EMPTY_ABORT,
    (State.COMPLETE_COMMIT, C, LOWER): (PID, 5),
    (State.COMPLETE_COMMIT, A, LOWER): WRONG,
    (State.COMPLETE_ABORT, C, SAME): WRONG,
    (State.COMPLETE_ABORT, A, SAME): EMPTY_ABORT,
    (State.COMPLETE_ABORT, C, LOWER): WRONG,
    (State.COMPLETE_ABORT, A, LOWER): (PID, 5),
}


def end(old: TransactionValue | None, request: End, fresh: int | None = None) -> Verdict:
    return st.end_transaction(old, request, NOW_MS, fresh)


@pytest.mark.parametrize(("state", "commits"), list(product(ALL, (C, A))))
def test_ending_of_a_producer_that_keeps_its_epoch(state: State, commits: bool) -> None:
    assert told(end(value(state), End(PID, 5, commits))) == TV1[state, commits]
    assert told(end(value(state), End(PID + 1, 5, commits))) == "INVALID_PRODUCER_ID_MAPPING"
    for epoch in (4, 6):
        assert told(end(value(state), End(PID, epoch, commits))) == FENCED


@pytest.mark.parametrize(("state", "commits"), list(product(ALL, (C, A))))
def test_ending_of_a_producer_whose_epoch_rises(state: State, commits: bool) -> None:
    for said, epoch in ((SAME, 5), (LOWER, 4)):
        assert told(end(value(state), End(PID, epoch, commits, 2))) == TV2[state, commits, said], said
    for epoch in (3, 6):
        assert told(end(value(state), End(PID, epoch, commits, 2))) == FENCED
    assert told(end(value(state), End(PID + 1, 5, commits, 2))) == "INVALID_PRODUCER_ID_MAPPING"
    assert told(end(None, End(PID, 5, commits, 2))) == "INVALID_PRODUCER_ID_MAPPING"


def test_the_last_epoch_of_a_producer_id() -> None:
    old = value(State.ONGOING, st.EPOCH_USED_UP)
    assert told(end(old, End(PID, st.EPOCH_USED_UP, C, 2))) == "needs id"
    found = end(old, End(PID, st.EPOCH_USED_UP, C, 2), FRESH_PID)
    # Its markers have 32767, its producer goes on with the next id.
    assert told(found) == ("PREPARE_COMMIT", st.EPOCH_MAX, (FRESH_PID, 0))
    assert isinstance(found, Change)
    assert found.value.next_producer_id == FRESH_PID
    done = st.completed(found.value, NOW_MS)
    assert (done.producer_id, done.producer_epoch, done.state) == (FRESH_PID, 0, State.COMPLETE_COMMIT)
    assert (done.previous_producer_id, done.next_producer_id) == (PID, -1)
    # Its answer was lost: it asks by the pair that it knows.
    assert told(end(done, End(PID, st.EPOCH_USED_UP, C, 2))) == (FRESH_PID, 0)
    assert told(end(done, End(PID, st.EPOCH_USED_UP, A, 2))) == WRONG
    assert told(end(done, End(PID, st.EPOCH_USED_UP - 1, C, 2))) == "INVALID_PRODUCER_ID_MAPPING"
    assert told(end(done, End(LAST_PID, st.EPOCH_USED_UP, C, 2))) == "INVALID_PRODUCER_ID_MAPPING"


@pytest.mark.parametrize("server", [0, 2])
def test_an_abort_by_the_server_at_the_last_epoch(server: int) -> None:
    old = value(State.ONGOING, st.EPOCH_USED_UP)
    found = st.abort_in_its_place(old, NOW_MS, server, FRESH_PID)
    assert isinstance(found, Change)
    assert found.value.producer_epoch == st.EPOCH_MAX
    done = st.completed(found.value, NOW_MS)
    pair = (FRESH_PID, 0) if server else (PID, st.EPOCH_MAX)
    assert (done.producer_id, done.producer_epoch) == pair
    # Whoever asks next has an epoch that nobody had before.
    after = init(done, Init(1), FRESH_PID + 1, server=server)
    assert told(after) == (("EMPTY", 1, (FRESH_PID, 1)) if server else ("EMPTY", 0, (FRESH_PID + 1, 0)))


def test_what_is_aborted_empty_begins_and_ends_now() -> None:
    found = end(value(State.COMPLETE_COMMIT), End(PID, 5, A, 2))
    assert isinstance(found, Change)
    assert (found.value.start_ms, found.value.partitions) == (NOW_MS, frozenset())


def test_expiry_is_of_ids_at_rest() -> None:
    for state in ALL:
        assert st.is_expired(value(state), 900_100, 100) == (state in st.AT_REST)
        assert not st.is_expired(value(state), 900_099, 100)


# -- all that can follow ----------------------------------------------------------------------


def steps(old: TransactionValue) -> list[tuple[str, Verdict]]:
    """Every request that two producers, one of them fenced perhaps, can send now."""
    found: list[tuple[str, Verdict]] = []
    for epoch in {old.producer_epoch, max(old.producer_epoch - 1, 0), old.last_epoch}:
        for tv in (0, 2):
            for commits in (C, A):
                found.append((f"end {epoch}", end(old, End(old.producer_id, epoch, commits, tv), FRESH_PID)))
            found.append(("add", st.add_partitions(old, old.producer_id, epoch, HERE, tv, NOW_MS)))
        for pid in (old.producer_id, old.previous_producer_id):
            found.append(
                ("init", init(old, Init(1, pid, epoch) if min(pid, epoch) >= 0 else Init(1), FRESH_PID))
            )
    if old.state is State.ONGOING:
        found.append(("timeout", st.abort_in_its_place(old, NOW_MS, 2, FRESH_PID)))
    return found


ALLOWED = {
    State.EMPTY: {State.EMPTY, State.ONGOING, State.PREPARE_ABORT},
    State.ONGOING: {State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT},
    State.PREPARE_COMMIT: {State.COMPLETE_COMMIT},
    State.PREPARE_ABORT: {State.COMPLETE_ABORT},
    State.COMPLETE_COMMIT: {State.EMPTY, State.ONGOING, State.PREPARE_ABORT},
    State.COMPLETE_ABORT: {State.EMPTY, State.ONGOING, State.PREPARE_ABORT},
}


@pytest.mark.parametrize("first_epoch", [0, st.EPOCH_USED_UP - 2])
def test_whatever_is_asked_in_whatever_order(first_epoch: int) -> None:
    """Six steps deep: only allowed transitions, epochs never fall within a producer id, nothing above the last one."""
    seen: set[TransactionValue] = set()
    front = {value(State.EMPTY, first_epoch)}
    for _ in range(6):
        following: set[TransactionValue] = set()
        for old in front:
            news = [v.value for _, v in steps(old) if isinstance(v, Change)]
            if old.state in st.PREPARED:
                assert not news, old
                news = [st.completed(old, NOW_MS)]
            for new in news:
                assert new.state in ALLOWED[old.state], (old, new)
                if new.producer_id == old.producer_id:
                    assert new.producer_epoch >= old.producer_epoch
                else:
                    assert (new.producer_id, new.producer_epoch) == (FRESH_PID, 0)
                    assert old.producer_epoch >= st.EPOCH_USED_UP
                assert new.producer_epoch <= st.EPOCH_MAX
                assert bool(new.partitions) <= (new.state in OPEN_STATES)
                if new not in seen:
                    seen.add(new)
                    following.add(new)
        front = following
    assert len(seen) > 30
    assert ErrorCode.NONE not in {v.code for old in seen for _, v in steps(old) if isinstance(v, Refusal)}
