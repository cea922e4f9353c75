"""What an append really changes in a follower's log. Pure.

PySyncObj deletes everything behind an append's previous entry, conflicting or not, so
a message that was overtaken or doubled would cut acknowledged entries. This rewrites
each append so that only a true conflict deletes (Raft, figure 2, receiver step 3), and
says what may be acknowledged when nothing is left to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

Entry = tuple[bytes, int, int]


class Filtered(NamedTuple):
    """`message` goes to PySyncObj; when `acknowledge` is set it answers nothing itself."""

    message: dict[str, Any]
    # Last index known to match the leader's log, to be acknowledged by the transport.
    acknowledge: int | None


def bare(message: dict[str, Any], matched_index: int) -> dict[str, Any]:
    """The append as a sign of life and of the commit index alone."""
    return {
        "type": "append_entries",
        "term": message["term"],
        "commit_index": min(message["commit_index"], matched_index),
    }


def cuts_committed(
    message: dict[str, Any], first_index: int, log: Sequence[Entry], commit_index: int
) -> bool:
    """Whether an append has other entries than ours where ours are committed: no leader that was elected does."""
    for _, index, term in message["entries"]:
        at = index - first_index
        if index > commit_index or at >= len(log):
            return False
        if at >= 0 and log[at][2] != term:
            return True
    return False


def filter_append(message: dict[str, Any], first_index: int, log: Sequence[Entry]) -> Filtered:
    """`log` is the follower's log, whose first entry has `first_index`."""
    previous, entries = message["prevLogIdx"], message["entries"]
    at = previous - first_index
    if at < 0:
        # Older than our snapshot, hence committed: skip what the snapshot holds.
        skip = first_index - previous
        if skip > len(entries) or entries[skip - 1][1] != first_index:
            return Filtered(bare(message, first_index), first_index)
        message = dict(message, prevLogIdx=first_index, prevLogTerm=log[0][2], entries=entries[skip:])
        return filter_append(message, first_index, log)
    if at >= len(log) or log[at][2] != message["prevLogTerm"]:
        # No match: PySyncObj answers with where to try next, and deletes nothing.
        return Filtered(message, None)
    known = 0
    while known < len(entries) and at + 1 + known < len(log) and log[at + 1 + known][2] == entries[known][2]:
        known += 1
    if known == len(entries) and at + 1 + known < len(log):
        # All known, and we hold more: nothing to change.
        matched = previous + known
        return Filtered(bare(message, matched), matched)
    if known:
        matched_entry = log[at + known]
        message = dict(
            message, prevLogIdx=matched_entry[1], prevLogTerm=matched_entry[2], entries=entries[known:]
        )
    return Filtered(message, None)
