"""No attack: what ordinary writes of as many bytes cost as `produce_small_bombs` has."""

from __future__ import annotations

import os

from penstock_kafka.records.build import NewRecord, build_batch
from security.attacks.produce_empty_records import empty_batch
from security.attacks.produce_small_bombs import RECORDS, write_all
from security.target import Outcome, Target

TEXT = "for comparison: as many bytes as produce_small_bombs, of ordinary records"
IS_NO_ATTACK = True


def run(target: Target) -> Outcome:
    """As that attack, with a record of random bytes in each batch."""
    size_bytes = len(empty_batch(5_000 if target.small else RECORDS))
    return write_all(target, bytes(build_batch([NewRecord(None, os.urandom(size_bytes))])))
