"""What `penstock scale` was asked for, what came of it, and how people are told and asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import click

from penstock.cli.output import print_facts
from penstock.cli.planned import How
from penstock.errors import CommandError


@dataclass
class Scaling:
    """What was asked for, and what came of it: the document of `--json`."""

    service: str
    count: int
    via: str
    before: int = 0
    command: str = ""
    operations: list[Any] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    removed_nodes: list[int] = field(default_factory=list)
    plans: list[Any] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """Keys as documented; further ones may be added."""
        return {
            "service": self.service,
            "from": self.before,
            "to": self.count,
            "via": self.via,
            "operations": self.operations,
            "started": self.started,
            "stopped": self.stopped,
            "removed_nodes": self.removed_nodes,
            "command": self.command or None,
            "plans": self.plans,
        }


class Ended(Exception):
    """Told with what was done until then."""

    def __init__(self, error: CommandError) -> None:
        self.error = error


def show(scaling: Scaling, how: How, deed: str) -> None:
    """What is to be done, for people."""
    if how.as_json:
        return
    print_facts(
        [
            ("scale", f"{scaling.service}: {scaling.before} -> {scaling.count}, via {scaling.via}"),
            ("what", deed),
            ("command", scaling.command),
        ]
    )


def confirm(how: How, question: str) -> None:
    """Raises CommandError unless the answer is yes."""
    if not how.yes and not click.confirm(question, err=True):
        raise CommandError("nothing more was changed")
