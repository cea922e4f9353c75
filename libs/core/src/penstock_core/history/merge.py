"""What several controllers remember, as one history. Pure.

All of them apply the same commands in the same order, so an event has the same version everywhere; each knows all since
its own `incomplete_before_ms`, and what one lost another one may have.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock_proto.v1 import operations_pb2 as api


def merged(answers: Iterable[api.ReadEventsResponse], now_ms: int) -> tuple[list[api.ClusterEvent], int]:
    """(events, oldest first, each once; before when they are not all, ms since 1970).

    `now_ms` is told where no controller answered.
    """
    found: dict[tuple[int, str, str, int], tuple[int, api.ClusterEvent]] = {}
    known: list[int] = []
    for answer in answers:
        known.append(answer.incomplete_before_ms)
        _take(answer.events, found)
    ordered = sorted(found.items(), key=lambda item: (item[0][0], item[1][0]))
    return [event for _, (_, event) in ordered], min(known, default=now_ms)


def _take(
    events: Sequence[api.ClusterEvent], found: dict[tuple[int, str, str, int], tuple[int, api.ClusterEvent]]
) -> None:
    again: dict[tuple[int, str, str], int] = {}
    for place, event in enumerate(events):
        name = event.version, event.event, event.subject
        again[name] = again.get(name, -1) + 1
        found.setdefault((*name, again[name]), (place, event))
