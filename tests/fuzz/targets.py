"""The table of all targets."""

from __future__ import annotations

from typing import Final

from fuzz import (
    door_targets,
    file_targets,
    group_targets,
    kafka_targets,
    operation_targets,
    peer_targets,
    quota_targets,
    record_targets,
    security_targets,
    token_targets,
    transaction_targets,
    word_targets,
)
from fuzz.target import Target

TARGETS: Final[dict[str, Target]] = {
    target.name: target
    for module in (
        kafka_targets,
        record_targets,
        group_targets,
        peer_targets,
        file_targets,
        word_targets,
        security_targets,
        door_targets,
        token_targets,
        quota_targets,
        operation_targets,
        transaction_targets,
    )
    for target in module.TARGETS
}
