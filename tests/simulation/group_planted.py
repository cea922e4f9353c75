"""Planted bugs of the group coordinator, for `planted`: name, what is broken, patches, settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import penstock_storage_node.groups.host as host_module
from penstock_core.errors import ErrorCode
from penstock_kafka.records.read import read_all
from penstock_storage_node.groups.classic.group import ClassicGroup
from penstock_storage_node.groups.classic.protocol import ClassicProtocol
from penstock_storage_node.groups.consumer.group import (
    NOTHING,
    STABLE,
    UNRELEASED,
    ConsumerGroup,
    ConsumerMember,
)
from penstock_storage_node.groups.consumer.protocol import ConsumerProtocol
from penstock_storage_node.groups.offsets import OffsetStore
from penstock_storage_node.groups.records import CURRENT_MEMBER, group_key, put_group
from penstock_storage_node.groups.records import Record as GroupRecord
from penstock_storage_node.groups.store import GroupStore, PlacesOf
from simulation.settings import Settings

Patch = tuple[Any, str, Any]


def with_groups(settings: Settings) -> None:
    """Every seed has groups."""
    settings.with_groups = True


def static_members(settings: Settings) -> None:
    """Every seed has groups, of static members alone."""
    settings.with_groups = settings.static_members = True


# --- offsets ------------------------------------------------------------------------------


def _acked_early() -> list[Patch]:
    write = OffsetStore._write_offsets

    def answer(shard: Any, group_id: str, records: Any, values: Any, codes: Any, reply: Any) -> None:
        reply(codes)
        write(shard, group_id, records, values, codes, lambda _: None)

    return [(OffsetStore, "_write_offsets", answer)]


def _any_generation() -> list[Patch]:
    return [(ClassicGroup, "check_commit", lambda *_: ErrorCode.NONE)]


def _fenced_instance() -> list[Patch]:
    check = ClassicGroup.check_commit

    def lax(
        group: ClassicGroup,
        member_id: str,
        instance_id: str | None,
        generation: int,
        version: int,
        places: PlacesOf,
    ) -> ErrorCode:
        if instance_id in group.static:
            return ErrorCode.NONE
        return check(group, member_id, instance_id, generation, version, places)

    return [(ClassicGroup, "check_commit", lax)]


def _any_epoch() -> list[Patch]:
    return [(ConsumerGroup, "check_commit", lambda *_: ErrorCode.NONE)]


def _any_older_epoch() -> list[Patch]:
    return [(ConsumerMember, "had", lambda *_: True)]


def _expiry_looks_at_commits_alone() -> list[Patch]:
    def expired(part: Any, group_id: str, now_ms: int) -> list[Any]:
        store = part.store
        oldest_ms = now_ms - store.settings.offsets_retention_ms
        return [key for key, value in store.offsets.get(group_id, {}).items() if value.commit_ms <= oldest_ms]

    return [(OffsetStore, "expired_keys", expired)]


# --- membership -----------------------------------------------------------------------------


def _generation_stays() -> list[Patch]:
    begin = ClassicGroup.next_generation

    def same(group: ClassicGroup, wall_ms: int) -> None:
        begin(group, wall_ms)
        group.generation = max(group.generation - 1, 1)

    return [(ClassicGroup, "next_generation", same)]


def _told_before_stored() -> list[Patch]:
    def store(part: Any, group: ClassicGroup, assignments: Any, done: Any) -> None:
        group.stored = True
        value = put_group(group.to_value(assignments))
        if part.store.write([GroupRecord(group_key(group.group_id), value)], lambda _: None):
            done(ErrorCode.NONE)

    return [(ClassicProtocol, "_store", store)]


def _revocation_not_awaited() -> list[Patch]:
    def reconcile(group: ConsumerGroup, member: Any, _owned: Any) -> Any:
        if member.state == STABLE and member.epoch == group.assignment_epoch:
            return member
        target = group.targets.get(member.member_id, NOTHING)
        kept = member.assigned & target
        free = frozenset(
            p for p in target - kept if group.owners.get(p, member.member_id) == member.member_id
        )
        epoch = group.assignment_epoch
        return replace(
            member,
            epoch=epoch,
            previous_epoch=member.epoch if member.epoch != epoch else member.previous_epoch,
            state=STABLE if kept | free == target else UNRELEASED,
            assigned=kept | free,
            revoking=NOTHING,
            since={p: member.since.get(p, epoch) for p in kept | free},
        )

    return [(ConsumerGroup, "reconcile", reconcile)]


def _owners_ignored() -> list[Patch]:
    reconcile = ConsumerGroup.reconcile

    def grab(group: ConsumerGroup, member: Any, owned: Any) -> Any:
        owners, group.owners = group.owners, {}
        try:
            return reconcile(group, member, owned)
        finally:
            group.owners = owners

    return [(ConsumerGroup, "reconcile", grab)]


def _sessions_never_end() -> list[Patch]:
    return [
        (ClassicProtocol, "_on_member_timer", lambda *_: None),
        (ConsumerProtocol, "ring", lambda *_: None),
    ]


def _answers_do_not_wait() -> list[Patch]:
    return [(GroupStore, "when_settled", lambda _store, done: done(ErrorCode.NONE))]


# --- hand-over --------------------------------------------------------------------------------


def _epochs_reset_on_load() -> list[Patch]:
    replay = ConsumerProtocol.replay

    def reset(part: Any, about: Any, value: bytes | None, at_ms: int) -> None:
        replay(part, about, value, at_ms)
        group = part.store.groups.get(about.group_id)
        if about.kind == CURRENT_MEMBER and value is not None:
            group.put(replace(group.members[about.member_id], epoch=0))

    return [(ConsumerProtocol, "replay", reset)]


def _newest_record_not_loaded() -> list[Patch]:
    replay = host_module.GroupHost._replay

    async def short(host: Any, shard: Any, data: bytes) -> int:
        whole = shard.replay
        left = sum(1 for _ in read_all(data))

        def some(*record: Any) -> None:
            nonlocal left
            left -= 1
            if left:
                whole(*record)

        shard.replay = some
        try:
            return await replay(host, shard, data)
        finally:
            del shard.replay

    return [(host_module.GroupHost, "_replay", short)]


def _load_ahead_of_the_watermark() -> list[Patch]:
    async def at_once(_host: Any, _hosted: Any, _end: int) -> None:
        return None

    return [(host_module.GroupHost, "_committed", at_once)]


ROWS: list[tuple[str, str, Callable[[], list[Patch]], Callable[[Settings], None]]] = [
    (name, what, patches, static_members if patches is _fenced_instance else with_groups)
    for name, what, patches in (
        ("commit-acked-early", "an OffsetCommit is answered when it is appended", _acked_early),
        ("zombie-generation-accepted", "a commit's generation is not compared", _any_generation),
        ("fenced-instance-accepted", "a static member that was replaced may commit", _fenced_instance),
        (
            "member-epoch-not-checked",
            "a commit's member and its epoch are not looked at (KIP-848)",
            _any_epoch,
        ),
        (
            "assignment-epoch-not-checked",
            "a member may commit in an older epoch, whether it has the partition since then or not (KIP-848)",
            _any_older_epoch,
        ),
        (
            "expiry-ignores-members",
            "offsets expire by their age alone, whoever is in the group",
            _expiry_looks_at_commits_alone,
        ),
        ("generation-stays", "a rebalance does not raise the generation", _generation_stays),
        (
            "assigned-before-stored",
            "members are told a generation before its record is safe",
            _told_before_stored,
        ),
        (
            "revocation-not-awaited",
            "a partition is handed on before its owner lets go",
            _revocation_not_awaited,
        ),
        ("owners-ignored", "a member gets its target though others have it", _owners_ignored),
        ("sessions-never-end", "members that are silent stay", _sessions_never_end),
        ("answers-do-not-wait", "an answer without records is given at once", _answers_do_not_wait),
        ("epochs-reset-on-load", "a new coordinator reads member epochs as 0", _epochs_reset_on_load),
        (
            "newest-record-not-loaded",
            "a new coordinator reads all but the last record",
            _newest_record_not_loaded,
        ),
        (
            "load-not-awaited",
            "a coordinator serves before the watermark covers its log",
            _load_ahead_of_the_watermark,
        ),
    )
]
