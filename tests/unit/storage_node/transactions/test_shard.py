"""A partition of `__transaction_state`: what waits for what, what outlives the coordinator, and when."""

from __future__ import annotations

import random

import pytest

from penstock_core.errors import ErrorCode
from penstock_storage_node.transactions.records import (
    State,
    TransactionValue,
    put_key,
    put_value,
    read_key,
    read_value,
)
from penstock_storage_node.transactions.shard import (
    HOLD_MS,
    INIT_HOLD_MS,
    LATE_LEFT_MS,
    RETRY_MS,
    MarkersDue,
    Record,
)
from unit.storage_node.transactions.shard_rig import EPOCH_MS, HERE, Asked, Rig

BUSY = "CONCURRENT_TRANSACTIONS"


def test_the_life_of_one() -> None:
    rig = Rig()
    first = rig.init()
    rig.turn()
    assert first.code == ""
    rig.cover()
    pair = first.pair
    assert pair == (1001, 0)
    added = rig.add(pair)
    rig.turn()
    assert added.code == ""
    rig.cover()
    assert added.code == "NONE"
    ended = rig.end(pair)
    rig.turn()
    # The decision is the covered record: no answer and no marker before it.
    assert (ended.code, rig.markers) == ("", [])
    rig.cover()
    assert ended.pair == pair
    assert rig.markers == [MarkersDue("id", *pair, True, HERE, 0)]
    rig.settle()
    assert [state for _, state in rig.states()] == ["EMPTY", "ONGOING", "PREPARE_COMMIT", "COMPLETE_COMMIT"]


def test_of_a_client_whose_epoch_rises() -> None:
    rig = Rig()
    pair = rig.open(version=2)
    ended = rig.end(pair, version=2)
    rig.cover()
    assert ended.pair == (pair[0], 1)
    assert rig.markers == [MarkersDue("id", pair[0], 1, True, HERE, 2)]
    rig.settle()
    # Again, the answer was lost; and by the next coordinator too.
    for _ in range(2):
        again = rig.end(pair, version=2)
        rig.settle()
        assert again.pair == (pair[0], 1)
        rig = rig.moved()


def test_bad_requests_are_refused_before_anything_is_looked_at() -> None:
    rig = Rig()
    assert rig.init("").code == "INVALID_REQUEST"
    assert rig.init(producer_id=5).code == "INVALID_REQUEST"
    assert rig.init("x" * 16_385).code == "INVALID_REQUEST"
    assert rig.init(timeout_ms=0).code == "INVALID_TRANSACTION_TIMEOUT"
    assert rig.init(timeout_ms=900_001).code == "INVALID_TRANSACTION_TIMEOUT"
    rig.may_add = False
    assert rig.init().code == "THROTTLING_QUOTA_EXCEEDED"
    rig.turn()
    assert not rig.appended


def test_what_meets_a_change_waits_for_it() -> None:
    rig = Rig()
    pair = rig.ready()
    added = rig.add(pair)
    rig.turn()
    ended = rig.end(pair)
    assert ended.code == ""
    rig.cover()
    assert (added.code, ended.code) == ("NONE", "")
    rig.cover()
    assert ended.code == "NONE"
    # Decided: the next transaction waits for its last marker.
    following = rig.add(pair)
    rig.turn()
    assert following.code == ""
    rig.settle()
    assert following.code == "NONE"
    assert rig.state() == "ONGOING"
    assert rig.shard.held_count == 0


def test_it_waits_no_longer_than_it_may() -> None:
    rig = Rig()
    pair = rig.open()
    rig.end(pair)
    rig.cover()
    added, begun = rig.add(pair), rig.init()
    rig.later(HOLD_MS - 1)
    assert (added.code, begun.code) == ("", "")
    rig.later(1)
    assert (added.code, begun.code) == (BUSY, "")
    rig.later(INIT_HOLD_MS)
    assert begun.code == BUSY
    assert rig.shard.held_count == 0


