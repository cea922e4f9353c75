"""Sentences from events and their causes: cause first, then what came of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from penstock_core.history.changes import (
    FROM_ELR,
    FROM_ISR,
    LEADER,
    PartitionChange,
)
from penstock_core.history.phrases import because, nodes
from penstock_core.ids import NO_NODE
from penstock_proto.v1 import operations_pb2 as api

_NAMED_MAX: Final = 3
_PARTITION: Final = "partition "
_SAID: Final = {"fence": "fenced", "unfence": "unfenced", "drain": "stopping"}


def story(events: Iterable[api.ClusterEvent], *, of_operation: bool = False) -> Iterator[api.StoryLine]:
    """A sentence for each event, in the same order; what an operation did to partitions in a row is one."""
    run: list[api.ClusterEvent] = []
    for event in events:
        if of_operation and event.subject.startswith(_PARTITION):
            if run and _deed(run[-1]) != _deed(event):
                yield from _together(run)
                run = []
            run.append(event)
            continue
        yield from _together(run)
        run = []
        yield _line(event, sentence(event))
    yield from _together(run)


def sentence(event: api.ClusterEvent) -> str:
    """What happened, and why as far as it is known."""
    why = because(event.cause)
    if event.subject.startswith(_PARTITION):
        what = of_partition(PartitionChange.parse(event.change))
    elif event.event == "node":
        what = event.change if event.cause.subject == event.subject else f"{event.subject}: {event.change}"
        # The cause says it already.
        known = _SAID.get(event.cause.kind, "")
        if known and (what == known or what.startswith(f"{known}; ")):
            what = what.removeprefix(known).removeprefix("; ")
    elif event.event in ("topic", "config", "operation", "gateway") and event.cause.subject == event.subject:
        what = event.change
    else:
        what = f"{event.subject}: {event.change}"
    glue = ": " if event.event in ("topic", "config", "operation") else "; "
    return glue.join(part for part in (why, what) if part) + "."


def of_partition(change: PartitionChange) -> str:
    """What changed of a partition."""
    said = []
    if change.event == LEADER:
        said.append(_leader(change))
    if change.replicas is not None or change.adding is not None or change.removing is not None:
        said.append(_moved(change))
    if change.isr is not None:
        said.append(_isr(*change.isr))
    if change.elr is not None and (new := change.elr[1]):
        said.append(f"{nodes(new)} may lead again though outside the ISR (ELR)")
    if change.recovered:
        said.append("its leader has recovered")
    return ", ".join([*said, *change.unknown])


def _leader(change: PartitionChange) -> str:
    since = "" if change.epoch is None else f" since epoch {change.epoch}"
    if change.leader is None:
        return f"its leader begins epoch {change.epoch}"
    old, new = change.leader
    if new == NO_NODE:
        return "no node can lead it" + ("" if old == NO_NODE else f" after node {old}")
    if change.elected_from == FROM_ISR:
        how = ", the preferred leader," if change.preferred else ", first live member of the ISR,"
    elif change.elected_from == FROM_ELR:
        how = ", which holds all that was acknowledged (ELR),"
    else:
        how = ", which was not in sync (unclean: records may be lost),"
    return f"node {new}{how} leads{since}" + ("" if old == NO_NODE else f", before it node {old}")


def _isr(old: tuple[int, ...], new: tuple[int, ...]) -> str:
    left = tuple(n for n in old if n not in new)
    joined = tuple(n for n in new if n not in old)
    said = []
    if left:
        said.append(f"{nodes(left)} left the ISR")
    if joined:
        said.append(f"{nodes(joined)} joined the ISR")
    in_sync = f"in sync: {', '.join(map(str, new)) or 'none'}"
    return f"{' and '.join(said)} ({in_sync})" if said else in_sync


def _moved(change: PartitionChange) -> str:
    adding = change.adding[1] if change.adding is not None else ()
    removing = change.removing[1] if change.removing is not None else ()
    if adding or removing:
        said = []
        if adding:
            said.append(f"{nodes(adding)} {'gets a replica' if len(adding) == 1 else 'get replicas'}")
        if removing:
            gives = "gives its own up" if len(removing) == 1 else "give theirs up"
            said.append(f"{nodes(removing)} {gives} once all are in sync")
        return "its move began: " + ", ".join(said)
    ended = change.adding is not None or change.removing is not None
    if change.replicas is None:
        return "its move ended" if ended else ""
    old, new = change.replicas
    if set(old) == set(new):
        return f"its preferred order is {', '.join(map(str, new))}"
    return f"its move ended: replicas {', '.join(map(str, new))}, before {', '.join(map(str, old))}"


# --- what an operation did to partitions -------------------------------------------------------


def _deed(event: api.ClusterEvent) -> str:
    change = PartitionChange.parse(event.change)
    if change.adding is not None or change.removing is not None or change.replicas is not None:
        adding = change.adding[1] if change.adding is not None else ()
        removing = change.removing[1] if change.removing is not None else ()
        if adding or removing:
            return "begin to move"
        old, new = change.replicas or ((), ())
        return "have another order of replicas" if set(old) == set(new) and old else "have moved"
    return "have another leader" if change.event == LEADER else "have another ISR"


def _together(run: list[api.ClusterEvent]) -> Iterator[api.StoryLine]:
    if not run:
        return
    names = [event.subject.removeprefix(_PARTITION) for event in run]
    deed = _deed(run[0])
    if len(run) == 1:
        what = of_partition(PartitionChange.parse(run[0].change))
        yield _line(run[0], f"{names[0]}: {what}.")
        return
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    yield _line(run[-1], f"{len(names)} partitions {deed}: {', '.join(names[:_NAMED_MAX])}{more}.")


def _line(event: api.ClusterEvent, detail: str) -> api.StoryLine:
    return api.StoryLine(
        time_ms=event.time_ms,
        version=event.version,
        event=event.event,
        cause=event.cause.kind,
        detail=detail,
        by=event.cause.principal,
    )
