"""Logs: one line per event on standard error, for people or as JSON.

What clients say is in many of them: control characters and the like are written out
(`penstock_core.text`). No stack trace reaches a user: `where(error)` gives the call chain as one short field.
JSON lines and the DEBUG level carry the whole trace as the field `trace`, for us.
Logs of libraries (asyncio, aiohttp, grpc) come out in the same form, from WARNING up.
"""

from __future__ import annotations

import logging
import sys
import traceback
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

if _rich is _ABSENT:
    del sys.modules["rich"]

Log = FilteringBoundLogger

_TRACE = {"json": True, "console": False}
_settings = {"trace": False}


def configure_logs(level: str, form: str, stream: TextIO | None = None) -> None:
    """Set up structlog and the standard library's logging for this process."""
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
    renderer: Processor
    if form == "json":
        renderer = structlog.processors.JSONRenderer(sort_keys=False)
    else:
        renderer = structlog.dev.ConsoleRenderer(
            colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared[:-2], structlog.stdlib.add_logger_name],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _shorten_exceptions,
                _make_harmless,
                renderer,
            ],
        )
    )
    root = logging.getLogger()
    for old in list(root.handlers):
        if isinstance(old.formatter, structlog.stdlib.ProcessorFormatter):
            root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(max(number, logging.WARNING))


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