def test_adds_of_a_turn_are_one_change_and_a_turn_is_one_batch() -> None:
    rig = Rig()
    pair, other = rig.ready(), rig.ready("other")
    adds = [rig.add(pair, frozenset({("t", n)})) for n in range(12)]
    adds.append(rig.add(other, name="other"))
    rig.turn()
    (batch,) = rig.appended
    assert len(batch[0]) == 2
    late = rig.add(pair, frozenset({("late", 0)}))
    rig.cover()
    assert {each.code for each in adds} == {"NONE"}
    assert late.code == ""
    rig.cover()
    assert late.code == "NONE"
    assert len(rig.shard.values["id"].partitions) == 13


def test_a_zombies_add_does_not_join() -> None:
    rig = Rig()
    old = rig.ready()
    pair = rig.ready()
    added, zombies = rig.add(pair), rig.add(old)
    rig.cover()
    assert (added.code, zombies.code) == ("NONE", "")
    rig.cover()
    assert zombies.code == "PRODUCER_FENCED"


def test_no_sentence_without_a_barrier() -> None:
    rig = Rig()
    pair = rig.open()
    stale = rig.end((pair[0], pair[1] + 1))
    unknown = rig.add(pair, name="nobody")
    assert (stale.code, unknown.code) == ("", "")
    rig.turn()
    # One record for all questions of a turn: what is there already, again.
    ((records, _),) = rig.appended
    assert records == [Record(put_key("id"), put_value(rig.shard.values["id"]))]
    assert (stale.code, unknown.code) == ("", "")
    rig.cover()
    assert (stale.code, unknown.code) == ("PRODUCER_FENCED", "INVALID_PRODUCER_ID_MAPPING")


def test_a_deposed_coordinator_sentences_nobody() -> None:
    rig = Rig()
    pair = rig.open()
    asked = [rig.end((pair[0], 5)), rig.add(pair, name="nobody")]
    told: list[dict[tuple[str, int], ErrorCode]] = []
    rig.shard.verify("id", pair, frozenset({("t", 9)}), told.append)
    rig.turn()
    ((_, done),) = rig.appended
    rig.shard.close()
    done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert {each.code for each in asked} == {"NOT_COORDINATOR"}
    assert told == [{("t", 9): ErrorCode.NOT_COORDINATOR}]


def test_verifying() -> None:
    rig = Rig()
    pair = rig.open()
    told: list[dict[tuple[str, int], ErrorCode]] = []
    rig.shard.verify("id", pair, HERE, told.append)
    assert told == [{("t", 0): ErrorCode.NONE}]
    rig.shard.verify("id", pair, HERE | {("t", 9)}, told.append)
    assert len(told) == 1
    rig.cover()
    assert told[1] == {("t", 0): ErrorCode.NONE, ("t", 9): ErrorCode.TRANSACTION_ABORTABLE}


def test_all_that_waits_at_the_end_looks_for_the_next_coordinator() -> None:
    rig = Rig()
    pair = rig.open()
    ended = rig.end(pair)
    rig.turn()
    held, begun = rig.add(pair), rig.init("new")
    rig.shard.close()
    assert {each.code for each in (ended, held, begun)} == {"NOT_COORDINATOR"}
    assert rig.add(pair).code == "NOT_COORDINATOR"


def test_an_init_that_fences_is_asked_again_and_rises_the_epoch_once() -> None:
    # KAFKA-16570: it was told 51 after it had fenced, which is right as long as the next question ends it.
    rig = Rig()
    pair = rig.open()
    fencing = rig.init()
    rig.cover()
    assert fencing.code == BUSY
    assert rig.markers == [MarkersDue("id", pair[0], 1, False, HERE, 2)]
    zombie = rig.end(pair)
    again = rig.init()
    rig.settle()
    assert again.pair == (pair[0], 2)
    rig.settle()
    assert zombie.code == "PRODUCER_FENCED"


