"""Raft messages on the wire: a fixed binary form in place of PySyncObj's pickles.

A message is the dict that PySyncObj makes, or one of our own kinds. What comes from a
peer is parsed by `struct` alone, so no frame can run code; every length is checked
against what is left. Acknowledgements and votes carry the sender's term, which
PySyncObj leaves out (a delayed one from an older term must not count).

A peer may be broken or hostile. Terms and indexes lie below NUMBER_END, entries follow one another and hold commands
that this version reads (`commands`): what passes `decode` can be written to the log, applied, and encoded again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

from penstock_controller.quorum.commands import NUMBER_END, fault_of

PROTOCOL_VERSION = 1

_HELLO = struct.Struct("<BHiiB16s16s16s")
_TERM = struct.Struct("<BQ")
_REQUEST_VOTE = struct.Struct("<BQQQ")
_APPEND = struct.Struct("<BQQQQI")
_ENTRY = struct.Struct("<QQI")
_SNAPSHOT = struct.Struct("<BQQBB")
_ACK = struct.Struct("<BQQBB")
_PREVOTE = struct.Struct("<BQQQQ")
_PREVOTE_REPLY = struct.Struct("<BQQB")

_HELLO_ID, _KEEPALIVE_ID, _VOTE_ID, _GRANT_ID, _APPEND_ID, _SNAPSHOT_ID = 1, 2, 3, 4, 5, 6
_ACK_ID, _TIMEOUT_ID, _PREVOTE_ID, _PREVOTE_REPLY_ID, _NOTICE_ID = 7, 8, 9, 10, 11

ENTRIES_MAX = 20_000
"""Entries of one message: bounds what a frame full of the smallest ones costs the tick thread."""
ENTRIES_SENT_MAX = 5_000
"""What this version puts into one."""

Message = dict[str, Any]


class BadMessage(Exception):
    """A frame that is none of ours."""


def encode(message: Mapping[str, Any]) -> bytes | None:
    """The payload of one frame; None for what never leaves a process. Never raises.

    PySyncObj would hand a follower's queued command to the leader; and where a peer had moved its marks it could ask
    for a number that has no place in a message.
    """
    encoder = _ENCODERS.get(message["type"])
    try:
        return None if encoder is None else encoder(message)
    except (struct.error, KeyError, TypeError, ValueError):
        return None


def decode(payload: memoryview) -> Message:
    """The message of one frame's payload. Raises BadMessage."""
    try:
        message = _DECODERS[payload[0]](payload)
    except (struct.error, IndexError, KeyError) as error:
        raise BadMessage(f"not a controller's message: {type(error).__name__}") from None
    for name in _NUMBERS:
        if message.get(name, 0) >= NUMBER_END:
            raise BadMessage(f"{name} {message[name]} of a {message['type']} is beyond what a quorum reaches")
    return message


def _encode_hello(m: Mapping[str, Any]) -> bytes:
    ids = m["directory_id"], m["remembered"], m["cluster_id"]
    return _HELLO.pack(_HELLO_ID, PROTOCOL_VERSION, m["from"], m["to"], m["joined"], *ids)


def _decode_hello(p: memoryview) -> Message:
    _, version, sender, to, joined, directory_id, remembered, cluster_id = _HELLO.unpack(p)
    if version != PROTOCOL_VERSION:
        raise BadMessage(f"peer speaks version {version}, this controller {PROTOCOL_VERSION}")
    return {
        "type": "hello",
        "from": sender,
        "to": to,
        "joined": bool(joined),
        "directory_id": directory_id,
        "remembered": remembered,
        "cluster_id": cluster_id,
    }


def _encode_append(m: Mapping[str, Any]) -> bytes:
    if "serialized" in m:
        data, first, last = m["serialized"] or (b"", False, False)
        return _SNAPSHOT.pack(_SNAPSHOT_ID, m["term"], m["commit_index"], first, last) + data
    if "transmission" in m:
        raise ValueError("entries above the batch size are never sent")
    entries = m["entries"]
    head = _APPEND.pack(
        _APPEND_ID, m["term"], m["commit_index"], m["prevLogIdx"], m["prevLogTerm"], len(entries)
    )
    parts = [head]
    for command, index, term in entries:
        parts.append(_ENTRY.pack(index, term, len(command)))
        parts.append(command)
    return b"".join(parts)


