"""No attack: what an ordinary write of as many bytes costs as `produce_empty_records` has."""

from __future__ import annotations

import os

from penstock_kafka.records.build import NewRecord, build_batch
from security.attacks.produce_empty_records import RECORDS, empty_batch, write_once
from security.target import Outcome, Target

TEXT = "for comparison: as many bytes as produce_empty_records, of ordinary records"
IS_NO_ATTACK = True


def run(target: Target) -> Outcome:
    """As that attack, with a record of random bytes in each batch."""
    size_bytes = len(empty_batch(50_000 if target.small else RECORDS))
    return write_once(target, bytes(build_batch([NewRecord(None, os.urandom(size_bytes))])))