def test_a_transaction_that_takes_too_long_is_aborted() -> None:
    rig = Rig()
    pair = rig.open()
    rig.later(59_999)
    assert not rig.appended
    rig.later(1)
    rig.settle()
    value = rig.shard.values["id"]
    assert (value.state, value.producer_epoch) == (State.COMPLETE_ABORT, 1)
    late = rig.end(pair)
    rig.settle()
    assert late.code == "PRODUCER_FENCED"


def test_a_transaction_that_ends_in_time_is_not_aborted_later() -> None:
    rig = Rig()
    pair = rig.open()
    rig.later(50_000)
    rig.end(pair)
    rig.settle()
    rig.add(pair)
    rig.settle()
    rig.later(59_999)
    assert rig.state() == "ONGOING"
    assert not rig.appended
    rig.later(1)
    rig.settle()
    assert rig.state() == "COMPLETE_ABORT"


@pytest.mark.parametrize("wall_step_ms", [-3_600_000, 0, 3_600_000])
def test_after_a_move_a_clock_that_jumped_aborts_nothing_at_once(wall_step_ms: int) -> None:
    rig = Rig()
    rig.open()
    value = rig.shard.values["id"]
    begun = value._replace(start_ms=EPOCH_MS - wall_step_ms)
    new = Rig([Record(put_key("id"), put_value(begun))])
    new.later(LATE_LEFT_MS - 1)
    assert new.state() == "ONGOING"
    assert not new.appended
    new.later(60_000)
    new.settle()
    assert new.state() == "COMPLETE_ABORT"


def test_a_decided_transaction_is_ended_by_the_next_coordinator() -> None:
    rig = Rig()
    pair = rig.open()
    rig.end(pair)
    rig.cover()
    new = rig.moved()
    assert new.markers == [MarkersDue("id", *pair, True, HERE, 0)]
    waiting = new.end(pair)
    assert waiting.code == ""
    new.settle()
    assert waiting.code == "NONE"


def test_a_decision_that_was_not_covered_is_open_again() -> None:
    rig = Rig()
    pair = rig.open()
    ended = rig.end(pair)
    rig.turn()
    new = rig.moved()
    assert ended.code == "NOT_COORDINATOR"
    assert not new.markers
    again = new.end(pair, commits=False)
    new.settle()
    assert again.code == "NONE"
    assert new.state() == "COMPLETE_ABORT"


def test_markers_of_another_epoch_end_nothing() -> None:
    rig = Rig()
    pair = rig.open()
    rig.end(pair)
    rig.cover()
    rig.shard.markers_done("id", pair[0], pair[1] + 1)
    rig.shard.markers_done("nobody", *pair)
    rig.turn()
    assert not rig.appended
    rig.shard.markers_done("id", *pair)
    rig.shard.markers_done("id", *pair)
    rig.turn()
    assert len(rig.appended) == 1


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, "COORDINATOR_NOT_AVAILABLE"),
        (ErrorCode.KAFKA_STORAGE_ERROR, "NOT_COORDINATOR"),
    ],
)
def test_what_could_not_be_written_was_not_done(code: ErrorCode, told: str) -> None:
    rig = Rig()
    pair = rig.open()
    rig.refuses = code
    ended, sentence = rig.end(pair), rig.end((pair[0], 9))
    rig.turn()
    assert ended.code == told
    # Held behind the change, and judged behind it: its barrier fails as well.
    rig.turn()
    assert sentence.code == told
    rig.later(60_000)
    assert rig.state() == "ONGOING"
    rig.refuses = ErrorCode.NONE
    rig.later(RETRY_MS)
    rig.settle()
    assert rig.state() == "COMPLETE_ABORT"


def test_an_end_that_could_not_be_noted_is_noted_later() -> None:
    rig = Rig()
    pair = rig.open()
    rig.end(pair)
    rig.cover()
    rig.refuses = ErrorCode.NOT_ENOUGH_REPLICAS
    (due,) = rig.markers
    rig.shard.markers_done(due.transactional_id, due.producer_id, due.epoch)
    rig.turn()
    rig.shard.markers_done(due.transactional_id, due.producer_id, due.epoch)
    rig.turn()
    assert rig.state() == "PREPARE_COMMIT"
    rig.refuses = ErrorCode.NONE
    rig.later(RETRY_MS)
    rig.cover()
    assert rig.state() == "COMPLETE_COMMIT"


