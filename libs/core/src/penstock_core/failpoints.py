"""Named places in the code where a test may end, hold up or fail the process.

`hit("log.append.before_write")` does nothing until a process is armed, which only
`penstock_runtime.failpoints` does, and only from the environment variable
`PENSTOCK_FAILPOINTS` at start. Unarmed, a call is one look at a module's global.

Rules
  * At most one call per batch, job or request on the hot path, never one per record.
  * Names are listed in `FAILPOINTS`; a test compares the list with the calls in the code.
  * A name says what has just happened or is about to: `before_write`, `after_rename`.

Theory: a crash between two system calls is the hardest fault to meet by chance and the
cheapest to make on purpose. (FreeBSD's fail(9), TiKV's fail-rs and Redpanda's honey
badger are of the same kind.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

FAILPOINTS: Final[dict[str, str]] = {
    # Storage node: one partition's log.
    "log.append.before_write": "a write job is about to write its first batch",
    "log.append.torn_write": "half of a job's bytes are written (action `torn`)",
    "log.append.after_write": "a job's bytes are written, nothing of it is flushed",
    "log.flush.before_sync": "a flush is about to begin",
    "log.flush.after_sync": "a flush has returned, nobody was told",
    "log.epochs.after_write": "a new leader epoch is on disk, its first batch is not",
    "log.roll.before_create": "a new segment is due, none of its files is there",
    "log.roll.after_snapshot": "the producer snapshot of a new segment is there, its files are not",
    "log.roll.after_create": "a new segment's files are there and empty",
    "log.index.before_save": "index entries are about to be written",
    "log.index.between_files": "the time index is written, the offset index is not",
    "log.checkpoint.before_write": "a round of checkpoints begins",
    "log.checkpoint.between_files": "recovery points are written, high watermarks are not",
    "log.file.before_rename": "a small file's replacement is flushed under its temporary name",
    "log.file.before_directory_sync": "a small file is renamed, its directory is not flushed",
    "log.truncate.before_cut": "the recovery point is lowered, the log is not cut",
    "log.truncate.after_segments": "later segments are removed, the last one is not cut",
    "log.truncate.after_cut": "the log is cut, epochs and producers are not",
    "log.recovery.before_scan": "an unclean log is about to be scanned",
    "log.recovery.before_cut": "the end of the good data is found, nothing is cut",
    "log.recovery.after_scan": "a log is cut and flushed, its producers are not rebuilt",
    "log.retention.before_rename": "old segments are out of the log, their files are all there",
    "log.retention.after_rename": "old segments' files are renamed, not removed",
    "log.compact.before_swap": "a compacted segment is ready under its temporary names",
    "log.compact.after_decision": "a compacted segment has its swap names, durably, the old ones are there",
    "log.compact.after_swap": "a compacted segment has its name, its directory is not flushed",
    "log.directory.after_make": "a partition's directory is made, with nothing in it",
    "log.directory.after_metadata": "a partition's directory has its topic id and no segment",
    "log.delete.after_rename": "a deleted partition's directory is renamed, its files are there",
    # Storage node: replication and roles.
    "replication.open.received": "the leader has a follower's Open, the session is not there yet",
    "replication.send.before_frame": "the leader is about to push a frame",
    "replication.append.before_stage": "the follower has batches that its log has not",
    "replication.append.after_stage": "the follower's log has batches in memory only",
    "replication.ack.before_send": "the follower's acks are about to go out",
    "replication.ack.received": "the leader has an ack, its high watermark has not moved",
    "replication.watermark.advanced": "the high watermark has moved, nobody was told",
    "replication.truncate.received": "the follower knows where its log parts from the leader's",
    "replica.become_leader.before": "metadata name this node leader, it has not begun",
    "replica.become_leader.after": "this node leads, it has answered nobody",
    "replica.become_follower.before": "metadata name another leader, this node has not begun to follow",
    "produce.before_answer": "acks are complete, producers are not answered",
    "isr.before_propose": "an ISR change is about to be asked for",
    "isr.after_propose": "the controller has answered an ISR change, the leader has not taken it",
    # Storage node: transactions.
    "transactions.state.before_append": "a coordinator has decided transitions, none of them is in its log",
    "transactions.state.after_append": "transitions are in the log, none of them counts yet",
    "transactions.state.covered": "the high watermark covers transitions, nobody was told and no marker is sent",
    "transactions.unit.before_append": "a unit is decided with all its stages, nothing of it is in the log",
    "transactions.unit.after_append": "a unit and its stages are in the log, none of them counts yet",
    "transactions.unit.covered": "the high watermark covers a unit, nobody was told and no marker is sent",
    "transactions.markers.before_send": "markers of a decision are about to go to a leader",
    "transactions.markers.written": "a coordinator hears of markers, and has not ended the transaction",
    "transactions.marker.before_append": "a leader is about to append a marker",
    "transactions.marker.after_append": "a leader has appended a marker that the high watermark does not cover",
    "transactions.marker.covered": "the high watermark covers a marker, its coordinator was not told",
    "transactions.ask.before_send": "a leader is about to ask for partitions of a transaction",
    # Storage node: membership.
    "node.register.before_call": "the node is about to register",
    "node.register.after_answer": "the node has its epoch, its directory does not",
    "node.register.after_identity": "the directory knows its node, no role is taken",
    "node.session.before_beat": "a heartbeat is about to go out",
    "node.retire.before_mark": "the node knows that its directory is retired, the directory does not",
    "slot.claim": "a live slot is locked by another process than before, which has not opened its logs",
    # Controller: the quorum's files.
    "controller.journal.before_write": "a block of the Raft journal is about to be written",
    "controller.journal.torn_write": "half of a block of the journal is written (action `torn`)",
    "controller.journal.before_sync": "a block is written and not flushed",
    "controller.journal.after_sync": "a block is flushed, no ack has gone out",
    "controller.term.before_store": "a term or vote is about to be kept",
    "controller.term.after_store": "a term or vote is kept, no reply has gone out",
    "controller.file.before_rename": "a file's replacement is flushed under its temporary name",
    "controller.file.before_directory_sync": "a file is renamed, its directory is not flushed",
    "controller.snapshot.begin": "a snapshot is about to be written",
    "controller.snapshot.before_sync": "a snapshot is written and not flushed",
    "controller.snapshot.before_rename": "a snapshot is flushed under its temporary name",
    "controller.snapshot.after_rename": "a snapshot has its name, its directory is not flushed",
    "controller.compact.before_replace": "the journal is about to lose what the snapshot has",
    "controller.compact.after_replace": "the shorter journal has the name",
    "controller.snapshot.received": "a peer's snapshot is complete and flushed, without its name",
    # Controller: commands.
    "controller.command.before_propose": "requests are generated, their command is not proposed",
    "controller.apply.before": "a committed command is about to be applied",
    "controller.apply.after": "a command is applied, nobody was told",
    "controller.answer.before": "a command is applied, its requests are not answered",
    "controller.leader.elected": "this controller has won an election and logged nothing",
    "controller.active.begin": "this controller is about to act as the active one",
    "controller.fence.before": "a lost node is about to be fenced",
    "controller.isr.before": "an ISR change is about to be generated",
    # Controller: operations.
    "operation.start.applied": "an operation is in the log and applied, who asked for it is not answered",
    "operation.step.before_propose": "an operation's next step is decided and not proposed",
    "operation.step.after_apply": "an operation's step is applied, nothing was done about it yet",
    "upgrade.level.applied": "the cluster has its new level, who asked for it is not answered",
    # Gateway.
    "gateway.forward.before_send": "client requests are taken for a node, not sent",
    "gateway.forward.after_send": "client requests are sent to a node, not answered",
    "gateway.answer.before": "a node has answered, no client has",
    "gateway.answer.after": "clients are answered, as far as the socket's buffer",
}
"""Every failpoint and what is true when it is hit."""

_on_hit: Callable[[str], None] | None = None
_on_torn: Callable[[str], bool] | None = None


def hit(name: str) -> None:
    """Do what this process is armed with for `name`, mostly nothing. May raise OSError where armed to."""
    if _on_hit is not None:
        _on_hit(name)


def torn(name: str) -> bool:
    """Whether the caller shall write only half of its bytes, and then call `hit` with the same name."""
    return _on_torn is not None and _on_torn(name)


def install(on_hit: Callable[[str], None] | None, on_torn: Callable[[str], bool] | None) -> None:
    """Arm the process (`penstock_runtime.failpoints`), or disarm it with None."""
    global _on_hit, _on_torn
    _on_hit, _on_torn = on_hit, on_torn
