"""`penstock scale`: more or fewer storage nodes and gateways, and the data with them.

More storage nodes: start processes, wait until the cluster has them, give them their share (`node-add`). Fewer: choose
nodes, move everything away and remove them (`node-remove`, one operation of all of them, so that nothing moves twice),
then stop processes. Nothing is stopped before its node has been removed, so that a command that was cut short, or whose
wait ran out, is only to be given once more: what is left to do follows from how many there are.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from penstock.cli import plans
from penstock.cli.admin import Admin, Where
from penstock.cli.output import note, print_json
from penstock.cli.planned import How, HowOf, with_plan_options
from penstock.cli.scale_choice import parse_target
from penstock.cli.scale_nodes import scale_nodes
from penstock.cli.scale_state import Ended, Scaling, confirm, show
from penstock.cli.via.choosing import is_local
from penstock.cli.via.compose import GATEWAY, ComposeWay
from penstock.cli.via.scaling import LIVE_TIMEOUT_S, ComposeScaler, LocalScaler, PrintScaler, Scaler
from penstock.errors import CommandError, ExitCode


@click.command("scale")
@click.argument("target", metavar="storage-node=N|gateway=N")
@click.option(
    "--via",
    type=click.Choice(["local", "compose", "print"]),
    help="Who starts and stops processes: the local cluster, compose, or somebody else, for whom it is only printed. "
    "Default: local where the gateway is the local cluster's.",
)
@click.option(
    "--compose-file",
    "files",
    multiple=True,
    metavar="F",
    help="With --via compose: the compose file; may be given several times, as -f of compose.",
)
@click.option("--project", metavar="P", help="With --via compose: the project, as -p of compose.")
@with_plan_options
def COMMAND(  # noqa: N802 (the name that cli.main looks for)
    how_of: HowOf, target: str, via: str | None, files: tuple[str, ...], project: str | None
) -> int:
    """More or fewer storage nodes and gateways, and the data with them.

    More: they are started, and storage nodes get their share. Fewer: storage nodes are emptied and removed, then
    stopped. Those go that hold least, as long as every failure domain stays. Given once more it goes on where it was
    cut short.

    \b
    Examples:
      penstock scale storage-node=5                                        of the local cluster
      penstock scale storage-node=3 --dry-run
      penstock scale storage-node=5 --via compose --compose-file deploy/compose/compose.yaml --yes --wait 3600
      penstock scale gateway=3 --via compose --project penstock --yes
      penstock scale storage-node=3 --via print                            what to type for Kubernetes
    """
    service, count = parse_target(target)
    how = how_of(changes=via != "print")
    scaler = _scaler(via, files, project, how.where)
    scaling = Scaling(service, count, scaler.via)
    try:
        if service == GATEWAY:
            _scale_gateways(scaler, how, scaling)
        else:
            with Admin.at(how.where) as admin:
                scale_nodes(admin, scaler, how, scaling)
    except Ended as ended:
        return _tell(scaling, how, ended.error)
    return _tell(scaling, how)


def _tell(scaling: Scaling, how: How, error: CommandError | None = None) -> int:
    """Raises the error after the document."""
    if how.as_json:
        print_json(scaling.document())
    if error is not None:
        raise error
    if how.dry_run or scaling.via == PrintScaler.via:
        note("nothing was changed")
    return ExitCode.OK


def _scale_gateways(scaler: Scaler, how: How, scaling: Scaling) -> None:
    running = scaler.running(GATEWAY)
    if running is None:
        with Admin.at(how.where) as admin:
            running = len(admin.cluster().gateways)
    scaling.before = running
    change = scaling.count - running
    scaling.command = scaler.command(GATEWAY, scaling.count, (), ())
    if change == 0:
        note(f"there are {scaling.count} gateways already")
        return
    deed = f"{'start' if change > 0 else 'stop'} {plans.counted(abs(change), 'gateway')}"
    show(scaling, how, deed)
    if how.dry_run or scaler.is_numbered:
        return
    confirm(how, f"{deed.capitalize()} by {scaler.via}?")
    if change > 0:
        scaling.started += scaler.start_more(GATEWAY, change)
        scaler.wait_until_well(GATEWAY, scaling.started, LIVE_TIMEOUT_S)
        note(f"started: {', '.join(scaling.started)}")
        return
    for process in reversed(scaler.newest(GATEWAY, -change)):
        # Clients of one come back at another before that one goes.
        scaler.stop([process])
        scaling.stopped.append(process.name)
    note(f"stopped: {', '.join(scaling.stopped)}")


def _scaler(via: str | None, files: Sequence[str], project: str | None, where: Where) -> Scaler:
    """Raises a usage error where nobody was named and it is not the local cluster's gateway."""
    local = is_local(where)
    if (files or project) and via is None:
        via = "compose"
    if via is None and not local:
        raise CommandError(
            "who starts and stops processes? The gateway is not the local cluster's: give --via compose, or "
            "--via print to see what to type",
            ExitCode.USAGE,
        )
    if (files or project) and via != "compose":
        raise CommandError("--compose-file and --project are for --via compose", ExitCode.USAGE)
    if via == "compose":
        return ComposeScaler(ComposeWay(files or None, project))
    if via == "print":
        return PrintScaler()
    if not local:
        raise CommandError(
            f"--via local: the gateway is not one of the local cluster in {where.directory}; --dir names another one",
            ExitCode.USAGE,
        )
    return LocalScaler(where.directory)
