"""`penstock cluster upgrade`: raises the level of the metadata once every process understands it.

Nodes and gateways say at registration which level they understand, and controllers when they are asked; the
active controller decides again, whatever the plan here said (penstock_core.metadata.levels).
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.controller import (
    CALL_TIMEOUT_MS,
    Seen,
    certificate_option,
    controllers_option,
    directory_option,
    json_option,
    look,
    user_name,
    with_client,
)
from penstock.cli.output import note, print_json, print_table
from penstock.errors import CommandError, ExitCode

if TYPE_CHECKING:
    from penstock_core.metadata import MetadataImage
    from penstock_runtime.controller_client import ControllerClient

_IMAGE_TIMEOUT_MS: Final = 15_000
_IN_THE_WAY: Final = "in the way"
_NAMED_MAX: Final = 5


@dataclass(frozen=True)
class Process:
    """One process of the cluster, as it is planned for."""

    role: str
    name: str
    version: str | None
    level: int | None
    """Level that it understands at most; None where it does not answer."""
    state: str

    @property
    def words(self) -> str:
        """Its name, and why it is in the way."""
        why = "does not answer" if self.level is None else f"understands level {self.level}"
        return f"{self.role} {self.name} ({why})"


@dataclass(frozen=True)
class Plan:
    """What is to be done."""

    now: int
    wanted: int
    processes: list[Process]

    @property
    def in_the_way(self) -> list[Process]:
        """Those that would not understand the metadata any more."""
        return [process for process in self.processes if process.state == _IN_THE_WAY]


@click.command()
@click.option(
    "--level",
    type=click.IntRange(min=1),
    help="Level to reach; by default the highest that this command knows.",
)
@click.option("--yes", is_flag=True, help="Do not ask whether to go on.")
@click.option("--dry-run", is_flag=True, help="Only show the plan.")
@controllers_option
@certificate_option
@directory_option
@json_option
def upgrade(
    level: int | None,
    yes: bool,
    dry_run: bool,
    controllers: str | None,
    certificate: Path | None,
    directory: Path,
    as_json: bool,
) -> None:
    """Raise the level of the cluster's metadata after every process runs a newer build.

    Install the new build on controllers, storage nodes and gateways first, one after another; what it
    brought is switched on by this command. A level never falls, and older builds are refused from then on.
    Asks first; where there is no terminal, --yes or --dry-run has to be given.

    \b
    Examples:
      penstock cluster upgrade --dry-run
      penstock cluster upgrade
      penstock cluster upgrade --level 2 --yes --json --controllers ctl-1:5001
    """
    if not (yes or dry_run or sys.stdin.isatty()):
        raise CommandError(
            "no terminal to ask at: give --yes to go on, or --dry-run to see the plan", ExitCode.USAGE
        )

    async def plan(client: ControllerClient) -> Plan:
        return await _plan(client, level)

    found = with_client(controllers, certificate, directory, plan)
    raised = False
    if not as_json:
        print_table(
            ("role", "name", "version", "level", "state"),
            [[p.role, p.name, p.version, p.level, p.state] for p in found.processes],
        )
    problem = _problem(found)
    if problem is None and found.wanted > found.now and not dry_run:
        if not yes and not click.confirm(
            f"Raise metadata.level from {found.now} to {found.wanted}?", err=True
        ):
            raise CommandError(f"nothing was changed: metadata.level stays {found.now}")

        async def do(client: ControllerClient) -> None:
            await _raise(client, found.wanted)

        with_client(controllers, certificate, directory, do)
        raised = True
    if as_json:
        print_json(
            {
                "level": found.wanted if raised else found.now,
                "wanted": found.wanted,
                "raised": raised,
                "processes": [asdict(p) for p in found.processes],
                "in_the_way": [f"{p.role} {p.name}" for p in found.in_the_way],
            }
        )
    if problem is not None:
        raise problem
    if raised:
        note(f"metadata.level is {found.wanted} now; it was {found.now}")
    elif found.wanted == found.now:
        note(f"metadata.level is {found.now} already")
    else:
        note(f"metadata.level would go from {found.now} to {found.wanted}")


def _problem(plan: Plan) -> CommandError | None:
    if plan.wanted < plan.now:
        return CommandError(
            f"metadata.level is {plan.now} and cannot go back to {plan.wanted}: what it brought may be in the log"
        )
    behind = plan.in_the_way
    if plan.wanted == plan.now or not behind:
        return None
    more = f" and {len(behind) - _NAMED_MAX} more" if len(behind) > _NAMED_MAX else ""
    return CommandError(
        f"metadata.level {plan.wanted} has to wait for {', '.join(p.words for p in behind[:_NAMED_MAX])}{more}; "
        "install a newer build there, or take them out of the cluster"
    )


async def _plan(client: ControllerClient, level: int | None) -> Plan:
    from penstock_core.limits import FEATURE_LEVEL
    from penstock_core.metadata.levels import level_of

    seen = await look(client)
    image = await _image(client, max(answer.version for answer in seen.said.values()))
    wanted = FEATURE_LEVEL if level is None else level
    return Plan(level_of(image), wanted, _processes(seen, image, wanted))


def _processes(seen: Seen, image: MetadataImage, wanted: int) -> list[Process]:
    from penstock_core.metadata.levels import understood

    def process(role: str, name: str, version: str, level: int) -> Process:
        knows = understood(level)
        return Process(role, name, version or None, knows, "ready" if knows >= wanted else _IN_THE_WAY)

    found = []
    for member in sorted(seen.best.members, key=lambda m: m.controller_id):
        own = seen.said.get(member.controller_id)
        if own is None:
            found.append(Process("controller", str(member.controller_id), None, None, _IN_THE_WAY))
        else:
            own_level = own.process.feature_level
            found.append(process("controller", str(member.controller_id), own.process.version, own_level))
    for node_id, node in sorted(image.nodes.items()):
        found.append(process("storage node", str(node_id), node.version, node.feature_level))
    for gateway_id, gateway in sorted(image.gateways.items()):
        info = gateway.record.process
        found.append(process("gateway", gateway_id, info.version, info.feature_level))
    return found


async def _image(client: ControllerClient, version: int) -> MetadataImage:
    """The metadata of that version or a later one: what comes first may be their beginnings. Raises UNREACHABLE."""
    from penstock_runtime.metadata_client import MetadataClient

    metadata = MetadataClient(client, "cli", lambda: time.monotonic_ns() // 1_000_000)
    following = asyncio.create_task(metadata.run())
    try:
        if not await metadata.wait_for_version(max(version, 1), _IMAGE_TIMEOUT_MS):
            raise CommandError(
                "no controller tells its metadata: is a majority of the controllers there "
                "(`penstock controller list`), and is this command as new as they are?",
                ExitCode.UNREACHABLE,
            )
        return metadata.image
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def _raise(client: ControllerClient, level: int) -> Any:
    from penstock_core.errors import PenstockError
    from penstock_core.metadata.levels import METADATA_LEVEL
    from penstock_proto.v1 import controller_pb2 as pb

    request = pb.UpdateFeaturesRequest(
        updates=[pb.FeatureUpdate(name=METADATA_LEVEL, level=level)], principal=f"cli:{user_name()}"
    )
    try:
        reply = await client.call("UpdateFeatures", request, CALL_TIMEOUT_MS)
    except PenstockError as error:
        raise CommandError(
            f"{error.message}; a majority of the controllers must run", ExitCode.UNREACHABLE
        ) from None
    if reply.error.code:
        raise CommandError(reply.error.message)