def test_a_producer_id_is_drawn_before_anything_is_prepared() -> None:
    rig = Rig()
    rig.draws = []
    first, second = rig.init(), rig.init()
    rig.turn()
    assert (first.code, second.code, rig.appended) == ("", "", [])
    rig.draws.pop()(None)
    # None was to be had: the first is told so, the second draws for itself.
    assert first.code == "COORDINATOR_NOT_AVAILABLE"
    rig.draws.pop()(77)
    rig.settle()
    assert second.pair == (77, 0)


def test_what_comes_of_a_draw_after_the_end_is_nothing() -> None:
    rig = Rig()
    rig.draws = []
    asked = rig.init()
    rig.shard.close()
    rig.draws.pop()(77)
    rig.turn()
    assert asked.code == "NOT_COORDINATOR"
    assert not rig.appended


def test_nothing_is_begun_for_a_connection_that_has_ended() -> None:
    rig = Rig()
    pair = rig.open()
    rig.end(pair)
    rig.cover()
    late = rig.add(pair)
    late.gone = True
    rig.settle()
    assert (late.code, rig.state()) == ("", "COMPLETE_COMMIT")


def test_ids_at_rest_are_forgotten_after_their_time() -> None:
    rig = Rig()
    rig.ready("old")
    rig.open("open")
    rig.later(rig.shard.settings.id_expiration_ms - 1)
    rig.settle()
    rig.ready("young")
    rig.later(1)
    rig.settle()
    for _ in range(4):
        rig.shard.expire(2)
        rig.settle()
    assert "old" not in rig.shard.values
    assert {"open", "young"} <= set(rig.shard.values)
    assert ("old", "gone") in rig.states()
    # It comes back as another producer.
    assert rig.ready("old")[1] == 0


def test_who_asks_while_an_id_dies_gets_a_new_one() -> None:
    rig = Rig()
    pair = rig.ready()
    rig.later(rig.shard.settings.id_expiration_ms)
    rig.shard.expire(10)
    rig.shard.expire(10)
    asked = rig.init()
    rig.settle()
    assert asked.pair[0] != pair[0]


def test_no_more_wait_than_may() -> None:
    rig = Rig()
    pair = rig.open()
    rig.end(pair)
    rig.cover()
    most = rig.shard.settings.held_max
    waiting = [rig.add(pair) for _ in range(most)]
    assert rig.add(pair).code == BUSY
    assert {each.code for each in waiting} == {""}
    rig.settle()
    assert {each.code for each in waiting} == {"NONE"}


def test_bad_records_are_counted_and_passed_over() -> None:
    good = Record(put_key("a"), put_value(TransactionValue(7, 0, 1)))
    rig = Rig([Record(b"\0", b""), good, Record(put_key("b"), b"\0\7"), Record(b"\0\1\0\0", b"")])
    assert set(rig.shard.values) == {"a"}
    assert rig.shard.bad_records == 2


def test_before_it_is_read_it_answers_nobody() -> None:
    rig = Rig()
    rig.shard.is_serving = False
    told: list[dict[tuple[str, int], ErrorCode]] = []
    rig.shard.verify("id", (1, 0), HERE, told.append)
    assert told == [{("t", 0): ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}]
    assert rig.init().code == "COORDINATOR_LOAD_IN_PROGRESS"


# -- at random --------------------------------------------------------------------------------


