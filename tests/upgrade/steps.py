"""Steps of an upgrade, each under load that goes on: a process, the level, the refusal of processes of before."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from typing import Final, Protocol

from penstock.local.plan import CONTROLLER, GATEWAY, NODE
from penstock_core.limits import FEATURE_LEVEL
from upgrade.fleet import LOOKS_AT_LEVELS, NEWER_LOG, ROLES, Fleet, refused_words

LONG: Final = os.environ.get("PENSTOCK_UPGRADE_MATRIX") == "1"
"""The whole matrix: `make upgrade-test`."""
SEED: Final = int(os.environ.get("PENSTOCK_UPGRADE_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)


class AtWork(Protocol):
    """Clients of a cluster."""

    def go_on(self) -> None:
        """Everybody gets more done, from now on."""
        ...


def raise_level(fleet: Fleet) -> None:
    """To the highest that today's build understands."""
    told = json.loads(fleet.penstock("cluster", "upgrade", "--yes", "--json").stdout)
    assert (told["level"], told["raised"]) == (FEATURE_LEVEL, True), told
    assert (told["kind"], told["state"]) == ("upgrade", "done"), told
    ended = json.loads(fleet.penstock("operation", "list", "--all", "--json").stdout)
    assert told["operation_id"] in {operation["operation_id"] for operation in ended}


def refuse_old(fleet: Fleet, clients: AtWork) -> dict[str, str]:
    """A process of before of each role comes back, and is told in one line."""
    level = fleet.build.check()
    words = refused_words(level, FEATURE_LEVEL)
    by_controller = words if level >= LOOKS_AT_LEVELS else NEWER_LOG
    refused = {}
    for name, said in (("node-3", words), ("gateway-2", words), ("controller-3", by_controller)):
        refused[name] = fleet.refused(name, said)
        clients.go_on()
    return refused


def upgrade_all(fleet: Fleet, clients: AtWork, names: list[str]) -> None:
    """One process after another; as long as one is of before, the level stays."""
    *first, last = names
    for name in first:
        fleet.to_new(name)
        clients.go_on()
    waiting = fleet.penstock("cluster", "upgrade", "--yes", code=None)
    assert waiting.returncode, "one process is still of before"
    assert "has to wait for" in waiting.stderr
    assert last.removeprefix("node-").removeprefix("controller-") in waiting.stderr
    fleet.to_new(last)
    clients.go_on()


FORWARD, BACK = True, False
WALK = (
    (NODE, FORWARD),
    (GATEWAY, FORWARD),
    (NODE, BACK),
    (CONTROLLER, FORWARD),
    (GATEWAY, BACK),
    (NODE, FORWARD),
    (CONTROLLER, BACK),
    (GATEWAY, FORWARD),
    (CONTROLLER, FORWARD),
)
"""Which role goes to the new build or back, in turn: 24 processes, where three orders there and back are 48."""


def mixtures(walk: Sequence[tuple[str, bool]]) -> list[frozenset[str]]:
    """Roles that are of the new build after each step."""
    found: list[frozenset[str]] = []
    new: frozenset[str] = frozenset()
    for role, forward in walk:
        assert (role in new) is not forward
        new = new | {role} if forward else new - {role}
        found.append(new)
    return found


def at_random(names: list[str]) -> list[str]:
    """Another order of them, which the seed says."""
    print(f"PENSTOCK_UPGRADE_SEED={SEED}")
    return random.Random(SEED).sample(names, len(names))


def orders(fleet: Fleet) -> dict[str, list[str]]:
    """Each role first, and any process at any time."""
    return {
        **{
            f"{first} first": fleet.names(first) + fleet.names(*(r for r in ROLES if r != first))
            for first in ROLES
        },
        "at random": at_random(fleet.names()),
    }
