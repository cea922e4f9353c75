"""Logs: one line per event on standard error, for people or as JSON.

What clients say is in many of them: control characters and the like are written out
(`penstock_core.text`). No stack trace reaches a user: `where(error)` gives the call chain as one short field.
JSON lines and the DEBUG level carry the whole trace as the field `trace`, for us.
A JSON line begins with `timestamp`, `level`, `event` (constant words: what varies is in fields), `role` and `id`. One
line of an event is written in a second (`log_folding`), and the last 2,000 are kept in memory.
Logs of libraries (asyncio, aiohttp, grpc) come out in the same form, from WARNING up.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, TextIO

# structlog loads rich and with it pygments wherever they are installed (a tenth of a second
# and 5 MB in each process) for traces that a role never prints.
_ABSENT = object()
_rich = sys.modules.get("rich", _ABSENT)
if _rich is _ABSENT:
    sys.modules["rich"] = None  # type: ignore[assignment]

import structlog  # noqa: E402
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger  # noqa: E402

from penstock_core.text import harmless  # noqa: E402
from penstock_runtime.log_folding import CONSTANT as CONSTANT  # noqa: E402
from penstock_runtime.log_folding import LEVELS, LogFolding, LogMemory  # noqa: E402

if _rich is _ABSENT:
    del sys.modules["rich"]

Log = FilteringBoundLogger

_TRACE = {"json": True, "console": False}
_settings = {"trace": False}
_FIRST_KEYS = ("timestamp", "level", "event", "role", "id")


class _Writer:
    """The end of every line: counted, folded or rendered, and remembered."""

    def __init__(self, form: str, out: TextIO) -> None:
        self._out = out
        self._is_json = form == "json"
        self._folding = LogFolding()
        self._json = structlog.processors.JSONRenderer(sort_keys=False)
        self._console = structlog.dev.ConsoleRenderer(
            colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
        self.memory = LogMemory()
        self._lock = threading.Lock()

    def __call__(self, _: WrappedLogger, __: str, event: EventDict) -> str:
        """The line as text. Raises DropEvent for one that is folded into a later one."""
        with self._lock:
            self.memory.count(str(event.get("level")))
            if not self._folding.admit(event, time.monotonic()):  # type: ignore[arg-type] # a dict
                raise structlog.DropEvent
            return self._text(event)

    def _text(self, event: EventDict) -> str:
        constant = event.pop(CONSTANT, None)
        ordered: EventDict = {**{key: event[key] for key in _FIRST_KEYS if key in event}, **event}
        if constant is not None:
            ordered["event"] = constant
            ordered["message"] = event["event"]
        line = str(self._json(None, "", ordered))
        self.memory.keep(line)
        return line if self._is_json else str(self._console(None, "", event))

    def write_due(self, *, everything: bool = False) -> None:
        """Write what was folded for a second, or all that is."""
        folding = self._folding
        with self._lock:
            lines = folding.rest() if everything else folding.due(time.monotonic())
            for line in lines:
                self._out.write(self._text(line) + "\n")
            if lines:
                self._out.flush()


class _OfLibraries(logging.Handler):
    """Lines of the standard library's logging, in our form."""

    def __init__(self, processors: Sequence[Processor], writer: _Writer, out: TextIO) -> None:
        super().__init__()
        self._processors = processors
        self._writer = writer
        self._out = out

    def emit(self, record: logging.LogRecord) -> None:
        """Write it, unless it is folded."""
        event: EventDict = {"event": record.getMessage(), "logger": record.name, CONSTANT: str(record.msg)}
        if record.exc_info:
            event["exc_info"] = record.exc_info
        try:
            for each in self._processors:
                event = each(None, record.levelname.lower(), event)  # type: ignore[assignment] # a dict
            line = self._writer(None, "", event)
            self._out.write(line + "\n")
            self._out.flush()
        except structlog.DropEvent:
            return
        except Exception:
            self.handleError(record)


_writer: _Writer | None = None


def configure_logs(level: str, form: str, stream: TextIO | None = None) -> None:
    """Set up structlog and the standard library's logging for this process."""
    global _writer
    out = stream or sys.stderr
    number = logging.getLevelNamesMapping()[level]
    _settings["trace"] = _TRACE[form] or number <= logging.DEBUG
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _shorten_exceptions,
        _make_harmless,
    ]
    writer = _writer = _Writer(form, out)
    structlog.configure(
        processors=[*shared, writer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    for old in list(root.handlers):
        if isinstance(old, _OfLibraries):
            root.removeHandler(old)
    root.addHandler(_OfLibraries(shared, writer, out))
    root.setLevel(max(number, logging.WARNING))


def write_folded(*, everything: bool = False) -> None:
    """Write lines that were held back for a second (or all of them: the process ends). Often; cheap."""
    if _writer is not None:
        _writer.write_due(everything=everything)


def line_counts() -> Mapping[str, int]:
    """Lines logged since the start, by level; those that were folded too."""
    return dict.fromkeys(LEVELS, 0) if _writer is None else _writer.memory.counts


def last_lines() -> list[str]:
    """The last lines of this process as JSON, oldest first; LINES_KEPT of them at most."""
    return [] if _writer is None else _writer.memory.lines


def get_log(**bound: Any) -> Log:
    """A logger with fields that every line of it carries."""
    log: Log = structlog.get_logger(**bound)
    return log


def where(error: BaseException, frames: int = 6) -> str:
    """The innermost calls of an error's traceback, outermost first: `role.py:31 > log.py:210`."""
    chain = [f"{PurePath(f.filename).name}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)]
    return " > ".join(chain[-frames:])


def error_fields(error: BaseException) -> dict[str, str]:
    """Fields that describe an unexpected error in a log line."""
    fields = {"error": f"{type(error).__name__}: {one_line(error)}", "where": where(error)}
    if error.__cause__ is not None:
        fields["cause"] = f"{type(error.__cause__).__name__}: {one_line(error.__cause__)}"
    if _settings["trace"]:
        fields["trace"] = "".join(traceback.format_exception(error))
    return fields


def one_line(error: BaseException) -> str:
    """An error's message with line breaks taken out."""
    return " ".join(str(error).split())


def _make_harmless(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Client ids, names and whatever else comes from outside do nothing to a terminal."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = harmless(value, keep="\n" if name == "trace" else "")
    return event


def _shorten_exceptions(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Turn `exc_info` into the fields of `error_fields`."""
    info = event.pop("exc_info", None)
    if info is True:
        info = sys.exc_info()
    if isinstance(info, tuple):
        info = info[1]
    if isinstance(info, BaseException):
        event.update(error_fields(info))
    return event
