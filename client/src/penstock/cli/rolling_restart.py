"""`penstock cluster rolling-restart`: every process anew, one at a time, without an error for clients."""

from __future__ import annotations

from typing import Any, Final

import click

from penstock.cli.admin import Admin
from penstock.cli.planned import Asked, HowOf, carry_out, with_plan_options
from penstock.cli.restarting import Restarts
from penstock.cli.via.choosing import WayAsked, choose_way, way_options

ROLES: Final = ("controller", "storage-node", "gateway")
STEP_TIMEOUT_S_MAX: Final = 86_400


@click.command("rolling-restart")
@click.option(
    "--role",
    "roles",
    multiple=True,
    type=click.Choice(ROLES),
    help="Only processes of this role; may be given for each.",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="NAME",
    help="Only this process, such as node-3, controller-1 or a gateway's id; may be given for each.",
)
@click.option(
    "--step-timeout",
    "step_timeout_s",
    type=click.IntRange(1, STEP_TIMEOUT_S_MAX),
    default=300,
    show_default=True,
    metavar="S",
    help="Seconds after which a process that is not well again pauses the operation.",
)
@way_options
@with_plan_options
def rolling_restart(
    how_of: HowOf,
    roles: tuple[str, ...],
    names: tuple[str, ...],
    step_timeout_s: int,
    **way: Any,
) -> int:
    """Restart every process, one at a time: gateways, storage nodes, controllers, the active one last.

    Each is restarted only while the cluster can do without it, and the next one once it is in sync and leads again.
    This command does the restarting: it stays until the end, and Ctrl-C pauses the operation.

    \b
    Examples:
      penstock cluster rolling-restart --dry-run
      penstock cluster rolling-restart --role storage-node --yes
      penstock cluster rolling-restart --via compose --recreate --yes --wait 3600
      penstock cluster rolling-restart --via exec --command 'ssh {name} systemctl restart penstock' --yes
    """
    how = how_of(changes=True)
    # A dry run needs nobody who restarts anything.
    way_found = None if how.dry_run else choose_way(WayAsked(**way), how.where)
    asked = Asked(
        "rolling-restart",
        {
            "roles": dict.fromkeys(roles),
            "process_names": dict.fromkeys(names),
            "step_timeout_s": step_timeout_s,
        },
    )
    with Admin.at(how.where) as admin:

        def restart(operation: dict[str, Any]) -> int:
            assert way_found is not None
            return Restarts(admin, way_found, operation["operation_id"]).run(
                wait_s=how.wait_s, as_json=how.as_json
            )

        return carry_out(admin, asked, how, restart)