class Life:
    """Producers of a few ids, a coordinator that moves, a log that refuses, markers that take their time."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rig = Rig()
        self.pairs: dict[str, tuple[int, int]] = {}
        self.asked: list[tuple[str, str, Asked]] = []
        self.decided: dict[tuple[str, int, int], bool] = {}
        """Commit or not, by id and marker's epoch: as covered records say."""
        self.seen = 0
        self.acknowledged: set[tuple[str, int, int, bool]] = set()

    def step(self) -> None:
        rng, rig = self.rng, self.rig
        name = rng.choice("abc")
        pair = self.pairs.get(name, (-1, -1))
        version = 2 if name == "a" else 0
        match rng.randrange(9):
            case 0:
                known = pair if rng.random() < 0.5 else (-1, -1)
                self.asked.append(("init", name, rig.init(name, *known)))
            case 1 | 2:
                what = frozenset({("t", rng.randrange(4))})
                self.asked.append(("add", name, rig.add(pair, what, name, version)))
            case 3 | 4:
                ended = rig.end(pair, commits=rng.random() < 0.6, name=name, version=version)
                self.asked.append(("end", name, ended))
            case 5:
                rig.later(rng.choice([1, 50, HOLD_MS, 61_000]))
            case 6:
                self.some_markers()
            case 7:
                rig.refuses = rng.choice([ErrorCode.NONE, ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS])
            case 8 if rng.random() < 0.2:
                self.move()
        if rng.random() < 0.5:
            self.rig.turn()
        if rng.random() < 0.5 and self.rig.appended:
            self.rig.cover(rng.randint(1, len(self.rig.appended)))
        self.look()

    def some_markers(self) -> None:
        self.rng.shuffle(self.rig.markers)
        for _ in range(self.rng.randrange(3)):
            if self.rig.markers:
                due = self.rig.markers.pop()
                self.rig.shard.markers_done(due.transactional_id, due.producer_id, due.epoch)

    def move(self) -> None:
        """Of what was appended any prefix may have been safe."""
        safe = self.rng.randint(0, len(self.rig.appended))
        for records, _ in self.rig.appended[:safe]:
            self.rig.log += records
        self.rig = self.rig.moved()
        self.look()

    def look(self) -> None:
        rig = self.rig
        for (name, _), (_, value) in zip(rig.states()[self.seen :], rig.log[self.seen :], strict=True):
            self.on_record(str(name), value)
        self.seen = len(rig.log)
        for due in rig.markers:
            key = due.transactional_id, due.producer_id, due.epoch
            assert self.decided.get(key) is due.commits, "a marker without its decision, or against it"
        for kind, name, asked in [each for each in self.asked if each[2].answers]:
            if asked.code == "NONE" and kind in ("init", "end"):
                self.pairs[name] = max(self.pairs.get(name, (-1, -1)), asked.pair)
        self.asked = [each for each in self.asked if not each[2].answers]

    def on_record(self, name: str, data: bytes | None) -> None:
        if data is None:
            return
        value = read_value(data)
        if value.state in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
            key = name, value.producer_id, value.producer_epoch
            # A producer that keeps its epoch ends many transactions with it; the last decision counts.
            self.decided[key] = value.state is State.PREPARE_COMMIT

    def end(self) -> None:
        """Everything heals: every question has its answer, every transaction its end."""
        self.rig.refuses = ErrorCode.NONE
        for _ in range(3):
            self.rig.settle()
            self.rig.later(70_000)
        self.rig.settle()
        self.look()
        assert not self.asked, self.asked
        at_rest = {State.EMPTY, State.COMPLETE_ABORT, State.COMPLETE_COMMIT}
        assert {value.state for value in self.rig.shard.values.values()} <= at_rest
        assert self.rig.shard.held_count == 0
        epochs: dict[tuple[str, int], int] = {}
        for key, data in self.rig.log:
            if data is not None:
                value, name = read_value(data), str(read_key(key))
                assert value.producer_epoch >= epochs.get((name, value.producer_id), -1), "an epoch fell"
                epochs[name, value.producer_id] = value.producer_epoch
        # What is in the log is what is known.
        again = Rig(self.rig.log, now_ms=self.rig.now_ms)
        assert again.shard.values == self.rig.shard.values


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens(seed: int) -> None:
    life = Life(seed)
    for _ in range(200):
        life.step()
    life.end()
