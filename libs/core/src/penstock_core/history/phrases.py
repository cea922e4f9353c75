"""What a cause means for people, as the first half of a sentence. Pure."""

from __future__ import annotations

import re
from typing import Final

from penstock_proto.v1 import metadata_pb2 as pb

_SILENT: Final = re.compile(r"silent for (\d+) ms")
_NO_PROGRESS: Final = re.compile(r"disk made no progress for (\d+) ms")
_LEADER: Final = re.compile(r"leader (\d+): (.+?)(?:, (\d+) ms)?(?:, (\d+) bytes)?")
_MS_WORTH_SECONDS: Final = 1_000
_UNITS: Final = ("bytes", "kB", "MB", "GB", "TB")


def because(cause: pb.Cause) -> str:
    """Empty where nobody said why."""
    maker = _MAKERS.get(cause.kind)
    return maker(cause) if maker is not None else _plain(cause)


def by_whom(cause: pb.Cause) -> str:
    """` by User:admin`, or nothing."""
    return f" by {cause.principal}" if cause.principal else ""


def span(ms: int) -> str:
    """`350 ms`, `2.1 s`, `3 min`."""
    if ms < _MS_WORTH_SECONDS:
        return f"{ms} ms"
    seconds = ms / 1000
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def size(count: int) -> str:
    """`5.2 MB`."""
    value, unit = float(count), 0
    while value >= 1000 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def nodes(ids: tuple[int, ...]) -> str:
    """`node 1`, `nodes 1, 2`."""
    return ("node " if len(ids) == 1 else "nodes ") + ", ".join(map(str, ids))


def _plain(cause: pb.Cause) -> str:
    if not cause.kind:
        return ""
    detail = f" ({cause.detail})" if cause.detail else ""
    return f"{cause.kind} of {cause.subject}{detail}{by_whom(cause)}"


def _fence(cause: pb.Cause) -> str:
    who, gateway = cause.subject, cause.subject.startswith("gateway ")
    end = "is named no more" if gateway else "was fenced"
    if (match := _SILENT.fullmatch(cause.detail)) is not None:
        return f"{who} fell silent ({span(int(match[1]))}) and {end}"
    if (match := _NO_PROGRESS.fullmatch(cause.detail)) is not None:
        return f"the disk of {who} made no progress for {span(int(match[1]))}, and it {end}"
    if cause.detail == "connection refused":
        return f"{who} refused connections (its process was gone) and {end}"
    if cause.detail == "silent":
        return f"{who} fell silent and {end}"
    if cause.detail == "it is stopping":
        return f"{who} was stopped and {end}"
    return f"{who} {end}" + (f" ({cause.detail})" if cause.detail else "")


def _drain(cause: pb.Cause) -> str:
    if cause.detail == "disk failed":
        return f"the disk of {cause.subject} failed, and it gave up what others could take"
    if cause.operation_id:
        return f"operation {cause.operation_id} had {cause.subject} restarted"
    return f"{cause.subject} was told to stop"


def _register(cause: pb.Cause) -> str:
    if cause.detail == "new":
        return f"{cause.subject} joined the cluster"
    return f"{cause.subject} came back {cause.detail}".rstrip()


def _unfence(cause: pb.Cause) -> str:
    if cause.detail:
        return f"{cause.subject} serves on ({cause.detail})"
    return f"{cause.subject} had caught up and serves again"


def _disk(cause: pb.Cause) -> str:
    return f"the disk of {cause.subject} " + ("was full" if cause.detail == "full" else cause.detail)


def _isr(cause: pb.Cause) -> str:
    match = _LEADER.fullmatch(cause.detail)
    if match is None:
        return cause.detail
    lag = [span(int(match[3]))] if match[3] else []
    lag += [size(int(match[4]))] if match[4] else []
    return f"leader {match[1]} found {match[2]}" + (f" ({' and '.join(lag)} behind)" if lag else "")


def _election(cause: pb.Cause) -> str:
    if "by hand" in cause.detail:
        kind = "an unclean election" if "unclean" in cause.detail else "the preferred leader"
        return f"{kind} was asked for{by_whom(cause)}"
    return "leadership went back to preferred leaders"


def _operation(cause: pb.Cause) -> str:
    if cause.detail in ("paused", "resumed", "cancelled", "throttled"):
        return f"{cause.subject} was {cause.detail}{by_whom(cause)}"
    kind = f" ({cause.detail}{by_whom(cause)})" if cause.detail else ""
    return f"{cause.subject}{kind}"


def _move(cause: pb.Cause) -> str:
    return f"a reassignment was asked for{by_whom(cause)}"


def _topic(cause: pb.Cause) -> str:
    return f"{cause.subject} was {cause.detail}{by_whom(cause)}"


def _config(cause: pb.Cause) -> str:
    return f"settings of {cause.subject} were changed{by_whom(cause)}"


def _remove(cause: pb.Cause) -> str:
    return f"{cause.subject} was forgotten{by_whom(cause)}"


def _replace(cause: pb.Cause) -> str:
    return f"the disk of {cause.subject} was replaced{by_whom(cause)}"


def _level(cause: pb.Cause) -> str:
    return f"the cluster's level was raised{by_whom(cause)}"


_MAKERS: Final = {
    "fence": _fence,
    "drain": _drain,
    "register": _register,
    "unfence": _unfence,
    "disk": _disk,
    "isr": _isr,
    "election": _election,
    "operation": _operation,
    "move": _move,
    "topic": _topic,
    "config": _config,
    "remove": _remove,
    "replace": _replace,
    "level": _level,
}
