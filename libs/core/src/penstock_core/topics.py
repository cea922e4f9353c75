"""Rules for topic names and the settings that a topic has when nothing is set.

Source: org.apache.kafka.common.internals.Topic and LogConfig of Kafka 4.3.
"""

from __future__ import annotations

import re
from typing import Final

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.limits import TOPIC_NAME_LENGTH_MAX

OFFSETS_TOPIC: Final = "__consumer_offsets"
"""Where consumer groups are kept; Kafka's name for it."""
TRANSACTIONS_TOPIC: Final = "__transaction_state"
"""Where transactional ids are kept; Kafka's name for it."""

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+\Z")


def check_topic_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION unless `name` is a legal topic name.

    The check stands before any path is made of the name, so a hostile one never
    reaches the disk.
    """
    if not name:
        raise PenstockError(ErrorCode.INVALID_TOPIC_EXCEPTION, "topic name is empty")
    if name in (".", ".."):
        raise PenstockError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic name {name!r} is not allowed")
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        raise PenstockError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic name has {len(name)} characters, the most is {TOPIC_NAME_LENGTH_MAX}",
        )
    if not _LEGAL_NAME.match(name):
        raise PenstockError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic name {name!r} has a character outside a-z A-Z 0-9 . _ -",
        )


def collision_key(name: str) -> str:
    """Names with equal keys may not both exist: metrics turn '.' into '_' (as in Kafka)."""
    return name.replace(".", "_")
