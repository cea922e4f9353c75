"""Arming failpoints from the environment: for crash tests, and nothing else.

    PENSTOCK_FAILPOINTS="log.append.after_write=kill@3;controller.apply.before=pause:500"

A run must say that it may be armed (setting `allow_failpoints`); where it does not, the variable ends the start.

An entry is `name=action[:argument][@n]`: at the nth hit only, or at every hit without
`@n`. Actions: `kill` (SIGKILL to itself), `exit` (at once, code 71), `eio` and `enospc`
(the OSError that the disk would give), `pause:MS` (the thread that hit it sleeps) and
`torn` (half of the write, then SIGKILL; only for the names that end in `torn_write`).

With `PENSTOCK_FAILPOINTS=@FILE` the entries are those of a file that may change, come and
go while the process runs: it is looked at whenever a failpoint is met. A path that is
not absolute begins at the process's working directory.

An armed process says so loudly at start, and names each failpoint that fires on
stderr (its first hit, when it is armed for every one), before it does what it was told.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock_core import failpoints
from penstock_core.failpoints import FAILPOINTS
from penstock_runtime.addresses import StartupError
from penstock_runtime.logs import get_log

VARIABLE = "PENSTOCK_FAILPOINTS"
EXIT_CODE = 71
PAUSE_MS_MAX = 600_000

_ERRORS = {"eio": errno.EIO, "enospc": errno.ENOSPC}
_FAILING = ("log.append.", "log.flush.", "log.roll.", "log.index.", "log.file.", "controller.journal.")
"""Where an OSError is one that the disk may give: the code around must bear it."""
_ENTRY = re.compile(r"([a-z_.]+)=(kill|exit|eio|enospc|pause|torn)(?::(\d{1,9}))?(?:@(\d{1,9}))?\Z")


@dataclass(slots=True)
class Armed:
    """What one failpoint does. `at_hit` 0 means every hit."""

    action: str
    pause_ms: int
    at_hit: int
    hits: int = 0

    def is_due(self) -> bool:
        """Count a hit; True when it is the one."""
        self.hits += 1
        return self.at_hit in (0, self.hits)


def parse(text: str) -> dict[str, Armed]:
    """Failpoints by name. Raises StartupError that names the bad entry."""
    armed: dict[str, Armed] = {}
    for entry in filter(None, (part.strip() for part in text.split(";"))):
        match = _ENTRY.match(entry)
        if match is None:
            raise StartupError(f"{VARIABLE}: {entry!r} is not name=action[:argument][@n]")
        name, action, argument, at_hit = match.groups()
        if name not in FAILPOINTS:
            raise StartupError(f"{VARIABLE}: there is no failpoint {name}")
        if (action == "torn") != name.endswith(".torn_write"):
            raise StartupError(
                f"{VARIABLE}: {entry!r}: torn is for names that end in torn_write, and they for it"
            )
        if action in _ERRORS and not name.startswith(_FAILING):
            raise StartupError(f"{VARIABLE}: {entry!r}: no disk error can come up there")
        if (action == "pause") != (argument is not None) or int(argument or 0) > PAUSE_MS_MAX:
            raise StartupError(f"{VARIABLE}: {entry!r}: pause, and only it, takes milliseconds")
        armed[name] = Armed(action, int(argument or 0), int(at_hit or 0))
    return armed


class _Failpoints:
    """The armed ones. Hits come from any thread."""

    def __init__(self, armed: Mapping[str, Armed], file: Path | None = None) -> None:
        self._armed = armed
        self._file = file
        self._read: tuple[int, int] | None = None
        """Time of change and size of the file when it was read."""
        self._lock = threading.Lock()
        self._torn: set[str] = set()

    def _find(self, name: str) -> Armed | None:
        if self._file is not None:
            with self._lock:
                self._follow(self._file)
        return self._armed.get(name)

    def _follow(self, file: Path) -> None:
        try:
            now = file.stat()
            known = (now.st_mtime_ns, now.st_size)
            if known != self._read:
                self._read, self._armed = known, parse(file.read_text().strip())
        except FileNotFoundError:
            self._read, self._armed = None, {}
        except StartupError as e:
            os.write(2, f"{file}: {e.message}; nothing is armed\n".encode())
            self._armed = {}

    def on_torn(self, name: str) -> bool:
        armed = self._find(name)
        if armed is None:
            return False
        with self._lock:
            is_due = armed.is_due()
            if is_due:
                self._torn.add(name)
        return is_due

    def on_hit(self, name: str) -> None:
        armed = self._find(name)
        if armed is None:
            return
        with self._lock:
            if name not in self._torn and (armed.action == "torn" or not armed.is_due()):
                return
        if armed.at_hit or armed.hits == 1:
            os.write(2, f"failpoint {name}: {armed.action}\n".encode())
        if armed.action in ("kill", "torn"):
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(PAUSE_MS_MAX)  # the signal is on its way; nothing may happen any more
        elif armed.action == "exit":
            os._exit(EXIT_CODE)
        elif armed.action == "pause":
            time.sleep(armed.pause_ms / 1000)
        else:
            number = _ERRORS[armed.action]
            raise OSError(number, f"{os.strerror(number)} (failpoint {name})")


def arm_from_environment(*, allowed: bool) -> None:
    """Arm this process if the environment says so. Raises StartupError, for one thing where it says so in a run
    that was not `allowed` to (setting allow_failpoints)."""
    text = os.environ.get(VARIABLE, "")
    if not text:
        return
    if not allowed:
        raise StartupError(
            f"{VARIABLE} is set, by which this process would fail on purpose: unset it, or give"
            " --allow-failpoints if this is a test"
        )
    file = Path(text[1:]).absolute() if text.startswith("@") else None
    armed = {} if file else parse(text)
    if not armed and file is None:
        return
    points = _Failpoints(armed, file)
    failpoints.install(points.on_hit, points.on_torn)
    get_log().warning(
        "FAILPOINTS ARE ARMED: this process will crash or fail on purpose; never in production",
        failpoints=text,
    )
