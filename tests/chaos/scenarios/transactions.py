"""Faults under a transactional load beside the ordinary one. `--transactions` gives it to any other scenario."""

from __future__ import annotations

from chaos.run import Run
from chaos.scenario import SCENARIOS, scenario

TAKEN_OVER = ("leader-kill", "leader-stop", "gateway-kill")
MOVES = 4


def _register(name: str) -> None:
    known = SCENARIOS[name]
    scenario(f"transactions-{name}", f"{known.what}, with transactions", known.needs, is_transactional=True)(
        known.inject
    )


for _name in TAKEN_OVER:
    _register(_name)


@scenario(
    "transactions-coordinators-moved",
    "coordinators of all transactional ids move to another node, again and again, with transactions",
    is_transactional=True,
)
def coordinators_moved(run: Run) -> None:
    assert run.transactions is not None
    run.fault()
    for _ in range(MOVES):
        run.transactions.move_coordinators()
        run.hold(1 / MOVES)
    run.heal()
