"""Committed offsets: OffsetCommit, OffsetFetch, OffsetDelete, expiry.

Rules (OffsetMetadataManager of Apache Kafka 4.3): who may commit is the group's to say; an offset is
seen by OffsetFetch once the high watermark covers its record, never earlier; offsets of a group
without members expire `offsets_retention_ms` after it lost the last one (KIP-211), those of a
standalone consumer that long after their commit, those of topics that a live group no longer reads
likewise. One that was committed in a transaction (KIP-98) waits for its marker; then it is in place unless the log
has a later record of that offset, so that compaction changes no answer. Two deviations: what was committed to an empty
group (an operator's reset) counts from that commit, not from the group's end, so that it isn't gone at once; and a node
that may have been deposed unheard tells no stable offsets before a write of its own is safe (decision 0071).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock_core.errors import ErrorCode
from penstock_core.ids import TopicId
from penstock_storage_node.groups.holdings import NOBODYS, Owner
from penstock_storage_node.groups.records import (
    Key,
    OffsetValue,
    Record,
    TopicKey,
    offset_key,
    offset_tombstones,
    put_offset,
    read_offset,
)
from penstock_storage_node.groups.store import (
    Group,
    GroupStore,
    InTransaction,
    Written,
    offset_write_error,
    write_error,
)

MEMBER_EPOCHS_SINCE = 9
"""First version of OffsetCommit and OffsetFetch that knows KIP-848."""

ABORTABLE_SINCE: Final = 4
"""First version of TxnOffsetCommit that knows TRANSACTION_ABORTABLE."""

TOMBSTONE_BYTES_MAX: Final = 512 * 1024
"""In one batch, well below `max.message.bytes`."""
_KEY_BYTES_MAX: Final = 300
"""Of a tombstone, beside the group's name."""
BARRIER: Final = Record(offset_key("", "", -1), None)
"""A record that changes nothing: it takes away an offset that there cannot be."""

CommitReply = Callable[[Sequence[ErrorCode]], None]
Found = list[tuple[TopicKey, OffsetValue | None]]
"""By partition what is committed."""
StableReply = Callable[[ErrorCode, Found, frozenset[TopicKey]], None]
"""An error for the group, or what is committed, and the partitions that a transaction may yet change."""


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
    transaction: InTransaction | None = None
    """Of a TxnOffsetCommit."""


