"""Every metric of Penstock, read from the one table of them: docs/metrics.md.

A heading says who tells the metrics below it, a row is `name`, type, labels, the most series that one process has of it
(empty: as many as there are values of ours for its labels), and its help text word for word.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "metrics.md"
ACTIVE: Final = "active controller"
ROLES: Final = {
    "Every process": ("controller", "storage-node", "gateway"),
    "Kafka listeners": ("storage-node", "gateway"),
    "Storage nodes": ("storage-node",),
    "Gateways": ("gateway",),
    "Controllers": ("controller",),
    "The active controller alone": (ACTIVE,),
}
_ROW: Final = re.compile(r"^\| `(penstock_\w+)` \| (\w+) \| (.*?) \| (\d*) \| (.+) \|$")
NOT_ALWAYS: Final = "Absent until "
"""In the help text of what has no value until something has happened."""


class Metric(NamedTuple):
    """A row."""

    name: str
    kind: str
    """As in # TYPE."""
    labels: frozenset[str]
    """Beside `le`."""
    roles: tuple[str, ...]
    series_max: int | None
    text: str
    """As in # HELP."""


def read(text: str) -> dict[str, Metric]:
    """The rows of the document, by name."""
    found: dict[str, Metric] = {}
    roles: tuple[str, ...] = ()
    for line in text.splitlines():
        if line.startswith("## "):
            roles = ROLES.get(line[3:], ())
        elif row := _ROW.match(line):
            name, kind, labels, most, words = row.groups()
            assert roles, f"{name} stands under no heading of {list(ROLES)}"
            assert name not in found, f"{name} stands there twice"
            names = frozenset(re.findall(r"`(\w+)`", labels))
            found[name] = Metric(name, kind, names, roles, int(most) if most else None, words)
    return found
