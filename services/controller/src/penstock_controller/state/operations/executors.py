"""Who carries out rolling operations: a command that asks for the next step holds a lease by asking.

Soft state of the active controller. Another one begins with whole leases for everybody, since a command that lost its
controller must find the new one first; but it hands out nothing before the command has asked it.
"""

from __future__ import annotations

from typing import Final

from penstock_proto.v1 import metadata_pb2 as pb

LEASE_MS: Final = 15_000
"""A command that has not asked for so long is gone."""

_Key = tuple[int, str]


class Executors:
    """Of all rolling operations. Times are in ms and never go back."""

    def __init__(self) -> None:
        self._since: dict[_Key, int] = {}
        self._asked: dict[_Key, int] = {}
        self._left: set[_Key] = set()

    def begin(self) -> None:
        """A term as the active controller begins."""
        self._since.clear()
        self._asked.clear()
        self._left.clear()

    def busy_ms(self, record: pb.OperationRecord, executor_id: str, now_ms: int) -> int:
        """For how long yet the lease of another executor holds; 0 where `executor_id` may have it."""
        if not record.executor.executor_id or record.executor.executor_id == executor_id:
            return 0
        key = _key(record)
        if key in self._left:
            return 0
        heard_ms = max(self._since.setdefault(key, now_ms), self._asked.get(key, 0))
        return max(0, heard_ms + LEASE_MS - now_ms)

    def ask(self, operation_id: int, executor_id: str, now_ms: int) -> None:
        """It asks for work, so it is there."""
        key = operation_id, executor_id
        self._asked[key] = now_ms
        self._since.setdefault(key, now_ms)
        self._left.discard(key)

    def leave(self, operation_id: int, executor_id: str) -> None:
        """It will not ask again."""
        key = operation_id, executor_id
        self._asked.pop(key, None)
        self._left.add(key)

    def is_there(self, record: pb.OperationRecord, now_ms: int) -> bool:
        """Whether the operation's executor has asked this controller within its lease."""
        asked_ms = self._asked.get(_key(record))
        return asked_ms is not None and now_ms - asked_ms <= LEASE_MS

    def is_gone(self, record: pb.OperationRecord, now_ms: int) -> bool:
        """Whether nobody carries it out: it left, or nobody has asked for a whole lease."""
        key = _key(record)
        if key in self._left:
            return True
        since_ms = self._since.setdefault(key, now_ms)
        return now_ms - max(since_ms, self._asked.get(key, 0)) > LEASE_MS

    def forget(self, operation_id: int) -> None:
        """It has ended."""
        for known in (self._since, self._asked):
            for key in [k for k in known if k[0] == operation_id]:
                del known[key]
        self._left = {k for k in self._left if k[0] != operation_id}


def _key(record: pb.OperationRecord) -> _Key:
    return record.operation_id, record.executor.executor_id
