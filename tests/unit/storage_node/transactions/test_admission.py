"""Which batches of transactions, and which markers, the leader of a partition takes."""

from __future__ import annotations

import itertools

import pytest

from penstock_core.errors import ErrorCode, PenstockError
from penstock_kafka.records.batch import BatchInfo, read_header
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_kafka.records.markers import Marker, build_marker
from penstock_storage_node.log import Origin, ProducerEntry
from penstock_storage_node.log.producer_state import ProducerState
from penstock_storage_node.transactions.admission import Admission, MarkerOrder
from penstock_storage_node.transactions.verifier import Guard

PID = 7
NONE, FENCED = ErrorCode.NONE, ErrorCode.TRANSACTION_COORDINATOR_FENCED


def batch(sequence: int = 0, *, epoch: int = 0, count: int = 1) -> BatchInfo:
    records = [NewRecord(key=None, value=b"v", timestamp_ms=0)] * count
    built = build_batch(
        records, producer_id=PID, producer_epoch=epoch, base_sequence=sequence, transactional=True
    )
    return read_header(built)


def order(
    epoch: int = 0, *, version: int = 0, coordinator_epoch: int = 5, state: int | None = 0
) -> MarkerOrder:
    return MarkerOrder(PID, epoch, True, coordinator_epoch, version, state)


class Rig:
    """A log that is no more than what it remembers of producers."""

    def __init__(self) -> None:
        self.producers = ProducerState()
        self.admission = Admission("a-0", self)
        self.end = 0

    def producer(self, producer_id: int) -> ProducerEntry | None:
        return self.producers.get(producer_id)

    def is_duplicate(self, info: BatchInfo) -> bool:
        return self.producers.is_duplicate(info)

    def append(self, info: BatchInfo, guard: Guard | None, vouched: int = 5) -> None:
        self.producers.check(info, "a-0", Origin.CLIENT)
        self.producers.update(info, self.end, 0)
        self.end += info.record_count
        self.admission.appended(info, guard, vouched if guard is not None else -1)

    def verified(self, info: BatchInfo, *, by_version: int = 0, vouched: int = 5) -> None:
        """A batch goes all the way."""
        guard = self.admission.guard(info, 0)
        if guard is not None:
            self.admission.check(info, guard, by_version=by_version)
        self.append(info, guard, vouched)

    def mark(self, wanted: MarkerOrder) -> None:
        marker = Marker(wanted.commit, wanted.coordinator_epoch)
        built = build_marker(wanted.producer_id, wanted.producer_epoch, marker, 0, base_offset=self.end)
        self.producers.replay(read_header(built), 0, marker)
        self.end += 1
        self.admission.marker_appended(wanted)


def code_of(check: object, *args: object, **named: object) -> str:
    assert callable(check)
    try:
        check(*args, **named)
    except PenstockError as error:
        return error.code.name
    return "NONE"


# -- batches -----------------------------------------------------------------------------------


def test_the_first_batch_of_a_transaction_is_asked_about_and_no_other() -> None:
    rig = Rig()
    guard = rig.admission.guard(batch(0), 0)
    assert guard is not None
    rig.admission.check(batch(0), guard, by_version=0)
    rig.append(batch(0), guard)
    assert rig.admission.guard(batch(1), 0) is None
    rig.mark(order())
    assert rig.admission.guard(batch(1), 0) is not None


def test_an_epoch_that_is_over_is_refused_before_anything_else() -> None:
    rig = Rig()
    rig.verified(batch(0))
    rig.mark(order(1, version=2))
    # KAFKA-18042: it met INVALID_TXN_STATE; and a duplicate of that epoch is none any more.
    assert code_of(rig.admission.guard, batch(0), 0) == "INVALID_PRODUCER_EPOCH"
    assert len(rig.admission.guards) == 0


def test_a_duplicate_needs_no_verification() -> None:
    rig = Rig()
    rig.verified(batch(0, count=3))
    rig.mark(order())
    assert rig.admission.guard(batch(0, count=3), 0) is None
    assert rig.admission.guard(batch(0, count=2), 0) is not None


def test_a_marker_between_question_and_append_ends_what_was_asked() -> None:
    rig = Rig()
    late = rig.admission.guard(batch(0), 0)
    assert late is not None
    rig.mark(order())
    assert code_of(rig.admission.check, batch(0), late, by_version=0) == "INVALID_TXN_STATE"


def test_what_opened_with_a_guard_is_open_to_it_and_nothing_else_is() -> None:
    rig = Rig()
    first, second = (rig.admission.guard(batch(n), 0) for n in (0, 1))
    assert first is second is not None
    rig.append(batch(0), first)
    assert code_of(rig.admission.check, batch(1), second, by_version=0) == "NONE"
    # Ended, begun anew with the same epoch, and the old answer comes.
    rig.mark(order())
    rig.verified(batch(1))
    assert code_of(rig.admission.check, batch(2), second, by_version=0) == "INVALID_TXN_STATE"


@pytest.mark.parametrize(("by_version", "code"), [(0, "NONE"), (2, "OUT_OF_ORDER_SEQUENCE_NUMBER")])
def test_a_producer_that_is_not_known_begins_with_0_by_tv2(by_version: int, code: str) -> None:
    # KAFKA-18202.
    rig = Rig()
    guard = rig.admission.guard(batch(4), 0)
    assert guard is not None
    assert code_of(rig.admission.check, batch(4), guard, by_version=by_version) == code