def _decode_append(p: memoryview) -> Message:
    _, term, commit_index, previous_index, previous_term, count = _APPEND.unpack_from(p)
    if count > ENTRIES_MAX:
        raise BadMessage(f"{count} entries in a message, the most is {ENTRIES_MAX}")
    offset = _APPEND.size
    entries = []
    last_index, last_term = previous_index, previous_term
    for _ in range(count):
        index, entry_term, length = _ENTRY.unpack_from(p, offset)
        offset += _ENTRY.size
        if offset + length > len(p):
            raise BadMessage("entry reaches past its frame")
        if index != last_index + 1 or not last_term <= entry_term <= term:
            raise BadMessage(f"entry {index} of term {entry_term} cannot follow {last_index} of {last_term}")
        command = bytes(p[offset : offset + length])
        if fault := fault_of(command):
            raise BadMessage(f"entry {index} of term {entry_term} {fault}")
        entries.append((command, index, entry_term))
        offset += length
        last_index, last_term = index, entry_term
    if offset != len(p):
        raise BadMessage(f"{len(p) - offset} bytes behind the last entry")
    return {
        "type": "append_entries",
        "term": term,
        "commit_index": commit_index,
        "entries": entries,
        "prevLogIdx": previous_index,
        "prevLogTerm": previous_term,
    }


def _decode_snapshot(p: memoryview) -> Message:
    _, term, commit_index, first, last = _SNAPSHOT.unpack_from(p)
    return {
        "type": "append_entries",
        "term": term,
        "commit_index": commit_index,
        "serialized": (bytes(p[_SNAPSHOT.size :]), bool(first), bool(last)),
    }


def _decode_vote(p: memoryview) -> Message:
    _, term, index, last_term = _REQUEST_VOTE.unpack(p)
    return {"type": "request_vote", "term": term, "last_log_index": index, "last_log_term": last_term}


def _decode_ack(p: memoryview) -> Message:
    _, term, next_index, reset, success = _ACK.unpack(p)
    return {
        "type": "next_node_idx",
        "term": term,
        "next_node_idx": next_index,
        "reset": bool(reset),
        "success": bool(success),
    }


def _decode_prevote(p: memoryview) -> Message:
    _, round_id, term, index, last_term = _PREVOTE.unpack(p)
    return {
        "type": "prevote",
        "round": round_id,
        "term": term,
        "last_log_index": index,
        "last_log_term": last_term,
    }


def _decode_prevote_reply(p: memoryview) -> Message:
    _, round_id, term, granted = _PREVOTE_REPLY.unpack(p)
    return {"type": "prevote_reply", "round": round_id, "term": term, "granted": bool(granted)}


_NUMBERS = (
    "term",
    "commit_index",
    "prevLogIdx",
    "prevLogTerm",
    "last_log_index",
    "last_log_term",
    "next_node_idx",
    "round",
)

_ENCODERS: dict[str, Callable[[Mapping[str, Any]], bytes]] = {
    "hello": _encode_hello,
    "keepalive": lambda m: bytes([_KEEPALIVE_ID]),
    "request_vote": lambda m: _REQUEST_VOTE.pack(
        _VOTE_ID, m["term"], m["last_log_index"], m["last_log_term"]
    ),
    "response_vote": lambda m: _TERM.pack(_GRANT_ID, m["term"]),
    "append_entries": _encode_append,
    "next_node_idx": lambda m: _ACK.pack(_ACK_ID, m["term"], m["next_node_idx"], m["reset"], m["success"]),
    "timeout_now": lambda m: _TERM.pack(_TIMEOUT_ID, m["term"]),
    "prevote": lambda m: _PREVOTE.pack(
        _PREVOTE_ID, m["round"], m["term"], m["last_log_index"], m["last_log_term"]
    ),
    "prevote_reply": lambda m: _PREVOTE_REPLY.pack(_PREVOTE_REPLY_ID, m["round"], m["term"], m["granted"]),
    "term_notice": lambda m: _TERM.pack(_NOTICE_ID, m["term"]),
}

_DECODERS: dict[int, Callable[[memoryview], Message]] = {
    _HELLO_ID: _decode_hello,
    _KEEPALIVE_ID: lambda p: {"type": "keepalive"},
    _VOTE_ID: _decode_vote,
    _GRANT_ID: lambda p: {"type": "response_vote", "term": _TERM.unpack(p)[1]},
    _APPEND_ID: _decode_append,
    _SNAPSHOT_ID: _decode_snapshot,
    _ACK_ID: _decode_ack,
    _TIMEOUT_ID: lambda p: {"type": "timeout_now", "term": _TERM.unpack(p)[1]},
    _PREVOTE_ID: _decode_prevote,
    _PREVOTE_REPLY_ID: _decode_prevote_reply,
    _NOTICE_ID: lambda p: {"type": "term_notice", "term": _TERM.unpack(p)[1]},
}
