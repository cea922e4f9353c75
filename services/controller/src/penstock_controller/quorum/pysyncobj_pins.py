"""The private names of PySyncObj 0.3.17 that the quorum hooks, checked before it starts.

A library upgrade that renames one would silently give back the stock behaviour, which
loses acknowledged metadata; so the version is pinned and each name is looked for.
"""

from __future__ import annotations

import pickle
from typing import Any, NoReturn

import pysyncobj.journal
import pysyncobj.pickle
import pysyncobj.serializer
import pysyncobj.syncobj
import pysyncobj.transport
from pysyncobj.version import VERSION

from penstock_core.errors import InvariantBroken

PINNED_VERSION = "0.3.17"

_CLASS_NAMES = (
    "_SyncObj__applyLogEntries",
    "_SyncObj__connectedToAnyone",
    "_SyncObj__doApplyCommand",
    "_SyncObj__generateRaftTimeout",
    "_SyncObj__getEntries",
    "_SyncObj__loadDumpFile",
    "_SyncObj__onBecomeLeader",
    "_SyncObj__onMessageReceived",
    "_SyncObj__sendAppendEntries",
    "_SyncObj__setCurrentTerm",
    "_SyncObj__setState",
    "_applyCommand",
    "_checkCommandsToApply",
    "_isLeader",
    "_onTick",
    "forceLogCompaction",
    "transferLeadership",
)
_MODULE_NAMES = ("_COMMAND_TYPE", "_RAFT_STATE", "Serializer", "createJournal", "monotonicTime")
_OTHER_NAMES: tuple[tuple[str, object, tuple[str, ...]], ...] = (
    (
        "Transport",
        pysyncobj.transport.Transport,
        ("_onMessageReceived", "_onNodeConnected", "_onNodeDisconnected", "destroy", "send"),
    ),
    (
        "Journal",
        pysyncobj.journal.Journal,
        (
            "__getitem__",
            "__len__",
            "_destroy",
            "add",
            "clear",
            "deleteEntriesFrom",
            "deleteEntriesTo",
            "getCurrentTerm",
            "getRaftCommitIndex",
            "getVotedForNodeId",
            "onOneSecondTimer",
            "setCurrentTerm",
            "setRaftCommitIndex",
        ),
    ),
    (
        "Serializer",
        pysyncobj.serializer.Serializer,
        ("cancelTransmisstion", "checkSerializing", "getTransmissionData", "serialize"),
    ),
    ("pysyncobj.pickle", pysyncobj.pickle, ("load", "loads")),
    ("pysyncobj.journal", pysyncobj.journal, ("loads",)),
)
"""What is overridden, called or replaced outside SyncObj."""
_INSTANCE_NAMES = (
    "_SyncObj__commandsQueue",
    "_SyncObj__connectedNodes",
    "_SyncObj__lastResponseTime",
    "_SyncObj__newAppendEntriesTime",
    "_SyncObj__noopIDx",
    "_SyncObj__otherNodes",
    "_SyncObj__pipeNotifier",
    "_SyncObj__raftCommitIndex",
    "_SyncObj__raftCurrentTerm",
    "_SyncObj__raftElectionDeadline",
    "_SyncObj__raftLastApplied",
    "_SyncObj__raftLeader",
    "_SyncObj__raftLog",
    "_SyncObj__raftMatchIndex",
    "_SyncObj__raftState",
    "_SyncObj__serializer",
    "_SyncObj__transferInProgress",
    "_SyncObj__votedForNodeId",
    "_poller",
)


class WrongLibrary(InvariantBroken):
    """PySyncObj is not the one that this controller was built for."""


def clock_s() -> float:
    """The clock that PySyncObj's tick goes by, in s. Deadlines are set by us and by PySyncObj and compared by both, so
    there may be no other: on Linux this one is CLOCK_MONOTONIC_RAW, from which Python's own parts by seconds a day,
    for NTP sets the pace of that one alone."""
    return float(pysyncobj.syncobj.monotonicTime())


def check_library() -> None:
    """Raise WrongLibrary, with one clear line, unless the pinned names are there."""
    if VERSION != PINNED_VERSION:
        raise WrongLibrary(f"PySyncObj {VERSION} is installed, this controller needs {PINNED_VERSION}")
    missing = [name for name in _CLASS_NAMES if not hasattr(pysyncobj.syncobj.SyncObj, name)]
    missing += [name for name in _MODULE_NAMES if not hasattr(pysyncobj.syncobj, name)]
    missing += [
        f"{where}.{name}"
        for where, owner, names in _OTHER_NAMES
        for name in names
        if not hasattr(owner, name)
    ]
    _raise_missing(missing)


def check_instance(raft: Any) -> None:
    """The same for names that exist only on an object."""
    _raise_missing([name for name in _INSTANCE_NAMES if not hasattr(raft, name)])


def _raise_missing(missing: list[str]) -> None:
    if missing:
        raise WrongLibrary(
            f"PySyncObj {VERSION} lacks {', '.join(missing)}; install exactly {PINNED_VERSION} from the package index"
        )


def _refuse(*_args: object, **_kwargs: object) -> NoReturn:
    raise pickle.UnpicklingError("controllers never unpickle")


def install_hooks() -> None:
    """Give PySyncObj our journal and snapshots, and take its unpicklers away.

    The journal object travels in `conf.journalFile` and the snapshot store in
    `conf.serializer`, so several quorum members can live in one process. With our
    transport, journal, snapshots and command encoding nothing is ever unpickled, hence
    the allow-list is empty. Only names inside pysyncobj are replaced.
    """
    pysyncobj.syncobj.createJournal = lambda journal: journal
    pysyncobj.syncobj.Serializer = lambda _file, _size, _fork, store, _loader, _checker: store
    for module in (pysyncobj.pickle, pysyncobj.journal):
        module.loads = _refuse
    pysyncobj.pickle.load = _refuse