class OffsetStore:
    """Keeps the offsets of a shard's groups."""

    def __init__(self, store: GroupStore, make_group: Callable[[str, Owner], Group]) -> None:
        """`make_group`: a consumer that assigns its partitions itself has no group but for its offsets."""
        self.store = store
        self._make_group = make_group
        self._groups = store.groups
        self._offsets = store.offsets
        self._pending = store.pending_commits
        self._transactional = store.transactional
        self._timers = store.timers
        self._settings = store.settings
        self._clock_ms = store.clock_ms
        self._wall_ms = store.wall_ms
        self._topics = store.topics
        self._topics_read: set[tuple[str, TopicId | None]] = set()
        """Of the offsets in the log, until the first look at which of them are there."""
        self._end = 0
        """No offset that is known here stands at that place of the log, or behind it."""
        self._to_forget: dict[str, dict[TopicKey, int]] = {}
        """By group: offsets of deleted topics whose tombstones the log did not take, or that have to wait. With the
        place in the log from which on an offset is another one."""

    # -- commit ---------------------------------------------------------------------------

    def commit(self, request: CommitRequest, reply: CommitReply) -> None:
        """An OffsetCommit or TxnOffsetCommit; a code for each item, when its record is safe."""
        group, error = self._group_for_commit(request)
        if group is None or error:
            reply([error] * len(request.items))
            return
        session = group.session_of(request.member_id)
        if session is not None and request.transaction is None:
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
            # A record with an expiry has no place for the topic's id.
            topic_id = self._topics.topic_id(item.topic) if expire_ms < 0 else None
            value = OffsetValue(
                item.offset, item.leader_epoch, metadata, now_ms, expire_ms, topic_id=topic_id
            )
            values.append(((item.topic, item.partition), value))
            records.append(
                Record(offset_key(request.group_id, item.topic, item.partition), put_offset(value))
            )
        if not records:
            self.store.forget_if_idle(group)
            reply(codes)
            return
        if request.transaction is None:
            self._write_offsets(request.group_id, records, values, codes, reply)
        else:
            self._write_in_transaction(request.group_id, request.transaction, records, values, codes, reply)

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
            if error or written is None:
                self._refused(group_id, error, codes, reply)
                return
            for key, value in _placed(values, written):
                self._put_in_place(group_id, key, value)
            reply(codes)

        written: Written | None = None
        written = self.store.write(records, committed)
        self._note_end(written, records)

    def _note_end(self, written: Written | None, records: Sequence[Record]) -> None:
        if written is not None:
            self._end = max(self._end, written.base_offset + len(records))

    def _write_in_transaction(
        self,
        group_id: str,
        transaction: InTransaction,
        records: list[Record],
        values: list[tuple[TopicKey, OffsetValue]],
        codes: list[ErrorCode],
        reply: CommitReply,
    ) -> None:
        def safe(error: ErrorCode) -> None:
            if error:
                self._refused(group_id, error, codes, reply)
            else:
                reply(codes)

        written = self.store.write(records, safe, transaction)
        self._note_end(written, records)
        if written is not None:
            placed = _placed(values, written)
            self._transactional.put(transaction.producer_id, written.begun_at, group_id, placed)

    def _refused(
        self, group_id: str, error: ErrorCode, codes: Sequence[ErrorCode], reply: CommitReply
    ) -> None:
        code = offset_write_error(error)
        reply([each or code for each in codes])
        self._forget_if_idle(group_id)

    def _forget_if_idle(self, group_id: str) -> None:
        group = self._groups.get(group_id)
        if group is not None:
            self.store.forget_if_idle(group)

    def _put_in_place(self, group_id: str, key: TopicKey, value: OffsetValue) -> None:
        """The record that stands last in the log wins, not the transaction that ended last."""
        known = self._offsets.setdefault(group_id, {})
        old = known.get(key)
        if old is None or old.record_offset <= value.record_offset:
            known[key] = value

    def end_transaction(self, producer_id: int, marker_offset: int, *, commits: bool) -> None:
        """The marker of a producer's transaction is safe: its offsets count, or they never were."""
        ended = self._transactional.end(producer_id, marker_offset)
        for group_id, key, value in ended:
            if commits:
                self._put_in_place(group_id, key, value)
        if not commits:
            for group_id in dict.fromkeys(each.group_id for each in ended):
                self._forget_if_idle(group_id)

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
                known_since = request.version >= MEMBER_EPOCHS_SINCE and request.transaction is None
                return None, (ErrorCode.GROUP_ID_NOT_FOUND if known_since else ErrorCode.ILLEGAL_GENERATION)
            if not self.store.node.may_make(request.owner):
                return None, self._group_too_many(request)
            return self._make_group(request.group_id, request.owner), ErrorCode.NONE
        who = request.member_id, request.instance_id, request.generation

        def places() -> list[tuple[TopicId | None, int]]:
            return [(self._topics.topic_id(item.topic), item.partition) for item in request.items]

        if request.transaction is not None:
            return group, group.check_transactional_commit(*who, places)
        return group, group.check_commit(*who, request.version, places)

    @staticmethod
    def _group_too_many(request: CommitRequest) -> ErrorCode:
        """A producer is told what has it abort its transaction: at other codes it ends, or asks for ever."""
        if request.transaction is None:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        is_known = request.version >= ABORTABLE_SINCE
        return ErrorCode.TRANSACTION_ABORTABLE if is_known else ErrorCode.GROUP_AUTHORIZATION_FAILED

    # -- fetch ------------------------------------------------------------------------------

    def fetch(
        self, group_id: str, member_id: str | None, member_epoch: int, keys: Sequence[TopicKey] | None
    ) -> tuple[ErrorCode, Found]:
        """An OffsetFetch for one group; all its offsets when `keys` is None."""
        group = self._groups.get(group_id)
        if group is not None:
            error = group.check_fetch(member_id, member_epoch)
            if error:
                return error, []
        known = self._offsets.get(group_id, {})
        if keys is None:
            return ErrorCode.NONE, [(key, value) for key, value in known.items() if self._is_of(key, value)]
        found = ((key, known.get(key)) for key in keys)
        return ErrorCode.NONE, [
            (key, None if value is None or not self._is_of(key, value) else value) for key, value in found
        ]

    def _is_of(self, key: TopicKey, value: OffsetValue) -> bool:
        """Whether an offset is of the topic that has its name now, as far as its record says."""
        if value.topic_id is None:
            return True
        topic_id = self._topics.topic_id(key[0])
        return topic_id is None or topic_id == value.topic_id

    def fetch_stable(
        self,
        group_id: str,
        member_id: str | None,
        member_epoch: int,
        keys: Sequence[TopicKey] | None,
        reply: StableReply,
        *,
        in_doubt: bool = False,
    ) -> None:
        """As `fetch`, for who must not begin before an offset that is about to be committed: commits that were written
        before the question are waited for, and partitions with offsets of open transactions are named. `in_doubt`:
        this node may have been deposed unheard, and its successor may have later offsets, so that a write of after
        the question is waited for. A deposed node never gets there."""

        def answer(lost: ErrorCode) -> None:
            error = write_error(lost)
            found: Found = []
            if not error:
                error, found = self.fetch(group_id, member_id, member_epoch, keys)
            unstable = self._transactional.keys(group_id)
            reply(error, found, frozenset(key for key, _ in found if key in unstable))

        pending = self._pending.get(group_id, {})
        if in_doubt:
            self.store.write([BARRIER], answer)
        elif pending and (keys is None or any(key in pending for key in keys)):
            self.store.when_settled(answer)
        else:
            answer(ErrorCode.NONE)

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

        at_once = tombstones_at_once(group_id)
        parts = [gone[at : at + at_once] for at in range(0, len(gone), at_once)]
        left, lost = len(parts), ErrorCode.NONE

        def removed(error: ErrorCode) -> None:
            nonlocal left, lost
            left, lost = left - 1, lost or error
            if not left:
                done(lost)

        for part in parts:
            self._remove_part(group_id, part, removed)

    def _remove_part(self, group_id: str, keys: list[TopicKey], done: Callable[[ErrorCode], None]) -> None:
        def removed(error: ErrorCode) -> None:
            if not error and written is not None:
                self.drop_offsets(group_id, keys, written.base_offset)
            done(error)

        written: Written | None = None
        written = self.store.write(offset_tombstones(group_id, keys), removed)

    def all_offset_keys(self, group_id: str) -> set[TopicKey]:
        """Offsets that are committed or about to be, or may be yet by the end of a transaction."""
        known = set(self._offsets.get(group_id, ())) | set(self._pending.get(group_id, ()))
        return known | self._transactional.keys(group_id)

    def drop_offsets(self, group_id: str, keys: Sequence[TopicKey], before: int | None = None) -> None:
        """Forget offsets whose tombstones are safe. `before`: where these begin in the log."""
        self._transactional.drop(group_id, keys, before)
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
        pending = self._pending.get(group_id, {}).keys() | self._transactional.keys(group_id)
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
        for group_id in dict.fromkeys([*self._offsets, *self._pending, *self._transactional.groups()]):
            self._forget(group_id, [key for key in self.all_offset_keys(group_id) if key[0] in names])

    def forget_deleted(self, is_there: Callable[[str], bool]) -> None:
        """As `forget_topics`, for those of the log that was read; of topics too whose names others have by now."""
        read, self._topics_read = self._topics_read, set()
        gone = frozenset(name for name, _ in read if not is_there(name))
        if gone:
            self.forget_topics(gone)
        ids = {name: self._topics.topic_id(name) for name, _ in read if name not in gone}
        if all(topic_id in (None, ids.get(name, topic_id)) for name, topic_id in read):
            return
        for group_id, known in list(self._offsets.items()):
            ends = {
                key: value.record_offset + 1 for key, value in known.items() if not self._is_of(key, value)
            }
            # A tombstone would take what an open transaction has for the topic of now.
            unsettled = ends.keys() & self._transactional.keys(group_id)
            if unsettled:
                self._to_forget.setdefault(group_id, {}).update((key, ends[key]) for key in unsettled)
            self._forget(group_id, [key for key in ends if key not in unsettled])

    def _forget(self, group_id: str, keys: Sequence[TopicKey]) -> None:
        if not keys:
            return
        end = self._end

        def removed(error: ErrorCode) -> None:
            if error and not self.store.closed:
                self._to_forget.setdefault(group_id, {}).update(dict.fromkeys(keys, end))

        self.remove_offsets(group_id, sorted(keys), removed)

    def forget_refused(self) -> None:
        """Once more, for those that could not go at first; but what is committed since then stays."""
        refused, self._to_forget = self._to_forget, {}
        for group_id, ends in refused.items():
            known = self._offsets.get(group_id, {})
            unsettled = self._pending.get(group_id, {}).keys() | self._transactional.keys(group_id)
            gone = []
            for key, end in ends.items():
                value = known.get(key)
                if value is not None and value.record_offset >= end:
                    continue  # this took its place
                if key in unsettled:
                    self._to_forget.setdefault(group_id, {})[key] = end
                elif value is not None:
                    gone.append(key)
            self._forget(group_id, gone)

    # -- the log -----------------------------------------------------------------------------

    def replay(self, about: Key, value: bytes | None, offset: int = -1, producer_id: int = -1) -> None:
        """Take in the record of an offset, which stands at `offset`; `producer_id` if it was written in a transaction.
        Raises Malformed for damage."""
        group_id, place = about.group_id, (about.topic, about.partition)
        if value is None:
            self.drop_offsets(group_id, [place])
            return
        read = read_offset(value)._replace(record_offset=offset)
        self._topics_read.add((about.topic, read.topic_id))
        self._end = max(self._end, offset + 1)
        if producer_id < 0:
            self._offsets.setdefault(group_id, {})[place] = read
            return
        begun_at = self._transactional.begun_at(producer_id)
        begun_at = offset if begun_at is None else begun_at
        self._transactional.put(producer_id, begun_at, group_id, [(place, read)])


def tombstones_at_once(group_id: str) -> int:
    """How many of a group go into one batch: a group may have more than a batch holds, and grew by many."""
    return max(1, TOMBSTONE_BYTES_MAX // (len(group_id.encode()) + _KEY_BYTES_MAX))


def _placed(
    values: Sequence[tuple[TopicKey, OffsetValue]], written: Written
) -> list[tuple[TopicKey, OffsetValue]]:
    """The same, knowing where their records stand."""
    first = written.base_offset
    return [(key, value._replace(record_offset=first + at)) for at, (key, value) in enumerate(values)]
