"""Offsets that were committed in transactions which have not ended: kept until the marker says what becomes of them.

Pure. They count from their append on: a partition that has one is unstable for whoever asks for stable offsets, it does
not expire, and its group stays. A transaction is named by its producer and by where it began in this partition, as the
log knows it, since the next one of a producer may begin before the marker of the last one is safe.

Source: OffsetMetadataManager (pendingTransactionalOffsets, openTransactionsByGroup) of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable, KeysView, Sequence
from typing import Final, NamedTuple

from penstock_core.errors import InvariantBroken
from penstock_storage_node.groups.records import OffsetValue, TopicKey

_Place = tuple[str, TopicKey]
"""Group id, and what of it."""
_Transaction = tuple[int, int]
"""Producer id, and offset of its first batch in this partition."""
_NONE: Final[dict[TopicKey, set[_Transaction]]] = {}


class EndedOffset(NamedTuple):
    """What a transaction that has ended would have committed."""

    group_id: str
    key: TopicKey
    value: OffsetValue


class TransactionalOffsets:
    """Of one partition of `__consumer_offsets`."""

    def __init__(self) -> None:
        self._transactions: dict[int, dict[int, dict[_Place, OffsetValue]]] = {}
        """By producer id, and by where the transaction began."""
        self._pending: dict[str, dict[TopicKey, set[_Transaction]]] = {}
        """By group: which transactions have an offset for it."""

    def __len__(self) -> int:
        """Transactions that have offsets here."""
        return sum(map(len, self._transactions.values()))

    def begun_at(self, producer_id: int) -> int | None:
        """Where the producer's newest transaction that has offsets here began."""
        begun = self._transactions.get(producer_id)
        return max(begun) if begun else None

    def put(
        self,
        producer_id: int,
        begun_at: int,
        group_id: str,
        values: Iterable[tuple[TopicKey, OffsetValue]],
    ) -> None:
        """Offsets were appended; later ones of a transaction take the place of its earlier ones."""
        offsets = self._transactions.setdefault(producer_id, {}).setdefault(begun_at, {})
        pending = self._pending.setdefault(group_id, {})
        for key, value in values:
            offsets[group_id, key] = value
            pending.setdefault(key, set()).add((producer_id, begun_at))

    def end(self, producer_id: int, before: int) -> list[EndedOffset]:
        """A marker of the producer at offset `before` is safe: take out what it decides, in the log's order."""
        begun = self._transactions.get(producer_id)
        if begun is None:
            return []
        found: list[EndedOffset] = []
        for begun_at in sorted(begun):
            if begun_at >= before:
                continue  # the next transaction
            for (group_id, key), value in begun.pop(begun_at).items():
                self._forget(group_id, key, (producer_id, begun_at))
                found.append(EndedOffset(group_id, key, value))
        if not begun:
            del self._transactions[producer_id]
        found.sort(key=lambda each: each.value.record_offset)
        return found

    def drop(self, group_id: str, keys: Sequence[TopicKey], before: int | None = None) -> None:
        """Tombstones at offset `before` are safe: what was written ahead of them counts no more. None: all."""
        pending = self._pending.get(group_id, _NONE)
        for key in keys:
            for producer_id, begun_at in list(pending.get(key, ())):
                offsets = self._transactions[producer_id][begun_at]
                if before is not None and offsets[group_id, key].record_offset >= before:
                    continue
                del offsets[group_id, key]
                self._forget(group_id, key, (producer_id, begun_at))
                if not offsets:
                    self._forget_transaction(producer_id, begun_at)

    def _forget(self, group_id: str, key: TopicKey, transaction: _Transaction) -> None:
        pending = self._pending[group_id]
        pending[key].discard(transaction)
        if not pending[key]:
            del pending[key]
            if not pending:
                del self._pending[group_id]

    def _forget_transaction(self, producer_id: int, begun_at: int) -> None:
        begun = self._transactions[producer_id]
        del begun[begun_at]
        if not begun:
            del self._transactions[producer_id]

    def keys(self, group_id: str) -> KeysView[TopicKey]:
        """Partitions for which the group has such offsets."""
        return self._pending.get(group_id, _NONE).keys()

    def groups(self) -> KeysView[str]:
        """Groups that have such offsets."""
        return self._pending.keys()

    def validate(self) -> None:
        """Raises InvariantBroken unless both tables say the same."""
        places = {
            (place, (producer_id, begun_at))
            for producer_id, begun in self._transactions.items()
            for begun_at, offsets in begun.items()
            for place in offsets
        }
        pending = {
            ((group_id, key), transaction)
            for group_id, keys in self._pending.items()
            for key, transactions in keys.items()
            for transaction in transactions
        }
        kept = [offsets for begun in self._transactions.values() for offsets in begun.values()]
        empty = not all([*self._transactions.values(), *kept, *self._pending.values()])
        if places != pending or empty:
            raise InvariantBroken(
                f"{len(places)} offsets of transactions are kept, {len(pending)} are looked up"
            )
