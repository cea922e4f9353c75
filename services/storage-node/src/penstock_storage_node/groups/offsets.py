"""Committed offsets: OffsetCommit, OffsetFetch, OffsetDelete, expiry.

Rules (OffsetMetadataManager of Apache Kafka 4.3): who may commit is the group's to say; an offset is
seen by OffsetFetch once the high watermark covers its record, never earlier; offsets of a group
without members expire `offsets_retention_ms` after it lost the last one (KIP-211), those of a
standalone consumer that long after their commit, those of topics that a live group no longer reads
likewise. One deviation: what was committed to an empty group (an operator's reset) counts from that
commit, not from the group's end, so that it isn't gone at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock_core.errors import ErrorCode
from penstock_storage_node.groups.holdings import NOBODYS, Owner
from penstock_storage_node.groups.records import (
    Key,
    OffsetValue,
    Record,
    offset_key,
    offset_tombstones,
    put_offset,
    read_offset,
)
from penstock_storage_node.groups.store import Group, GroupStore, TopicKey, offset_write_error

MEMBER_EPOCHS_SINCE = 9
"""First version of OffsetCommit and OffsetFetch that knows KIP-848."""

CommitReply = Callable[[Sequence[ErrorCode]], None]


class NewOffset(NamedTuple):
    """One item of a commit."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """An OffsetCommit. `generation` is the member epoch of consumer groups."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    items: Sequence[NewOffset]
    retention_ms: int = -1
    version: int = MEMBER_EPOCHS_SINCE
    owner: Owner = NOBODYS
    """Whose a group is that this makes, see `holdings`."""


