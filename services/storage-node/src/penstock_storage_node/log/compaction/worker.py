"""The process that compacts: `python -P -m penstock_storage_node.log.compaction.worker`.

Compaction looks at every record, in Python: in a thread it would take the interpreter lock from
the event loop (rule "The loop stays free"). So the storage node starts this process when a log is
dirty enough, talks to it by lines of JSON on stdin and stdout, and lets it end when there is no more to do.

  node    {"clean": {...}, "bytes_per_s": n}     a CleanRequest
  worker  {"group": {...}}                       a CleanedGroup: swap it in, then answer
  node    {"go": true}                           (false: give up this run)
  worker  {"done": {...}}  or  {"error": "...", "kind": k}

k is "damaged" (with "base_offset", the segment's), "invalid", "gone", "full", "unreadable", "large" or "other".

It changes no file of the log, writes only `.cleaned` ones, is nice to others, and ends with the
node: on the end of stdin and, should it be in the middle of something, by PR_SET_PDEATHSIG.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import IO, Any, Final

from penstock_core.errors import PenstockError
from penstock_storage_node.log.compaction.record_filter import BatchTooLarge
from penstock_storage_node.log.compaction.rewrite import Cleaner, CleanRequest, DamagedSource
from penstock_storage_node.log.fs import FileSystem
from penstock_storage_node.log.transactions import AbortedTransaction

NICENESS: Final = 10
PR_SET_PDEATHSIG: Final = 1
SLICE_S: Final = 0.02
"""The throttle sleeps when it is that far ahead."""

_KINDS: Final = {errno.ENOSPC: "full", errno.EDQUOT: "full", errno.EIO: "unreadable"}


class GivenUp(Exception):
    """The node doesn't want the rest of this run."""


class Throttle:
    """Keeps the mean rate of bytes under a bound; 0 is none."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._ahead_s = 0.0
        self._last_s = time.monotonic()

    def __call__(self, size: int) -> None:
        if not self._bytes_per_s:
            return
        now_s = time.monotonic()
        self._ahead_s = max(self._ahead_s - (now_s - self._last_s), 0.0) + size / self._bytes_per_s
        self._last_s = now_s
        if self._ahead_s > SLICE_S:
            time.sleep(self._ahead_s)


def request_from(values: dict[str, Any]) -> CleanRequest:
    """A CleanRequest out of JSON."""
    producers = {int(producer): (row[0], row[1]) for producer, row in values.pop("producers").items()}
    sources = tuple((row[0], row[1]) for row in values.pop("sources"))
    aborted = tuple(AbortedTransaction(*row) for row in values.pop("aborted"))
    return CleanRequest(sources=sources, producers=producers, aborted=aborted, **values)


def serve(requests: IO[str], say: Callable[[dict[str, Any]], None]) -> None:
    """Carry out runs until the node ends the stream."""
    for line in requests:
        message = json.loads(line)
        try:
            say({"done": _run(message, requests, say)})
        except Exception as error:
            say(word_for(error))


def word_for(error: Exception) -> dict[str, Any]:
    """What the node is told of a run that ended before its time."""
    match error:
        case GivenUp():
            return {"error": "given up", "kind": "gone"}
        case DamagedSource():
            return {"error": str(error), "kind": "damaged", "base_offset": error.base_offset}
        case FileNotFoundError():
            return {"error": f"{error.filename or error} is gone", "kind": "gone"}
        case OSError():
            return {"error": str(error), "kind": _KINDS.get(error.errno or 0, "other")}
        case PenstockError():
            return {"error": error.message, "kind": "invalid"}
        case BatchTooLarge():
            return {"error": str(error), "kind": "large"}
    # The node logs it, once; a process that ends would tell it nothing.
    return {"error": f"{type(error).__name__}: {error}", "kind": "other"}


def _run(message: dict[str, Any], requests: IO[str], say: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    fs = FileSystem(open_files_max=16)
    cleaner = Cleaner(fs, request_from(message["clean"]), Throttle(message["bytes_per_s"]))
    try:
        for group in cleaner.run():
            say({"group": asdict(group)})
            answer = requests.readline()
            if not answer or not json.loads(answer)["go"]:
                raise GivenUp
            for base_offset in group.sources:
                fs.files.forget(f"{message['clean']['directory']}/{base_offset:020d}.log")
    finally:
        fs.files.close_all()
    return asdict(cleaner.stats)


def main() -> None:
    """See the module."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the node decides
    os.nice(NICENESS)

    def say(message: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    try:
        serve(sys.stdin, say)
    except BrokenPipeError:
        os._exit(0)  # the node is gone; nobody is left to tell


if __name__ == "__main__":
    main()
