"""What a scenario is, and the register of them.

A scenario is a function of a `Run`: it picks its victims, calls `run.fault()`, does harm,
`run.hold()`, calls `run.heal()` and mends. The runner does the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chaos import network, shim
from chaos.cluster import Needs, can_mount
from chaos.run import Run

Inject = Callable[[Run], None]


@dataclass(frozen=True)
class Scenario:
    """A fault with a name; `what` is one line for people."""

    name: str
    what: str
    inject: Inject
    needs: Needs
    is_transactional: bool = False
    """Whether it has a transactional load beside the ordinary one."""

    def missing(self) -> str:
        """Why this machine cannot run it; empty when it can."""
        reasons = [
            network.missing() if self.needs.network else "",
            shim.missing() if self.needs.shim else "",
            can_mount() if self.needs.small_disk else "",
        ]
        return "; ".join(reason for reason in reasons if reason)


SCENARIOS: dict[str, Scenario] = {}


def scenario(
    name: str, what: str, needs: Needs | None = None, *, is_transactional: bool = False
) -> Callable[[Inject], Inject]:
    """Register a function under a name."""

    def register(inject: Inject) -> Inject:
        assert name not in SCENARIOS, name
        SCENARIOS[name] = Scenario(name, what, inject, needs or Needs(), is_transactional)
        return inject

    return register
