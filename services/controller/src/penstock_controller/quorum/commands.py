"""What may stand in the Raft log, looked at before it gets there. Pure.

An entry that a controller cannot read would end it when it is applied, after each restart again, and all the
others with it. So nothing of a peer's goes into the log that does not decode, and a log that holds such a thing
at the start is refused with its place.
"""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.message import DecodeError

from penstock_proto.v1 import metadata_pb2 as pb

NUMBER_END = 1 << 62
"""Terms and indexes lie below. Elections and commands do not get there in thousands of years."""
COMMAND_BYTES_MAX = 4 * 1024 * 1024
"""Largest command. Below PySyncObj's batch size, above which it splits entries wrongly."""
REGULAR, NO_OP = 0, 1
"""First bytes of entries (PySyncObj's _COMMAND_TYPE; those of the others are never written)."""


def fault_of(command: bytes) -> str:
    """Why an entry's command cannot be one, as the end of a sentence that it begins; "" when it can."""
    if not command:
        return "is empty"
    if command[0] == NO_OP:
        return "" if len(command) == 1 else f"is a no-op of {len(command)} bytes"
    if command[0] != REGULAR:
        return f"is of the unknown kind {command[0]}"
    if len(command) > 1 + COMMAND_BYTES_MAX:
        return f"has {len(command)} bytes, the most is {1 + COMMAND_BYTES_MAX}"
    try:
        decoded = pb.MetadataCommand.FromString(command[1:])
    except DecodeError:
        return "is no metadata command"
    for record in decoded.records:
        if record.WhichOneof("record") is None:
            return "holds a record of a newer version: upgrade this controller"
    return ""


def find_poison(entries: Iterable[tuple[bytes, int, int]]) -> str:
    """The first entry (command, index, term) that cannot be one, and why; "" when all can."""
    for command, index, term in entries:
        if not (0 <= index < NUMBER_END and 0 <= term < NUMBER_END):
            return f"entry {index} of term {term} has a number that no log reaches"
        if fault := fault_of(command):
            return f"entry {index} of term {term} {fault}"
    return ""