class OffsetStore:
    """Keeps the offsets of a shard's groups."""

    def __init__(self, store: GroupStore, make_group: Callable[[str, Owner], Group]) -> None:
        """`make_group`: a consumer that assigns its partitions itself has no group but for its offsets."""
        self.store = store
        self._make_group = make_group
        self._groups = store.groups
        self._offsets = store.offsets
        self._pending = store.pending_commits
        self._timers = store.timers
        self._settings = store.settings
        self._clock_ms = store.clock_ms
        self._wall_ms = store.wall_ms

    # -- commit ---------------------------------------------------------------------------

    def commit(self, request: CommitRequest, reply: CommitReply) -> None:
        """An OffsetCommit; a code for each item, when its record is safe."""
        group, error = self._group_for_commit(request)
        if group is None or error:
            reply([error] * len(request.items))
            return
        session = group.session_of(request.member_id)
        if session is not None:
            self._timers.set(session[0], self._clock_ms() + session[1])
        now_ms = self._wall_ms()
        expire_ms = now_ms + request.retention_ms if request.retention_ms >= 0 else -1
        codes = [ErrorCode.NONE] * len(request.items)
        records: list[Record] = []
        values: list[tuple[TopicKey, OffsetValue]] = []
        for index, item in enumerate(request.items):
            metadata = item.metadata or ""
            if len(metadata) > self._settings.offset_metadata_bytes_max:
                codes[index] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            value = OffsetValue(item.offset, item.leader_epoch, metadata, now_ms, expire_ms)
            values.append(((item.topic, item.partition), value))
            records.append(
                Record(offset_key(request.group_id, item.topic, item.partition), put_offset(value))
            )
        if not records:
            self.store.forget_if_idle(group)
            reply(codes)
            return
        self._write_offsets(request.group_id, records, values, codes, reply)

    def _write_offsets(
        self,
        group_id: str,
        records: list[Record],
        values: list[tuple[TopicKey, OffsetValue]],
        codes: list[ErrorCode],
        reply: CommitReply,
    ) -> None:
        pending = self._pending.setdefault(group_id, {})
        for key, _ in values:
            pending[key] = pending.get(key, 0) + 1

        def committed(error: ErrorCode) -> None:
            self._settle(group_id, [key for key, _ in values])
            if not error:
                self._offsets.setdefault(group_id, {}).update(values)
                reply(codes)
                return
            code = offset_write_error(error)
            reply([each or code for each in codes])
            group = self._groups.get(group_id)
            if group is not None:
                self.store.forget_if_idle(group)

        self.store.write(records, committed)

    def _settle(self, group_id: str, keys: Sequence[TopicKey]) -> None:
        pending = self._pending[group_id]
        for key in keys:
            pending[key] -= 1
            if not pending[key]:
                del pending[key]
        if not pending:
            del self._pending[group_id]

    def _group_for_commit(self, request: CommitRequest) -> tuple[Group | None, ErrorCode]:
        group = self._groups.get(request.group_id)
        if group is None:
            if request.generation >= 0:
                known_since = request.version >= MEMBER_EPOCHS_SINCE
                return None, (ErrorCode.GROUP_ID_NOT_FOUND if known_since else ErrorCode.ILLEGAL_GENERATION)
            if not self.store.node.may_make(request.owner):
                return None, ErrorCode.GROUP_MAX_SIZE_REACHED
            return self._make_group(request.group_id, request.owner), ErrorCode.NONE
        return group, group.check_commit(
            request.member_id, request.instance_id, request.generation, request.version
        )

    # -- fetch ------------------------------------------------------------------------------

    def fetch(
        self, group_id: str, member_id: str | None, member_epoch: int, keys: Sequence[TopicKey] | None
    ) -> tuple[ErrorCode, list[tuple[TopicKey, OffsetValue | None]]]:
        """An OffsetFetch for one group; all its offsets when `keys` is None."""
        group = self._groups.get(group_id)
        if group is not None:
            error = group.check_fetch(member_id, member_epoch)
            if error:
                return error, []
        known = self._offsets.get(group_id, {})
        if keys is None:
            return ErrorCode.NONE, list(known.items())
        return ErrorCode.NONE, [(key, known.get(key)) for key in keys]

    # -- delete -----------------------------------------------------------------------------

    def delete_offsets(
        self,
        group_id: str,
        keys: Sequence[TopicKey],
        reply: Callable[[ErrorCode, Sequence[ErrorCode]], None],
    ) -> None:
        """An OffsetDelete: a code for the whole, and one for each item."""
        group = self._groups.get(group_id)
        if group is None:
            reply(ErrorCode.GROUP_ID_NOT_FOUND, ())
            return
        if not group.may_lose_offsets:
            reply(ErrorCode.NON_EMPTY_GROUP, ())
            return
        codes = [
            ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            if group.members and group.subscribes(topic)
            else ErrorCode.NONE
            for topic, _ in keys
        ]
        gone = [key for key, code in zip(keys, codes, strict=True) if not code]

        def deleted(error: ErrorCode) -> None:
            reply(offset_write_error(error) if error else ErrorCode.NONE, codes)

        self.remove_offsets(group_id, gone, deleted)

    def remove_offsets(
        self, group_id: str, keys: Sequence[TopicKey], done: Callable[[ErrorCode], None]
    ) -> None:
        """Write tombstones for those of `keys` that exist, and forget them once that is safe."""
        known = self.all_offset_keys(group_id)
        gone = [key for key in dict.fromkeys(keys) if key in known]
        if not gone:
            done(ErrorCode.NONE)
            return

        def removed(error: ErrorCode) -> None:
            if not error:
                self.drop_offsets(group_id, gone)
            done(error)

        self.store.write(offset_tombstones(group_id, gone), removed)

    def all_offset_keys(self, group_id: str) -> set[TopicKey]:
        """Offsets that are committed or about to be."""
        return set(self._offsets.get(group_id, ())) | set(self._pending.get(group_id, ()))

    def drop_offsets(self, group_id: str, keys: Sequence[TopicKey]) -> None:
        """Forget offsets whose tombstones are safe."""
        known = self._offsets.get(group_id)
        if known is not None:
            for key in keys:
                known.pop(key, None)
            if not known:
                del self._offsets[group_id]

    # -- expiry ------------------------------------------------------------------------------

    def expired_keys(self, group_id: str, now_ms: int) -> list[TopicKey]:
        """Offsets of a group whose time is up. `now_ms` by the wall clock."""
        group = self._groups.get(group_id)
        known = self._offsets.get(group_id, {})
        pending = self._pending.get(group_id, {})
        if group is not None and not group.offsets_may_expire:
            return []
        base_ms = None if group is None else group.emptied_ms
        retention_ms = self._settings.offsets_retention_ms
        expired = []
        for key, value in known.items():
            if key in pending or (group is not None and group.members and group.subscribes(key[0])):
                continue
            if value.expire_ms >= 0:
                is_over = now_ms >= value.expire_ms
            else:
                since_ms = value.commit_ms if base_ms is None else max(base_ms, value.commit_ms)
                is_over = now_ms - since_ms >= retention_ms
            if is_over:
                expired.append(key)
        return expired

    def forget_topics(self, names: frozenset[str]) -> None:
        """Topics were deleted: so are the offsets in them."""
        for group_id in list(self._offsets):
            gone = [key for key in self.all_offset_keys(group_id) if key[0] in names]
            if gone:
                self.remove_offsets(group_id, gone, lambda _: None)

    # -- the log -----------------------------------------------------------------------------

    def replay(self, about: Key, value: bytes | None) -> None:
        """Take in the record of an offset. Raises Malformed for damage."""
        place = (about.topic, about.partition)
        if value is None:
            self.drop_offsets(about.group_id, [place])
        else:
            self._offsets.setdefault(about.group_id, {})[place] = read_offset(value)