def test_offsets_of_a_group_have_no_sequence() -> None:
    rig = Rig()
    offsets = batch(-1)
    guard = rig.admission.guard(offsets, 0)
    assert guard is not None
    assert code_of(rig.admission.check, offsets, guard, by_version=2) == "NONE"
    rig.append(offsets, guard)
    rig.mark(order())
    # Never a duplicate.
    assert rig.admission.guard(offsets, 0) is not None


# -- markers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("state_epoch", "told"), [(None, None), (4, None), (5, NONE), (6, FENCED)])
def test_a_coordinator_is_known_by_the_metadata(state_epoch: int | None, told: ErrorCode | None) -> None:
    rig = Rig()
    assert rig.admission.check_marker(order(), state_epoch) is told
    rig.verified(batch(0))
    assert rig.admission.check_marker(order(), state_epoch) is told
    # An operator names none.
    assert rig.admission.check_marker(order(state=None), state_epoch) is NONE


def test_one_by_hand_that_is_older_than_the_last_to_write_here_is_fenced() -> None:
    rig = Rig()
    rig.verified(batch(0), vouched=-1)
    rig.mark(order(coordinator_epoch=6))
    rig.verified(batch(1), vouched=-1)
    assert rig.admission.check_marker(order(coordinator_epoch=5, state=None), None) is FENCED
    assert rig.admission.check_marker(order(coordinator_epoch=6, state=None), None) is NONE
    # A coordinator's is older than one that has written here only where the metadata say so too.
    assert rig.admission.check_marker(order(coordinator_epoch=5), 6) is FENCED
    assert rig.admission.check_marker(order(coordinator_epoch=6), 6) is NONE


def test_one_that_is_older_than_who_has_vouched_is_fenced() -> None:
    rig = Rig()
    rig.verified(batch(0), vouched=6)
    assert rig.admission.check_marker(order(coordinator_epoch=5), 5) is FENCED
    assert rig.admission.check_marker(order(coordinator_epoch=6), 6) is NONE
    # Operators know what DescribeProducers says, which is the epoch that has written here.
    assert rig.admission.check_marker(order(coordinator_epoch=0, state=None), None) is NONE


def test_a_marker_by_hand_with_too_high_an_epoch_keeps_no_coordinator_out() -> None:
    rig = Rig()
    rig.verified(batch(0))
    rig.mark(order(coordinator_epoch=9, state=None))
    assert rig.admission.check_marker(order(), 5) is NONE, "the decision of what it ended"
    rig.verified(batch(1))
    assert rig.admission.check_marker(order(), 5) is NONE, "what has begun since would never be ended"
    assert rig.admission.check_marker(order(state=None), None) is FENCED


OLD = ErrorCode.INVALID_PRODUCER_EPOCH
EPOCHS = [
    # version, marker's epoch, entry's epoch, open: told
    (0, 3, 3, True, NONE),
    (0, 3, 3, False, NONE),
    (0, 2, 3, True, OLD),
    (0, 4, 3, True, NONE),
    (2, 4, 3, True, NONE),
    (2, 3, 3, True, OLD),
    (2, 3, 3, False, NONE),  # it comes once more
    (2, 2, 3, False, OLD),
    (2, 32_767, 32_767, False, NONE),
    (2, 32_767, 32_767, True, NONE),
    (0, 32_767, 32_766, True, NONE),
]


@pytest.mark.parametrize(("version", "marker", "entry", "is_open", "told"), EPOCHS)
def test_epochs_of_markers(version: int, marker: int, entry: int, is_open: bool, told: ErrorCode) -> None:
    # KAFKA-19446: late TV2 markers; 19999: a repeated one was refused for ever.
    rig = Rig()
    rig.verified(batch(0, epoch=entry))
    if not is_open:
        rig.mark(order(entry, version=0))
    assert rig.admission.check_marker(order(marker, version=version), 5) is told


@pytest.mark.parametrize("version", [0, 2])
def test_a_marker_for_a_producer_that_is_not_known_is_written(version: int) -> None:
    assert Rig().admission.check_marker(order(version=version), 5) is NONE


def test_no_late_tv2_marker_ends_the_next_transaction_at_any_moment() -> None:
    # The next transaction of epoch 1: not begun, verifying, open, ended; the last one's marker of epoch 1 comes late.
    for steps in itertools.product([False, True], repeat=3):
        verifies, opens, ends = steps
        rig = Rig()
        rig.verified(batch(0))
        rig.mark(order(1, version=2))
        guard = rig.admission.guard(batch(0, epoch=1), 0) if verifies else None
        if opens:
            rig.verified(batch(0, epoch=1), by_version=2)
        if ends:
            rig.mark(order(2, version=2))
        late = rig.admission.check_marker(order(1, version=2), 5)
        assert late is (OLD if opens or ends else NONE)
        if late is NONE:
            rig.mark(order(1, version=2))
            if guard is not None:
                assert code_of(rig.admission.check, batch(0, epoch=1), guard, by_version=2) == "NONE"
